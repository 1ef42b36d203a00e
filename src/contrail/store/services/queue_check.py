"""Compares a queue's files with the rows derived from the log.

Rows are gathered and compared in blocks; only where two blocks differ is each row compared.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path
from struct import Struct

from contrail.kernels.record_layout import BLANK_ROW_SIZE
from contrail.runtime.files import FileSystem, opened
from contrail.store.services.folder_files import QueueFiles
from contrail.store.state.row_layout import BLANK_TARGET, QUEUE_ROW, ROW_TARGET, base_offset

GATHERED_BYTES_MAX = 32 << 10
_BLOCK_ROWS = 3000
_PAGE_BYTES = 4096
_EXT_BASE = -(1 << 63)
_UNIT = Struct(">qq")
_EXT_ADDRESS_MAX = -(1 << 31) - 1


class QueueCheck:
    """One queue in one pass. Counts are rows."""

    def __init__(self, queue: QueueFiles | None, *, row_bytes: int, ext: ExtFiles | None) -> None:
        self._queue = queue
        self._row_bytes = row_bytes
        self._ext = ext
        self._begin()

    def _begin(self) -> None:
        self._gathered = bytearray()
        self._gathered_from = 0
        self._next_offset = -1
        self._next_number = -1
        self._first_number = -1
        self._gaps: list[tuple[int, int]] = []
        self.checked = self.missing = self.wrong = self.extra = 0
        self.first_bad: int | None = None

    @property
    def is_sound(self) -> bool:
        problems = self._queue.problems if self._queue is not None else []
        return not (self.missing or self.wrong or self.extra or problems)

    def feed(self, first_queue_offset: int, count: int, rows: bytes | bytearray) -> None:
        """Take the next run of rows derived from the log for this queue."""
        if first_queue_offset != self._next_offset:
            self._jump(first_queue_offset)
        if self._first_number < 0:
            self._first_number = self._gathered_from
        self._gathered += rows
        self._next_offset = first_queue_offset + count
        if len(self._gathered) >= GATHERED_BYTES_MAX:
            self.flush()

    def _jump(self, queue_offset: int) -> None:
        self.flush()
        if queue_offset < self._next_offset:
            # The topic was deleted and made again: only its newer messages have rows.
            self._begin()
        is_batch = self._queue is not None and self._queue.is_batch
        if not is_batch and self._next_offset >= 0:
            self._gaps.append((self._next_offset, queue_offset))
        if is_batch and self._next_number >= 0:
            # Rows of batches are adjacent in the file even where their offsets have a gap.
            self._gathered_from = self._next_number
        else:
            self._gathered_from = self._number_of(queue_offset)

    def _number_of(self, queue_offset: int) -> int:
        """The number of the row that holds a queue offset; a batch's row is searched for."""
        queue = self._queue
        if queue is None or not queue.is_batch:
            return queue_offset
        for number, row in _rows_of(queue, queue.first, queue.limit):
            if base_offset(row) == queue_offset:
                return number
        return queue.first

    def flush(self) -> None:
        """Compare the gathered rows with the files."""
        wanted, number = bytes(self._gathered), self._gathered_from
        count = len(wanted) // self._row_bytes
        self._gathered = bytearray()
        self._gathered_from = self._next_number = number + count
        self.checked += count
        if not count:
            return
        if self._queue is None:
            self.missing += count
            self._note_bad(number)
            return
        found = self._queue.rows(number, count)
        if found != wanted:
            self._judge(number, found, wanted)

    def _judge(self, number: int, found: bytes, wanted: bytes) -> None:
        for at in range(0, len(wanted), self._row_bytes):
            row, right = found[at : at + self._row_bytes], wanted[at : at + self._row_bytes]
            if row == right or self._is_extended(row, right):
                continue
            if ROW_TARGET.unpack_from(row)[1] == 0 or row[: ROW_TARGET.size] == BLANK_TARGET:
                self.missing += 1
            else:
                self.wrong += 1
            self._note_bad(number + at // self._row_bytes)

    def _is_extended(self, row: bytes, right: bytes) -> bool:
        """Whether the row leads to the queue's extension, and that has the right tags code."""
        if self._ext is None or row[: ROW_TARGET.size] != right[: ROW_TARGET.size]:
            return False
        address = QUEUE_ROW.unpack_from(row)[2]
        return address <= _EXT_ADDRESS_MAX and self._ext.tags_code(address) == right[12:20]

    def _note_bad(self, number: int) -> None:
        if self.first_bad is None:
            self.first_bad = number

    def finish(
        self,
        *,
        physical_min: int,
        physical_limit: int,
        log_is_whole: bool,
        damaged: Collection[tuple[int, int]] = (),
    ) -> None:
        """After the last derived row: check rows before the first, in gaps, and behind the last.

        Rows that lead into the ``damaged`` ranges of the log are right, too.
        """
        self.flush()
        queue = self._queue
        if queue is None:
            return
        begin = self._first_number if self._first_number >= 0 else queue.limit
        self._check_history(queue, begin, physical_min)
        if log_is_whole:
            for start, end in self._gaps:
                self._check_gap(queue, start, end)
        if self._next_number >= 0:
            self._check_behind(queue, self._next_number, physical_limit, damaged)

    def _check_history(self, queue: QueueFiles, end: int, physical_min: int) -> None:
        """Rows before the first live row are blank, or lead to records that retention removed."""
        for number, row in _rows_of(queue, queue.first, end):
            physical_offset, size = ROW_TARGET.unpack_from(row)
            if size == BLANK_ROW_SIZE or (size > 0 and 0 <= physical_offset < physical_min):
                continue
            if self._first_number < 0 and size == 0 and physical_offset == 0:
                # The end of a queue that has no live row at all.
                return
            self.wrong += 1
            self._note_bad(number)

    def _check_gap(self, queue: QueueFiles, start: int, end: int) -> None:
        for number, row in _rows_of(queue, start, min(end, queue.limit)):
            if row[: ROW_TARGET.size] != BLANK_TARGET:
                self.wrong += 1
                self._note_bad(number)

    def _check_behind(
        self,
        queue: QueueFiles,
        start: int,
        physical_limit: int,
        damaged: Collection[tuple[int, int]],
    ) -> None:
        """Behind the last row all is zero; after a crash rows of bytes not checked may follow."""
        limit = (
            queue.limit if queue.holds_more_than(start) else min(start + _BLOCK_ROWS, queue.limit)
        )
        for number, row in _rows_of(queue, start, limit, passing_zeros=True):
            physical_offset, size = ROW_TARGET.unpack_from(row)
            is_damageds = any(begin <= physical_offset < end for begin, end in damaged)
            is_damageds = is_damageds or (
                row[: ROW_TARGET.size] == BLANK_TARGET and len(damaged) > 0
            )
            if any(row) and not (size > 0 and (physical_offset >= physical_limit or is_damageds)):
                self.extra += 1
                self._note_bad(number)


def _rows_of(
    queue: QueueFiles, start: int, end: int, *, passing_zeros: bool = False
) -> Iterator[tuple[int, bytes]]:
    """Rows one by one; with ``passing_zeros`` blocks of zeros are passed over as a whole."""
    zeros = bytes(_BLOCK_ROWS * queue.row_bytes)
    for number in range(start, end, _BLOCK_ROWS):
        data = queue.rows(number, min(_BLOCK_ROWS, end - number))
        if passing_zeros and data == zeros[: len(data)]:
            continue
        for at in range(0, len(data), queue.row_bytes):
            yield number + at // queue.row_bytes, data[at : at + queue.row_bytes]


class ExtFiles:
    """Reads single units of one queue's extension."""

    def __init__(self, files: FileSystem, folder: Path) -> None:
        self._files = files
        self._folder = folder
        lengths = [entry.stat().st_size for entry in files.entries(folder)]
        self._file_bytes = max(lengths, default=0)

    def tags_and_time(self, address: int) -> tuple[int, int] | None:
        """The tags code and store time of a unit; None when there is no such unit."""
        found = self._read(address, _UNIT.size)
        return _UNIT.unpack(found) if len(found) == _UNIT.size else None

    def tags_code(self, address: int) -> bytes:
        """The tags code of a unit as it is stored; empty when there is no such unit."""
        return self._read(address, 8)

    def _read(self, address: int, byte_count: int) -> bytes:
        position = address - _EXT_BASE
        if not self._file_bytes:
            return b""
        file_start = position - position % self._file_bytes
        try:
            with opened(self._files, self._folder / f"{file_start:020d}", writable=False) as fd:
                return self._files.pread(fd, byte_count, position - file_start + 2)
        except FileNotFoundError:
            return b""
