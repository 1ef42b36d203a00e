"""Messages of a topic without any group: stored ones in the order of time, then new ones.

Queues are read concurrently. Messages stored before the start are merged by store time; after that
messages are shown as they come.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence

from contrail.cli.exits import NotFound
from contrail.cli.output import complain
from contrail.cli.places import PlaceKind, StartPlace, newest_places
from contrail.client.admin import Admin
from contrail.client.message import MessageQueue, ReceivedMessage
from contrail.client.subscriptions import Sql92
from contrail.errors import BrokerRefused, ClientError, ConfigError, OptionInvalid

_BATCH = 32
# How long a broker holds a pull without messages.
_WAIT_MS = 15_000
_AGAIN_S = 1.0
_TRIES = 3


class TopicReader:
    """Reads queues of a topic from given offsets on."""

    def __init__(
        self, admin: Admin, queues: Sequence[MessageQueue], expression: str | Sql92
    ) -> None:
        self._admin = admin
        self._queues = queues
        self._expression = expression
        # Queue offsets that could not be read, and were skipped.
        self.gap_count = 0

    async def ends(self) -> dict[MessageQueue, int]:
        """Where each queue ends now."""
        found = await asyncio.gather(*map(self._admin.queue_offset_max, self._queues))
        return dict(zip(self._queues, found, strict=True))

    async def starts(
        self, place: StartPlace, ends: Mapping[MessageQueue, int]
    ) -> dict[MessageQueue, int]:
        """Where reading begins in each queue."""
        if place.kind is PlaceKind.LATEST:
            return dict(ends)
        firsts = await asyncio.gather(*map(self._admin.queue_offset_min, self._queues))
        low = dict(zip(self._queues, firsts, strict=True))
        if place.kind is PlaceKind.EARLIEST:
            return low
        if place.kind is PlaceKind.OFFSET:
            return {
                queue: min(max(place.number, low[queue]), ends[queue]) for queue in self._queues
            }
        if place.kind is PlaceKind.NEWEST:
            return await self._newest(place.number, low, ends)
        found = await asyncio.gather(
            *(self._admin.search_offset(queue, place.number) for queue in self._queues)
        )
        return dict(zip(self._queues, found, strict=True))

    async def _newest(
        self, count: int, low: Mapping[MessageQueue, int], ends: Mapping[MessageQueue, int]
    ) -> dict[MessageQueue, int]:
        """Each queue's last messages are looked at, since only they tell their times."""

        async def last(queue: MessageQueue) -> list[tuple[int, int]]:
            start = max(low[queue], ends[queue] - count)
            messages = self._admin.browse(queue, start=start, end=ends[queue])
            return [(one.store_timestamp_ms, one.queue_offset) async for one in messages]

        found = await asyncio.gather(*map(last, self._queues))
        numbered = {number: ends[queue] for number, queue in enumerate(self._queues)}
        starts = newest_places(dict(enumerate(found)), numbered, count)
        return {queue: starts[number] for number, queue in enumerate(self._queues)}

    async def stored(
        self, starts: Mapping[MessageQueue, int], ends: Mapping[MessageQueue, int]
    ) -> AsyncGenerator[ReceivedMessage, None]:
        """The messages between these offsets, the oldest first."""
        readers = [self._between(queue, starts[queue], ends[queue]) for queue in self._queues]
        heads: list[tuple[int, int, ReceivedMessage]] = []
        for number, reader in enumerate(readers):
            await _push_next(heads, number, reader)
        while heads:
            _, number, message = heapq.heappop(heads)
            yield message
            await _push_next(heads, number, readers[number])

    async def _between(
        self, queue: MessageQueue, start: int, end: int
    ) -> AsyncIterator[ReceivedMessage]:
        position = start
        while position < end:
            pulled = await self._admin.pull(queue, position, _BATCH, self._expression)
            for one in pulled.messages:
                if one.queue_offset < end:
                    yield one
            if pulled.next_queue_offset > position:
                position = pulled.next_queue_offset
                continue
            behind = await self._behind_gap(queue, position)
            if behind is None:
                return
            position = behind

    async def _behind_gap(self, queue: MessageQueue, position: int) -> int | None:
        """The next offset after a pull without progress; None if no message is left.

        Unreadable messages, such as damaged ones, are reported once and skipped, but not at the
        first failure: a broker may count a message a little before it can be read.
        """
        for _ in range(_TRIES):
            if await self._admin.queue_offset_max(queue) <= position:
                return None
            if await self._can_read(queue, position):
                return position
            await asyncio.sleep(_AGAIN_S)
        end, behind = await self._admin.queue_offset_max(queue), position + 1
        while behind < end and not await self._can_read(queue, behind):
            behind += 1
        self.gap_count += 1
        complain(
            f"topic {queue.topic!r}, queue {_name(queue)}: messages at offset {position} to "
            f"{behind - 1} cannot be read, the broker's log tells why; going on at {behind}"
        )
        return behind

    async def _can_read(self, queue: MessageQueue, position: int) -> bool:
        pulled = await self._admin.pull(queue, position, 1, self._expression)
        return pulled.next_queue_offset > position

    async def follow(
        self, starts: Mapping[MessageQueue, int], show: Callable[[ReceivedMessage], None]
    ) -> None:
        """Show new messages as soon as they come, until ``show`` raises."""
        tasks = [
            asyncio.create_task(self._follow_queue(queue, starts[queue], show))
            for queue in self._queues
        ]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _follow_queue(
        self, queue: MessageQueue, start: int, show: Callable[[ReceivedMessage], None]
    ) -> None:
        position, told = start, ""
        while True:
            try:
                pulled = await self._admin.pull(
                    queue, position, _BATCH, self._expression, wait_ms=_WAIT_MS
                )
                behind = pulled.next_queue_offset
                if behind == position:
                    # As a rule no message came, and the offset is the same.
                    behind = await self._behind_gap(queue, position) or position
            except BrokerRefused:
                raise
            except ClientError as error:
                # Wait for a broker that restarts, and report its error once.
                if str(error) != told:
                    complain(f"{error}; trying again")
                told = str(error)
                await asyncio.sleep(_AGAIN_S)
                continue
            for one in pulled.messages:
                show(one)
            position = behind


def require_readable(topic: str, queues: Sequence[MessageQueue]) -> None:
    """Raises ``ConfigError`` for a topic without read permission."""
    if not queues:
        raise ConfigError(
            f"topic {topic!r} has no queue that may be read: `contrail topic describe {topic}` "
            "shows its perm"
        )


def queues_named(queues: Sequence[MessageQueue], names: Sequence[str]) -> list[MessageQueue]:
    """The queues named as ``broker:id``, or all if none is named.

    Raises:
        OptionInvalid: a name is not of that form.
        NotFound: there is no such queue.
    """
    there = {_name(queue) for queue in queues}
    for name in names:
        if not name.rpartition(":")[2].isdecimal():
            raise OptionInvalid(f"--queue {name!r} is no queue: write BROKER:ID, as broker-a:0")
        if name not in there:
            raise NotFound(
                f"--queue {name!r}: there is no such queue, there are {', '.join(sorted(there))}"
            )
    return [queue for queue in queues if not names or _name(queue) in names]


def _name(queue: MessageQueue) -> str:
    return f"{queue.broker_name}:{queue.queue_id}"


async def _push_next(
    heads: list[tuple[int, int, ReceivedMessage]],
    number: int,
    reader: AsyncIterator[ReceivedMessage],
) -> None:
    message = await anext(reader, None)
    if message is not None:
        heapq.heappush(heads, (message.store_timestamp_ms, number, message))
