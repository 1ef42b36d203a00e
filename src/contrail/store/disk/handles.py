"""Open descriptors of derived files, and the paths that the next sync must cover.

One owner thread uses everything here, except ``UnsyncedPaths.sync``, which a worker may call.
"""

from __future__ import annotations

import contextlib
import threading
from collections import OrderedDict
from pathlib import Path

from contrail.runtime.files import FileSystem, opened

SYNC_FILES_MAX = 64


class FileHandles:
    """The descriptors used most recently, never more than ``open_files_max`` of them."""

    def __init__(self, files: FileSystem, open_files_max: int) -> None:
        self._files = files
        self._open_files_max = open_files_max
        self._open: OrderedDict[Path, int] = OrderedDict()

    @property
    def open_count(self) -> int:
        return len(self._open)

    def fd(self, path: Path, *, create_bytes: int | None = None) -> int:
        """A descriptor for ``path``, valid until the next call."""
        fd = self._open.get(path)
        if fd is None:
            return self._opened(path, create_bytes)
        self._open.move_to_end(path)
        return fd

    def close(self, path: Path) -> None:
        """Close ``path`` if it is open; the caller unlinks first, so that it is not reopened."""
        fd = self._open.pop(path, None)
        if fd is not None:
            self._files.close(fd)

    def close_all(self) -> None:
        while self._open:
            self._files.close(self._open.popitem()[1])

    def _opened(self, path: Path, create_bytes: int | None) -> int:
        while len(self._open) >= self._open_files_max:
            self._files.close(self._open.popitem(last=False)[1])
        fd = self._files.open(path, create=create_bytes is not None)
        try:
            if create_bytes is not None and self._files.size(fd) == 0:
                self._files.truncate(fd, create_bytes)
        except OSError:
            self._files.close(fd)
            raise
        self._open[path] = fd
        return fd


class UnsyncedPaths:
    """Files written and folders changed since the last sync."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._written: set[Path] = set()
        self._folders: set[Path] = set()

    def wrote(self, path: Path) -> None:
        with self._lock:
            self._written.add(path)

    def changed(self, folder: Path) -> None:
        with self._lock:
            self._folders.add(folder)

    def sync(self, files: FileSystem, root: Path) -> None:
        """Make all noted paths durable; a path that failed is noted again and raises."""
        with self._lock:
            written, self._written = self._written, set()
            folders, self._folders = self._folders, set()
        try:
            _sync_paths(files, root, written, folders)
        except OSError:
            with self._lock:
                self._written |= written
                self._folders |= folders
            raise


def _sync_paths(files: FileSystem, root: Path, written: set[Path], folders: set[Path]) -> None:
    if len(written) + len(folders) > SYNC_FILES_MAX:
        files.sync_everything(root)
        return
    for path in written:
        # The owner may delete a file or a topic meanwhile; then there is nothing to sync.
        with contextlib.suppress(FileNotFoundError), opened(files, path) as fd:
            files.fdatasync(fd)
    for folder in folders:
        with contextlib.suppress(FileNotFoundError):
            files.sync_folder(folder)
