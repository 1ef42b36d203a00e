"""Tells which pages of the log and its queues are in memory, without touching them.

A page that is not in memory comes from the disk when it is touched, and until then the thread that
touched it stands still, and with it every thread that wants to run Python. A read far behind the
log's end asks here first, and another thread brings in the missing pages.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from struct import Struct
from typing import NamedTuple

from contrail.clock import monotonic_ms
from contrail.kernels.property_sieve import row_span
from contrail.kernels.queue_select import coalesce, select_rows
from contrail.kernels.record_layout import BLANK_ROW_SIZE, MAGIC_V1, MAGIC_V2
from contrail.runtime.files import FilePart
from contrail.store.disk.batch_queue import BatchQueue
from contrail.store.disk.consume_queue import ConsumeQueue
from contrail.store.disk.disk_waits import AbsentParts as AbsentParts
from contrail.store.disk.disk_waits import DiskWaits as DiskWaits
from contrail.store.disk.disk_waits import NotInMemory as NotInMemory
from contrail.store.disk.disk_waits import require_present
from contrail.store.disk.queue_table import QueueTable
from contrail.store.disk.segments import Segment, SegmentList
from contrail.store.services.row_window import (
    SCANNED_ROWS,
    bounded_bytes,
    rows_from,
    window_rows,
)

# Bytes that this process appended this close to the log's end are taken to be in memory.
_NEAR_BYTES = 64 << 20
# Records with no more than this between them are brought in together.
_GAP_BYTES_MAX = 64 << 10
# A block of this many bytes that was in memory is taken to be there still for this long: at worst
# a read waits for the disk once.
_WARM_MS = 250
_WARM_BLOCK_BYTES = 1 << 20
_WARM_BLOCKS_MAX = 4096
# How many blocks ahead are looked at for a reader that goes on; a consumer that pulls four queues
# in turn comes to a new block in each with every sixth answer.
_WARM_AHEAD_BLOCKS = 4
# Asking for whole blocks pays only while they hold little beside the wanted records.
_WARM_SPAN_MAX = 16 << 20
# A row may claim any size; this is more than a message may have.
_PART_BYTES_MAX = 16 << 20
# A record of unknown size is brought in with this many bytes: most records are no larger.
_RECORD_BYTES = 16 << 10
_PLACE = Struct(">q")
_HEAD = Struct(">ii")


class OnDisk(NamedTuple):
    """The file parts of a read that are not in memory, and the physical end of the read."""

    parts: list[FilePart]
    physical_end: int


class Residency:
    """Answers by the system's page cache; belongs to the store's owner thread."""

    def __init__(
        self,
        segments: SegmentList,
        queues: QueueTable,
        *,
        opened_end: int,
        waits: DiskWaits,
        on_absent: Callable[[int, int], None],
    ) -> None:
        """``on_absent`` gets the bytes of the log that were found to be on the disk only."""
        self._segments = segments
        self._queues = queues
        self._on_absent = on_absent
        self.waits = waits
        # Records that were in the log at the start may be on the disk only.
        self._opened_end = opened_end
        self.near_start = opened_end
        # Blocks of the log that were in memory, and when; the oldest first.
        self._warm: OrderedDict[int, int] = OrderedDict()

    def observe(self, physical_end: int) -> None:
        """The log reaches ``physical_end`` now."""
        self.near_start = max(self._opened_end, physical_end - _NEAR_BYTES)

    def is_near(self, topic: bytes, queue_id: int, queue_offset: int) -> bool:
        """Whether reads from ``queue_offset`` on surely wait for no disk; does not wait itself."""
        queue = self._queues.get(topic, queue_id)
        if queue is None or not queue.queue_offset_min <= queue_offset < queue.queue_offset_max:
            return True
        if queue.absent_rows(queue_offset, 1) is not None:
            return False
        rows = queue.rows(queue_offset, 1)
        return bool(rows) and int(_PLACE.unpack_from(rows)[0]) >= self.near_start

    def _warm_ahead(
        self, segment: Segment, last: int, seen_ms: int, now_ms: int
    ) -> tuple[int, int]:
        """The last of the next blocks that are in memory, and when the oldest was seen there."""
        end = min(segment.end, self.near_start)
        for number in range(last + 1, last + 1 + _WARM_AHEAD_BLOCKS):
            low = number * _WARM_BLOCK_BYTES
            if low + _WARM_BLOCK_BYTES > end:
                break
            noted_ms = self._warm.get(number, -_WARM_MS)
            if now_ms - noted_ms < _WARM_MS:
                seen_ms = min(seen_ms, noted_ms)
            elif segment.absent(low, _WARM_BLOCK_BYTES) is None:
                self._note_warm(number, now_ms)
            else:
                # The read that comes to this block finds the missing parts.
                break
            last = number
        return last, seen_ms

    def is_warm(self, segment: Segment, start: int, end: int, now_ms: int) -> bool:
        """Whether these bytes were in memory a moment ago; looks at whole blocks."""
        return self.warm_around(segment, start, end, now_ms) is not None

    def warm_around(
        self, segment: Segment, start: int, end: int, now_ms: int, *, reads_on: bool = False
    ) -> tuple[int, int, int] | None:
        """The bytes around these that were in memory a moment ago, and until when that counts.

        With ``reads_on`` the next blocks are looked at, too.
        """
        first, last = start // _WARM_BLOCK_BYTES, (end - 1) // _WARM_BLOCK_BYTES
        seen_ms = now_ms
        for number in range(first, last + 1):
            noted_ms = self._warm.get(number, -_WARM_MS)
            if now_ms - noted_ms >= _WARM_MS:
                low = max(number * _WARM_BLOCK_BYTES, segment.start)
                high = min((number + 1) * _WARM_BLOCK_BYTES, segment.end, self.near_start)
                if self._absent(segment, low, max(high, end) - low) is not None:
                    return None
                self._note_warm(number, now_ms)
            else:
                seen_ms = min(seen_ms, noted_ms)
        if reads_on:
            last, seen_ms = self._warm_ahead(segment, last, seen_ms, now_ms)
        return first * _WARM_BLOCK_BYTES, (last + 1) * _WARM_BLOCK_BYTES, seen_ms + _WARM_MS

    def _note_warm(self, number: int, now_ms: int) -> None:
        self._warm.pop(number, None)
        self._warm[number] = now_ms
        if len(self._warm) > _WARM_BLOCKS_MAX:
            self._warm.popitem(last=False)

    def is_in_memory(self, segment: Segment, physical_offset: int, byte_count: int) -> bool:
        """Whether these bytes of a segment are read without a wait for the disk."""
        if physical_offset >= self.near_start:
            return True
        return self._absent(segment, physical_offset, byte_count) is None

    def warm_end(self, topic: bytes, queue_id: int, queue_offset: int, row_count: int) -> int:
        """Where the records of these rows end, if all were in memory a moment ago; else 0."""
        queue = self._queues.get(topic, queue_id)
        if not isinstance(queue, ConsumeQueue):
            return 0
        if not queue.queue_offset_min <= queue_offset < queue.queue_offset_max:
            return 0
        start, end = row_span(queue.resident_rows(queue_offset, row_count))
        return end if self._is_warm_span(start, end) else 0

    def on_disk(
        self,
        topic: bytes,
        queue_id: int,
        queue_offset: int,
        *,
        count_max: int,
        bytes_max: int,
        tag_codes: frozenset[int] | None,
    ) -> OnDisk:
        """The file parts to bring in so that ``get`` does not wait; rows first, then records."""
        queue = self._queues.get(topic, queue_id)
        if queue is None or not queue.queue_offset_min <= queue_offset < queue.queue_offset_max:
            return OnDisk([], 0)
        row_count = window_rows(count_max, tag_codes)
        part = queue.absent_rows(queue_offset, row_count)
        if part is not None:
            return OnDisk([part], 0)
        rows, _ = rows_from(queue, queue_offset, row_count)
        start, end = row_span(rows)
        if self._is_warm_span(start, end):
            return OnDisk([], end)
        bytes_max = bounded_bytes(bytes_max)
        selected, _, _ = select_rows(rows, 0, len(rows), count_max, bytes_max, tag_codes)
        if selected and selected[1] == BLANK_ROW_SIZE:
            part = queue.absent_rows(queue_offset, SCANNED_ROWS)
            return OnDisk([part] if part is not None else [], 0)
        return self._absent_records(selected)

    def _is_warm_span(self, start: int, end: int) -> bool:
        """Whether all bytes of a span were in memory a moment ago: cheaper than each record."""
        segment = self._segments.at(start) if 0 < end - start <= _WARM_SPAN_MAX else None
        if segment is None or end > segment.end:
            return False
        return self.is_warm(segment, start, end, monotonic_ms())

    def _absent_records(self, selected: list[int]) -> OnDisk:
        parts: list[FilePart] = []
        end = 0
        for start, end in _neighbourhoods(coalesce(selected, self._segments.segment_bytes)):
            parts += self._absent_between(start, min(end, start + _PART_BYTES_MAX))
        return OnDisk(parts, end)

    def _absent_between(self, start: int, end: int) -> Iterator[FilePart]:
        while start < end:
            segment = self._segments.at(start)
            if segment is None:
                # The row leads to no segment; the read that follows reports that.
                return
            part = self._absent(segment, start, end - start)
            if part is not None:
                yield part
            start = segment.end

    def _absent(self, segment: Segment, start: int, byte_count: int) -> FilePart | None:
        part = segment.absent(start, byte_count)
        if part is not None:
            self._on_absent(segment.start + part.position, part.byte_count)
        return part

    # Reads that may not wait.

    def require_rows(self, queue: ConsumeQueue | BatchQueue, queue_offset: int, count: int) -> None:
        """Raises ``NotInMemory`` if waits are forbidden and these rows are on the disk only."""
        if self.waits.are_forbidden:
            require_present(queue.absent_rows(queue_offset, count))

    def require_record(self, physical_offset: int) -> None:
        """Raises ``NotInMemory`` if waits are forbidden and this record is on the disk only."""
        if not self.waits.are_forbidden or physical_offset >= self.near_start:
            return
        segment = self._segments.at(physical_offset)
        if segment is None:
            return
        self.require_start(physical_offset, _HEAD.size)
        head = segment.view(physical_offset, _HEAD.size)
        size, magic = _HEAD.unpack(head) if len(head) == _HEAD.size else (0, 0)
        if size > 0 and magic in (MAGIC_V1, MAGIC_V2):
            require_present(segment.absent(physical_offset, size))

    def require_start(self, physical_offset: int, byte_count: int) -> None:
        """Like ``require_record``, for a caller that reads only the beginning of a record."""
        if not self.waits.are_forbidden or physical_offset >= self.near_start:
            return
        segment = self._segments.at(physical_offset)
        if segment is not None and segment.absent(physical_offset, byte_count) is not None:
            raise NotInMemory([segment.part(physical_offset, _RECORD_BYTES)])

    def record_parts(self, physical_offset: int, byte_count: int) -> list[FilePart]:
        """The file parts of these bytes of the log, without those near the log's end."""
        end = min(physical_offset + byte_count, self.near_start)
        return self._segments.parts(physical_offset, end) if physical_offset < end else []

    def row_parts(
        self, topic: bytes, queue_id: int, queue_offset: int, count: int
    ) -> list[FilePart]:
        """The file parts of ``count`` rows of a queue."""
        queue = self._queues.get(topic, queue_id)
        part = queue.rows_part(queue_offset, count) if queue is not None else None
        return [part] if part is not None else []

    def will_need(self, physical_offset: int, byte_count: int) -> None:
        """Ask the system to read these bytes of the log, without waiting for the disk."""
        end = physical_offset + min(byte_count, _PART_BYTES_MAX)
        if physical_offset >= self.near_start:
            return
        for segment in self._segments.between(physical_offset, end):
            start = max(physical_offset, segment.start)
            segment.will_need(start, min(end, segment.end) - start)


def _neighbourhoods(flat: list[int]) -> Iterator[tuple[int, int]]:
    """Ranges [physical_offset, size, ...] joined over small gaps: start and end of each."""
    start = end = -1
    for at in range(0, len(flat), 2):
        physical_offset, size = flat[at], flat[at + 1]
        if not start <= physical_offset <= end + _GAP_BYTES_MAX or end < 0:
            if end >= 0:
                yield start, end
            start = physical_offset
        end = physical_offset + size
    if end >= 0:
        yield start, end
