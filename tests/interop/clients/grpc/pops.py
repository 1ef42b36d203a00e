"""Apache's Python client for gRPC: sends, receives, acknowledges and changes a message's time."""

from __future__ import annotations

import sys
import time

from rocketmq import (  # type: ignore[import-not-found]
    ClientConfiguration,
    Credentials,
    FilterExpression,
    Message,
    Producer,
    SimpleConsumer,
)


def main(endpoint: str, topic: str, group: str) -> None:
    settings = ClientConfiguration(endpoint, Credentials())
    producer = Producer(settings, (topic,))
    producer.startup()
    for number in range(4):
        message = Message()
        message.topic, message.body, message.keys = topic, b"%d" % number, f"key-{number}"
        producer.send(message)
    producer.shutdown()
    consumer = SimpleConsumer(settings, group, {topic: FilterExpression()}, 2)
    consumer.startup()
    held: dict[bytes, object] = {}
    until_s = time.time() + 40
    while len(held) < 4 and time.time() < until_s:
        for one in consumer.receive(16, 20) or ():
            print("first", one.body.decode(), one.delivery_attempt, flush=True)
            held[one.body] = one
    consumer.ack(held[b"0"])
    consumer.ack(held[b"1"])
    consumer.change_invisible_duration(held[b"2"], 10)
    consumer.ack(held[b"3"])
    again: set[bytes] = set()
    while not again and time.time() < until_s + 20:
        for one in consumer.receive(16, 20) or ():
            print("again", one.body.decode(), one.delivery_attempt, flush=True)
            consumer.ack(one)
            again.add(one.body)
    consumer.shutdown()
    print("done", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
