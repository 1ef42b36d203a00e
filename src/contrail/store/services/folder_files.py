"""Read-only access to the files of a store folder, as they are.

Nothing here writes, locks, maps or trusts a configured length: sizes are taken from the files, odd
names and lengths are noted as text, and bytes that cannot be read count as zeros.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from struct import Struct
from typing import NamedTuple

from contrail.kernels.record_layout import (
    BATCH_ROW_BYTES,
    BLANK_ROW_SIZE,
    QUEUE_ROW_BYTES,
    ROW_BASE_AT,
)
from contrail.runtime.files import FileSystem, opened
from contrail.store.state.row_layout import ROW_BATCH, ROW_TARGET

INDEX_HEADER_BYTES = 40
INDEX_ENTRY_BYTES = 20

_PAGE_BYTES = 4096
_BLOCK_ROWS = 100
_NAME = re.compile(r"[0-9]{20}")
_INDEX_NAME = re.compile(r"[0-9]{17}")
_QUEUE_ID = re.compile(r"0|-?[1-9][0-9]*")
_INDEX_HEADER = Struct(">qqqqii")
_INDEX_ENTRY = Struct(">iqii")


class UntouchedFiles(FileSystem):
    """The file system without its writing half: its holder cannot change a byte."""

    def open(self, path: Path, *, create: bool = False, writable: bool = True) -> int:
        return super().open(path, create=False, writable=False)

    def rename(self, source: Path, target: Path) -> None:
        """Leave a damaged state file where it is; a writer would set it aside."""

    def unlink(self, path: Path) -> None:
        raise PermissionError(f"{path} was opened to be read only")

    def remove_folder(self, folder: Path) -> None:
        self.unlink(folder)

    def make_folder(self, folder: Path) -> None:
        self.unlink(folder)


class LogFile(NamedTuple):
    """One segment, with the length that its file has."""

    path: Path
    start: int
    byte_count: int

    @property
    def end(self) -> int:
        return self.start + self.byte_count


class FoundLog(NamedTuple):
    """The segments in order, the length they share, and texts about problems and oddities."""

    segments: list[LogFile]
    segment_bytes: int
    problems: list[str]
    notes: list[str]


def find_log(files: FileSystem, folders: Iterable[Path]) -> FoundLog:
    """The segments of every folder; the length that most of them have counts as right."""
    problems: list[str] = []
    notes: list[str] = []
    found: list[LogFile] = []
    for folder in folders:
        for entry in files.entries(folder):
            if entry.is_dir():
                continue
            if not _NAME.fullmatch(entry.name):
                problems.append(f"{entry.path} is not a commit log segment")
                continue
            found.append(LogFile(Path(entry.path), int(entry.name), entry.stat().st_size))
    found.sort(key=lambda segment: segment.start)
    if found and found[-1].byte_count == 0:
        notes.append(f"{found.pop().path} is empty: its creation was interrupted")
    lengths = Counter(segment.byte_count for segment in found)
    segment_bytes = lengths.most_common(1)[0][0] if lengths else 0
    problems += [
        f"{segment.path} has {segment.byte_count} bytes, the others have {segment_bytes}"
        for segment in found
        if segment.byte_count != segment_bytes
    ]
    return FoundLog(found, segment_bytes, problems, notes)


class QueueFiles:
    """One queue's rows on disk, by row number: the byte position divided by the row's length."""

    def __init__(
        self,
        files: FileSystem,
        topic: bytes,
        queue_id: int,
        folder: Path,
        *,
        is_batch: bool = False,
    ) -> None:
        self._files = files
        self.topic = topic
        self.queue_id = queue_id
        self.folder = folder
        self.is_batch = is_batch
        self.row_bytes = BATCH_ROW_BYTES if is_batch else QUEUE_ROW_BYTES
        self.problems: list[str] = []
        self._starts: set[int] = set()
        self._file_bytes = 0
        self._holding = False
        self._held: tuple[int, int] | None = None
        self._find()

    def _find(self) -> None:
        entries = [entry for entry in self._files.entries(self.folder) if not entry.is_dir()]
        lengths = Counter(entry.stat().st_size for entry in entries if _NAME.fullmatch(entry.name))
        lengths.pop(0, None)
        self._file_bytes = lengths.most_common(1)[0][0] if lengths else 0
        for entry in entries:
            if not _NAME.fullmatch(entry.name):
                self.problems.append(f"{entry.path} is not a file of a queue")
            elif not self._file_bytes:
                # The queue's first file is being made: it has no row yet.
                continue
            elif entry.stat().st_size != self._file_bytes or self._file_bytes % self.row_bytes:
                self.problems.append(
                    f"{entry.path} has an odd length, {entry.stat().st_size} bytes"
                )
            elif int(entry.name) % self._file_bytes:
                self.problems.append(f"{entry.path} does not continue the file before it")
            else:
                self._starts.add(int(entry.name))
        if self._starts:
            files_expected = (max(self._starts) - min(self._starts)) // self._file_bytes + 1
            if files_expected != len(self._starts):
                self.problems.append(f"{self.folder} lacks a file between two others")

    @property
    def first(self) -> int:
        """The number of the first row there is room for."""
        return min(self._starts, default=0) // self.row_bytes

    @property
    def limit(self) -> int:
        """One past the last row there is room for."""
        if not self._starts:
            return 0
        return (max(self._starts) + self._file_bytes) // self.row_bytes

    def rows(self, number: int, count: int) -> bytes:
        """Rows from ``number`` on, always ``count`` of them: missing rows are zeros."""
        position, end = number * self.row_bytes, (number + count) * self.row_bytes
        parts: list[bytes] = []
        while position < end:
            file_start = position - position % self._file_bytes if self._file_bytes else position
            stop = min(end, file_start + self._file_bytes) if self._file_bytes else end
            parts.append(self._read(file_start, position, stop - position))
            position = stop
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _read(self, file_start: int, position: int, byte_count: int) -> bytes:
        data = b""
        if file_start in self._starts:
            try:
                with self.held_open():
                    fd = self._descriptor(file_start)
                    data = self._files.pread(fd, byte_count, position - file_start)
            except OSError as error:
                self._note(f"{self._path(file_start)} cannot be read: {error.strerror}")
        return data.ljust(byte_count, b"\0")

    @contextmanager
    def held_open(self) -> Iterator[None]:
        """Keep the last read file open meanwhile, for a search with many reads."""
        if self._holding:
            yield
            return
        self._holding = True
        try:
            yield
        finally:
            self._holding = False
            self._let_go()

    def _descriptor(self, file_start: int) -> int:
        if self._held is None or self._held[0] != file_start:
            self._let_go()
            fd = self._files.open(self._path(file_start), writable=False)
            self._held = (file_start, fd)
            return fd
        return self._held[1]

    def _let_go(self) -> None:
        held, self._held = self._held, None
        if held is not None:
            self._files.close(held[1])

    def _path(self, file_start: int) -> Path:
        return self.folder / f"{file_start:020d}"

    def _note(self, problem: str) -> None:
        if problem not in self.problems:
            self.problems.append(problem)

    @property
    def file_bytes(self) -> int:
        """The length of its files; 0 when there is none."""
        return self._file_bytes

    def holds_more_than(self, number: int) -> bool:
        """Whether the files have disk blocks beyond the row; reading holes would be slow."""
        if not self._starts:
            return False
        end = number * self.row_bytes
        file_start = end - end % self._file_bytes
        if any(start > file_start for start in self._starts):
            return True
        path = self._path(file_start)
        used_pages = -(-(end - file_start) // _PAGE_BYTES)
        return file_start in self._starts and path.stat().st_blocks * 512 > used_pages * _PAGE_BYTES

    def place(self, number: int) -> tuple[int, int]:
        """Physical offset and size in a row."""
        physical_offset, size = ROW_TARGET.unpack_from(self.rows(number, 1))
        return physical_offset, size

    def queue_offsets(self, number: int) -> tuple[int, int]:
        """The queue offset of a row's first message, and the offset behind its last."""
        if not self.is_batch:
            return number, number + 1
        base, count = ROW_BATCH.unpack_from(self.rows(number, 1), ROW_BASE_AT)
        return base, base + count

    def live_rows(self, physical_min: int, physical_limit: int) -> range:
        """The rows whose records the log still has, by binary search, as a store finds them."""

        def is_written(number: int) -> bool:
            physical_offset, size = self.place(number)
            return size > 0 and 0 <= physical_offset < physical_limit

        def is_spent(number: int) -> bool:
            physical_offset, size = self.place(number)
            return size == BLANK_ROW_SIZE or physical_offset < physical_min

        with self.held_open():
            end = self._end_in_first_block(physical_limit, is_written)
            if end is None:
                end = _first_without(is_written, self.first, self.limit)
            # Of most queues retention has removed no message.
            if end == self.first or not is_spent(self.first):
                return range(self.first, end)
            return range(_first_without(is_spent, self.first, end), end)

    def _end_in_first_block(
        self, physical_limit: int, is_written: Callable[[int], bool]
    ) -> int | None:
        """The end of the rows of a short queue, in two reads; most queues are short.

        Two rows must be unwritten, so that one damaged row does not end the queue.
        """
        first, beyond = self.first, self.first + 2 * _BLOCK_ROWS
        if beyond >= self.limit or is_written(beyond) or is_written(first + _BLOCK_ROWS):
            return None
        data = self.rows(first, _BLOCK_ROWS)

        def is_written_here(number: int) -> bool:
            physical_offset, size = ROW_TARGET.unpack_from(data, number * self.row_bytes)
            return bool(size > 0 and 0 <= physical_offset < physical_limit)

        return first + _first_without(is_written_here, 0, _BLOCK_ROWS)


