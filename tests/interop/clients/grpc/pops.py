"""Apache's Python client for gRPC: sends, receives, acknowledges and changes a message's time."""

from __future__ import annotations

import sys
import time

from grpc import StatusCode  # type: ignore[import-untyped]
from grpc.aio import AioRpcError  # type: ignore[import-untyped]
from rocketmq import (  # type: ignore[import-not-found]
    ClientConfiguration,
    Credentials,
    FilterExpression,
    Message,
    Producer,
    SimpleConsumer,
)
from rocketmq.v5.exception.client_exception import (  # type: ignore[import-not-found]
    InternalErrorException,
)


def main(endpoint: str, topic: str, group: str) -> None:
    # A busy machine answers late.
    settings = ClientConfiguration(endpoint, Credentials(), request_timeout=20)
    producer = Producer(settings, (topic,))
    producer.startup()
    for number in range(4):
        message = Message()
        message.topic, message.body, message.keys = topic, b"%d" % number, f"key-{number}"
        producer.send(message)
    producer.shutdown()
    consumer = SimpleConsumer(settings, group, {topic: FilterExpression()}, 10)
    consumer.startup()
    held: dict[bytes, object] = {}
    until_s = time.time() + 60
    while len(held) < 4 and time.time() < until_s:
        for one in received(consumer):
            print("first", one.body.decode(), one.delivery_attempt, flush=True)
            held[one.body] = one
    consumer.ack(held[b"0"])
    consumer.ack(held[b"1"])
    consumer.change_invisible_duration(held[b"2"], 10)
    consumer.ack(held[b"3"])
    again: set[bytes] = set()
    while not again and time.time() < until_s + 40:
        for one in received(consumer):
            print("again", one.body.decode(), one.delivery_attempt, flush=True)
            consumer.ack(one)
            again.add(one.body)
    consumer.shutdown()
    print("done", flush=True)


def received(consumer: SimpleConsumer) -> list[object]:
    """Messages; none at the end of a call's time, or before the proxy has the client's settings."""
    try:
        return list(consumer.receive(16, 20) or ())
    except (InternalErrorException, AioRpcError) as error:
        if isinstance(error, AioRpcError) and error.code() is not StatusCode.DEADLINE_EXCEEDED:
            raise
        print("not yet", error, file=sys.stderr)
        time.sleep(1)
        return []


if __name__ == "__main__":
    main(*sys.argv[1:])
