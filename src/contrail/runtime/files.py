"""Every file operation of the product, behind one object.

Stores and state files are handed a ``FileSystem`` instead of calling ``os``: tests record its
calls to replay lost writes, or make the nth one fail, without touching the code under test.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import mmap
import os
from collections.abc import Iterator
from pathlib import Path

# What a full disk answers; anything else is a failing one.
OUT_OF_SPACE = (errno.ENOSPC, errno.EDQUOT)
# What the process or the host answers when too many files and sockets are open: it passes.
OUT_OF_DESCRIPTORS = (errno.EMFILE, errno.ENFILE)
_ZERO_CHUNK = bytes(1 << 20)


class FileSystem:
    """The real file system. Raises ``OSError`` as the kernel gives it."""

    def open(self, path: Path, *, create: bool = False, writable: bool = True) -> int:
        flags = (os.O_RDWR if writable else os.O_RDONLY) | os.O_CLOEXEC
        return os.open(path, flags | (os.O_CREAT if create else 0), 0o644)

    def close(self, fd: int) -> None:
        os.close(fd)

    def pread(self, fd: int, byte_count: int, position: int) -> bytes:
        return os.pread(fd, byte_count, position)

    def pwrite(self, fd: int, data: bytes | bytearray | memoryview, position: int) -> int:
        """Write at ``position`` and return how many bytes went; the caller judges a short write."""
        return os.pwrite(fd, data, position)

    def fdatasync(self, fd: int) -> None:
        os.fdatasync(fd)

    def fsync(self, fd: int) -> None:
        os.fsync(fd)

    def sync_folder(self, folder: Path) -> None:
        """Make created, renamed and removed names in ``folder`` durable."""
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def sync_everything(self, folder: Path) -> None:
        """Make the whole file system of ``folder`` durable: cheaper than syncing many files."""
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            if ctypes.CDLL(None, use_errno=True).syncfs(fd) != 0:
                code = ctypes.get_errno()
                raise OSError(code, os.strerror(code), str(folder))
        finally:
            os.close(fd)

    def truncate(self, fd: int, byte_count: int) -> None:
        os.ftruncate(fd, byte_count)

    def allocate(self, fd: int, byte_count: int) -> None:
        """Reserve disk blocks now, so that a later write cannot run out of space."""
        os.posix_fallocate(fd, 0, byte_count)

    def next_data(self, fd: int, position: int) -> int | None:
        """The first byte from ``position`` on that is not in a hole; None when all the rest is."""
        try:
            return os.lseek(fd, position, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return None
            raise

    def size(self, fd: int) -> int:
        return os.fstat(fd).st_size

    def map_read(self, fd: int, byte_count: int) -> mmap.mmap:
        return mmap.mmap(fd, byte_count, access=mmap.ACCESS_READ)

    def rename(self, source: Path, target: Path) -> None:
        os.replace(source, target)

    def unlink(self, path: Path) -> None:
        os.unlink(path)

    def remove_folder(self, folder: Path) -> None:
        os.rmdir(folder)

    def make_folder(self, folder: Path) -> None:
        os.makedirs(folder, exist_ok=True)

    def exists(self, path: Path) -> bool:
        return os.path.lexists(path)

    def entries(self, folder: Path) -> list[os.DirEntry[str]]:
        """The folder's entries sorted by name; none when there is no such folder."""
        try:
            with os.scandir(folder) as found:
                return sorted(found, key=lambda entry: entry.name)
        except FileNotFoundError:
            return []

    def read_bytes(self, path: Path) -> bytes:
        return path.read_bytes()

    def modified_ms(self, path: Path) -> int:
        return os.stat(path).st_mtime_ns // 1_000_000

    def usage_ratio(self, folder: Path) -> float:
        """Used share of the partition as RocketMQ counts it: rounded up to a whole percent."""
        stats = os.statvfs(folder)
        used = (stats.f_blocks - stats.f_bfree) * stats.f_frsize
        usable = stats.f_bavail * stats.f_frsize
        return -(-used * 100 // (used + usable)) / 100 if used + usable else 0.0

    def lock_exclusively(self, fd: int) -> bool:
        """Take a POSIX record lock on the first byte, as Java's FileChannel does; False if held."""
        try:
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
        except (BlockingIOError, PermissionError):
            return False
        return True


def write_fully(
    files: FileSystem, fd: int, data: bytes | bytearray | memoryview, position: int
) -> None:
    """``pwrite`` until everything went; for derived files, where a short write may be continued."""
    view = memoryview(data)
    while view:
        written = files.pwrite(fd, view, position)
        view = view[written:]
        position += written


def write_zeros(files: FileSystem, fd: int, position: int, byte_count: int) -> Iterator[int]:
    """Write zeros in steps of 1 MiB, yielding the position reached after each."""
    end = position + byte_count
    while position < end:
        step = min(end - position, len(_ZERO_CHUNK))
        write_fully(files, fd, memoryview(_ZERO_CHUNK)[:step], position)
        position += step
        yield position


@contextlib.contextmanager
def opened(
    files: FileSystem, path: Path, *, create: bool = False, writable: bool = True
) -> Iterator[int]:
    """An open descriptor, closed on the way out."""
    fd = files.open(path, create=create, writable=writable)
    try:
        yield fd
    finally:
        files.close(fd)
