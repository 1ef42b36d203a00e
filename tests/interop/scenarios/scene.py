"""One scenario: a running cluster, names of its own there, and clients that are in a hurry."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager, suppress
from typing import Any

from contrail.aio import (
    Admin,
    ConsumedMessage,
    Message,
    MessageQueue,
    Producer,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
    Sql92,
)
from contrail.errors import RouteMissing
from contrail.testing import eventually_async
from tests.interop.scenarios.clusters import RunningCluster

Handler = Callable[[ConsumedMessage], Awaitable[object]]

# Generous, because machines that test are busy; nothing waits that long when all is well.
PATIENCE_S = 90.0
SCENARIO_S_MAX = 240.0
_CALL_TIMEOUT_MS = 15_000

# Settings in place of Apache's defaults that a scenario would wait for.
HURRY: dict[str, Any] = {
    "consume_from_where": "first",
    "rebalance_interval_ms": 1_000,
    "persist_consumer_offset_interval_ms": 300,
    "api_timeout_ms": _CALL_TIMEOUT_MS,
}


class Scene:
    """A cluster, and names that no other scenario uses there."""

    def __init__(self, cluster: RunningCluster, word: str) -> None:
        self.cluster = cluster
        self.namesrv = cluster.namesrv
        self.topic = f"topic_{word}"
        self.group = f"group_{word}"
        self.producer_group = f"senders_{word}"

    async def make_topic(
        self, *, queues: int = 2, brokers: int | None = None, topic: str | None = None
    ) -> list[MessageQueue]:
        """Create the topic, on all brokers unless only on the first few; its queues."""
        name = topic or self.topic
        async with self.admin() as admin:
            names = sorted({one.broker_name for one in await admin.brokers()})
            for broker in names[:brokers]:
                await admin.create_topic(name, queues=queues, broker=broker)
            return await admin.queues(name)

    def admin(self) -> Admin:
        return Admin(self.namesrv, timeout_ms=_CALL_TIMEOUT_MS)

    def producer(self, **options: Any) -> Producer:
        given = {"send_timeout_ms": _CALL_TIMEOUT_MS, "api_timeout_ms": _CALL_TIMEOUT_MS} | options
        return Producer(self.producer_group, self.namesrv, **given)

    def consumer(self, member: str = "one", **options: Any) -> PushConsumer:
        """A member of the group; members are told apart by name."""
        group = options.pop("group", self.group)
        return PushConsumer(group, self.namesrv, instance_name=member, **HURRY | options)

    @asynccontextmanager
    async def consuming(
        self,
        handler: Handler,
        member: str = "one",
        *,
        expression: str | Sql92 = "*",
        **options: Any,
    ) -> AsyncIterator[PushConsumer]:
        """A member of the group at work on the topic, closed at the end."""
        consumer = self.consumer(member, **options)
        consumer.on_message(handler)
        await consumer.subscribe(self.topic, expression)
        async with consumer:
            yield consumer

    def pull_consumer(self, member: str = "one", **options: Any) -> PullConsumer:
        given = {name: HURRY[name] for name in HURRY if not name.startswith("persist")}
        return PullConsumer(self.group, self.namesrv, instance_name=member, **given | options)

    def message(self, key: str, **fields: Any) -> Message:
        topic = fields.pop("topic", self.topic)
        body = fields.pop("body", f"body of {key}".encode())
        return Message(topic, body, keys=[key], **fields)

    async def send(self, *keys: str, **fields: Any) -> None:
        """Send a message of each key, in turn."""
        async with self.producer() as producer:
            for key in keys:
                await producer.send(self.message(key, **fields))

    async def stored(self, count: int, topic: str | None = None) -> list[ReceivedMessage]:
        """That many messages of the topic, by queue and place, as soon as they are there."""
        async with self.admin() as admin:
            found: list[ReceivedMessage] = []

            async def is_all() -> bool:
                # A topic that is made by sending has no route until its broker has registered it.
                with suppress(RouteMissing):
                    found[:] = await _browse(admin, topic or self.topic)
                return len(found) >= count

            await eventually_async(is_all, lambda: f"{count} messages, not only {found}")
        assert len(found) == count, found
        return found

    async def store_time_ms(self, key: str) -> int:
        """When the message with that key was stored.

        Times are looked up by it, because brokers before 5.0 take the nearest message.
        """
        times: list[int] = []
        async with self.admin() as admin:

            async def is_indexed() -> bool:
                found = await admin.messages_by_key(self.topic, key)
                times[:] = [one.store_timestamp_ms for one in found]
                return bool(times)

            await eventually_async(is_indexed, f"the index of {key}")
        return times[0]


async def _browse(admin: Admin, topic: str) -> list[ReceivedMessage]:
    return [one for queue in await admin.queues(topic) async for one in admin.browse(queue)]


class Inbox:
    """The messages that the handlers of one or several consumers received, in that order."""

    def __init__(self) -> None:
        self.messages: list[ConsumedMessage] = []

    async def take(self, message: ConsumedMessage) -> None:
        self.messages.append(message)

    @property
    def keys(self) -> list[str]:
        return keys_of(self.messages)

    async def until_has(self, keys: Iterable[str]) -> None:
        """Wait for all of them; anything may come more than once."""
        wanted = set(keys)
        await eventually_async(
            lambda: wanted <= set(self.keys), lambda: f"{wanted}, not only {self.keys}"
        )


def keys_of(messages: Iterable[ReceivedMessage]) -> list[str]:
    return [message.keys[0] for message in messages]


async def next_millisecond() -> int:
    """A time after all messages stored before, and not after the next ones."""
    now_ms = int(time.time() * 1000)
    await eventually_async(lambda: time.time() * 1000 > now_ms + 20, "a later millisecond")
    return int(time.time() * 1000)


def scenario(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """A test function that runs its coroutine in a loop of its own."""

    @functools.wraps(test)
    def whole(*given: Any, **named: Any) -> None:
        run(test(*given, **named))

    return whole


def run(work: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine in a loop of its own, with a timeout."""
    asyncio.run(asyncio.wait_for(work, SCENARIO_S_MAX))
