"""A file system whose nth operation on a matching path fails, or writes only a part."""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass
from pathlib import Path

from tests.fakes.watched_files import WatchedFileSystem

FOREVER = 1 << 60


@dataclass(slots=True)
class Fault:
    """The operation that fails, where, when and how.

    ``nth`` counts matching operations from 1; ``times`` is how many in a row go wrong from there.
    With ``short_bytes`` a ``pwrite`` stores at most that many bytes, and always fewer than asked,
    and says so instead of raising.
    """

    operation: str
    path_contains: str = ""
    nth: int = 1
    times: int = 1
    error: int = errno.EIO
    short_bytes: int | None = None
    seen: int = 0
    fired: int = 0

    def strikes(self, operation: str, path: Path) -> bool:
        """Count one operation; returns whether it must fail."""
        if operation != self.operation or self.path_contains not in str(path):
            return False
        self.seen += 1
        hit = self.nth <= self.seen < self.nth + self.times
        self.fired += hit
        return hit


class FailingFileSystem(WatchedFileSystem):
    """The real file system until a ``Fault`` strikes. ``usage`` overrides the disk's used share."""

    def __init__(self, *faults: Fault) -> None:
        super().__init__()
        self.faults = list(faults)
        self.usage: float | None = None

    def pwrite(self, fd: int, data: bytes | bytearray | memoryview, position: int) -> int:
        fault = self._struck("pwrite", self.path_of(fd))
        if fault is None:
            return super().pwrite(fd, data, position)
        if fault.short_bytes is None:
            raise _error(fault)
        whole = memoryview(data).cast("B")
        part = whole[: min(fault.short_bytes, len(whole) - 1)]
        return super().pwrite(fd, part, position) if part else 0

    def fdatasync(self, fd: int) -> None:
        self._strike("fdatasync", self.path_of(fd))
        super().fdatasync(fd)

    def fsync(self, fd: int) -> None:
        self._strike("fsync", self.path_of(fd))
        super().fsync(fd)

    def sync_folder(self, folder: Path) -> None:
        self._strike("sync_folder", folder)
        super().sync_folder(folder)

    def sync_everything(self, folder: Path) -> None:
        self._strike("sync_everything", folder)
        super().sync_everything(folder)

    def truncate(self, fd: int, byte_count: int) -> None:
        self._strike("truncate", self.path_of(fd))
        super().truncate(fd, byte_count)

    def allocate(self, fd: int, byte_count: int) -> None:
        self._strike("allocate", self.path_of(fd))
        super().allocate(fd, byte_count)

    def rename(self, source: Path, target: Path) -> None:
        self._strike("rename", target)
        super().rename(source, target)

    def unlink(self, path: Path) -> None:
        self._strike("unlink", path)
        super().unlink(path)

    def make_folder(self, folder: Path) -> None:
        self._strike("make_folder", folder)
        super().make_folder(folder)

    def open(self, path: Path, *, create: bool = False, writable: bool = True) -> int:
        self._strike("create" if create and not self.exists(path) else "open", path)
        return super().open(path, create=create, writable=writable)

    def usage_ratio(self, folder: Path) -> float:
        return super().usage_ratio(folder) if self.usage is None else self.usage

    def _strike(self, operation: str, path: Path) -> None:
        fault = self._struck(operation, path)
        if fault is not None:
            raise _error(fault)

    def _struck(self, operation: str, path: Path) -> Fault | None:
        with self.guard:
            struck = [fault for fault in self.faults if fault.strikes(operation, path)]
        return struck[0] if struck else None


def _error(fault: Fault) -> OSError:
    return OSError(fault.error, os.strerror(fault.error), f"planted on {fault.operation}")
