"""The transient pool: memory that takes the log's appends before they reach the file.

A segment in use has a buffer of its own length, locked in memory where that is permitted, so that
an append is a copy and never waits for the disk or a page fault. Records in a buffer are invisible
to readers and lost with the process.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import threading

_MLOCK_ONFAULT = 1


class BufferPool:
    """A fixed number of buffers. ``note`` says why buffers are not locked in memory, if so."""

    def __init__(self, buffer_count: int, buffer_bytes: int) -> None:
        self._buffer_bytes = buffer_bytes
        self._free_count = buffer_count
        # The log's owner takes buffers, the thread that commits gives them back.
        self._lock = threading.Lock()
        self._spare: list[mmap.mmap] = []
        self.note: str | None = None

    def take(self) -> mmap.mmap | None:
        """A buffer, or None when all are in use: the caller then writes to the file itself."""
        with self._lock:
            if not self._free_count:
                return None
            self._free_count -= 1
            if self._spare:
                return self._spare.pop()
        return self._made()

    def give_back(self, buffer: mmap.mmap) -> None:
        with self._lock:
            self._free_count += 1
            self._spare.append(buffer)

    def _made(self) -> mmap.mmap:
        buffer = mmap.mmap(-1, self._buffer_bytes)
        problem = _lock_in_memory(buffer)
        if problem is not None:
            self.note = (
                f"the transient pool's buffers of {self._buffer_bytes} bytes are not locked in "
                f"memory ({problem}): raise the memlock limit (ulimit -l, LimitMEMLOCK)"
            )
        return buffer


def _lock_in_memory(buffer: mmap.mmap) -> str | None:
    """Lock pages as they are first touched; returns the problem as text, or None."""
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "mlock2"):
        return "this system cannot lock pages as they are used"
    start = ctypes.addressof(ctypes.c_char.from_buffer(buffer))
    if libc.mlock2(ctypes.c_void_p(start), ctypes.c_size_t(len(buffer)), _MLOCK_ONFAULT):
        return os.strerror(ctypes.get_errno())
    return None
