"""The consume queue's extension: ``consumequeue_ext/<topic>/<queueId>/``, off by default.

    at     bytes  unit
    0      2      size of the unit, 20 to 32,767; -1 ends a file before it is full
    2      8      tagsCode
    10     8      storeTimestamp
    18     2      bitmap bytes
    20     n      bitmap: which consumers' filters matched the message

A unit's address is its position plus Long.MIN_VALUE. The address stands in the tagsCode field of
the consume queue; tag codes are 32-bit hashes or times, so the two cannot be confused.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from contrail.runtime.crashpoints import crashpoint
from contrail.runtime.files import FilePart, FileSystem
from contrail.store.config import StoreConfig
from contrail.store.disk.handles import FileHandles, UnsyncedPaths
from contrail.store.disk.row_files import RowFiles

UNIT_BYTES_MIN = 20
UNIT_BYTES_MAX = 0x7FFF
_ADDRESS_BASE = -(1 << 63)
_ADDRESS_MAX = -(1 << 31) - 1
# Each file keeps this many bytes free for the mark that ends it.
_END_BYTES = 4
_END_MARK = struct.pack(">h", -1)
_WALK_BYTES = 64 << 10

_UNIT = struct.Struct(">hqqh")


class ExtUnit(NamedTuple):
    """The extension's data of one message."""

    tags_code: int
    store_timestamp_ms: int
    bitmap: bytes


def is_ext_address(tags_code: int) -> bool:
    """Whether a consume queue's tagsCode field holds an address instead."""
    return tags_code <= _ADDRESS_MAX


class QueueExt:
    """The units of one queue. Belongs to the queue's thread, but for ``sync``."""

    __slots__ = ("_files", "_units", "_unsynced")

    def __init__(
        self,
        folder: Path,
        *,
        config: StoreConfig,
        files: FileSystem,
        handles: FileHandles,
        unsynced: UnsyncedPaths | None = None,
    ) -> None:
        self._files = files
        self._unsynced = unsynced or UnsyncedPaths()
        self._units = RowFiles(
            folder,
            config.queue_ext_file_bytes,
            files=files,
            handles=handles,
            unsynced=self._unsynced,
        )

    @property
    def folder(self) -> Path:
        return self._units.folder

    @property
    def address_max(self) -> int:
        """The address of the next unit, if the unit fits the file."""
        return self._units.end + _ADDRESS_BASE

    def load(self, last_address: int | None = None) -> str | None:
        """Find the files and where the units end; returns the problem as text, or None.

        The last unit is the one at ``last_address``, from the queue's last row: the files are
        large and sparse, and are not read. Without it the last file is walked unit by unit.
        """
        problem = self._units.find()
        if problem is None:
            end = None if last_address is None else self._end_after(last_address)
            self._units.settle(self._walked_end() if end is None else end)
        return problem

    def _end_after(self, address: int) -> int | None:
        """Where the unit at ``address`` ends; None if there is no unit."""
        position = address - _ADDRESS_BASE
        if not self._units.start <= position < self._units.created:
            return None
        unit = self._read(position, self._units.read_file)
        return None if unit is None else position + UNIT_BYTES_MIN + len(unit.bitmap)

    def append(self, tags_code: int, store_timestamp_ms: int, bitmap: bytes = b"") -> int | None:
        """Add a unit and return its address; None when its bitmap is too long to keep."""
        size = UNIT_BYTES_MIN + len(bitmap)
        room = self._room()
        if size > min(UNIT_BYTES_MAX, self._units.file_bytes - _END_BYTES):
            return None
        if size > room - _END_BYTES:
            self._units.append(_END_MARK[:room].ljust(room, b"\0"))
            crashpoint("ext.rolled")
        position = self._units.end
        unit = _UNIT.pack(size, tags_code, store_timestamp_ms, len(bitmap))
        self._units.append(unit + bitmap)
        return position + _ADDRESS_BASE

    def read(self, address: int) -> ExtUnit | None:
        """The unit at ``address``, or None."""
        if not is_ext_address(address):
            return None
        position = address - _ADDRESS_BASE
        if not self._units.start <= position < self._units.end:
            return None
        return self._read(position, self._units.read)

    def absent(self, first_address: int, last_address: int) -> FilePart | None:
        """The part to bring in before these units are read; None: the read does not wait."""
        position = first_address - _ADDRESS_BASE
        return self._units.absent(position, last_address - first_address + UNIT_BYTES_MIN)

    def read_file(self, address: int) -> ExtUnit | None:
        """The unit as it is on disk, even if memory holds a copy of it."""
        position = address - _ADDRESS_BASE
        if not (is_ext_address(address) and self._units.start <= position < self._units.written):
            return None
        return self._read(position, self._units.read_file)

    def _read(self, position: int, read: Callable[[int, int], bytes]) -> ExtUnit | None:
        raw = read(position, UNIT_BYTES_MIN)
        if len(raw) < UNIT_BYTES_MIN:
            return None
        size, tags_code, store_timestamp_ms, bitmap_bytes = _UNIT.unpack(raw)
        if bitmap_bytes < 0 or size != UNIT_BYTES_MIN + bitmap_bytes:
            return None
        bitmap = read(position + UNIT_BYTES_MIN, bitmap_bytes) if bitmap_bytes else b""
        return ExtUnit(tags_code, store_timestamp_ms, bitmap)

    def write_pending(self) -> None:
        if self._units.pending_bytes:
            self._units.write_pending()
            crashpoint("ext.unit_written")

    def sync(self) -> None:
        self._unsynced.sync(self._files, self._units.folder)

    def truncate(self, last_address: int | None) -> bool:
        """End after the unit at ``last_address``, or before the first; False if it is missing."""
        if last_address is None:
            self._units.cut(self._units.start)
            return True
        unit = self.read(last_address)
        if unit is None:
            return False
        self._units.cut(last_address - _ADDRESS_BASE + UNIT_BYTES_MIN + len(unit.bitmap))
        return True

    def drop_before(self, address: int) -> list[Path]:
        """Unlink the files that end before ``address``."""
        position = address - _ADDRESS_BASE
        dropped: list[Path] = []
        while self._units.start + self._units.file_bytes < min(position, self._units.created):
            dropped.append(self._units.drop_first())
            crashpoint("ext.file_dropped")
        return dropped

    def reset(self) -> None:
        self._units.remove_all()

    def _room(self) -> int:
        return self._units.file_bytes - self._units.end % self._units.file_bytes

    def _walked_end(self) -> int:
        """Walk the last file that holds a unit; a unit that does not fit its file ends the walk."""
        units = self._units
        file_start = units.created
        while file_start > units.start:
            file_start -= units.file_bytes
            end = self._walk(file_start)
            if end > file_start:
                return end
        return units.start

    def _walk(self, file_start: int) -> int:
        units, file_end = self._units, file_start + self._units.file_bytes
        data, base, position = b"", file_start, file_start
        while position + UNIT_BYTES_MIN <= file_end:
            if position + UNIT_BYTES_MIN > base + len(data):
                base, data = position, units.read_file(position, min(_WALK_BYTES, file_end - base))
                if len(data) < UNIT_BYTES_MIN:
                    break
            size, _, _, bitmap_bytes = _UNIT.unpack_from(data, position - base)
            if size == -1:
                return file_end
            if size != UNIT_BYTES_MIN + bitmap_bytes or bitmap_bytes < 0:
                break
            position += size
        return min(position, file_end)
