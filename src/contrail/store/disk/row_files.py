"""The files of one queue's rows: append-only, of equal length.

A file is named by the position of its first byte. Rows wait in memory until they are written; on
disk all bytes past the end are zero.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from struct import Struct

from contrail.runtime.crashpoints import crashpoint
from contrail.runtime.files import FilePart, FileSystem, write_fully
from contrail.store.disk.handles import FileHandles, UnsyncedPaths

_PAGE_BYTES = 4096
# A whole number of rows of either length (20 and 46 bytes).
_SCAN_BYTES = 20 * 46 * 64
_READ_AHEAD_BYTES = 4000
# A read that begins where the rows read ahead ended is a consumer's that goes through a backlog.
_READ_ON_BYTES = 16_000
_KEPT_TAIL_BYTES = 4096
# How many bytes are brought into memory when some of them are wanted.
_BROUGHT_IN_BYTES = 64 << 10
_NO_FILES: dict[int, int] = {}
_FILE_NAME = re.compile(r"[0-9]{20}")
_ZEROS = bytes(_SCAN_BYTES)
_PHYSICAL_OFFSET = Struct(">q")


class RowFiles:
    """Bytes ``start`` to ``end`` of one queue: files on disk plus a tail in memory.

    Bytes below ``written`` are in the files; the tail holds the unwritten bytes and, for readers
    near the end, a few of those written last. On disk all bytes past ``end`` are zero.
    """

    __slots__ = (
        "_allocated",
        "_files",
        "_handles",
        "_path",
        "_path_start",
        "_tail",
        "_tail_start",
        "_unsynced",
        "ahead",
        "ahead_start",
        "created",
        "file_bytes",
        "folder",
        "start",
        "written",
    )

    start: int
    created: int
    written: int
    # The rows read ahead for a reader that goes on, and where they begin.
    ahead: bytes
    ahead_start: int
    _allocated: dict[int, int]
    _path: Path | None
    _path_start: int

    def __init__(
        self,
        folder: Path,
        file_bytes: int,
        *,
        files: FileSystem,
        handles: FileHandles,
        unsynced: UnsyncedPaths,
    ) -> None:
        self.folder = folder
        self.file_bytes = file_bytes
        self._files = files
        self._handles = handles
        self._unsynced = unsynced
        self.ahead = b""
        self.ahead_start = 0
        # Always the same object: kernels that append rows hold it.
        self._tail = bytearray()
        self._become_empty(0)

    @property
    def tail(self) -> bytearray:
        """The last rows, with the unwritten ones at the end; rows added here are appended."""
        return self._tail

    @property
    def end(self) -> int:
        return self._tail_start + len(self._tail)

    @property
    def pending_bytes(self) -> int:
        return self._tail_start + len(self._tail) - self.written

    @property
    def is_untouched(self) -> bool:
        """Without file and row: the first row decides where the queue starts."""
        return self.created == self.start and not self._tail

    def find(self) -> str | None:
        """List the files of the folder; returns the first problem as text, or None.

        Afterwards ``created`` is the end of the last file; the caller finds the true end of the
        rows and calls ``settle``.
        """
        allocated: dict[int, int] = {}
        entries = [entry for entry in self._files.entries(self.folder) if not entry.is_dir()]
        for entry in entries:
            if not _FILE_NAME.fullmatch(entry.name):
                return f"{entry.path} is not a file of a queue"
            stat = entry.stat()
            length = stat.st_size
            if length == 0 and entry is entries[-1]:
                self._files.unlink(Path(entry.path))
                continue
            if length != self.file_bytes:
                return f"{entry.path} has {length} bytes, not {self.file_bytes}"
            allocated[int(entry.name)] = stat.st_blocks * 512
        return self._adopt(allocated)

    def settle(self, end: int) -> bytes:
        """Accept ``end`` as the true end; durably zero the bytes beyond it.

        Returns the first bytes beyond ``end`` that are not all zero, from a whole number of rows
        behind it; empty if only zeros followed, as after every clean stop.
        """
        self._forget_ahead()
        beyond = b""
        file_start = end - end % self.file_bytes
        if self.created > file_start and (end > file_start or end == self.start):
            file_end = file_start + self.file_bytes
            if self._may_hold_more(end, file_end):
                beyond = self._first_beyond(end, file_end)
            # A queue without rows needs no file.
            if end:
                self._clear(end, file_end if beyond else end)
                file_start = file_end
        self._unlink_from(max(file_start, self.start))
        self._tail.clear()
        self._tail_start = self.written = end
        self._allocated = _NO_FILES
        return beyond

    def begin_at(self, position: int) -> None:
        """Start an untouched queue in the file that holds ``position``."""
        assert self.is_untouched
        self._become_empty(position - position % self.file_bytes)

    def append(self, data: bytes | bytearray) -> None:
        self._tail += data

    def read(self, position: int, byte_count: int, *, waits: bool = True) -> bytes:
        """Up to ``byte_count`` bytes from ``position``, from one file only.

        With ``waits`` False the answer is empty if some of the bytes are not in memory.
        """
        stop = min(position + byte_count, position - position % self.file_bytes + self.file_bytes)
        tail_start = self._tail_start
        if position >= tail_start:
            return bytes(self._tail[position - tail_start : stop - tail_start])
        if position < self.start:
            return b""
        read = self.read_file if waits else self._resident_file
        data = self._read_ahead(position, min(stop, tail_start) - position, read)
        if stop <= tail_start or not data:
            return data
        return data + self._tail[: stop - tail_start]

    def absent(self, position: int, byte_count: int) -> FilePart | None:
        """The part to bring in so that ``read`` does not wait for the disk; None: it does not."""
        if not self.start <= position < self._tail_start:
            return None
        if self.read(position, byte_count, waits=False):
            return None
        first = position - position % self.file_bytes % _BROUGHT_IN_BYTES
        return self.part(first, max(byte_count, _BROUGHT_IN_BYTES) + position - first)

    def part(self, position: int, byte_count: int) -> FilePart | None:
        """The file part of these bytes, as far as they are written and in the first one's file."""
        position = max(position, self.start)
        file_start = position - position % self.file_bytes
        stop = min(position + byte_count, self.written, file_start + self.file_bytes)
        if stop <= position:
            return None
        return FilePart(self.path_at(file_start), position - file_start, stop - position)

    def _read_ahead(
        self, position: int, byte_count: int, read: Callable[[int, int], bytes]
    ) -> bytes:
        """Read more than asked for: written rows do not change, so the next reads use it."""
        start = position - self.ahead_start
        if start < 0 or start + byte_count > len(self.ahead):
            if byte_count > _READ_AHEAD_BYTES:
                return read(position, byte_count)
            reads_on = bool(self.ahead) and 0 < start <= len(self.ahead)
            ahead_bytes = _READ_ON_BYTES if reads_on else _READ_AHEAD_BYTES
            file_end = position - position % self.file_bytes + self.file_bytes
            stop = min(position + ahead_bytes, self._tail_start, file_end)
            self.ahead = read(position, stop - position)
            self.ahead_start, start = position, 0
        return self.ahead[start : start + byte_count]

    def _forget_ahead(self) -> None:
        self.ahead = b""

    def read_file(self, position: int, byte_count: int) -> bytes:
        """Read bytes from the file, also past ``end``."""
        file_start = position - position % self.file_bytes
        fd = self._handles.fd(self.path_at(file_start))
        return self._files.pread(fd, byte_count, position - file_start)

    def _resident_file(self, position: int, byte_count: int) -> bytes:
        file_start = position - position % self.file_bytes
        fd = self._handles.fd(self.path_at(file_start))
        return self._files.pread_resident(fd, byte_count, position - file_start) or b""

    def write_pending(self) -> None:
        """Write the tail to the files. On an error unwritten rows stay pending."""
        end = self.end
        if self.written == end:
            return
        while self.written < end:
            file_start = self.written - self.written % self.file_bytes
            stop = min(end, file_start + self.file_bytes)
            self._write_span(file_start, stop)
        self._forget_tail(_KEPT_TAIL_BYTES)

    def cool(self) -> None:
        """Give back the memory of rows that are on disk."""
        self._forget_tail(0)
        self._forget_ahead()
        self._path = None

    def repair(self, position: int, data: bytes | bytearray) -> bytes:
        """Make the files hold ``data`` from ``position`` on; returns the bytes they held before.

        Only written bytes are compared: the answer is as long as these, and equal to their part
        of ``data`` if all were right. A missing or short file gets its length back.
        """
        self._forget_ahead()
        found, end = bytearray(), min(position + len(data), self.written)
        while position + len(found) < end:
            at = position + len(found)
            file_start = at - at % self.file_bytes
            stop = min(end, file_start + self.file_bytes)
            wanted = bytes(data[at - position : stop - position])
            found += self._repair_span(file_start, at - file_start, wanted)
        # The tail in memory must equal the repaired files.
        low = max(position, self._tail_start)
        if low < end:
            tail_at = low - self._tail_start
            self._tail[tail_at : tail_at + end - low] = data[low - position : end - position]
        return bytes(found)

    def _repair_span(self, file_start: int, place: int, wanted: bytes) -> bytes:
        path = self.path_at(file_start)
        fd = self._handles.fd(path, create_bytes=self.file_bytes)
        found = self._files.pread(fd, len(wanted), place).ljust(len(wanted), b"\0")
        if found != wanted:
            if self._files.size(fd) != self.file_bytes:
                self._files.truncate(fd, self.file_bytes)
            write_fully(self._files, fd, wanted, place)
            self._unsynced.wrote(path)
            crashpoint("queue.rows_repaired")
        return found

    def cut(self, position: int) -> None:
        """Durably forget all rows from ``position`` on, so that no crash brings them back."""
        self._forget_ahead()
        end = self.end
        if position >= end:
            return
        if position < self.created:
            self._cut_files(position, end)
        if position >= self._tail_start:
            del self._tail[position - self._tail_start :]
        else:
            self._tail.clear()
            self._tail_start = position
        self.written = min(self.written, position)

    def drop_before(self, physical_min: int, row_bytes: int) -> list[Path]:
        """Unlink leading files whose last row leads below ``physical_min``; never the last file.

        Rows of every kind begin with a physical offset.
        """
        dropped: list[Path] = []
        while self.start + self.file_bytes < self.created:
            last = self.read_file(self.start + self.file_bytes - row_bytes, row_bytes)
            if len(last) == row_bytes and _PHYSICAL_OFFSET.unpack_from(last)[0] >= physical_min:
                break
            dropped.append(self.drop_first())
        return dropped

    def drop_first(self) -> Path:
        """Unlink the oldest file; readers that have it open keep its bytes."""
        self._forget_ahead()
        path = self.path_at(self.start)
        self._unlink(path)
        self.start += self.file_bytes
        self._unsynced.changed(self.folder)
        crashpoint("queue.file_dropped")
        return path

    def remove_all(self) -> None:
        """Delete every file of the folder and be empty."""
        self._forget_ahead()
        for entry in self._files.entries(self.folder):
            if not entry.is_dir(follow_symlinks=False):
                self._unlink(Path(entry.path))
        if self._files.exists(self.folder):
            self._unsynced.changed(self.folder)
        self._become_empty(0)

    def path_at(self, file_start: int) -> Path:
        # Making a path costs more than reading a row, and most reads are of the same file.
        if self._path is None or file_start != self._path_start:
            self._path = self.folder / f"{file_start:020d}"
            self._path_start = file_start
        return self._path

    def _become_empty(self, start: int) -> None:
        self._forget_ahead()
        self.start = self.created = self.written = self._tail_start = start
        self._tail.clear()
        self._allocated = _NO_FILES
        self._path = None

    def _adopt(self, allocated: dict[int, int]) -> str | None:
        first = min(allocated, default=0)
        for index, start in enumerate(allocated):
            if start % self.file_bytes or start != first + index * self.file_bytes:
                return f"{self.path_at(start)} does not continue the file before it"
        self._become_empty(first)
        self.created = first + len(allocated) * self.file_bytes
        self._allocated = allocated
        return None

    def _write_span(self, file_start: int, stop: int) -> None:
        path = self.path_at(file_start)
        if file_start >= self.created:
            self._create(path, file_start)
        data = bytes(self._tail[self.written - self._tail_start : stop - self._tail_start])
        write_fully(self._files, self._handles.fd(path), data, self.written - file_start)
        self._unsynced.wrote(path)
        self.written = stop
        crashpoint("queue.rows_written")

    def _create(self, path: Path, file_start: int) -> None:
        if self.created == self.start:
            self._make_folder()
        self._handles.fd(path, create_bytes=self.file_bytes)
        self._unsynced.changed(self.folder)
        crashpoint("queue.file_created" if self.created == self.start else "queue.file_rolled")
        self.created = file_start + self.file_bytes

    def _make_folder(self) -> None:
        if not self._files.exists(self.folder):
            self._files.make_folder(self.folder)
            for folder in list(self.folder.parents)[:3]:
                self._unsynced.changed(folder)
            crashpoint("queue.folder_created")

    def _forget_tail(self, kept_bytes: int) -> None:
        surplus = min(self.written - self._tail_start, len(self._tail) - kept_bytes)
        if surplus > 0:
            del self._tail[:surplus]
            self._tail_start += surplus

    def _cut_files(self, position: int, end: int) -> None:
        file_start = position - position % self.file_bytes
        if position > file_start or position == self.start:
            file_start += self.file_bytes
        self._unlink_from(file_start)
        stop = min(end, file_start, self.created)
        if position < stop:
            self._clear(position, stop)
        else:
            self._files.sync_folder(self.folder)
        crashpoint("queue.truncated")

    def _unlink_from(self, file_start: int) -> None:
        # From the last file backwards, so that a crash in between leaves no gap in the names.
        while self.created > file_start:
            self.created -= self.file_bytes
            self._unlink(self.path_at(self.created))
            self._unsynced.changed(self.folder)

    def _unlink(self, path: Path) -> None:
        self._files.unlink(path)
        self._handles.close(path)

    def _first_beyond(self, end: int, file_end: int) -> bytes:
        file_start = file_end - self.file_bytes
        fd = self._handles.fd(self.path_at(file_start))
        position = end
        while position < file_end:
            # Holes are skipped unread; the bytes returned still begin at a whole row.
            found = self._files.next_data(fd, position - file_start)
            if found is None:
                break
            position += (found + file_start - position) // _SCAN_BYTES * _SCAN_BYTES
            data = self.read_file(position, min(_SCAN_BYTES, file_end - position))
            if _holds_more(data):
                return data
            position += _SCAN_BYTES
        return b""

    def _clear(self, position: int, stop: int) -> None:
        """Durably zero bytes that are not zero: otherwise old rows would count again later."""
        if position >= stop:
            return
        file_start = position - position % self.file_bytes
        fd = self._handles.fd(self.path_at(file_start))
        for at in range(position - file_start, stop - file_start, _SCAN_BYTES):
            byte_count = min(_SCAN_BYTES, stop - file_start - at)
            if _holds_more(self._files.pread(fd, byte_count, at)):
                write_fully(self._files, fd, _ZEROS[:byte_count], at)
        self._files.fdatasync(fd)

    def _may_hold_more(self, end: int, file_end: int) -> bool:
        """Whether the sparse file has blocks past ``end``; reading all its holes is slow."""
        file_start = file_end - self.file_bytes
        used_pages = -(-(end - file_start) // _PAGE_BYTES)
        if self._allocated.get(file_start, self.file_bytes) > used_pages * _PAGE_BYTES:
            return True
        return _holds_more(self.read_file(end, min(_PAGE_BYTES, file_end - end)))


def _holds_more(data: bytes) -> bool:
    # Comparing is thirty times faster than any().
    return data != _ZEROS[: len(data)]
