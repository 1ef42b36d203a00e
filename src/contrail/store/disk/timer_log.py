"""RocketMQ's timer log: one row per timed message, chained by the second it waits for.

Files of equal length below ``timerlog``, named by the position they start at. A row, all integers
big-endian and signed:

    at     bytes  field
    0      4      size: 52
    4      8      position of the row before it in the same slot; -1 for the first
    12     4      magic: 1 always, 2 to be rolled on, 4 deletes another message
    16     8      write time: the slot that was current when it was enqueued, ms
    24     4      slot time minus write time, ms
    28     8      physical offset of the message in the timer topic
    36     4      its size
    40     4      Java hash of the topic it is for
    44     8      reserved, 0

When no row and no closing mark fit any more, a file ends with the mark: bytes left (4), 0 (8),
``CBD43194`` (4). Rows are written by ``pwrite``; all bytes behind the end are zeros.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from pathlib import Path
from struct import Struct
from typing import NamedTuple

from contrail.errors import StoreLayoutError
from contrail.kernels.record_layout import MAGIC_BLANK
from contrail.runtime.crashpoints import crashpoint
from contrail.runtime.files import FileSystem, opened, write_fully, write_zeros

TIMER_ROW = Struct(">iqiqiqiiq")
ROW_BYTES = TIMER_ROW.size
NO_ROW = -1

_MAGIC_BITS = 0xF
_BLANK = Struct(">iqi")
_NAME_DIGITS = 20
_READ_BYTES = 1 << 20
_OPEN_FILES_MAX = 8


class TimerLogRow(NamedTuple):
    """One row, decoded."""

    previous: int
    magic: int
    write_ms: int
    delay_ms: int
    physical_offset: int
    byte_count: int
    topic_hash: int

    @property
    def slot_ms(self) -> int:
        return self.write_ms + self.delay_ms

    def encode(self) -> bytes:
        return TIMER_ROW.pack(ROW_BYTES, *self, 0)


def decode_row(data: bytes | mmap.mmap, start: int = 0) -> TimerLogRow | None:
    """The row at ``start`` of ``data``; None if there is no row."""
    if len(data) - start < ROW_BYTES:
        return None
    fields = TIMER_ROW.unpack_from(data, start)
    if fields[0] != ROW_BYTES or not 0 < fields[2] <= _MAGIC_BITS:
        return None
    return TimerLogRow._make(fields[1:8])


class TimerLog:
    """The rows in the order they were enqueued. One thread uses this object."""

    def __init__(self, files: FileSystem, folder: Path, *, file_bytes: int) -> None:
        self._files = files
        self._folder = folder
        self._file_bytes = file_bytes
        self._starts: list[int] = []
        self._fds: dict[int, int] = {}
        self._maps: dict[int, mmap.mmap] = {}
        self.end = 0

    def load(self) -> None:
        """Find the files; the caller sets the end of the rows (``cut``).

        Raises:
            StoreLayoutError: a file has a name or length that does not belong there.
        """
        self.close()
        entries = [entry for entry in self._files.entries(self._folder) if entry.is_file()]
        self._starts = [self._start_of(entry.name, entry.stat().st_size) for entry in entries]
        if self._starts:
            first, last = self._starts[0], self._starts[-1]
            if self._starts != list(range(first, last + 1, self._file_bytes)):
                raise StoreLayoutError(f"files are missing in {self._folder}")

    def _start_of(self, name: str, byte_count: int) -> int:
        is_name = len(name) == _NAME_DIGITS and name.isdecimal()
        if not is_name or int(name) % self._file_bytes or byte_count != self._file_bytes:
            raise StoreLayoutError(
                f"{self._folder / name} is no timer log file of {self._file_bytes} bytes"
            )
        return int(name)

    @property
    def start(self) -> int:
        return self._starts[0] if self._starts else 0

    # Writing.

    def next_position(self) -> int:
        """The position of the next row."""
        return self._row_place(self.end)

    def row_after(self, position: int) -> int:
        """The position of the row behind the row at ``position``."""
        return self._row_place(position + ROW_BYTES)

    def _row_place(self, position: int) -> int:
        left = self._file_bytes - position % self._file_bytes
        return position if left >= ROW_BYTES + _BLANK.size else position + left

    def append(self, rows: list[bytes]) -> None:
        """Write rows behind the end and make them durable."""
        touched: set[int] = set()
        at = 0
        while at < len(rows):
            position = self.next_position()
            if position != self.end:
                touched.add(self._close_file())
            start = position - position % self._file_bytes
            room = self._file_bytes - (position - start) - _BLANK.size
            part = rows[at : at + room // ROW_BYTES]
            write_fully(self._files, self._writable(start), b"".join(part), position - start)
            self.end = position + len(part) * ROW_BYTES
            touched.add(start)
            at += len(part)
        crashpoint("timer_log.written")
        for start in sorted(touched):
            self._files.fdatasync(self._writable(start))
        crashpoint("timer_log.synced")

    def _close_file(self) -> int:
        """Write the closing mark behind the last row of a full file."""
        start = self.end - self.end % self._file_bytes
        left = start + self._file_bytes - self.end
        mark = _BLANK.pack(left, 0, MAGIC_BLANK)
        write_fully(self._files, self._writable(start), mark, self.end - start)
        return start

    def cut(self, end: int) -> None:
        """Durably forget every row from ``end`` on: a stale row must not come back."""
        while self._starts and self._starts[-1] > max(end - 1, 0):
            self._remove(self._starts.pop())
        if self._starts and end < self._starts[-1] + self._file_bytes:
            start = self._starts[-1]
            fd = self._writable(start)
            self._zero_data(fd, end - start)
            self._files.fdatasync(fd)
        self.end = max(end, self.start)

    def _zero_data(self, fd: int, position: int) -> None:
        """Overwrite data behind ``position`` with zeros; the holes of the file stay holes."""
        while (data := self._files.next_data(fd, position)) is not None:
            step = min(_READ_BYTES, self._file_bytes - data)
            if any(self._files.pread(fd, step, data)):
                for _ in write_zeros(self._files, fd, data, step):
                    pass
            position = data + step

    def drop_below(self, physical_min: int) -> None:
        """Remove files whose messages the log no longer has."""
        while len(self._starts) > 1 and self._last_message(self._starts[0]) < physical_min:
            self._remove(self._starts.pop(0))

    def _last_message(self, start: int) -> int:
        place = (self._rows_per_file - 1) * ROW_BYTES
        row = decode_row(self._files.pread(self._fd(start), ROW_BYTES, place))
        return row.physical_offset if row is not None else 0

    @property
    def _rows_per_file(self) -> int:
        return (self._file_bytes - _BLANK.size) // ROW_BYTES

    def reset(self) -> None:
        """Remove all files."""
        self.close()
        for entry in self._files.entries(self._folder):
            self._files.unlink(self._folder / entry.name)
        if self._files.exists(self._folder):
            self._files.sync_folder(self._folder)
        self._starts = []
        self.end = 0

    # Reading.

    def read(self, position: int) -> TimerLogRow | None:
        """The row at ``position``; None if there is no row."""
        start = position - position % self._file_bytes
        known = self._maps.get(start)
        if known is None:
            if position < 0 or start not in self._starts:
                return None
            known = self._maps[start] = self._files.map_read(self._fd(start), self._file_bytes)
        return decode_row(known, position - start)

    def forget_maps(self) -> None:
        """Close the maps that ``read`` keeps open."""
        for known in self._maps.values():
            known.close()
        self._maps.clear()

    def rows_from(self, position: int) -> Iterator[tuple[int, TimerLogRow]]:
        """Rows with their positions, from ``position`` on up to the first missing row."""
        position = self._row_place(max(position, self.start))
        chunk, chunk_at = b"", 0
        while True:
            if not chunk_at <= position <= chunk_at + len(chunk) - ROW_BYTES:
                chunk, chunk_at = self._read_chunk(position), position
            row = decode_row(chunk, position - chunk_at)
            if row is None:
                return
            yield position, row
            position = self.row_after(position)

    def _read_chunk(self, position: int) -> bytes:
        start = position - position % self._file_bytes
        if start not in self._starts:
            return b""
        step = _READ_BYTES // ROW_BYTES * ROW_BYTES
        return self._files.pread(self._fd(start), step, position - start)

    # Files.

    def _fd(self, start: int) -> int:
        fd = self._fds.get(start)
        if fd is None:
            while len(self._fds) >= _OPEN_FILES_MAX:
                self._files.close(self._fds.pop(next(iter(self._fds))))
            fd = self._fds[start] = self._files.open(self._path(start))
        return fd

    def _writable(self, start: int) -> int:
        if start not in self._starts:
            self._create(start)
        return self._fd(start)

    def _create(self, start: int) -> None:
        if not self._files.exists(self._folder):
            self._files.make_folder(self._folder)
            self._files.sync_folder(self._folder.parent)
        with opened(self._files, self._path(start), create=True) as fd:
            self._files.truncate(fd, self._file_bytes)
            self._files.fsync(fd)
        self._files.sync_folder(self._folder)
        self._starts.append(start)

    def _remove(self, start: int) -> None:
        if start in self._maps:
            self._maps.pop(start).close()
        if start in self._fds:
            self._files.close(self._fds.pop(start))
        self._files.unlink(self._path(start))
        self._files.sync_folder(self._folder)

    def _path(self, start: int) -> Path:
        return self._folder / f"{start:0{_NAME_DIGITS}d}"

    def close(self) -> None:
        self.forget_maps()
        for fd in self._fds.values():
            self._files.close(fd)
        self._fds.clear()
