"""A file system whose files have left memory, until a test brings them in."""

from __future__ import annotations

import mmap
import threading
from pathlib import Path

from contrail.runtime.files import FilePart
from tests.fakes.watched_files import WatchedFileSystem

_PAGE_BYTES = mmap.PAGESIZE


class ColdFileSystem(WatchedFileSystem):
    """The real file system, but this decides what is in memory; ``waits`` are reads that waited."""

    def __init__(self) -> None:
        super().__init__()
        self.is_cold = False
        self.waits: list[tuple[str, Path]] = []
        self._resident: set[tuple[Path, int]] = set()
        self._maps: dict[int, tuple[mmap.mmap, Path]] = {}

    def chill(self) -> None:
        """Treat all bytes on the disk as not in memory from now on."""
        self.is_cold = True
        self._resident.clear()

    def holds(self, path: Path, position: int, byte_count: int) -> bool:
        """Whether all of a part is in memory."""
        return not self.is_cold or self._pages(path, position, byte_count) <= self._resident

    def _pages(self, path: Path, position: int, byte_count: int) -> set[tuple[Path, int]]:
        last = position + max(byte_count, 1) - 1
        return {(path, page) for page in range(position // _PAGE_BYTES, last // _PAGE_BYTES + 1)}

    def pread(self, fd: int, byte_count: int, position: int) -> bytes:
        path = self.path_of(fd)
        if not self.holds(path, position, byte_count):
            self.waits.append((threading.current_thread().name, path))
            self._resident |= self._pages(path, position, byte_count)
        return super().pread(fd, byte_count, position)

    def pread_resident(self, fd: int, byte_count: int, position: int) -> bytes | None:
        if not self.holds(self.path_of(fd), position, byte_count):
            return None
        return super().pread(fd, byte_count, position)

    def pwrite(self, fd: int, data: bytes | bytearray | memoryview, position: int) -> int:
        self._resident |= self._pages(self.path_of(fd), position, len(data))
        return super().pwrite(fd, data, position)

    def map_read(self, fd: int, byte_count: int) -> mmap.mmap:
        mapped = super().map_read(fd, byte_count)
        self._maps[id(mapped)] = mapped, self.path_of(fd)
        return mapped

    def absent_at(self, mapped: mmap.mmap, start: int, end: int) -> int:
        path = self._maps[id(mapped)][1]
        for page in range(start // _PAGE_BYTES, (end - 1) // _PAGE_BYTES + 1):
            if self.is_cold and (path, page) not in self._resident:
                return max(start, page * _PAGE_BYTES)
        return end

    def will_need(self, mapped: mmap.mmap, start: int, byte_count: int) -> None:
        self._resident |= self._pages(self._maps[id(mapped)][1], start, byte_count)

    def announce(self, part: FilePart) -> None:
        self._resident |= self._pages(*part)
