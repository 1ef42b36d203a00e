"""A file system that remembers which path each open descriptor belongs to."""

from __future__ import annotations

import threading
from pathlib import Path

from contrail.runtime.files import FileSystem


class WatchedFileSystem(FileSystem):
    """The real file system plus a table of open descriptors, for fakes that judge by path."""

    def __init__(self) -> None:
        self.guard = threading.RLock()
        self._paths: dict[int, Path] = {}

    def open(self, path: Path, *, create: bool = False, writable: bool = True) -> int:
        with self.guard:
            fd = super().open(path, create=create, writable=writable)
            self._paths[fd] = Path(path)
            return fd

    def close(self, fd: int) -> None:
        with self.guard:
            self._paths.pop(fd, None)
            super().close(fd)

    def path_of(self, fd: int) -> Path:
        """The path ``fd`` was opened by; renames do not change the answer."""
        with self.guard:
            return self._paths[fd]

    @property
    def open_count(self) -> int:
        return len(self._paths)
