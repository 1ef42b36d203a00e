"""Every file operation of the product, behind one object.

Stores and state files get a ``FileSystem`` instead of calling ``os``: tests record its calls to
replay lost writes, or make the nth call fail, without touching the code under test.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import functools
import mmap
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

# The errors of a full disk; any other error is a failing disk.
OUT_OF_SPACE = (errno.ENOSPC, errno.EDQUOT)
# The errors when the process or the host has too many files and sockets open: they may pass.
OUT_OF_DESCRIPTORS = (errno.EMFILE, errno.ENFILE)
_ZERO_CHUNK = bytes(1 << 20)
_PAGE_BYTES = mmap.PAGESIZE
_BRING_IN_BYTES = 256 << 10
# Calls that take a microsecond: releasing the GIL for them would take longer.
_mincore = ctypes.PyDLL(None).mincore
_mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)
_get_buffer = ctypes.pythonapi.PyObject_GetBuffer
_get_buffer.argtypes = (ctypes.py_object, ctypes.c_void_p, ctypes.c_int)
_release_buffer = ctypes.pythonapi.PyBuffer_Release
_release_buffer.argtypes = (ctypes.c_void_p,)


class _Buffer(ctypes.Structure):
    """``Py_buffer``, which has been part of Python's stable interface since 3.11."""

    _fields_ = (
        ("address", ctypes.c_void_p),
        ("owner", ctypes.c_void_p),
        ("byte_count", ctypes.c_ssize_t),
        ("item_bytes", ctypes.c_ssize_t),
        ("is_readonly", ctypes.c_int),
        ("dimensions", ctypes.c_int),
        ("format", ctypes.c_void_p),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("suboffsets", ctypes.c_void_p),
        ("internal", ctypes.c_void_p),
    )


class FilePart(NamedTuple):
    """A stretch of one file."""

    path: Path
    position: int
    byte_count: int


class FileSystem:
    """The real file system. Raises ``OSError`` as the kernel gives it."""

    def open(self, path: Path, *, create: bool = False, writable: bool = True) -> int:
        flags = (os.O_RDWR if writable else os.O_RDONLY) | os.O_CLOEXEC
        return os.open(path, flags | (os.O_CREAT if create else 0), 0o644)

    def close(self, fd: int) -> None:
        os.close(fd)

    def pread(self, fd: int, byte_count: int, position: int) -> bytes:
        return os.pread(fd, byte_count, position)

    def pread_resident(self, fd: int, byte_count: int, position: int) -> bytes | None:
        """``pread`` that never waits for the disk: None if some bytes are not in memory."""
        data = bytearray(byte_count)
        try:
            read_bytes = os.preadv(fd, (data,), position, os.RWF_NOWAIT)
        except BlockingIOError:
            return None
        except OSError as error:
            if error.errno != errno.EOPNOTSUPP:
                raise
            # The file system does not support RWF_NOWAIT, such as one in memory.
            return self.pread(fd, byte_count, position)
        return bytes(data) if read_bytes == byte_count else None

    def pwrite(self, fd: int, data: bytes | bytearray | memoryview, position: int) -> int:
        """Write at ``position``; returns the bytes written: the caller judges a short write."""
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

    def set_mode(self, fd: int, mode: int) -> None:
        """Set a file's permission bits, as ``chmod``."""
        os.fchmod(fd, mode)

    def allocate(self, fd: int, byte_count: int) -> None:
        """Reserve disk blocks now, so that a later write cannot run out of space."""
        os.posix_fallocate(fd, 0, byte_count)

    def next_data(self, fd: int, position: int) -> int | None:
        """The first byte from ``position`` on that is not in a hole; None if there is none."""
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

    def absent_at(self, mapped: mmap.mmap, start: int, end: int) -> int:
        """The first byte of a map's range that is not in memory, to the page; ``end`` for none.

        No page is touched. If the system cannot say, the bytes count as absent.
        """
        first_page = start - start % _PAGE_BYTES
        states = _page_states(-(-(end - first_page) // _PAGE_BYTES))()
        # The address stays valid: the caller holds ``mapped``.
        if _mincore(_address(mapped) + first_page, end - first_page, states):
            return start
        absent = states.raw.find(b"\0")
        return end if absent < 0 else max(start, first_page + absent * _PAGE_BYTES)

    def will_need(self, mapped: mmap.mmap, start: int, byte_count: int) -> None:
        """Ask the system to read a map's range from the disk, without waiting for it."""
        first_page = start - start % _PAGE_BYTES
        mapped.madvise(mmap.MADV_WILLNEED, first_page, start + byte_count - first_page)

    def bring_in(self, part: FilePart) -> None:
        """Read a part of a file only to have it in memory afterwards."""
        with opened(self, part.path, writable=False) as fd:
            end = part.position + part.byte_count
            for position in range(part.position, end, _BRING_IN_BYTES):
                self.pread(fd, min(_BRING_IN_BYTES, end - position), position)

    def announce(self, part: FilePart) -> None:
        """Ask the system to read a part of a file; returns when the read has begun."""
        with opened(self, part.path, writable=False) as fd:
            os.posix_fadvise(fd, part.position, part.byte_count, os.POSIX_FADV_WILLNEED)

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
        """The folder's entries sorted by name; empty if there is no such folder."""
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
    """``pwrite`` until all is written; for derived files, where a short write may go on."""
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


@functools.lru_cache(maxsize=256)
def _page_states(page_count: int) -> type[ctypes.Array[ctypes.c_char]]:
    # Cached: making the type takes longer than the call of mincore.
    return ctypes.c_char * page_count


def _address(mapped: mmap.mmap) -> int:
    """Where a map lies in memory, for as long as it is held."""
    buffer = _Buffer()
    _get_buffer(mapped, ctypes.addressof(buffer), 0)
    try:
        return buffer.address or 0
    finally:
        _release_buffer(ctypes.addressof(buffer))