def _first_without(holds: Callable[[int], bool], low: int, high: int) -> int:
    """The first number for which ``holds`` is False; it is True for all numbers before."""
    while low < high:
        middle = (low + high) // 2
        if holds(middle):
            low = middle + 1
        else:
            high = middle
    return low


def find_queues(files: FileSystem, root: Path) -> Iterator[QueueFiles]:
    """Every queue of the folder; sub-folders that are no queue are ignored, as by a store."""
    for name, is_batch in (("consumequeue", False), ("batchconsumequeue", True)):
        for topic in files.entries(root / name):
            if not topic.is_dir():
                continue
            for queue in files.entries(Path(topic.path)):
                if queue.is_dir() and _QUEUE_ID.fullmatch(queue.name):
                    yield QueueFiles(
                        files,
                        os.fsencode(topic.name),
                        int(queue.name),
                        Path(queue.path),
                        is_batch=is_batch,
                    )


class IndexHeader(NamedTuple):
    begin_timestamp_ms: int
    end_timestamp_ms: int
    begin_physical_offset: int
    end_physical_offset: int
    slot_used: int
    index_count: int


class IndexReader:
    """One index file, read in parts."""

    def __init__(self, files: FileSystem, path: Path, slot_count: int) -> None:
        self._files = files
        self.path = path
        self.slot_count = slot_count
        self.header = self.reloaded()

    def reloaded(self) -> IndexHeader:
        """The header as it is now; a running store moves it."""
        header = IndexHeader(*_INDEX_HEADER.unpack(self.read(0, INDEX_HEADER_BYTES)))
        return header._replace(index_count=max(header.index_count, 1))

    def count_now(self) -> int:
        """How many entries the file has now, number 0 included."""
        return min(self.reloaded().index_count, self.entry_limit)

    @property
    def entry_limit(self) -> int:
        """How many entries the file has room for."""
        room = self.path.stat().st_size - self.entries_start
        return max(room // INDEX_ENTRY_BYTES, 1)

    @property
    def is_whole(self) -> bool:
        """Whether the header names entries the file can hold."""
        return min(self.header) >= 0 and self.header.index_count <= self.entry_limit

    def first_at_or_above(self, physical_offset: int) -> int:
        """The first entry whose record is at or above ``physical_offset``, else the count."""
        low, high = 1, min(self.header.index_count, self.entry_limit)
        while low < high and physical_offset > 0:
            middle = (low + high) // 2
            if _INDEX_ENTRY.unpack(self.entries(middle, 1))[1] >= physical_offset:
                high = middle
            else:
                low = middle + 1
        return low

    def read(self, position: int, byte_count: int) -> bytes:
        """Bytes of the file; zeros behind its end."""
        with opened(self._files, self.path, writable=False) as fd:
            data = bytearray()
            while len(data) < byte_count:
                part = self._files.pread(fd, byte_count - len(data), position + len(data))
                if not part:
                    break
                data += part
        return bytes(data.ljust(byte_count, b"\0"))

    @property
    def entries_start(self) -> int:
        return INDEX_HEADER_BYTES + 4 * self.slot_count

    def slots(self) -> bytes:
        return self.read(INDEX_HEADER_BYTES, 4 * self.slot_count)

    def entries(self, first: int, count: int) -> bytes:
        """Entries from number ``first`` on; number 0 is never used."""
        return self.read(self.entries_start + first * INDEX_ENTRY_BYTES, count * INDEX_ENTRY_BYTES)

    def find(self, key_hash: int) -> list[int]:
        """Physical offsets of the entries with this hash, the newest first."""
        slot = int.from_bytes(
            self.read(INDEX_HEADER_BYTES + key_hash % self.slot_count * 4, 4), "big"
        )
        found: list[int] = []
        number = slot
        while number > 0:
            entry_hash, physical_offset, _, previous = _INDEX_ENTRY.unpack(self.entries(number, 1))
            if entry_hash == key_hash:
                found.append(physical_offset)
            # A chain leads to older entries only; anything else is damage and would loop.
            number = previous if previous < number else 0
        return found


def find_index(files: FileSystem, root: Path, slot_count: int) -> list[IndexReader]:
    """The index files, oldest first."""
    return [
        IndexReader(files, Path(entry.path), slot_count)
        for entry in files.entries(root / "index")
        if not entry.is_dir() and _INDEX_NAME.fullmatch(entry.name)
    ]


def is_in_use(files: FileSystem, root: Path) -> bool | None:
    """Whether a process holds the folder's lock; None if the system does not say.

    The lock file is not opened: closing it would release the lock of a store in this process.
    """
    try:
        inode = (root / "lock").stat().st_ino
        held = files.read_bytes(Path("/proc/locks")).decode("ascii", "replace")
    except FileNotFoundError:
        return False if not files.exists(root / "lock") else None
    except OSError:
        return None
    return re.search(rf" POSIX .* WRITE \d+ [0-9a-f]+:[0-9a-f]+:{inode} ", held) is not None
