"""Reads the messages of a queue that a filter on properties lets pass.

Every record looked at is compared with its row: size, physical offset, queue, queue offset, topic,
and all its lengths. Only a message that passes is verified by checksum, because only that is handed
out: damage that keeps a message back would have kept it back with a checksum too. Where a row and
its record disagree, or a record that passes is not whole, the walk ends before it: ``QueueReading``
decides which of the two is damaged.
"""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

from contrail.kernels.property_sieve import ENDED_UNPROVEN, sift_rows
from contrail.kernels.queue_select import coalesce
from contrail.kernels.record_layout import QUEUE_ROW_BYTES, ROW_SIZE_AT
from contrail.kernels.record_scan import count_whole
from contrail.model.property_sieve import PropertySieve
from contrail.store.disk.consume_queue import ConsumeQueue
from contrail.store.disk.queue_table import QueueTable
from contrail.store.disk.segments import Segment, SegmentList
from contrail.store.services.residency import DiskWaits
from contrail.store.state.record_crc import RecordCrcRule

_PLACE = Struct(">q")


class SiftLimits(NamedTuple):
    """How much one walk may return and look at; ``is_first_free``: any size for the first."""

    count_max: int
    bytes_max: int
    scanned_count_max: int
    scanned_bytes_max: int
    is_first_free: bool


class Sifted(NamedTuple):
    """Messages that passed, as views of the log; how much was walked; the queue's bounds."""

    ranges: list[memoryview]
    message_count: int
    byte_count: int
    scanned_count: int
    scanned_bytes: int
    # Whether a limit ended the walk, or the last row of the queue or of its file: rows of the next
    # file may be on the disk only.
    is_over: bool
    queue_offset_min: int
    queue_offset_max: int


class Sifting:
    """Walks queues whose rows stand for one message each."""

    def __init__(
        self,
        segments: SegmentList,
        queues: QueueTable,
        *,
        crc_rule: RecordCrcRule,
        waits: DiskWaits,
    ) -> None:
        self._segments = segments
        self._queues = queues
        self._crc_rule = crc_rule
        self._waits = waits

    def sift(
        self,
        topic: bytes,
        queue_id: int,
        queue_offset: int,
        limits: SiftLimits,
        sieve: PropertySieve,
    ) -> Sifted | None:
        """Walk from ``queue_offset`` on; None if ``QueueReading`` must read even the first row."""
        queue = self._queues.get(topic, queue_id)
        if not isinstance(queue, ConsumeQueue) or self._waits.are_forbidden:
            return None
        low, high = queue.queue_offset_min, queue.queue_offset_max
        if not low <= queue_offset < high:
            return None
        rows = queue.rows(queue_offset, limits.scanned_count_max)
        segment = self._segments.at(_PLACE.unpack_from(rows)[0]) if rows else None
        if segment is None:
            return None
        selected, scanned_count, scanned_bytes, ended = sift_rows(
            segment.map,
            rows,
            limits.count_max,
            limits.bytes_max,
            limits.scanned_bytes_max,
            limits.is_first_free,
            segment.start,
            queue_id,
            topic,
            queue_offset,
            sieve.names,
            sieve.verdicts,
            sieve.memory,
        )
        is_over = ended != ENDED_UNPROVEN
        if selected:
            whole = self._count_whole(segment, selected)
            if whole * 3 < len(selected):
                scanned_count, is_over = selected[whole * 3 + 2], False
                scanned_bytes = _row_bytes(rows, scanned_count)
                del selected[whole * 3 :]
        if not scanned_count and not is_over:
            return None
        ranges, byte_count = self._ranges(segment, selected)
        return Sifted(
            ranges,
            len(selected) // 3,
            byte_count,
            scanned_count,
            scanned_bytes,
            is_over,
            low,
            high,
        )

    def _count_whole(self, segment: Segment, selected: list[int]) -> int:
        flat: list[int] = []
        for index in range(0, len(selected), 3):
            flat += selected[index] - segment.start, selected[index + 1]
        return count_whole(segment.map, flat, segment.start, self._crc_rule.mode(selected[0]))

    def _ranges(self, segment: Segment, selected: list[int]) -> tuple[list[memoryview], int]:
        flat = coalesce(selected, self._segments.segment_bytes)
        view = memoryview(segment.map)
        ranges: list[memoryview] = []
        byte_count = 0
        for index in range(0, len(flat), 2):
            position, size = flat[index] - segment.start, flat[index + 1]
            ranges.append(view[position : position + size])
            byte_count += size
        return ranges, byte_count


def _row_bytes(rows: bytes, count: int) -> int:
    """The bytes of the records of the first ``count`` rows."""
    places = range(ROW_SIZE_AT, count * QUEUE_ROW_BYTES, QUEUE_ROW_BYTES)
    return sum(int.from_bytes(rows[at : at + 4], "big") for at in places)
