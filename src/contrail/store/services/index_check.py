"""Checks index files against the log by putting the log's keys into images of the files.

Entries, chains and headers are a function of the log's keys: replayed by the kernel that wrote
them, they must be equal byte for byte. A check takes every key from some physical offset on; it
costs one image of a file's slots and no Python per key.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable

from contrail.kernels.index_put import put_rows, rebuild_slots
from contrail.kernels.record_layout import INDEX_PHYSICAL_AT, INDEX_ROW_BYTES, INDEX_TIME_AT
from contrail.store.services.folder_files import INDEX_ENTRY_BYTES, IndexHeader, IndexReader

_PAGE_SLOTS = 1024
_BEGIN_MS, _END_MS, _BEGIN_PHYSICAL, _END_PHYSICAL, _SLOT_USED, _INDEX_COUNT = range(6)
# The end time of a file that was truncated is known to the second only.
_END_SLACK_MS = 1000

ListFiles = Callable[[], list[IndexReader]]


class IndexCheck:
    """One pass over the index. ``problems`` names each file that is wrong, with the reason."""

    def __init__(self, list_files: ListFiles, *, physical_start: int, required_end: int) -> None:
        self._list_files = list_files
        self._physical_start = physical_start
        self._required_end = required_end
        self._image: _Image | None = None
        self._begun = False
        self.problems: dict[str, str] = {}
        self.missing_keys = 0

    def feed(self, index_rows: bytes | bytearray) -> None:
        """Take the keys of the next records, as ``derive_rows`` gives them."""
        if not self._begun:
            self._begun = True
            self._image = self._first_image()
        rows = memoryview(bytes(index_rows))
        while rows and self._image is not None:
            rows = rows[self._image.put(rows) * INDEX_ROW_BYTES :]
            self._compare(self._image)
            if rows:
                self._close(self._image)
                self._image = self._next_image(self._image)
        self._count_missing(rows)

    def finish(self) -> None:
        """After the last key: the last file must end here."""
        if not self._begun:
            self._begun = True
            self._image = self._first_image()
        if self._image is not None:
            self._close(self._image)
            later = self._next_image(self._image)
            if later is not None and later.reader.header.index_count > 1:
                self.problems[later.name] = "it holds keys that no message has"

    def _compare(self, image: _Image) -> None:
        problem = image.compare()
        if problem is not None:
            self.problems.setdefault(image.name, problem)

    def _close(self, image: _Image) -> None:
        problem = image.closing_problem()
        if problem is not None:
            self.problems.setdefault(image.name, problem)

    def _first_image(self) -> _Image | None:
        """Begin in the file with the first live entry; older entries are not checked."""
        files = self._list_files()
        for number, reader in enumerate(files):
            if reader.header.index_count < 1 or not reader.is_whole:
                self.problems[reader.path.name] = "its header or length is impossible"
            first = reader.first_at_or_above(self._physical_start)
            if first < reader.header.index_count or number == len(files) - 1:
                return _Image(reader, first, files[number - 1].header if number else None)
        return None

    def _next_image(self, image: _Image) -> _Image | None:
        for reader in self._list_files():
            if reader.path.name > image.name:
                return _Image(reader, 1, image.reader.header)
        return None

    def _count_missing(self, rows: memoryview) -> None:
        if not rows:
            return
        places = range(0, len(rows), INDEX_ROW_BYTES)
        self.missing_keys += bisect_left(
            places,
            self._required_end,
            key=lambda at: int.from_bytes(rows[at + INDEX_PHYSICAL_AT : at + INDEX_TIME_AT], "big"),
        )


class _Image:
    """The content that one file must have, built key by key."""

    def __init__(self, reader: IndexReader, first: int, previous: IndexHeader | None) -> None:
        self.reader = reader
        self._has_previous = previous is not None
        self._compared = first
        self._tail = bytearray()
        self._slots = bytearray(reader.slot_count * 4)
        self._dirty = bytearray(-(-reader.slot_count // _PAGE_SLOTS))
        if first > 1:
            self.header = self._resumed(first)
        else:
            begin_ms = previous.end_timestamp_ms if previous else 0
            begin = previous.end_physical_offset if previous else 0
            self.header = [begin_ms, begin_ms, begin, begin, 0, 1]

    def _resumed(self, first: int) -> list[int]:
        """The header before entry ``first``: older entries are taken as they are."""
        entries = self.reader.entries(0, first)
        used = rebuild_slots(entries, first, self._slots, self.reader.slot_count)
        last_physical = int.from_bytes(entries[-16:-8], "big")
        begin_ms, _, begin_physical, *_ = self.reader.header
        return [begin_ms, begin_ms, begin_physical, last_physical, used, first]

    @property
    def name(self) -> str:
        return self.reader.path.name

    def put(self, rows: memoryview) -> int:
        return put_rows(
            rows,
            self._slots,
            self.reader.slot_count,
            self._tail,
            self.header,
            self.reader.count_now(),
            self._dirty,
        )

    def compare(self) -> str | None:
        """Compare the entries put since the last time with those in the file."""
        first, expected = self._compared, bytes(self._tail)
        self._tail = bytearray()
        count = len(expected) // INDEX_ENTRY_BYTES
        self._compared += count
        found = self.reader.entries(first, count)
        if first == 1 and not self._has_previous:
            # The entry's seconds count from the end of a file that was removed.
            expected = expected[:12] + found[12:16] + expected[16:]
        if found == expected:
            return None
        places = range(0, len(expected), INDEX_ENTRY_BYTES)
        wrong = sum(found[at : at + 20] != expected[at : at + 20] for at in places)
        return f"{wrong} of its entries from number {first} on are not what the log says"

    def closing_problem(self) -> str | None:
        """The first problem of slots and header after the last key, as text."""
        header = self.reader.reloaded()
        if header.index_count != self.header[_INDEX_COUNT]:
            expected = self.header[_INDEX_COUNT] - 1
            return f"it counts {header.index_count - 1} entries, the log {expected}"
        if self.reader.slots() != self._slots:
            return "a chain does not begin at its newest entry"
        own = IndexHeader(*self.header)
        if (
            self.header[_INDEX_COUNT] > 1
            and abs(header.end_timestamp_ms - own.end_timestamp_ms) >= _END_SLACK_MS
        ):
            return "the time of its last message is wrong"
        if header._replace(end_timestamp_ms=own.end_timestamp_ms) != own:
            return "its header is not what the log says"
        return None
