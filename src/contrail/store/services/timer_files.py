"""Writes the three timer files in order: rows to the timer log, then the wheel, then the check.

The files only speed up a start: the waiting timers are the timer topic's messages minus those
delivered, and the commit log alone gives both. Everything in them is checked, and files that do not
add up are refused as a whole; the caller then builds them anew.

After ``open`` one thread at a time uses this, never the thread that serves requests.
"""

from __future__ import annotations

import mmap
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from contrail.errors import StoreLayoutError
from contrail.model.timer_row import MAGIC_DELETE, FiledRow
from contrail.runtime.files import FileSystem
from contrail.store.config import StoreConfig
from contrail.store.config_files import CONFIG_FOLDER
from contrail.store.disk.timer_check_file import (
    FoundCheck,
    TimerCheck,
    read_check,
    write_check,
)
from contrail.store.disk.timer_log import NO_ROW, ROW_BYTES, TimerLog, TimerLogRow
from contrail.store.disk.timer_wheel_file import CELL_COUNT, TimerWheelFile, WheelCell

__all__ = ["CELL_COUNT", "FileBatch", "FoundCheck", "TimerCheck", "TimerFiles"]

_U64_MASK = (1 << 64) - 1
_SUM_BYTES = 8


@dataclass(slots=True, kw_only=True)
class FileBatch:
    """Rows and marks that one ``write`` makes durable.

    Rows of slots before ``read_ms`` are finished: they enter the timer log, which says how far the
    topic has been read, but no slot. Slots in ``replaced`` begin anew with these rows.
    """

    rows: Sequence[FiledRow] = ()
    read_ms: int
    queue_offset: int
    now_ms: int
    physical_min: int = 0
    replaced: frozenset[int] = frozenset()


