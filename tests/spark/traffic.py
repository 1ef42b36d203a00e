"""Topics and messages for the tests with Spark."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from contrail import Admin, Message, MessageQueue, Producer
from contrail.testing import LocalCluster

SEND_TIMEOUT_MS = 30_000


def make_topic(
    cluster: LocalCluster, topic: str, *, queues: int = 4, broker: str | None = None
) -> str:
    """Create a topic on every broker, or on one; returns its name."""
    with Admin(cluster.namesrv, timeout_ms=SEND_TIMEOUT_MS) as admin:
        admin.create_topic(topic, queues=queues, broker=broker)
    return topic


def queues_of(cluster: LocalCluster, topic: str) -> list[MessageQueue]:
    """The topic's queues, in order."""
    with Admin(cluster.namesrv) as admin:
        return sorted(admin.queues(topic))


def send_rows(
    cluster: LocalCluster, messages: Iterable[Message], *, queues: Sequence[MessageQueue] = ()
) -> list[tuple[MessageQueue, int, bytes]]:
    """Send messages of one topic round its queues, or round the given ones, in order.

    Returns where each one landed: its queue, its queue offset and its body.
    """
    listed = list(messages)
    places = list(queues) or queues_of(cluster, listed[0].topic)
    landed = []
    with Producer("spark-tests", cluster.namesrv, send_timeout_ms=SEND_TIMEOUT_MS) as producer:
        for first, queue in enumerate(places):
            mine = listed[first :: len(places)]
            for begin in range(0, len(mine), 500):
                batch = mine[begin : begin + 500]
                receipt = producer.send_batch(batch, queue=queue)
                landed += [
                    (queue, receipt.queue_offset + shift, message.body)
                    for shift, message in enumerate(batch)
                ]
    return landed


def orders(topic: str, count: int, *, first: int = 0) -> list[Message]:
    """Numbered messages with a tag, a key and a property each."""
    return [
        Message(
            topic,
            f"order {number}".encode(),
            tags="paid" if number % 2 else "open",
            keys=[f"k{number}"],
            properties={"region": "eu" if number % 3 else "us", "number": str(number)},
        )
        for number in range(first, first + count)
    ]
