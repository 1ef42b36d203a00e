"""Appends records to the transient pool, and commits the pool to the segments.

The owner copies records into the buffer of the active segment; the flusher's thread commits them
to the file with ``pwrite``. Bytes below the written position never change again, so the two threads
lock only the list of buffers in use.
"""

from __future__ import annotations

import mmap
import threading

from contrail.runtime.crashpoints import crashpoint
from contrail.runtime.files import FileSystem
from contrail.store.disk.buffer_pool import BufferPool
from contrail.store.disk.segments import Segment


class _Buffered:
    """A segment, its buffer, and the bytes of the buffer that are not in the file yet."""

    __slots__ = ("buffer", "committed", "segment", "written")

    def __init__(self, segment: Segment, buffer: mmap.mmap, position: int) -> None:
        self.segment = segment
        self.buffer = buffer
        self.committed = self.written = position


class PooledWrites:
    """Stands in for ``pwrite`` into the log while the pool is switched on."""

    def __init__(self, files: FileSystem, pool: BufferPool) -> None:
        self._files = files
        self._pool = pool
        self._buffered: list[_Buffered] = []
        self._lock = threading.Lock()
        self._committing = threading.Lock()

    def write(self, segment: Segment, data: bytes | bytearray | memoryview, position: int) -> int:
        """Copy to the segment's buffer; if none is free, commit all buffers and write through."""
        last = self._buffered[-1] if self._buffered else None
        if last is None or last.segment is not segment:
            buffer = self._pool.take()
            if buffer is None:
                self.commit()
                return self._files.pwrite(segment.fd, data, position)
            last = _Buffered(segment, buffer, position)
            with self._lock:
                self._buffered.append(last)
        last.buffer[position : position + len(data)] = data
        last.written = position + len(data)
        return len(data)

    def commit(self) -> None:
        """Bring every written byte to its file, oldest segment first.

        Raises:
            OSError: a write failed or stopped short; nothing after it may be believed.
        """
        with self._committing:
            with self._lock:
                waiting = list(self._buffered)
            for number, buffered in enumerate(waiting):
                self._commit_one(buffered)
                if number + 1 < len(waiting):
                    # The log has gone on in the next segment: this buffer is done.
                    with self._lock:
                        self._buffered.remove(buffered)
                    self._pool.give_back(buffered.buffer)
        crashpoint("pool.committed")

    def _commit_one(self, buffered: _Buffered) -> None:
        end = buffered.written
        if end == buffered.committed:
            return
        data = memoryview(buffered.buffer)[buffered.committed : end]
        written = self._files.pwrite(buffered.segment.fd, data, buffered.committed)
        if written != len(data):
            raise OSError(f"only {written} of {len(data)} bytes were committed to the log")
        buffered.committed = end
