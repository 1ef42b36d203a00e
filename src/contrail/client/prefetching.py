"""Fetches ahead for a pull consumer: one task per queue, each with one long poll under way."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection

from contrail.client.instance import ClientInstance
from contrail.client.message import MessageQueue, ReceivedMessage
from contrail.client.offset_stores import OffsetStore
from contrail.client.pull_settings import PullSettings
from contrail.client.pulling import PullResult, PullStatus, follow_leader, pull_once
from contrail.client.start_places import (
    StartPlaces,
    parse_consume_from_where,
    parse_consume_timestamp,
)
from contrail.client.state.leader_changes import ShortPauses
from contrail.client.state.prefetched import Prefetched, PrefetchedQueue
from contrail.errors import BrokerRefused, ClientClosed, ClientError
from contrail.model.subscription import SubscriptionData
from contrail.protocol.codes import ResponseCode

_log = logging.getLogger(__name__)

# A pull that an overloaded broker refused is repeated after this short time.
_FLOW_CONTROL_DELAY_S = 0.02


class Prefetcher:
    """Keeps messages of the given queues ready."""

    def __init__(
        self,
        instance: ClientInstance,
        group: str,
        settings: PullSettings,
        offsets: OffsetStore,
        subscription_of: Callable[[str], SubscriptionData],
    ) -> None:
        self._instance = instance
        self._group = group
        self._settings = settings
        self._offsets = offsets
        self._subscription_of = subscription_of
        self.places = StartPlaces(
            instance,
            offsets,
            parse_consume_from_where(settings.consume_from_where),
            parse_consume_timestamp(settings.consume_timestamp, now_ms=instance.clock.now_ms()),
        )
        self.held: Prefetched[ReceivedMessage] = Prefetched(settings.limits)
        self._tasks: dict[MessageQueue, asyncio.Task[None]] = {}
        self._waiting_for_room: dict[MessageQueue, asyncio.Future[None]] = {}
        self._arrived = asyncio.Event()

    @property
    def queues(self) -> Collection[MessageQueue]:
        return self.held.queues.keys()

    def add(self, queue: MessageQueue) -> None:
        self.held.add(queue)
        self._start(queue)

    def remove(self, queue: MessageQueue) -> None:
        """Stop reading a queue and drop its fetched messages."""
        self._stop(queue)
        self.held.remove(queue)

    def seek(self, queue: MessageQueue, queue_offset: int) -> None:
        """Go on from another offset; messages fetched, or being fetched, are dropped."""
        self._stop(queue)
        self.held.seek(queue, queue_offset)
        self._start(queue)

    def set_paused(self, queues: Collection[MessageQueue], *, is_paused: bool) -> None:
        self.held.set_paused(queues, is_paused=is_paused)
        self._arrived.set()
        self._wake_those_with_room()

    async def close(self) -> None:
        tasks = list(self._tasks.values())
        for queue in list(self._tasks):
            self._stop(queue)
        await asyncio.gather(*tasks, return_exceptions=True)

    async def take(self, count_max: int, timeout_ms: int) -> list[ReceivedMessage]:
        """Fetched messages, at most ``count_max``; waits when there are none."""
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                while True:
                    self._arrived.clear()
                    taken = self.held.take(count_max)
                    if taken:
                        self._wake_those_with_room()
                        return taken
                    await self._arrived.wait()
        except TimeoutError:
            return []

    def _start(self, queue: MessageQueue) -> None:
        name = f"prefetch {queue.topic} {queue.broker_name} {queue.queue_id}"
        self._tasks[queue] = self._instance.spawn(self._fetch_forever(queue), name)

    def _stop(self, queue: MessageQueue) -> None:
        self._tasks.pop(queue).cancel()
        self._waiting_for_room.pop(queue, None)

    async def _fetch_forever(self, queue: MessageQueue) -> None:
        held, told, pauses = self.held.queues[queue], "", ShortPauses()
        while True:
            await self._until_room(queue)
            try:
                await self._fetch(queue, held)
                told = ""
                pauses.reset()
            except ClientClosed:
                return
            except Exception as error:
                # On any error: a queue must not stay unread for good.
                told = self._tell(queue, error, told)
                self._instance.refresh_soon(queue.topic)
                delay_s = self._delay_s(error)
                if follow_leader(self._instance, queue.broker_name, error):
                    delay_s = pauses.next_s(delay_s)
                await asyncio.sleep(delay_s)

    def _tell(self, queue: MessageQueue, error: Exception, told: str) -> str:
        """Log an error that repeats every second only once; returns the error last logged."""
        reason = f"{type(error).__name__}: {error}"
        _log.log(
            logging.WARNING if reason != told else logging.DEBUG,
            "group %s fetches nothing of %s for now: %s",
            self._group,
            queue,
            error if isinstance(error, ClientError) else reason,
            exc_info=None if isinstance(error, ClientError) else error,
        )
        return reason

    async def _until_room(self, queue: MessageQueue) -> None:
        while not self.held.may_pull(queue):
            room = asyncio.get_running_loop().create_future()
            self._waiting_for_room[queue] = room
            await room

    def _wake_those_with_room(self) -> None:
        for queue in [queue for queue in self._waiting_for_room if self.held.may_pull(queue)]:
            room = self._waiting_for_room.pop(queue)
            if not room.done():
                room.set_result(None)

    async def _fetch(self, queue: MessageQueue, held: PrefetchedQueue[ReceivedMessage]) -> None:
        if held.next_queue_offset is None:
            held.next_queue_offset = await self._start_place(queue)
        result = await self._pull(queue, held.next_queue_offset, held.broker_id)
        if result.status is PullStatus.OFFSET_ILLEGAL:
            _log.warning(
                "group %s goes on at %d of %s, %s:%d, not at %d: an operator moved it, or there is "
                "no such place",
                self._group,
                result.next_queue_offset,
                queue.topic,
                queue.broker_name,
                queue.queue_id,
                held.next_queue_offset,
            )
            self._offsets.moved(queue, result.next_queue_offset)
        held.broker_id = result.suggested_broker_id
        self.held.arrived(queue, result.messages, result.next_queue_offset)
        if result.messages:
            self._arrived.set()

    async def _start_place(self, queue: MessageQueue) -> int:
        known = self._offsets.known(queue)
        if known is not None:
            return known
        return await self.places.of(queue)

    async def _pull(self, queue: MessageQueue, queue_offset: int, broker_id: int) -> PullResult:
        settings = self._settings
        return await pull_once(
            self._instance,
            group=self._group,
            queue=queue,
            queue_offset=queue_offset,
            count_max=settings.pull_batch_size,
            subscription=self._subscription_of(queue.topic),
            suspend=True,
            post_subscription=True,
            broker_id=broker_id,
            suspend_ms=settings.broker_suspend_max_time_ms,
            timeout_ms=settings.consumer_timeout_ms_when_suspend,
        )

    def _delay_s(self, error: Exception) -> float:
        if isinstance(error, BrokerRefused) and error.code == ResponseCode.FLOW_CONTROL:
            return _FLOW_CONTROL_DELAY_S
        return self._settings.pull_time_delay_ms_when_exception / 1000
