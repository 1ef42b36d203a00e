"""The fast read: adjacent records of one queue, handed out as one view of the log.

Every read compares every record with the row that led to it. Other facts about the bytes hold for
a while: in which segment they lie, that they are in memory, that they were verified. A reader that
goes on in a queue therefore remembers the window of the log for which these facts hold, and until
when; inside that window a read is one call of a kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from struct import Struct
from typing import Final, NamedTuple

from contrail.kernels.queue_select import (
    coalesce,
    gather_run,
    match_records,
    match_run,
    select_rows,
)
from contrail.kernels.record_layout import QUEUE_ROW_BYTES, REASON_END
from contrail.kernels.record_scan import count_whole, scan_records
from contrail.store.disk.consume_queue import ConsumeQueue
from contrail.store.disk.queue_table import QueueTable
from contrail.store.disk.row_files import RowFiles
from contrail.store.disk.segments import Segment, SegmentList
from contrail.store.services.residency import Residency
from contrail.store.state.record_crc import RecordCrcRule
from contrail.store.state.row_layout import QUEUE_ROW
from contrail.store.state.sound_memory import SoundMemory

_Around = tuple[int, int, int]
"""Start and end of a stretch of the log, and until when the facts about it hold."""

_PLACE = Struct(">q")
# The records of one read span at most this much; a longer span has other queues' records between.
_WARM_SPAN_MAX = 4 << 20

FoundRun = tuple[list[memoryview], int, int, int, int, int, int]
"""A run of records: views, bytes, count, the queue offset to read on from, and the queue's minimum
and maximum.

Last, the run's physical end if it lies further back than the bytes surely in memory, else 0."""


class Reach(Enum):
    """How far back a read may go."""

    # Records so near the log's end that they are surely in memory.
    NEAR = "near"
    # Also records that were in memory a moment ago.
    WARM = "warm"
    # Any record: the caller had its bytes brought in.
    ANY = "any"


class Far(Enum):
    """The answer of a read whose records lie so far back that they may have left memory."""

    FAR = "far"


FAR: Final = Far.FAR
_NEAR: Final = Reach.NEAR


class RunSources(NamedTuple):
    """The objects that all ``QueueRuns`` of one store share."""

    segments: SegmentList
    queues: QueueTable
    residency: Residency
    sound: SoundMemory
    crc_rule: RecordCrcRule
    visible_end: Callable[[], int]

    def observe(self, now_ms: int) -> None:
        physical_end = self.visible_end()
        self.sound.observe(physical_end, now_ms)
        self.residency.observe(physical_end)


class _Window(NamedTuple):
    """Bytes of one segment whose records need no check but that of their rows."""

    segment: Segment
    start: int
    end: int
    until_ms: int
    # Whether they lie further back than the bytes surely in memory.
    is_far: bool
    # ``SoundMemory.left_count`` when the window was remembered; another value ends the window.
    left_count: int