class TimerFiles:
    """``timerlog``, ``timerwheel`` and ``config/timercheck`` of one store folder."""

    def __init__(self, files: FileSystem, config: StoreConfig) -> None:
        self._files = files
        self._precision_ms = config.timer_precision_ms
        self._log = TimerLog(
            files, config.root / "timerlog", file_bytes=config.timer_log_file_bytes
        )
        self._wheel = TimerWheelFile(files, config.root / "timerwheel")
        self._check_path = config.root / CONFIG_FOLDER / "timercheck"
        # Sums of the rows of unfinished slots: by cell, and in total.
        self._cell_sums = _zero_sums()
        self._rows_sum = 0
        self._finished_ms = 0
        self._changed_cells: dict[int, WheelCell] = {}
        self.check = TimerCheck()

    # Reading, at the start.

    def open(self) -> FoundCheck | None:
        """Open the files; None if they cannot be relied on.

        Raises:
            StoreLayoutError: a file has a name or length that does not belong there.
        """
        self._log.load()
        self._wheel.load()
        found = read_check(self._files, self._check_path)
        if found is not None:
            self.check = found.check
            self._finished_ms = found.check.read_ms
        return found

    def unfinished_rows(self, found: FoundCheck) -> Iterator[FiledRow]:
        """The rows of all unfinished slots, each slot's in the order of enqueueing.

        Raises:
            StoreLayoutError: the rows do not match the check; discard the rows yielded so far.
        """
        is_ours = found.rows_sum is not None
        log_end = found.check.log_end
        lasts: dict[int, int] = {}
        if not is_ours:
            log_end, lasts = self._rows_behind(log_end)
        first_time = -(-found.check.read_ms // self._precision_ms)
        for cell in self._wheel.cells():
            last = lasts.pop(cell.time, cell.last)
            if cell.time >= first_time:
                yield from self._chain(cell, last, log_end)
        for time, last in lasts.items():
            if time >= first_time:
                yield from self._chain(WheelCell(time, NO_ROW, NO_ROW), last, log_end)
        self._log.forget_maps()
        if is_ours and found.rows_sum != self._rows_sum:
            raise StoreLayoutError("the rows of the timer log do not add up")
        # No cell may lead to rows behind the end before these rows are overwritten.
        self._write_cells()
        self._log.cut(log_end)

    def _rows_behind(self, log_end: int) -> tuple[int, dict[int, int]]:
        """The rows RocketMQ appended after its last check: their end, and each slot's last row."""
        lasts = {}
        for position, row in self._log.rows_from(log_end):
            lasts[row.slot_ms // self._precision_ms] = position
            log_end = position + ROW_BYTES
        return log_end, lasts

    def _chain(self, cell: WheelCell, position: int, log_end: int) -> Iterator[FiledRow]:
        """One slot's rows, from the last back to the first, without rows behind ``log_end``."""
        rows: list[FiledRow] = []
        first = last = NO_ROW
        while position >= self._log.start and position != NO_ROW:
            row = self._log.read(position)
            if row is None or row.slot_ms // self._precision_ms != cell.time:
                raise StoreLayoutError(f"the timer log holds no row of its slot at {position}")
            if row.previous >= position:
                raise StoreLayoutError(f"the row at {position} of the timer log leads forward")
            if position < log_end:
                rows.append(_filed(row))
                first, last = position, position if last == NO_ROW else last
            position = row.previous
        index = cell.time % CELL_COUNT
        if last != cell.last:
            waiting = sum(-1 if row.magic & MAGIC_DELETE else 1 for row in rows)
            self._changed_cells[index] = WheelCell(cell.time, first, last, waiting)
        for filed in reversed(rows):
            self._add_sum(index, filed.sum)
            yield filed

    # Writing.

    def write(self, batch: FileBatch) -> None:
        """Write the rows, the wheel and the check; on return all three are durable.

        An ``OSError`` passes through. If the disk was only full, the same batch can be written
        again: it goes on where it stopped.
        """
        self._finish_until(batch.read_ms)
        if batch.rows or batch.replaced:
            self._file_rows(batch)
            batch.rows, batch.replaced = (), frozenset()
        self._write_cells()
        self._write_check(batch)
        self._log.drop_below(batch.physical_min)

    def _write_cells(self) -> None:
        if self._changed_cells:
            self._wheel.write(self._changed_cells)
            self._changed_cells = {}

    def _file_rows(self, batch: FileBatch) -> None:
        cells: dict[int, WheelCell] = {}
        sums: dict[int, int] = {}
        for slot_ms in batch.replaced:
            time = slot_ms // self._precision_ms
            cells[time % CELL_COUNT] = WheelCell(time, NO_ROW, NO_ROW)
            sums[time % CELL_COUNT] = -self._cell_sums[time % CELL_COUNT]
        data = self._chained(batch, cells, sums)
        end_before = self._log.end
        try:
            self._log.append(data)
        except OSError:
            self._log.end = end_before
            raise
        self._changed_cells |= cells
        for index, change in sums.items():
            self._add_sum(index, change)

    def _chained(
        self, batch: FileBatch, cells: dict[int, WheelCell], sums: dict[int, int]
    ) -> list[bytes]:
        """The rows as the timer log will hold them; adds them to ``cells`` and ``sums``."""
        data = []
        position = self._log.next_position()
        for row in batch.rows:
            previous = NO_ROW
            if row.slot_ms >= batch.read_ms:
                time = row.slot_ms // self._precision_ms
                index = time % CELL_COUNT
                cell = cells.get(index) or self._cell_of(index, time)
                previous = cell.last
                first = position if cell.first == NO_ROW else cell.first
                waiting = cell.waiting + (-1 if row.magic & MAGIC_DELETE else 1)
                cells[index] = WheelCell(time, first, position, waiting, cell.magic)
                sums[index] = sums.get(index, 0) + row.sum
            data.append(_logged(row, previous).encode())
            position = self._log.row_after(position)
        return data

    def _cell_of(self, index: int, time: int) -> WheelCell:
        cell = self._changed_cells.get(index) or self._wheel.read(index)
        return cell if cell.time == time else WheelCell(time, NO_ROW, NO_ROW)

    def _add_sum(self, index: int, change: int) -> None:
        self._cell_sums[index] = (self._cell_sums[index] + change) & _U64_MASK
        self._rows_sum = (self._rows_sum + change) & _U64_MASK

    def _finish_until(self, read_ms: int) -> None:
        """Take the rows of finished slots out of the sum."""
        first = self._finished_ms // self._precision_ms
        count = min(read_ms // self._precision_ms - first, CELL_COUNT)
        self._finished_ms = max(self._finished_ms, read_ms)
        while count > 0:
            index = first % CELL_COUNT
            step = min(count, CELL_COUNT - index)
            finished = sum(self._cell_sums[index : index + step])
            if finished:
                self._rows_sum = (self._rows_sum - finished) & _U64_MASK
                self._cell_sums[index : index + step] = array("Q", bytes(_SUM_BYTES * step))
            first, count = first + step, count - step

    def _write_check(self, batch: FileBatch) -> None:
        check = TimerCheck(
            read_ms=batch.read_ms,
            log_end=self._log.end,
            queue_offset=batch.queue_offset,
            master_queue_offset=batch.queue_offset,
            state_version=self.check.state_version,
            timestamp_ms=batch.now_ms,
            counter=self.check.counter + 1,
        )
        write_check(self._files, self._check_path, check, self._rows_sum)
        self.check = check

    def reset(self, read_ms: int) -> None:
        """Empty the files, so that they can be built anew."""
        if self._files.exists(self._check_path):
            # The check goes first: without it the other two files are ignored.
            self._files.unlink(self._check_path)
            self._files.sync_folder(self._check_path.parent)
        self._log.reset()
        self._wheel.reset()
        self._cell_sums = _zero_sums()
        self._rows_sum = 0
        self._finished_ms = read_ms
        self._changed_cells = {}
        self.check = self.check._replace(read_ms=read_ms, log_end=0)

    def close(self) -> None:
        self._log.close()
        self._wheel.close()


def _zero_sums() -> memoryview:
    """A number for each cell, in a private map: a page takes memory once it is written to.

    Few pages ever are. Pages of a shared map, the default, take memory when they are read.
    """
    private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    return memoryview(mmap.mmap(-1, CELL_COUNT * _SUM_BYTES, flags=private)).cast("Q")


def _filed(row: TimerLogRow) -> FiledRow:
    return FiledRow(
        row.write_ms + row.delay_ms,
        row.write_ms,
        row.magic,
        row.physical_offset,
        row.byte_count,
        row.topic_hash,
    )


def _logged(row: FiledRow, previous: int) -> TimerLogRow:
    return TimerLogRow(
        previous,
        row.magic,
        row.write_ms,
        row.slot_ms - row.write_ms,
        row.physical_offset,
        row.byte_count,
        row.topic_hash,
    )
