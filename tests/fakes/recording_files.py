"""A file system that records every change with its bytes, so that crashes can be replayed.

A sync is recorded when it returns but covers only operations recorded when it began: a concurrent
write may or may not be on the disk.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from contrail.runtime.files import FileSystem
from tests.fakes.watched_files import WatchedFileSystem


class Created(NamedTuple):
    path: Path
    inode: int


class Wrote(NamedTuple):
    inode: int
    position: int
    data: bytes


class Resized(NamedTuple):
    """The file got exactly ``byte_count`` bytes, or at least that many when it only ``grows``."""

    inode: int
    byte_count: int
    grows: bool


class Synced(NamedTuple):
    inode: int
    covers: int


class FolderSynced(NamedTuple):
    folder: Path
    covers: int


class EverythingSynced(NamedTuple):
    covers: int


class Renamed(NamedTuple):
    source: Path
    target: Path


class Removed(NamedTuple):
    path: Path


class FolderMade(NamedTuple):
    folder: Path


class FolderRemoved(NamedTuple):
    folder: Path


class Marked(NamedTuple):
    """Not an operation: a note of the workload at this point of the trace."""

    note: object


Operation = (
    Created | Wrote | Resized | Synced | FolderSynced | EverythingSynced | Renamed | Removed
    | FolderMade | FolderRemoved | Marked
)  # fmt: skip


class Baseline(NamedTuple):
    """The durable content of the disk when recording began."""

    folders: frozenset[Path]
    names: dict[Path, int]
    contents: dict[int, bytes]


class RecordingFileSystem(WatchedFileSystem):
    """The real file system; ``operations`` holds every change under ``root``, in order."""

    def __init__(self, root: Path) -> None:
        super().__init__()
        self.root = Path(root)
        self.operations: list[Operation] = []
        self.baseline = _read_baseline(self.root)
        self._inodes: dict[Path, int] = dict(self.baseline.names)
        self._inode_of_fd: dict[int, int] = {}
        self._inode_next = len(self._inodes)

    def mark(self, note: object) -> None:
        """Put ``note`` into the trace."""
        self._record(Marked(note))

    def open(self, path: Path, *, create: bool = False, writable: bool = True) -> int:
        with self.guard:
            fresh = create and not self.exists(path)
            fd = super().open(path, create=create, writable=writable)
            if fresh:
                self._inodes[Path(path)] = self._inode_next
                self._inode_next += 1
                self._record(Created(Path(path), self._inodes[Path(path)]))
            self._inode_of_fd[fd] = self._inodes[Path(path)]
            return fd

    def close(self, fd: int) -> None:
        with self.guard:
            self._inode_of_fd.pop(fd, None)
            super().close(fd)

    def pwrite(self, fd: int, data: bytes | bytearray | memoryview, position: int) -> int:
        kept = bytes(data)
        written = super().pwrite(fd, kept, position)
        self._record(Wrote(self._inode_of_fd[fd], position, kept[:written]))
        return written

    def truncate(self, fd: int, byte_count: int) -> None:
        super().truncate(fd, byte_count)
        self._record(Resized(self._inode_of_fd[fd], byte_count, grows=False))

    def allocate(self, fd: int, byte_count: int) -> None:
        super().allocate(fd, byte_count)
        self._record(Resized(self._inode_of_fd[fd], byte_count, grows=True))

    def fdatasync(self, fd: int) -> None:
        inode, covers = self._inode_of_fd[fd], len(self.operations)
        super().fdatasync(fd)
        self._record(Synced(inode, covers))

    def fsync(self, fd: int) -> None:
        inode, covers = self._inode_of_fd[fd], len(self.operations)
        super().fsync(fd)
        self._record(Synced(inode, covers))

    def sync_folder(self, folder: Path) -> None:
        covers = len(self.operations)
        super().sync_folder(folder)
        self._record(FolderSynced(Path(folder), covers))

    def sync_everything(self, folder: Path) -> None:
        covers = len(self.operations)
        super().sync_everything(folder)
        self._record(EverythingSynced(covers))

    def rename(self, source: Path, target: Path) -> None:
        with self.guard:
            super().rename(source, target)
            self._inodes[Path(target)] = self._inodes.pop(Path(source))
            self._record(Renamed(Path(source), Path(target)))

    def unlink(self, path: Path) -> None:
        with self.guard:
            super().unlink(path)
            del self._inodes[Path(path)]
            self._record(Removed(Path(path)))

    def remove_folder(self, folder: Path) -> None:
        with self.guard:
            super().remove_folder(folder)
            self._record(FolderRemoved(Path(folder)))

    def make_folder(self, folder: Path) -> None:
        with self.guard:
            missing = [Path(folder)]
            while not self.exists(missing[-1].parent):
                missing.append(missing[-1].parent)
            fresh = [] if self.exists(folder) else missing
            super().make_folder(folder)
            for path in reversed(fresh):
                self._record(FolderMade(path))

    def _record(self, operation: Operation) -> None:
        with self.guard:
            self.operations.append(operation)


def _read_baseline(root: Path) -> Baseline:
    folders = {root}
    names: dict[Path, int] = {}
    contents: dict[int, bytes] = {}
    for place, folder_names, file_names in os.walk(root):
        folders.update(Path(place, name) for name in folder_names)
        for name in sorted(file_names):
            path = Path(place, name)
            names[path] = len(names)
            contents[names[path]] = FileSystem().read_bytes(path)
    return Baseline(frozenset(folders), names, contents)