class QueueRuns:
    """Reads runs of one queue; belongs to the store's owner thread."""

    __slots__ = ("_files", "_queue", "_queue_id", "_sound", "_sources", "_topic", "_window")

    def __init__(self, sources: RunSources, topic: bytes, queue_id: int) -> None:
        self._sources = sources
        self._sound = sources.sound
        self._topic = topic
        self._queue_id = queue_id
        self._queue: ConsumeQueue | None = None
        self._files: RowFiles | None = None
        self._window: _Window | None = None

    def read(
        self, queue_offset: int, count_max: int, bytes_max: int, reach: Reach, now_ms: int
    ) -> FoundRun | Far | None:
        """Whole records of one segment; else None: call ``get``.

        Bytes beyond ``reach`` are not touched: the answer is ``FAR``. ``bytes_max`` is not
        bounded here, and ``now_ms`` comes from ``monotonic_ms``.
        """
        window, queue, files = self._window, self._queue, self._files
        if (
            queue is not None
            and queue_offset == queue.queue_offset_max
            and queue is self._sources.queues.get(self._topic, self._queue_id)
        ):
            # A read at the queue's end keeps its window for the next message.
            return None
        if window is None or queue is None or files is None:
            return self._look(queue_offset, count_max, bytes_max, reach, now_ms)
        segment, start, end, until_ms, is_far, left_count = window
        low, high = queue.queue_offset_min, queue.queue_offset_max
        mapped = segment.open_view
        if (
            mapped is None
            or not low <= queue_offset < high
            or (is_far and reach is _NEAR)
            or left_count != self._sound.left_count
            or now_ms >= until_ms
        ):
            return self._look(queue_offset, count_max, bytes_max, reach, now_ms)
        rows, at = files.ahead, queue_offset * QUEUE_ROW_BYTES - files.ahead_start
        if at < 0 or at + count_max * QUEUE_ROW_BYTES > len(rows):
            position, at = queue_offset * QUEUE_ROW_BYTES, 0
            rows = files.read(position, count_max * QUEUE_ROW_BYTES, waits=False)
        base = segment.start
        count, physical_offset, byte_count = match_run(
            mapped,
            rows,
            at,
            count_max,
            bytes_max,
            base,
            start,
            end,
            self._queue_id,
            self._topic,
            queue_offset,
        )
        if not count:
            others_between = gather_run(
                mapped,
                rows,
                at,
                count_max,
                bytes_max,
                base,
                start,
                end,
                self._queue_id,
                self._topic,
                queue_offset,
            )
            if others_between is None:
                return self._look(queue_offset, count_max, bytes_max, reach, now_ms)
            count, physical_end, gathered = others_between
            views, byte_count = [memoryview(gathered)], len(gathered)
        else:
            position = physical_offset - base
            views = [mapped[position : position + byte_count]]
            physical_end = physical_offset + byte_count
        next_queue_offset = queue_offset + count
        return views, byte_count, count, next_queue_offset, low, high, physical_end if is_far else 0

    def _look(
        self, queue_offset: int, count_max: int, bytes_max: int, reach: Reach, now_ms: int
    ) -> FoundRun | Far | None:
        """Check everything, and remember the window for which the answers hold."""
        reads_on, self._window = self._window is not None, None
        queue = self._found_queue()
        if queue is None:
            return None
        low, high = queue.queue_offset_min, queue.queue_offset_max
        rows = queue.resident_rows(queue_offset, count_max) if low <= queue_offset < high else b""
        if not rows:
            return None
        first_offset = _PLACE.unpack_from(rows)[0]
        is_far = first_offset < self._sources.residency.near_start
        if is_far and reach is Reach.NEAR:
            return FAR
        segment = self._sources.segments.at(first_offset)
        if segment is None:
            return None
        warm = self._warm_around(segment, rows, is_far, now_ms, reads_on)
        if warm is None and reach is not Reach.ANY:
            return FAR
        mapped, start = memoryview(segment.map), segment.start
        count, physical_offset, byte_count = match_run(
            mapped,
            rows,
            0,
            count_max,
            bytes_max,
            start,
            start,
            segment.end,
            self._queue_id,
            self._topic,
            queue_offset,
        )
        if not count:
            found = self._scattered(segment, rows, count_max, bytes_max, queue_offset, now_ms)
            if found is None:
                return None
            first, end = first_offset, found[3]
            sound = self._sound_around(first, end - first, now_ms)
            if sound is not None and warm is not None:
                self._remember(segment, warm, sound, is_far)
            return (*found[:3], queue_offset + found[2], low, high, end if is_far else 0)
        sound = self._sound_around(physical_offset, byte_count, now_ms)
        if sound is not None and warm is not None:
            self._remember(segment, warm, sound, is_far)
        if sound is None and not self._verify(segment, physical_offset, count, byte_count, now_ms):
            return None
        position = physical_offset - start
        views = [mapped[position : position + byte_count]]
        physical_end = physical_offset + byte_count if is_far else 0
        return views, byte_count, count, queue_offset + count, low, high, physical_end

    def _found_queue(self) -> ConsumeQueue | None:
        """The queue, if its rows stand for one message each; a queue made again is a new object."""
        queue = self._sources.queues.get(self._topic, self._queue_id)
        if not isinstance(queue, ConsumeQueue):
            self._queue = self._files = None
            return None
        if queue is not self._queue:
            self._queue, self._files = queue, queue.row_files
        return queue

    def _remember(self, segment: Segment, warm: _Around, sound: _Around, is_far: bool) -> None:
        self._window = _Window(
            segment,
            max(segment.start, warm[0], sound[0]),
            min(segment.end, warm[1], sound[1]),
            # The log's end must be sampled once in a while.
            min(self._sound.sample_due_ms, warm[2], sound[2]),
            is_far,
            self._sound.left_count,
        )

    def _warm_around(
        self, segment: Segment, rows: bytes, is_far: bool, now_ms: int, reads_on: bool
    ) -> _Around | None:
        """The stretch in memory around all records that the rows lead to; None: not in memory."""
        residency = self._sources.residency
        if not is_far:
            return residency.near_start, segment.end, self._sound.sample_due_ms
        first_offset = _PLACE.unpack_from(rows)[0]
        last_offset, last_bytes, _ = QUEUE_ROW.unpack_from(rows, len(rows) - QUEUE_ROW.size)
        span = last_offset + last_bytes - first_offset
        if not 0 < span <= _WARM_SPAN_MAX:
            return None
        end = min(first_offset + span, segment.end)
        return residency.warm_around(segment, first_offset, end, now_ms, reads_on=reads_on)

    def _sound_around(self, physical_offset: int, byte_count: int, now_ms: int) -> _Around | None:
        sound = self._sound
        if now_ms >= sound.sample_due_ms:
            self._sources.observe(now_ms)
        return sound.sound_around(physical_offset, byte_count, now_ms)

    def _verify(
        self, segment: Segment, physical_offset: int, count: int, byte_count: int, now_ms: int
    ) -> bool:
        """Whether ``count`` adjacent records are whole, by their checksums."""
        start = physical_offset - segment.start
        mode = self._sources.crc_rule.mode(physical_offset)
        found = scan_records(segment.map, start, start + byte_count, segment.start, True, mode)
        if found[:3] != (start + byte_count, REASON_END, count):
            return False
        self._sound.verified(physical_offset, byte_count, now_ms)
        return True

    def _scattered(
        self,
        segment: Segment,
        rows: bytes,
        count_max: int,
        bytes_max: int,
        queue_offset: int,
        now_ms: int,
    ) -> tuple[list[memoryview], int, int, int] | None:
        """Records with other queues' records between them, if all agree with their rows.

        Returns their views, bytes and count, and the physical end of the last record.
        """
        selected, count, byte_count = select_rows(rows, 0, len(rows), count_max, bytes_max, None)
        places = selected[::3]
        first, end = places[0], places[-1] + selected[-2]
        # Records outside were not checked: neither that they are in memory nor that they are sound.
        if min(places) < first or max(places) > places[-1]:
            return None
        offsets = range(queue_offset, queue_offset + count + 1)
        flat, wanted = of_segment(selected, 0, segment, offsets)
        if len(wanted) < count:
            # Some rows lead into the next segment, or to no records at all.
            return None
        mapped, start = segment.map, segment.start
        if match_records(mapped, flat, start, self._queue_id, self._topic, wanted) >= 0:
            return None
        if self._sound_around(first, end - first, now_ms) is None:
            mode = self._sources.crc_rule.mode(first)
            if count_whole(mapped, flat, start, mode) < count:
                return None
        view = memoryview(mapped)
        ranges = coalesce(selected, self._sources.segments.segment_bytes)
        views = [
            view[at - start : at - start + size]
            for at, size in zip(ranges[::2], ranges[1::2], strict=True)
        ]
        return views, byte_count, count, end


def of_segment(
    selected: list[int], first: int, segment: Segment, offsets: range | list[int]
) -> tuple[list[int], list[int]]:
    """[position, size, ...] of the records from ``first`` on in one segment, and their offsets."""
    flat: list[int] = []
    wanted: list[int] = []
    start, end = segment.start, segment.end
    for index in range(first * 3, len(selected), 3):
        physical_offset = selected[index]
        if not start <= physical_offset < end:
            break
        flat += (physical_offset - start, selected[index + 1])
        wanted.append(offsets[selected[index + 2]])
    return flat, wanted
