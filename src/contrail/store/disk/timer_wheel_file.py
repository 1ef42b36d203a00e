"""RocketMQ's timer wheel: for every slot of two weeks the chain of rows that wait for it.

1,209,600 cells of 32 bytes, all integers big-endian and signed. The cell of a time is
``time / precision`` modulo the number of cells; a cell that holds another time is empty.

    at     bytes  field
    0      8      slot time divided by the precision
    8      8      position of the first row in the timer log
    16     8      position of the last row
    24     4      how many messages wait; a deletion counts -1
    28     4      magic, unused
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from struct import Struct
from typing import NamedTuple

from contrail.errors import StoreLayoutError
from contrail.runtime.crashpoints import crashpoint
from contrail.runtime.files import FileSystem, write_fully

CELL_COUNT = 7 * 86_400 * 2
_CELL = Struct(">qqqii")
CELL_BYTES = _CELL.size
WHEEL_BYTES = CELL_COUNT * CELL_BYTES
_READ_BYTES = 1 << 20


class WheelCell(NamedTuple):
    """One cell, decoded."""

    # Slot time divided by the precision.
    time: int
    first: int
    last: int
    waiting: int = 0
    magic: int = 0


class TimerWheelFile:
    """The cells on the disk. One thread uses this object."""

    def __init__(self, files: FileSystem, path: Path) -> None:
        self._files = files
        self._path = path
        self._fd = -1

    def load(self) -> None:
        """Open the file; create it if it is missing.

        Raises:
            StoreLayoutError: the file has another length.
        """
        self.close()
        is_new = not self._files.exists(self._path)
        self._fd = self._files.open(self._path, create=True)
        byte_count = self._files.size(self._fd)
        if byte_count not in (0, WHEEL_BYTES):
            raise StoreLayoutError(f"{self._path} has {byte_count} bytes, not {WHEEL_BYTES}")
        if byte_count == 0:
            self._files.truncate(self._fd, WHEEL_BYTES)
        if is_new:
            self._files.fsync(self._fd)
            self._files.sync_folder(self._path.parent)

    def reset(self) -> None:
        """Make every cell empty."""
        self.close()
        self._fd = self._files.open(self._path, create=True)
        self._files.truncate(self._fd, 0)
        self._files.truncate(self._fd, WHEEL_BYTES)
        self._files.fsync(self._fd)
        self._files.sync_folder(self._path.parent)

    def read(self, index: int) -> WheelCell:
        data = self._files.pread(self._fd, CELL_BYTES, index * CELL_BYTES)
        return WheelCell(*_CELL.unpack(data))

    def cells(self) -> Iterator[WheelCell]:
        """Every cell that was ever written; the file's holes are skipped."""
        position = self._files.next_data(self._fd, 0)
        while position is not None and position < WHEEL_BYTES:
            position -= position % CELL_BYTES
            data = self._files.pread(self._fd, _READ_BYTES, position)
            for fields in _CELL.iter_unpack(data):
                # Time 0 marks a cell that was never written.
                if fields[0]:
                    yield WheelCell(*fields)
            position = self._files.next_data(self._fd, position + len(data))

    def write(self, cells: Mapping[int, WheelCell]) -> None:
        """Write cells by index, adjacent cells together, and make them durable."""
        run_at, run = -1, bytearray()
        for index in sorted(cells):
            if run and index * CELL_BYTES != run_at + len(run):
                write_fully(self._files, self._fd, run, run_at)
                run = bytearray()
            if not run:
                run_at = index * CELL_BYTES
            run += _CELL.pack(*cells[index])
        if run:
            write_fully(self._files, self._fd, run, run_at)
        crashpoint("timer_wheel.written")
        self._files.fdatasync(self._fd)
        crashpoint("timer_wheel.synced")

    def close(self) -> None:
        if self._fd >= 0:
            self._files.close(self._fd)
            self._fd = -1
