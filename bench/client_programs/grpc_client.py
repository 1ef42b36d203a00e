"""Sends or consumes with PyPI's ``rocketmq-python-client``; prints its figures as JSON.

Runs in the virtual environment of that package and imports nothing of Contrail.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from typing import Any

from rocketmq import (  # type: ignore[import-not-found]
    ClientConfiguration,
    ConsumeResult,
    Credentials,
    FilterExpression,
    Message,
    MessageListener,
    Producer,
    PushConsumer,
)

_REQUEST_TIMEOUT_S = 10


def send(arguments: dict[str, Any]) -> dict[str, float]:
    """One message after the other, each answered before the next."""
    topic, body = arguments["topic"], b"b" * arguments["body_bytes"]
    producer = Producer(_configuration(arguments), (topic,))
    producer.startup()
    _send_many(producer, topic, body, arguments["warm_up_count"])
    wall, cpu = time.perf_counter(), time.process_time()
    _send_many(producer, topic, body, arguments["count"])
    return _figures(wall, cpu, arguments["count"])


def _send_many(producer: Any, topic: str, body: bytes, count: int) -> None:
    for _ in range(count):
        message = Message()
        message.topic = topic
        message.body = body
        producer.send(message)


def consume(arguments: dict[str, Any]) -> dict[str, float]:
    """A stored backlog by a push consumer with its own settings, from the first message on."""
    listener = _Counting(arguments["count"])
    topic = arguments["topic"]
    consumer = PushConsumer(
        _configuration(arguments), arguments["group"], listener, {topic: FilterExpression()}
    )
    consumer.startup()
    if not listener.ended.wait(arguments["timeout_s"]):
        raise RuntimeError(f"{listener.seen} of {arguments['count']} messages came in time")
    return listener.figures


class _Counting(MessageListener):  # type: ignore[misc]
    """The clock runs from the first message to the last."""

    def __init__(self, wanted: int) -> None:
        self._wanted = wanted
        self._lock = threading.Lock()
        self._wall = self._cpu = 0.0
        self.seen = 0
        self.ended = threading.Event()
        self.figures: dict[str, float] = {}

    def consume(self, message: Any) -> Any:
        with self._lock:
            if self.seen == 0:
                self._wall, self._cpu = time.perf_counter(), time.process_time()
            self.seen += 1
            if self.seen == self._wanted:
                self.figures = _figures(self._wall, self._cpu, self._wanted)
                self.ended.set()
        return ConsumeResult.SUCCESS


def _configuration(arguments: dict[str, Any]) -> Any:
    return ClientConfiguration(
        arguments["proxy"], Credentials(), request_timeout=_REQUEST_TIMEOUT_S
    )


def _figures(wall: float, cpu: float, count: int) -> dict[str, float]:
    return {
        "wall_s": time.perf_counter() - wall,
        "cpu_s": time.process_time() - cpu,
        "record_count": count,
    }


def main() -> None:
    commands = {"send": send, "consume": consume}
    print(json.dumps(commands[sys.argv[1]](json.loads(sys.argv[2]))), flush=True)
    # Its threads need not be waited for: the measured work is done.
    os._exit(0)


if __name__ == "__main__":
    main()
