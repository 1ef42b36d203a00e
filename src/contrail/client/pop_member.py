"""A running pop consumer as its client instance, its group and brokers see it."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Collection, Mapping
from typing import NamedTuple

from contrail.client.instance import ClientInstance
from contrail.client.message import MessageQueue, ReceivedMessage
from contrail.client.pop_handling import PopHandling
from contrail.client.pop_settings import PopSettings
from contrail.client.popping import PoppedMessage, pop_once, prolong_once
from contrail.errors import ClientError, RouteMissing
from contrail.model.subscription import SubscriptionData
from contrail.protocol.bodies.heartbeat import (
    ConsumeFromWhere,
    ConsumerData,
    ConsumeType,
    MessageModel,
)

_log = logging.getLogger(__name__)

# A message that was popped ahead is not handed out with less of its time left than this part.
_LEAST_PART = 2


class Place(NamedTuple):
    """Where messages are popped: all queues of a topic at one broker."""

    topic: str
    broker_name: str


class PopMember:
    """Pops at all brokers of its topics; made at the consumer's start, dropped at its close."""

    def __init__(
        self,
        instance: ClientInstance,
        group: str,
        settings: PopSettings,
        subscriptions: Mapping[str, SubscriptionData],
    ) -> None:
        self.instance = instance
        self._group = group
        self._settings = settings
        self._subscriptions = subscriptions
        self._started_ms = instance.clock.now_ms()
        self._pops: dict[Place, asyncio.Task[list[PoppedMessage]]] = {}
        # Messages that were popped and not handed out yet.
        self._kept: deque[PoppedMessage] = deque()
        self._resting_until_s: dict[Place, float] = {}
        self._problem: ClientError | None = None
        self._handling: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Raises ``GroupTaken``."""
        self.instance.add_consumer(self)

    async def stop(self) -> None:
        """Leave the group; messages that were popped ahead become visible to others."""
        if self._handling is not None:
            self._handling.cancel()
            await asyncio.wait({self._handling})
        pops, self._pops = list(self._pops.values()), {}
        for task in pops:
            task.cancel()
        for messages in await asyncio.gather(*pops, return_exceptions=True):
            if not isinstance(messages, BaseException):
                # The answer had come before.
                self._kept += messages
        kept, self._kept = list(self._kept), deque()
        released = await asyncio.gather(
            *(prolong_once(self.instance, self._group, one, 0) for one in kept),
            return_exceptions=True,
        )
        for one, problem in zip(kept, released, strict=True):
            if isinstance(problem, ClientError):
                _log.warning("%r comes again only after its invisible time: %s", one, problem)
        await self.instance.remove_consumer(self._group)

    # Receiving.

    async def handle(self, handling: PopHandling) -> None:
        """Handle messages until the member is stopped.

        Raises:
            ClientError: they are handled already.
        """
        if self._handling is not None:
            raise ClientError(f"group {self._group!r} has a handler already: one run() at a time")
        self._handling = self.instance.spawn(handling.run(), f"handlers of {self._group}")
        try:
            await asyncio.wait({self._handling})
        finally:
            # The caller may be cancelled, and its handlers with it.
            self._handling.cancel()
            await asyncio.wait({self._handling})
            self._handling = None

    async def receive(self, count_max: int, timeout_ms: int) -> list[PoppedMessage]:
        """Messages as soon as there are some; none after ``timeout_ms``.

        Raises:
            ClientError: no broker could be asked, or none gave an answer.
        """
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + timeout_ms / 1000
        self._problem = None
        while True:
            found = self._take_kept(count_max)
            left_s = deadline_s - loop.time()
            if found or left_s <= 0:
                break
            await self._pop_everywhere(count_max, left_s)
        if not found and self._problem is not None:
            raise self._problem
        return found

    def _take_kept(self, count_max: int) -> list[PoppedMessage]:
        now_ms = self.instance.clock.now_ms()
        found: list[PoppedMessage] = []
        while self._kept and len(found) < count_max:
            one = self._kept.popleft()
            # Others get it soon: better they alone.
            if one.visible_ms - now_ms > one.receipt.invisible_ms // _LEAST_PART:
                found.append(one)
        return found

    async def _pop_everywhere(self, count_max: int, left_s: float) -> None:
        """Ask every broker that is not being asked, and wait for the first that answers."""
        loop = asyncio.get_running_loop()
        places = await self._places()
        for place in places:
            is_resting = loop.time() < self._resting_until_s.get(place, 0.0)
            if place not in self._pops and not is_resting:
                self._pops[place] = loop.create_task(self._pop(place, count_max, left_s))
        if not self._pops:
            pause_s = self._settings.pull_time_delay_ms_when_exception / 1000
            await asyncio.sleep(min(left_s, pause_s))
            return
        await asyncio.wait(self._pops.values(), timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
        for place, task in list(self._pops.items()):
            if task.done():
                del self._pops[place]
                self._take_outcome(place, task)

    async def _pop(self, place: Place, count_max: int, left_s: float) -> list[PoppedMessage]:
        settings = self._settings
        wait_ms = min(settings.broker_suspend_max_time_ms, int(left_s * 1000))
        return await pop_once(
            self.instance,
            group=self._group,
            subscription=self._subscriptions[place.topic],
            broker_name=place.broker_name,
            count_max=min(count_max, settings.pop_batch_nums),
            invisible_ms=settings.pop_invisible_time_ms,
            wait_ms=wait_ms,
            from_first=settings.start is ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
        )

    def _take_outcome(self, place: Place, task: asyncio.Task[list[PoppedMessage]]) -> None:
        try:
            self._kept += task.result()
            self._problem = None
        except ClientError as error:
            _log.warning("%s", error)
            self._problem = error
            pause_s = self._settings.pull_time_delay_ms_when_exception / 1000
            self._resting_until_s[place] = asyncio.get_running_loop().time() + pause_s

    async def _places(self) -> list[Place]:
        places: list[Place] = []
        for topic in list(self._subscriptions):
            try:
                route = await self.instance.route(topic)
            except RouteMissing as error:
                self._problem = error
                continue
            names = dict.fromkeys(queue.broker_name for queue in route.read_queues)
            places += [Place(topic, name) for name in names]
        return places

    # Called by the client instance.

    @property
    def group(self) -> str:
        return self._group

    def topics(self) -> Collection[str]:
        return set(self._subscriptions)

    def heartbeat_data(self) -> ConsumerData:
        return ConsumerData(
            self._group,
            ConsumeType.CONSUME_POP,
            MessageModel.CLUSTERING,
            self._settings.start,
            tuple(self._subscriptions.values()),
        )

    def route_changed(self, topic: str) -> None:
        """The next pop asks for the route anyway."""

    def members_changed(self) -> None:
        """Members share all queues."""

    def reset_offsets(self, topic: str, consumer_offsets: Mapping[MessageQueue, int]) -> None:
        """The broker keeps the offsets."""

    def consumer_status(self, topic: str) -> Mapping[MessageQueue, int]:
        return {}

    def running_info(self) -> Mapping[str, object]:
        return {
            "mqTable": {},
            "properties": {
                "PROP_CONSUME_TYPE": ConsumeType.CONSUME_POP.value,
                "PROP_CONSUMER_START_TIMESTAMP": str(self._started_ms),
            },
            "statusTable": {},
            "subscriptionSet": [entry.to_fields() for entry in self._subscriptions.values()],
        }

    async def consume_directly(
        self, message: ReceivedMessage, broker_name: str | None
    ) -> Mapping[str, object]:
        raise ClientError(
            f"group {self._group!r} is consumed by a pop consumer: it has no handler that could "
            f"be given message {message.message_id}"
        )
