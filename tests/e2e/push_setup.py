"""Shared by the tests of push consumers: a handler that notes what it got, and patience."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from typing import Any

from contrail.client.admin import Admin
from contrail.client.consumed_message import ConsumedMessage
from contrail.client.message import Message
from contrail.client.producer import Producer
from contrail.client.push_consumer import PushConsumer
from contrail.testing import LocalCluster, eventually_async

PATIENCE_S = 100.0
_numbers = itertools.count(1)


def fresh(kind: str) -> str:
    """A name that no other test has."""
    return f"{kind}-{next(_numbers)}"


async def eventually_due(
    cluster: LocalCluster, happened: Callable[[], Any], what: str = "it is due"
) -> None:
    """Wait while the clock of ``cluster`` moves, so that what is delayed becomes due."""

    def moved() -> Any:
        return happened() or cluster.advance(ms=1_000)

    await eventually_async(moved, what, pause_s=0.01)


async def make_topic(namesrv: str, topic: str) -> None:
    """Return once it has a route: one that is made by a send alone has it a moment later."""
    async with Admin(namesrv) as admin:
        await admin.create_topic(topic, queues=4)


async def send(namesrv: str, topic: str, bodies: Iterable[str], **fields: Any) -> None:
    async with Producer(fresh("senders"), namesrv) as producer:
        for body in bodies:
            await producer.send(Message(topic, body.encode(), **fields))


class Seen:
    """A handler that remembers."""

    def __init__(self) -> None:
        self.messages: list[ConsumedMessage] = []

    async def __call__(self, message: ConsumedMessage) -> None:
        self.messages.append(message)

    @property
    def bodies(self) -> list[str]:
        return [message.body.decode() for message in self.messages]

    async def reach(self, count: int, *, cluster: LocalCluster | None = None) -> None:
        enough = f"{count} messages"
        if cluster is None:
            await eventually_async(lambda: len(self.messages) >= count, enough, pause_s=0.01)
        else:
            await eventually_due(cluster, lambda: len(self.messages) >= count, enough)


async def consuming(
    namesrv: str, group: str, topic: str, handler: Any, **options: Any
) -> PushConsumer:
    """A started consumer that begins with the first message."""
    options.setdefault("consume_from_where", "first")
    expression = options.pop("expression", "*")
    consumer = PushConsumer(group, namesrv, **options)
    consumer.on_message(handler)
    await consumer.subscribe(topic, expression)
    await consumer.start()
    return consumer
