"""How far groups are behind, as metrics show it.

A group that is online lags in the topics it subscribes to; one that is away, in those that it has
committed offsets of, because that is when somebody wants to know. Looking at a queue takes no read
unless something waits there, and then one record per group and topic is read: the log is in the
order of time, so of all queues the one whose next message lies lowest has the oldest.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from typing import NamedTuple, Protocol, TypeVar

from contrail.broker.state.consumer_offsets import SEPARATOR, ConsumerOffsets
from contrail.broker.state.consumers import ConsumerTable
from contrail.errors import RecordDamaged
from contrail.model.message import StoredMessage
from contrail.model.topic import RETRY_PREFIX, TopicConfig
from contrail.runtime.slices import Slices
from contrail.store import NotInMemory, QueueRow

T = TypeVar("T")

# Old messages may have to be brought in from the disk; a scrape waits this long for all of them.
_TRIES_MAX = 100
_TRY_PAUSE_S = 0.02


class LaggedStore(Protocol):
    """The part of the store that is looked at."""

    def queue_offset_min(self, topic: bytes, queue_id: int) -> int: ...
    def queue_offset_max(self, topic: bytes, queue_id: int) -> int: ...
    def rows(
        self, topic: bytes, queue_id: int, queue_offset: int, count: int
    ) -> list[QueueRow]: ...
    def record(self, physical_offset: int) -> StoredMessage: ...


class Attempt(Protocol):
    """Carries out work that reads old messages, unless records have to be brought in first."""

    def __call__(self, work: Callable[[], T], /) -> T: ...


class GroupLag(NamedTuple):
    """A group's place in a topic; times are None when they cannot be told now."""

    group: str
    topic: str
    lag_count: int
    in_flight_count: int
    ready_count: int
    # Since when the oldest message waits that was not consumed, or not pulled; 0: there is none.
    unconsumed_since_ms: int | None
    unpulled_since_ms: int | None
    by_queue: list[int]


class LagLooks:
    """Looks at all groups once, giving way to the event loop in between."""

    def __init__(
        self,
        store: LaggedStore,
        offsets: ConsumerOffsets,
        consumers: ConsumerTable,
        *,
        groups: Callable[[], list[str]],
        topic: Callable[[str], TopicConfig | None],
        attempt: Attempt,
        popped: Callable[[str, str], int] = lambda group, topic: 0,
    ) -> None:
        """``popped`` counts the messages of a topic that a group has popped and not settled."""
        self._popped = popped
        self._store = store
        self._offsets = offsets
        self._consumers = consumers
        self._groups = groups
        self._topic = topic
        self._attempt = attempt
        self._tries_left = 0

    async def look(self, slices: Slices) -> AsyncIterator[GroupLag]:
        """Every group in every topic that it consumes."""
        self._tries_left = _TRIES_MAX
        for group, topic in await self._pairs(slices):
            await slices.breathe()
            config = self._topic(topic)
            if config is None or not config.perm or topic.startswith(RETRY_PREFIX):
                continue
            yield await self._group_lag(group, config, slices)

    async def _pairs(self, slices: Slices) -> list[tuple[str, str]]:
        away: dict[str, list[str]] = {}
        for key in self._offsets.committed_keys():
            await slices.breathe()
            topic, _, group = key.partition(SEPARATOR)
            away.setdefault(group, []).append(topic)
        pairs = []
        for group in self._groups():
            await slices.breathe()
            online = self._consumers.find(group)
            topics = away.get(group, ()) if online is None else online.subscriptions
            pairs += [(group, topic) for topic in topics]
        return pairs

    async def _group_lag(self, group: str, config: TopicConfig, slices: Slices) -> GroupLag:
        topic, by_queue = config.topic, []
        popped = self._popped(group, topic)
        in_flight, ready = popped, 0
        unconsumed: list[tuple[int, int]] = []
        unpulled: list[tuple[int, int]] = []
        for queue_id in range(config.write_queue_count):
            await slices.breathe()
            committed, pulled, end = self._places(group, topic, queue_id)
            by_queue.append(max(0, end - committed))
            in_flight += max(0, pulled - committed)
            ready += max(0, end - pulled)
            if committed < end:
                unconsumed.append((queue_id, committed))
            if pulled < end:
                unpulled.append((queue_id, pulled))
        return GroupLag(
            group,
            topic,
            sum(by_queue) + popped,
            in_flight,
            ready,
            await self._oldest_ms(topic, unconsumed),
            await self._oldest_ms(topic, unpulled),
            by_queue,
        )

    def _places(self, group: str, topic: str, queue_id: int) -> tuple[int, int, int]:
        """The committed, the pulled and the queue's end offset; as RocketMQ counts them."""
        end = self._store.queue_offset_max(topic.encode(), queue_id)
        committed = self._offsets.query(group, topic, queue_id)
        pulled = self._offsets.query_pulled(group, topic, queue_id)
        if committed < 0:
            committed = end if pulled < 0 else pulled
        return committed, max(pulled, committed), end

    async def _oldest_ms(self, topic: str, places: list[tuple[int, int]]) -> int | None:
        if not places:
            return 0
        while True:
            try:
                return self._attempt(lambda: self._oldest(topic.encode(), places))
            except NotInMemory:
                if self._tries_left <= 0:
                    return None
                self._tries_left -= 1
                await asyncio.sleep(_TRY_PAUSE_S)

    def _oldest(self, topic: bytes, places: list[tuple[int, int]]) -> int | None:
        lowest = min(self._rows(topic, places), default=None)
        if lowest is None:
            return None
        try:
            return self._store.record(lowest).store_timestamp_ms
        except RecordDamaged:
            return None

    def _rows(self, topic: bytes, places: list[tuple[int, int]]) -> Iterator[int]:
        """Where the next messages lie; messages that retention has removed are passed over."""
        for queue_id, queue_offset in places:
            first = max(queue_offset, self._store.queue_offset_min(topic, queue_id))
            for row in self._store.rows(topic, queue_id, first, 1):
                yield row.physical_offset
