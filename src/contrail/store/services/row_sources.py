"""Rows and records for ``RecordPlaces``: of an open store, or of a stopped store's files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from contrail.kernels.record_layout import BATCH_ROW_BYTES, BLANK_ROW_SIZE, QUEUE_ROW_BYTES
from contrail.store.disk.consume_queue import ConsumeQueue
from contrail.store.disk.disk_waits import DiskWaits, require_present
from contrail.store.disk.queue_table import QueueTable
from contrail.store.disk.segments import SegmentList
from contrail.store.services.folder_files import QueueFiles
from contrail.store.state.place_holes import Place
from contrail.store.state.row_layout import ROW_TARGET, base_offset


class OpenRows:
    """The queues and segments of an open store; belongs to its owner thread.

    While ``waits`` are forbidden, reads of bytes on the disk only raise ``NotInMemory``.
    """

    def __init__(
        self, segments: SegmentList, queues: QueueTable, *, waits: DiskWaits | None = None
    ) -> None:
        self._segments = segments
        self._queues = queues
        self._waits = waits or DiskWaits()

    def queues(self) -> Iterator[tuple[bytes, int]]:
        return ((topic, queue_id) for topic, queue_id, _ in self._queues.queues())

    def row(self, place: Place) -> bytes:
        row = self.rows(place, 1)
        queue = self._queues.get(place.topic, place.queue_id)
        if not isinstance(queue, ConsumeQueue):
            row = row[:BATCH_ROW_BYTES]
            return row if row and base_offset(row) == place.queue_offset else b""
        return row if _is_written(row) else b""

    def rows(self, place: Place, count: int) -> bytes:
        queue = self._queues.get(place.topic, place.queue_id)
        at, end = place.queue_offset, place.queue_offset + count
        if queue is None or not queue.queue_offset_min <= at < queue.queue_offset_max:
            return b""
        if self._waits.are_forbidden:
            require_present(queue.absent_rows(at, count))
        if count == 1 or not isinstance(queue, ConsumeQueue):
            return queue.raw_rows(at, 1)
        # One read of rows ends with the file.
        found = bytearray()
        while at < end and (some := queue.raw_rows(at, end - at)):
            found += some
            at += len(some) // QUEUE_ROW_BYTES
        return bytes(found)

    def offset_of(self, topic: bytes, queue_id: int, physical_offset: int) -> int | None:
        queue = self._queues.get(topic, queue_id)
        if queue is None or queue.physical_end <= physical_offset:
            return None
        if not isinstance(queue, ConsumeQueue):
            return queue.offset_of(physical_offset)

        def target(queue_offset: int) -> tuple[int, int]:
            row = self.rows(Place(topic, queue_id, queue_offset), 1)
            return ROW_TARGET.unpack_from(row) if row else (0, BLANK_ROW_SIZE)

        low, high = queue.queue_offset_min, queue.queue_offset_max
        found = first_at_or_above(target, low, high, physical_offset)
        return found if found < high and target(found)[0] == physical_offset else None

    def record(self, physical_offset: int, byte_count: int) -> bytes | memoryview:
        segment = self._segments.at(physical_offset)
        if segment is None or byte_count > segment.end - physical_offset:
            return b""
        if self._waits.are_forbidden:
            require_present(segment.absent(physical_offset, byte_count))
        return segment.view(physical_offset, byte_count)


class FolderRows:
    """The files of a folder."""

    def __init__(
        self,
        queues: Mapping[tuple[bytes, int], QueueFiles],
        read: Callable[[int, int], bytes],
    ) -> None:
        self._queues = queues
        self._read = read

    def queues(self) -> Iterable[tuple[bytes, int]]:
        return self._queues.keys()

    def row(self, place: Place) -> bytes:
        queue = self._queues.get(place[:2])
        if queue is None:
            return b""
        if queue.is_batch:
            return _batch_row(queue, place.queue_offset)
        row = self.rows(place, 1)
        return row if _is_written(row) else b""

    def rows(self, place: Place, count: int) -> bytes:
        queue = self._queues.get(place[:2])
        if queue is None or not queue.first <= place.queue_offset < queue.limit:
            return b""
        return queue.rows(place.queue_offset, count)

    def offset_of(self, topic: bytes, queue_id: int, physical_offset: int) -> int | None:
        queue = self._queues.get((topic, queue_id))
        if queue is None:
            return None
        with queue.held_open():
            number = first_at_or_above(queue.place, queue.first, queue.limit, physical_offset)
            if number == queue.limit or queue.place(number)[0] != physical_offset:
                return None
            return queue.queue_offsets(number)[0]

    def record(self, physical_offset: int, byte_count: int) -> bytes:
        return self._read(physical_offset, byte_count)


def first_at_or_above(
    target: Callable[[int], tuple[int, int]], low: int, high: int, physical_offset: int
) -> int:
    """The first row that leads to a record at or above ``physical_offset``; ``high`` if none does.

    Rows are in the order of the log; blank rows lead nowhere, and rows not written yet count as
    behind every record.
    """
    answer = high
    while low < high:
        middle = probe = (low + high) // 2
        while probe < high and target(probe)[1] == BLANK_ROW_SIZE:
            probe += 1
        if probe == high:
            high = middle
            continue
        there, size = target(probe)
        if size <= 0 or there >= physical_offset:
            answer, high = probe, middle
        else:
            low = probe + 1
    return answer


def _batch_row(queue: QueueFiles, queue_offset: int) -> bytes:
    """The row of the batch that begins with ``queue_offset``; empty if there is none."""
    low, high = queue.first, queue.limit
    with queue.held_open():
        while low < high:
            middle = (low + high) // 2
            row = queue.rows(middle, 1)
            if _is_written(row) and base_offset(row) < queue_offset:
                low = middle + 1
            else:
                high = middle
        row = queue.rows(low, 1) if low < queue.limit else b""
    return row if row and base_offset(row) == queue_offset else b""


def _is_written(row: bytes) -> bool:
    if len(row) < QUEUE_ROW_BYTES:
        return False
    _, size = ROW_TARGET.unpack_from(row)
    return bool(0 < size < BLANK_ROW_SIZE)
