"""The consume queue's extension: ``consumequeue_ext/<topic>/<queueId>/``, off by default.

    place  bytes  unit
    0      2      size of the unit, 20 to 32,767; -1 ends a file before it is full
    2      8      tagsCode
    10     8      storeTimestamp
    18     2      bitmap bytes
    20     n      bitmap: which consumers' filters matched the message

A unit's address is its position plus Long.MIN_VALUE. It takes the place of the tagsCode in the
consume queue; tag codes are 32-bit hashes or times, so the two cannot be confused.
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
# Each file keeps this much for the mark that ends it.
_END_BYTES = 4
_END_MARK = struct.pack(">h", -1)

_UNIT = struct.Struct(">hqqh")


class ExtUnit(NamedTuple):
    """What the extension keeps of one message."""

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
        """The address the next unit will get, if it fits the file."""
        return self._units.end + _ADDRESS_BASE

    def load(self) -> str | None:
        """Find the files and walk the units; returns what is wrong, or None."""
        problem = self._units.find()
        if problem is None:
            self._units.settle(self._walked_end())
        return problem

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
        """The unit at ``address``, or None when there is none."""
        if not is_ext_address(address):
            return None
        position = address - _ADDRESS_BASE
        if not self._units.start <= position < self._units.end:
            return None
        return self._read(position, self._units.read)

    def absent(self, first_address: int, last_address: int) -> FilePart | None:
        """What to bring in before these units are read; None when that waits for no disk."""
        position = first_address - _ADDRESS_BASE
        return self._units.absent(position, last_address - first_address + UNIT_BYTES_MIN)

    def read_file(self, address: int) -> ExtUnit | None:
        """The unit as it is on disk, where memory may still hold a sound copy of it."""
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
        """End after the unit at ``last_address``, or before the first; False if it is not there."""
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
        units = self._units
        data = units.read_file(file_start, units.file_bytes)
        at = 0
        while at + UNIT_BYTES_MIN <= len(data):
            size, _, _, bitmap_bytes = _UNIT.unpack_from(data, at)
            if size == -1:
                return file_start + units.file_bytes
            if size != UNIT_BYTES_MIN + bitmap_bytes or bitmap_bytes < 0:
                break
            at += size
        return file_start + min(at, len(data))
