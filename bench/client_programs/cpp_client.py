"""Sends with the C++ client inside PyPI's ``rocketmq``; prints its figures as JSON.

Runs in the virtual environment of that package and imports nothing of Contrail.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

from rocketmq.client import (  # type: ignore[import-not-found]
    Message,
    Producer,
    SendStatus,
)

# It forgets a route that it could not refresh within three seconds, as on a busy machine.
_ROUTE_PATIENCE_S = 30.0
_ROUTE_PAUSE_S = 0.2


def send(arguments: dict[str, Any]) -> dict[str, float]:
    producer = Producer("cpp_senders", timeout=10_000)
    producer.set_namesrv_addr(arguments["namesrv"])
    producer.start()
    body = b"b" * arguments["body_bytes"]
    _send_many(producer, arguments["topic"], body, arguments["warm_up_count"])
    wall, cpu = time.perf_counter(), time.process_time()
    _send_many(producer, arguments["topic"], body, arguments["count"])
    return {
        "wall_s": time.perf_counter() - wall,
        "cpu_s": time.process_time() - cpu,
        "record_count": arguments["count"],
    }


def _send_many(producer: Any, topic: str, body: bytes, count: int) -> None:
    for _ in range(count):
        _send_one(producer, topic, body)


def _send_one(producer: Any, topic: str, body: bytes) -> None:
    deadline = None
    while True:
        message = Message(topic)
        message.set_body(body)
        try:
            result = producer.send_sync(message)
        except Exception as problem:
            deadline = deadline or time.monotonic() + _ROUTE_PATIENCE_S
            if "No route info" not in repr(problem) or time.monotonic() > deadline:
                raise
            time.sleep(_ROUTE_PAUSE_S)
        else:
            if result.status is not SendStatus.OK:
                raise RuntimeError(f"a message was answered by {result.status.name}")
            return


def main() -> None:
    print(json.dumps(send(json.loads(sys.argv[1]))), flush=True)
    # The destructors of the library shut all threads down once more, and that aborts.
    os._exit(0)


if __name__ == "__main__":
    main()
