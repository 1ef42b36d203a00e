"""The timed messages that wait, by slot: the truth while the broker runs.

A slot is one unit of ``timerPrecisionMs``. Rows of slots further away lie unsorted in buckets of
64 slots, 24 bytes each; a bucket is dealt out to its slots shortly before its time, a part at a
time, so that no call takes long however many messages wait for the same minute.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from heapq import heappop, heappush
from typing import NamedTuple

SLOTS_PER_BUCKET = 64
_FAR_WIDTH = 3
_NEAR_WIDTH = 2
_DEAL_ROWS = 4000

FLAG_ROLL = 1
FLAG_DELETE = 2
# The message was due already when it was enqueued.
FLAG_DUE = 4
_FLAG_BITS = 3


class Waiting(NamedTuple):
    """One message that waits."""

    physical_offset: int
    # When it was enqueued (whole slots), and the flags.
    meta: int

    @property
    def enqueued_ms(self) -> int:
        return self.meta >> _FLAG_BITS

    @property
    def flags(self) -> int:
        return self.meta & (1 << _FLAG_BITS) - 1


def meta_of(enqueued_ms: int, flags: int) -> int:
    return enqueued_ms << _FLAG_BITS | flags


class TimerSlots:
    """Rows by slot. ``take`` hands them out, the earliest slot first."""

    def __init__(self, precision_ms: int) -> None:
        self._bucket_ms = precision_ms * SLOTS_PER_BUCKET
        self._far: dict[int, array[int]] = {}
        self._far_order: list[int] = []
        # Rows of the earliest bucket that were dealt out already.
        self._dealt_count = 0
        # Buckets up to this one have been dealt out.
        self._dealt_to = -1
        self._near: dict[int, array[int]] = {}
        self._near_order: list[int] = []
        self._taken_count = 0
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, slot_ms: int, physical_offset: int, meta: int) -> None:
        """One more message for a slot; behind those that wait for it already."""
        bucket = slot_ms // self._bucket_ms
        self._count += 1
        if bucket <= self._dealt_to:
            self._add_near(slot_ms, physical_offset, meta)
            return
        rows = self._far.get(bucket)
        if rows is None:
            rows = self._far[bucket] = array("q")
            self._push_bucket(bucket)
        rows.extend((slot_ms, physical_offset, meta))

    def _push_bucket(self, bucket: int) -> None:
        if self._dealt_count and bucket < self._far_order[0]:
            self._put_dealt_aside()
        heappush(self._far_order, bucket)

    def _put_dealt_aside(self) -> None:
        """An earlier bucket has come up: rows dealt out of the present one go their way."""
        rows = self._far[self._far_order[0]]
        del rows[: self._dealt_count * _FAR_WIDTH]
        self._dealt_count = 0

    def _add_near(self, slot_ms: int, physical_offset: int, meta: int) -> None:
        rows = self._near.get(slot_ms)
        if rows is None:
            rows = self._near[slot_ms] = array("q")
            if self._taken_count and slot_ms < self._near_order[0]:
                del self._near[self._near_order[0]][: self._taken_count * _NEAR_WIDTH]
                self._taken_count = 0
            heappush(self._near_order, slot_ms)
        rows.extend((physical_offset, meta))

    # Handing out.

    def take(self, until_ms: int, count_max: int) -> tuple[int, list[Waiting]] | None:
        """Up to ``count_max`` rows of the earliest slot that begins by ``until_ms``.

        Messages of a slot come in the order of enqueueing: a deletion's target is known before.
        None when nothing is that near, or its bucket is still being dealt out.
        """
        self._deal(until_ms // self._bucket_ms + 1)
        if not self._near_order or self._near_order[0] > until_ms:
            return None
        slot_ms = self._near_order[0]
        if self._far_order and slot_ms // self._bucket_ms >= self._far_order[0]:
            return None
        rows = self._near[slot_ms]
        first = self._taken_count * _NEAR_WIDTH
        taken = rows[first : first + count_max * _NEAR_WIDTH]
        self._taken_count += len(taken) // _NEAR_WIDTH
        self._count -= len(taken) // _NEAR_WIDTH
        if self._taken_count * _NEAR_WIDTH == len(rows):
            del self._near[heappop(self._near_order)]
            self._taken_count = 0
        return slot_ms, list(_waiting(taken))

    def places(self, slot_ms: int, count_max: int) -> list[int]:
        """Physical offsets of messages that wait for a slot that is near."""
        rows = self._near.get(slot_ms)
        return [] if rows is None else list(rows[: count_max * _NEAR_WIDTH : _NEAR_WIDTH])

    def _deal(self, last_bucket: int) -> None:
        """Deal out the next rows of the buckets up to this one."""
        room = _DEAL_ROWS
        while self._far_order and self._far_order[0] <= last_bucket and room > 0:
            bucket = self._far_order[0]
            rows = self._far[bucket]
            first = self._dealt_count * _FAR_WIDTH
            part = rows[first : first + room * _FAR_WIDTH]
            for at in range(0, len(part), _FAR_WIDTH):
                self._add_near(part[at], part[at + 1], part[at + 2])
            self._dealt_count += len(part) // _FAR_WIDTH
            room -= len(part) // _FAR_WIDTH
            if self._dealt_count * _FAR_WIDTH < len(rows):
                return
            self._dealt_count = 0
            del self._far[heappop(self._far_order)]
            self._dealt_to = max(self._dealt_to, bucket)

    # Figures for operators.

    @property
    def slot_ms_min(self) -> int | None:
        """No row waits for an earlier slot; None when nothing waits at all."""
        near = self._near_order[0] if self._near_order else None
        far = self._far_order[0] * self._bucket_ms if self._far_order else None
        if near is None or far is None:
            return far if near is None else near
        return min(near, far)

    def counts_before(self, times_ms: Sequence[int]) -> list[int]:
        """How many rows wait for slots before each of these times, which ascend."""
        counts = [0] * len(times_ms)
        for slot_ms, count in self._slot_counts(times_ms):
            for index, time_ms in enumerate(times_ms):
                if slot_ms < time_ms:
                    counts[index] += count
        return counts

    def _slot_counts(self, times_ms: Sequence[int]) -> Iterator[tuple[int, int]]:
        """Slots with their counts; a bucket that no bound cuts through counts as one."""
        for slot_ms, rows in self._near.items():
            taken = self._taken_count if slot_ms == self._near_order[0] else 0
            yield slot_ms, len(rows) // _NEAR_WIDTH - taken
        cut = {time_ms // self._bucket_ms for time_ms in times_ms}
        for bucket, rows in self._far.items():
            dealt = self._dealt_count if bucket == self._far_order[0] else 0
            if bucket in cut:
                for slot_ms in rows[dealt * _FAR_WIDTH :: _FAR_WIDTH]:
                    yield slot_ms, 1
            else:
                yield bucket * self._bucket_ms, len(rows) // _FAR_WIDTH - dealt


def _waiting(rows: array[int]) -> Iterator[Waiting]:
    return map(Waiting, rows[::_NEAR_WIDTH], rows[1::_NEAR_WIDTH])
