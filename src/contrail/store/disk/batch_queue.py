"""The queue of a topic that keeps a batch in one record: 46-byte rows, ``batchconsumequeue/``.

    at     bytes  field
    0      8      physicalOffset of the record
    8      4      size of the record
    12     8      tagsCode
    20     8      storeTimestamp
    28     8      baseQueueOffset: queue offset of the batch's first message
    36     2      messages in the batch
    38     4      compactOffset, always -1 here
    42     4      reserved, 0

A row's position in the file does not give its queue offset, so rows are found by binary search.
"""

from __future__ import annotations

import logging
from pathlib import Path

from contrail.kernels.record_layout import BATCH_ROW_BYTES
from contrail.runtime.files import FilePart, FileSystem
from contrail.store.config import StoreConfig
from contrail.store.disk.disk_waits import require_present
from contrail.store.disk.handles import FileHandles, UnsyncedPaths
from contrail.store.disk.row_queue import QueueMark, RowQueue
from contrail.store.state.row_layout import BATCH_ROW, base_offset
from contrail.store.state.time_search import Boundary, search_batches

_SCAN_BYTES = BATCH_ROW_BYTES * 1024

_log = logging.getLogger(__name__)


class BatchQueue(RowQueue):
    """A queue whose rows stand for one record of several messages each."""

    __slots__ = ()

    row_bytes = BATCH_ROW_BYTES

    def __init__(
        self,
        folder: Path,
        *,
        config: StoreConfig,
        files: FileSystem,
        handles: FileHandles,
        unsynced: UnsyncedPaths | None = None,
    ) -> None:
        super().__init__(
            folder, config.batch_queue_file_bytes, files=files, handles=handles, unsynced=unsynced
        )

    @property
    def row_count(self) -> int:
        """How many rows the files and the tail hold."""
        return (self._rows.end - self._rows.start) // BATCH_ROW_BYTES

    def load(self, *, physical_limit: int, expected: QueueMark | None) -> str | None:
        """Find the files and the end of the rows below ``physical_limit``; None when sound."""
        problem = self._rows.find()
        if problem is not None:
            return problem
        end = self._sound_end(self._last_begun_file(physical_limit), physical_limit)
        beyond = self._rows.settle(end)
        if expected is None and _has_row_below(beyond, physical_limit):
            return f"{self.folder} has rows after a hole at byte {end}"
        self._read_ends()
        if expected is not None and expected.physical_end <= physical_limit:
            problem = self._compared(expected)
        self._note_mark()
        return problem

    def put(self, first_queue_offset: int, count: int, rows: bytearray, physical_end: int) -> int:
        """Append a run of rows without those the queue has; returns how many were new."""
        if (
            first_queue_offset < self.queue_offset_max
            or int.from_bytes(rows[:8], "big") < self.physical_end
        ):
            rows = rows[self._stale_bytes(rows) :]
            if not rows:
                return 0
        if self._rows.is_untouched:
            self.queue_offset_min = base_offset(rows)
        self._rows.append(rows)
        self._appended(first_queue_offset + count, physical_end)
        return len(rows) // BATCH_ROW_BYTES

    def rows(self, queue_offset: int, count_max: int) -> bytes:
        """Up to ``count_max`` rows of one file, from the row of ``queue_offset`` on."""
        if not self.queue_offset_min <= queue_offset < self.queue_offset_max:
            return b""
        number = self._number_with(queue_offset)
        raw = self._rows.read(self._place(number), count_max * BATCH_ROW_BYTES)
        return raw[: len(raw) // BATCH_ROW_BYTES * BATCH_ROW_BYTES]

    def absent_rows(self, queue_offset: int, count_max: int) -> FilePart | None:
        """The part to bring in so that ``rows`` does not wait for the disk; None: it does not.

        There may be more to bring in afterwards: call again.
        """
        low, high = 0, self.row_count - 1
        while low < high:
            middle = (low + high + 1) // 2
            part = self._rows.absent(self._place(middle), BATCH_ROW_BYTES)
            if part is not None:
                return part
            low, high = (
                (middle, high) if self._row(middle)[4] <= queue_offset else (low, middle - 1)
            )
        return self._rows.absent(self._place(low), count_max * BATCH_ROW_BYTES)

    def rows_part(self, queue_offset: int, count: int) -> FilePart | None:
        """None: the position of the row of ``queue_offset`` is not known without a search."""
        return None

    def _place(self, number: int) -> int:
        return self._rows.start + number * BATCH_ROW_BYTES

    def raw_rows(self, queue_offset: int, count_max: int) -> bytes:
        """The same as ``rows``: a batch queue has no extension."""
        return self.rows(queue_offset, count_max)

    def offset_of(self, physical_offset: int) -> int | None:
        """The first queue offset of the row that leads to ``physical_offset``, if one does."""
        number = self._first_at_or_above(physical_offset)
        if number == self.row_count or self._row(number)[0] != physical_offset:
            return None
        return self._row(number)[4]

    def repair_rows(self, queue_offset: int, rows: bytes | bytearray, row_bytes: int) -> int:
        """Write again the rows in the files that differ from ``rows``; returns how many did."""
        number = self._number_of_run(queue_offset, rows)
        if number is None:
            return 0
        found = self._rows.repair(self._rows.start + number * row_bytes, rows)
        places = range(0, len(found), row_bytes)
        return sum(found[at : at + row_bytes] != rows[at : at + row_bytes] for at in places)

    def _number_of_run(self, queue_offset: int, rows: bytes | bytearray) -> int | None:
        """The number of a run's first row, found by any sound row of the run.

        A damaged row misleads the search.
        """
        if not self.row_count:
            return None
        number = self._number_with(queue_offset)
        if self._row(number)[4] == queue_offset:
            return number
        places = {base_offset(rows, at): at for at in range(0, len(rows), BATCH_ROW_BYTES)}
        for number in range(self.row_count):
            at = places.get(self._row(number)[4])
            if at is not None and number >= at // BATCH_ROW_BYTES:
                return number - at // BATCH_ROW_BYTES
        return None

    def offset_by_time(
        self, timestamp_ms: int, boundary: Boundary = Boundary.LOWER, *, waits: bool = True
    ) -> int:
        """The base offset of the batch at ``timestamp_ms``, as RocketMQ answers it.

        Raises:
            NotInMemory: ``waits`` is False, and the search would wait for the disk.
        """
        row = self._row if waits else self._resident_row
        number = search_batches(self.row_count, lambda at: row(at)[3], timestamp_ms, boundary)
        found = self.queue_offset_min if number is None else row(number)[4]
        return max(found, self.queue_offset_min)

    def truncate(self, physical_end: int) -> None:
        """Durably forget the rows of records at or above ``physical_end``."""
        if self.physical_end <= physical_end:
            return
        number = self._first_at_or_above(physical_end)
        if number == self.row_count:
            return
        minimum, next_offset = self.queue_offset_min, self._row(number)[4]
        self._rows.cut(self._rows.start + number * BATCH_ROW_BYTES)
        self._read_ends()
        self.queue_offset_max = next_offset
        self.queue_offset_min = min(minimum, next_offset)
        self._note_mark()

    def correct_minimum(self, physical_min: int) -> None:
        """The minimum is the first batch the log still has, or the next offset if it has none.

        RocketMQ takes the offset behind the last removed batch; the two differ only where a crash
        fell between retention and the next mark, and rows of removed batches are missing.
        """
        number = self._first_at_or_above(physical_min)
        if number == 0:
            return
        below = self._row(number - 1)
        live = number < self.row_count
        self.queue_offset_min = self._row(number)[4] if live else below[4] + below[5]
        self._mark = self._mark._replace(
            queue_offset_min=min(self.queue_offset_min, self._mark.queue_offset_max)
        )

    def drop_files_before(self, physical_min: int) -> list[Path]:
        """Unlink leading files whose records the log no longer has; never the last file."""
        dropped = self._rows.drop_before(physical_min, BATCH_ROW_BYTES)
        if dropped:
            self.queue_offset_min = max(self.queue_offset_min, self._row(0)[4])
            self.correct_minimum(physical_min)
        return dropped

    def _row(self, number: int) -> tuple[int, ...]:
        raw = self._rows.read(self._place(number), BATCH_ROW_BYTES)
        return BATCH_ROW.unpack(raw)

    def _resident_row(self, number: int) -> tuple[int, ...]:
        require_present(self._rows.absent(self._place(number), BATCH_ROW_BYTES))
        return self._row(number)

    def _last_begun_file(self, physical_limit: int) -> int:
        file_start = self._rows.created
        while file_start > self._rows.start:
            file_start -= self._rows.file_bytes
            if _has_row_below(self._rows.read_file(file_start, BATCH_ROW_BYTES), physical_limit):
                return file_start
        return self._rows.start

    def _sound_end(self, position: int, physical_limit: int) -> int:
        """Walk from ``position`` to the first row that does not follow the row before it."""
        rows, physical_end, next_base = self._rows, 0, 0
        while position < rows.created:
            room = rows.file_bytes - position % rows.file_bytes
            raw = rows.read_file(position, min(_SCAN_BYTES, room))
            for at in range(0, len(raw) - BATCH_ROW_BYTES + 1, BATCH_ROW_BYTES):
                physical_offset, size, _, _, base, count, _, _ = BATCH_ROW.unpack_from(raw, at)
                if size <= 0 or count <= 0 or base < next_base or physical_offset < physical_end:
                    return position
                if physical_offset + size > physical_limit:
                    return position
                physical_end, next_base = physical_offset + size, base + count
                position += BATCH_ROW_BYTES
            if len(raw) < BATCH_ROW_BYTES:
                break
        return position

    def _read_ends(self) -> None:
        """Take minimum, maximum and physical end from the first and the last row."""
        self.queue_offset_min = self.queue_offset_max = self.physical_end = 0
        if self.row_count:
            physical_offset, size, _, _, base, count, _, _ = self._row(self.row_count - 1)
            self.queue_offset_min = self._row(0)[4]
            self.queue_offset_max = base + count
            self.physical_end = physical_offset + size

    def _compared(self, expected: QueueMark) -> str | None:
        if not expected.queue_offset_max:
            return None
        if self.queue_offset_max < expected.queue_offset_max:
            return f"{self.folder} does not reach queue offset {expected.queue_offset_max}"
        number = self._number_with(expected.queue_offset_max - 1)
        physical_offset, size, _, _, base, count, _, _ = self._row(number)
        ends = (base + count, physical_offset + size)
        if ends != (expected.queue_offset_max, expected.physical_end):
            return f"{self.folder} has another row before {expected.queue_offset_max}"
        self.queue_offset_min = max(self.queue_offset_min, expected.queue_offset_min)
        return None

    def _stale_bytes(self, rows: bytearray) -> int:
        for at in range(0, len(rows), BATCH_ROW_BYTES):
            physical_offset, size, _, _, base, _, _, _ = BATCH_ROW.unpack_from(rows, at)
            if physical_offset + size > self.physical_end and base >= self.queue_offset_max:
                return at
        return len(rows)

    def _number_with(self, queue_offset: int) -> int:
        """The number of the last row whose base is at or below ``queue_offset``."""
        low, high = 0, self.row_count - 1
        while low < high:
            middle = (low + high + 1) // 2
            if self._row(middle)[4] <= queue_offset:
                low = middle
            else:
                high = middle - 1
        return low

    def _first_at_or_above(self, physical_offset: int) -> int:
        low, high = 0, self.row_count
        while low < high:
            middle = (low + high) // 2
            if self._row(middle)[0] >= physical_offset:
                high = middle
            else:
                low = middle + 1
        return low


def _has_row_below(raw: bytes, physical_limit: int) -> bool:
    for at in range(0, len(raw) - BATCH_ROW_BYTES + 1, BATCH_ROW_BYTES):
        physical_offset, size, _, _, base, count, _, _ = BATCH_ROW.unpack_from(raw, at)
        if size > 0 and count > 0 and base >= 0 and 0 <= physical_offset < physical_limit:
            return True
    return False
