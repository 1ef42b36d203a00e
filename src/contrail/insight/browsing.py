"""Messages of a topic from the newest backwards, a bounded number of them at a time.

A place is, for each queue, the offset before which reading goes on. Queues are merged by store
time: the newest message of all comes first. A search that finds few messages stops after it has
looked at many, and says how far it got.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from contrail.client.admin import Admin
from contrail.client.message import MessageQueue, ReceivedMessage
from contrail.client.subscriptions import Sql92
from contrail.errors import ClientError
from contrail.insight.asking import gathered

_WINDOW = 32

Fits = Callable[[ReceivedMessage], bool]


@dataclass(frozen=True, slots=True)
class Found:
    """Messages, the newest first; ``place`` goes on behind them, None at the oldest message."""

    messages: list[ReceivedMessage]
    place: dict[MessageQueue, int] | None
    scanned: int
    # How many messages the queues hold before the place where the search began.
    total: int
    # Places that could not be read, such as damaged records.
    gaps: list[str]


class _Backwards:
    """One queue, read from an offset downwards in windows."""

    def __init__(self, admin: Admin, queue: MessageQueue, low: int, before: int) -> None:
        self.queue = queue
        self._admin = admin
        self._low = low
        # Messages at this offset and beyond have been given out.
        self.before = before
        self._read_to = before
        self._buffer: list[ReceivedMessage] = []
        self.gaps: list[str] = []

    async def head(self, expression: Sql92 | None) -> ReceivedMessage | None:
        """The newest message that was not given out, None at the end of the queue."""
        while not self._buffer and self._read_to > self._low:
            await self._fill(expression)
        return self._buffer[-1] if self._buffer else None

    async def _fill(self, expression: Sql92 | None) -> None:
        begin, end = max(self._low, self._read_to - _WINDOW), self._read_to
        self._read_to = begin
        position = begin
        while position < end:
            try:
                if expression is None:
                    found = await self._admin.messages_from(self.queue, position, end - position)
                    ahead = found[-1].queue_offset + 1 if found else end
                else:
                    pulled = await self._admin.pull(
                        self.queue, position, end - position, expression
                    )
                    found, ahead = list(pulled.messages), pulled.next_queue_offset
            except ClientError as error:
                self.gaps.append(str(error))
                return
            self._buffer += [one for one in found if position <= one.queue_offset < end]
            if ahead <= position:
                self.gaps.append(f"{self.queue.broker_name}/{self.queue.queue_id}@{position}")
                ahead = position + 1
            position = ahead

    def take(self) -> None:
        self.before = self._buffer.pop().queue_offset

    def pass_over(self) -> int:
        """Give out all of a window in which a filter of the broker left nothing."""
        passed = max(0, self.before - self._read_to) if not self._buffer else 0
        if not self._buffer:
            self.before = self._read_to
        return passed


async def newest(
    admin: Admin,
    queues: Sequence[MessageQueue],
    *,
    before: Mapping[MessageQueue, int] | None = None,
    until_ms: int | None = None,
    fits: Fits = lambda one: True,
    expression: Sql92 | None = None,
    count_max: int,
    scan_max: int,
) -> Found:
    """Up to ``count_max`` messages that fit, looking at no more than ``scan_max``."""

    async def open_one(queue: MessageQueue) -> _Backwards:
        low = await admin.queue_offset_min(queue)
        high = await admin.queue_offset_max(queue)
        if before is not None:
            high = min(high, before.get(queue, high))
        elif until_ms is not None:
            high = min(high, max(low, await admin.search_offset(queue, until_ms)))
        return _Backwards(admin, queue, low, max(low, high))

    readers = await gathered(open_one, queues)
    total = sum(one.before - one._low for one in readers)
    found: list[ReceivedMessage] = []
    scanned = 0
    while len(found) < count_max and scanned < scan_max:
        heads = [(await one.head(expression), one) for one in readers]
        for head, one in heads:
            if head is None:
                scanned += one.pass_over()
        known = [(head, one) for head, one in heads if head is not None]
        if not known:
            break
        head, reader = max(known, key=lambda pair: pair[0].store_timestamp_ms)
        reader.take()
        scanned += 1
        if fits(head):
            found.append(head)
    is_over = all(one.before <= one._low for one in readers)
    place = None if is_over else {one.queue: one.before for one in readers}
    return Found(found, place, scanned, total, [gap for one in readers for gap in one.gaps])
