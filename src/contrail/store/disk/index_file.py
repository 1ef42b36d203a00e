"""One hash index file under ``index/``: keys of messages to physical offsets.

    at          bytes   part
    0           40      header: i64 beginTimestamp, i64 endTimestamp, i64 beginPhyOffset,
                        i64 endPhyOffset, i32 hashSlotCount, i32 indexCount
    40          4 * s   slots: the number of the newest entry of each chain, 0 = none
    40 + 4 * s  20 * n  entries: i32 keyHash, i64 physicalOffset, i32 seconds since beginTimestamp,
                        i32 number of the previous entry of the chain

Entry 0 is never used, so indexCount starts at 1. Entries are written first, then slots, then the
header: after any crash the entries below a durable count are whole, and the slots can be built
again from them.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import NamedTuple

from contrail.kernels.index_put import put_rows, rebuild_slots
from contrail.runtime.crashpoints import crashpoint
from contrail.runtime.files import FilePart, FileSystem, write_fully
from contrail.store.config import StoreConfig
from contrail.store.disk.disk_waits import DiskWaits, NotInMemory
from contrail.store.disk.handles import FileHandles, UnsyncedPaths

HEADER_BYTES = 40
SLOT_BYTES = 4
ENTRY_BYTES = 20
_PAGE_BYTES = 4096
# More unwritten entries than this are written ahead of the next ``write_pending``.
_TAIL_BYTES_MAX = 1 << 20
# How many bytes are brought into memory at a time: a key's entries are often close together.
_BROUGHT_IN_BYTES = 32 << 10

BEGIN_MS, END_MS, BEGIN_PHYSICAL, END_PHYSICAL, SLOT_USED, INDEX_COUNT = range(6)
_HEADER = struct.Struct(">qqqqii")
_ENTRY = struct.Struct(">iqii")


class IndexMark(NamedTuple):
    """The written part of one index file, which the next start checks."""

    name: str
    index_count: int
    end_physical_offset: int
    end_timestamp_ms: int


class IndexFile:
    """One file: its header in memory, and while it takes keys also slots and newest entries."""

    def __init__(
        self,
        path: Path,
        *,
        config: StoreConfig,
        files: FileSystem,
        handles: FileHandles,
        unsynced: UnsyncedPaths,
        waits: DiskWaits,
    ) -> None:
        self.path = path
        self._waits = waits
        self._files = files
        self._handles = handles
        self._unsynced = unsynced
        self._slot_count = config.index_slot_count
        self._entry_limit = config.index_entry_count
        self.header = [0, 0, 0, 0, 0, 1]
        self._slots: bytearray | None = None
        self._dirty = bytearray()
        self._tail = bytearray()
        self._written_count = 1
        self._created = False
        self._mark: IndexMark | None = None

    # Its size and span.

    @property
    def file_bytes(self) -> int:
        return self._entry_place(self._entry_limit)

    @property
    def is_full(self) -> bool:
        return self.header[INDEX_COUNT] >= self._entry_limit

    @property
    def index_count(self) -> int:
        return self.header[INDEX_COUNT]

    @property
    def end_physical_offset(self) -> int:
        return self.header[END_PHYSICAL]

    @property
    def end_timestamp_ms(self) -> int:
        return self.header[END_MS]

    @property
    def begin_timestamp_ms(self) -> int:
        return self.header[BEGIN_MS]

    @property
    def has_pending(self) -> bool:
        return self._mark != self._current_mark()

    def mark(self) -> IndexMark | None:
        """The mark of the written part; None before the first write."""
        return self._mark

    # Starting.

    def follow(self, previous: IndexFile) -> None:
        """Begin where ``previous`` ended, as RocketMQ does; the first key moves the beginning."""
        self.header[BEGIN_MS] = self.header[END_MS] = previous.end_timestamp_ms
        self.header[BEGIN_PHYSICAL] = self.header[END_PHYSICAL] = previous.end_physical_offset

    def load(self) -> str | None:
        """Read the header; returns the file's problem as text, or None."""
        fd = self._handles.fd(self.path)
        length = self._files.size(fd)
        if length != self.file_bytes:
            return f"{self.path} has {length} bytes, not {self.file_bytes}"
        self.header = list(_HEADER.unpack(self._files.pread(fd, HEADER_BYTES, 0)))
        self.header[INDEX_COUNT] = max(1, self.header[INDEX_COUNT])
        if self.header[INDEX_COUNT] > self._entry_limit or min(self.header) < 0:
            return f"{self.path} has an impossible header"
        self._believe_disk()
        return None

    def cut(self, index_count: int, end_physical_offset: int, end_timestamp_ms: int) -> None:
        """Go back to the first ``index_count`` entries and chain them anew."""
        self.header[INDEX_COUNT] = index_count
        self.header[END_PHYSICAL] = end_physical_offset
        self.header[END_MS] = end_timestamp_ms
        self._written_count = index_count
        self._tail = bytearray()
        self._mark = None
        found = self._read_slots()
        self._slots = bytearray(len(found))
        self.header[SLOT_USED] = self._chain_again(self._slots)
        self._dirty = _differing_pages(found, self._slots)
        self.write_pending()
        self.release()

    def cut_before(self, physical_limit: int) -> None:
        """Forget the entries of records at or above ``physical_limit``."""
        count = self._first_at_or_above(physical_limit)
        if count == self.index_count:
            return
        if count <= 1:
            self.cut(1, self.header[BEGIN_PHYSICAL], self.header[BEGIN_MS])
            return
        _, physical_offset, seconds, _ = self._entry(count - 1)
        # Entries keep whole seconds; the last millisecond of the second covers the true time.
        end_ms = min(self.header[BEGIN_MS] + seconds * 1000 + 999, self.header[END_MS])
        self.cut(count, physical_offset, end_ms)

    # Writing.

    def put(self, rows: memoryview) -> int:
        """Take index rows until full; returns how many were consumed."""
        if self._slots is None:
            self._slots = self._read_slots()
            self._dirty = bytearray(self._page_count())
        consumed = put_rows(
            rows,
            self._slots,
            self._slot_count,
            self._tail,
            self.header,
            self._entry_limit,
            self._dirty,
        )
        return consumed

    @property
    def wants_write(self) -> bool:
        """Whether enough entries wait in memory to write them before ``write_pending``."""
        return len(self._tail) > _TAIL_BYTES_MAX

    def write_entries(self) -> None:
        """Write the waiting entries; readers of the file see them once the header counts them."""
        if not self._tail:
            return
        data = bytes(self._tail)
        write_fully(self._files, self._fd(), data, self._entry_place(self._written_count))
        self._written_count += len(data) // ENTRY_BYTES
        del self._tail[: len(data)]
        self._unsynced.wrote(self.path)
        crashpoint("index.entries_written")

    def write_pending(self) -> None:
        """Write what is pending: entries, slots, then the header."""
        self.write_entries()
        if not self.has_pending:
            return
        self._write_slots()
        write_fully(self._files, self._fd(), _HEADER.pack(*self.header), 0)
        self._unsynced.wrote(self.path)
        self._mark = self._current_mark()
        crashpoint("index.header_written")

    def release(self) -> None:
        """Give back the slots' memory; nothing may be pending."""
        self._slots = None
        self._dirty = bytearray()

    # Asking.

    def covers(self, begin_ms: int, end_ms: int) -> bool:
        """Whether the file's time span overlaps ``begin_ms`` to ``end_ms``."""
        return begin_ms <= self.header[END_MS] and end_ms >= self.header[BEGIN_MS]

    def select(
        self, key_hash: int, found: list[int], count_max: int, begin_ms: int, end_ms: int
    ) -> None:
        """Add the physical offsets of ``key_hash`` to ``found``, the newest first.

        Raises:
            NotInMemory: waits are forbidden, and a part of the chain is on the disk only.
        """
        number = self._slot(key_hash % self._slot_count)
        if number > self.index_count:
            return
        while number > 0 and len(found) < count_max:
            entry_hash, physical_offset, seconds, previous = self._entry(number)
            stored_ms = self.header[BEGIN_MS] + seconds * 1000
            if seconds < 0:
                return
            if entry_hash == key_hash and begin_ms <= stored_ms <= end_ms:
                found.append(physical_offset)
            # A sound chain leads to older entries only; anything else would loop.
            if stored_ms < begin_ms or previous >= number:
                return
            number = previous

    def count_of_last(self) -> int:
        """How many of the last entries belong to the last message."""
        count = 0
        while count + 1 < self.index_count:
            if self._entry(self.index_count - 1 - count)[1] != self.end_physical_offset:
                break
            count += 1
        return count

    # Private.

    def _current_mark(self) -> IndexMark:
        return IndexMark(
            self.path.name, self.index_count, self.end_physical_offset, self.end_timestamp_ms
        )

    def _believe_disk(self) -> None:
        self._written_count = self.index_count
        self._created = True
        self._mark = self._current_mark()

    def _fd(self) -> int:
        if self._created:
            return self._handles.fd(self.path)
        fd = self._handles.fd(self.path, create_bytes=self.file_bytes)
        self._created = True
        self._unsynced.changed(self.path.parent)
        crashpoint("index.file_created")
        return fd

    def _page_count(self) -> int:
        return -(-self._slot_count * SLOT_BYTES // _PAGE_BYTES)

    def _entry_place(self, number: int) -> int:
        return HEADER_BYTES + self._slot_count * SLOT_BYTES + number * ENTRY_BYTES

    def _read_slots(self) -> bytearray:
        byte_count = self._slot_count * SLOT_BYTES
        if not self._created:
            return bytearray(byte_count)
        return bytearray(self._files.pread(self._fd(), byte_count, HEADER_BYTES)).ljust(
            byte_count, b"\0"
        )

    def _write_slots(self) -> None:
        """Write adjacent touched pages together."""
        slots, dirty = self._slots, self._dirty
        if slots is None:
            return
        page = dirty.find(1)
        while page >= 0:
            stop = dirty.find(0, page)
            stop = len(dirty) if stop < 0 else stop
            data = bytes(slots[page * _PAGE_BYTES : stop * _PAGE_BYTES])
            write_fully(self._files, self._fd(), data, HEADER_BYTES + page * _PAGE_BYTES)
            dirty[page:stop] = bytes(stop - page)
            page = dirty.find(1, stop)
        crashpoint("index.slots_written")

    def _chain_again(self, slots: bytearray) -> int:
        if self.index_count <= 1:
            return 0
        place = self._entry_place(0)
        with (
            self._files.map_read(self._fd(), self.file_bytes) as image,
            memoryview(image) as whole,
            whole[place:] as entries,
        ):
            return rebuild_slots(entries, self.index_count, slots, self._slot_count)

    def _slot(self, slot: int) -> int:
        place = slot * SLOT_BYTES
        if self._slots is not None:
            return int.from_bytes(self._slots[place : place + SLOT_BYTES], "big", signed=True)
        if not self._created:
            return 0
        raw = self._read(SLOT_BYTES, HEADER_BYTES + place)
        return int.from_bytes(raw, "big", signed=True)

    def _entry(self, number: int) -> tuple[int, int, int, int]:
        at = (number - self._written_count) * ENTRY_BYTES
        if at >= 0:
            raw = bytes(self._tail[at : at + ENTRY_BYTES])
        else:
            raw = self._read(ENTRY_BYTES, self._entry_place(number))
        key_hash, physical_offset, seconds, previous = _ENTRY.unpack(raw.ljust(ENTRY_BYTES, b"\0"))
        return key_hash, physical_offset, seconds, previous

    def _read(self, byte_count: int, position: int) -> bytes:
        if not self._waits.are_forbidden:
            return self._files.pread(self._fd(), byte_count, position)
        raw = self._files.pread_resident(self._fd(), byte_count, position)
        if raw is None:
            first = position - position % _BROUGHT_IN_BYTES
            end = min(max(first + _BROUGHT_IN_BYTES, position + byte_count), self.file_bytes)
            raise NotInMemory([FilePart(self.path, first, end - first)])
        return raw

    def _first_at_or_above(self, physical_limit: int) -> int:
        low, high = 1, self.index_count
        while low < high:
            middle = (low + high) // 2
            if self._entry(middle)[1] >= physical_limit:
                high = middle
            else:
                low = middle + 1
        return low


def _differing_pages(one: bytearray, other: bytearray) -> bytearray:
    places = range(0, len(one), _PAGE_BYTES)
    return bytearray(one[at : at + _PAGE_BYTES] != other[at : at + _PAGE_BYTES] for at in places)
