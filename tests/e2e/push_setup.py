"""What the tests of push consumers share: a handler that notes what it got, and patience."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterable
from typing import Any

from contrail.client.admin import Admin
from contrail.client.consumed_message import ConsumedMessage
from contrail.client.message import Message
from contrail.client.producer import Producer
from contrail.client.push_consumer import PushConsumer
from contrail.testing import LocalCluster

PATIENCE_S = 100.0
_numbers = itertools.count(1)


def fresh(kind: str) -> str:
    """A name that no other test has."""
    return f"{kind}-{next(_numbers)}"


async def eventually(
    happened: Callable[[], Any], what: str = "it", *, cluster: LocalCluster | None = None
) -> None:
    """Wait for something, with a deadline that only a broken program needs.

    The clock of ``cluster`` is moved meanwhile, so that what is delayed becomes due.
    """
    deadline_s = asyncio.get_running_loop().time() + PATIENCE_S
    while not happened():
        assert asyncio.get_running_loop().time() < deadline_s, f"{what} did not happen"
        if cluster is not None:
            cluster.advance(ms=1_000)
        await asyncio.sleep(0.01)


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
        await eventually(lambda: len(self.messages) >= count, enough, cluster=cluster)


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
