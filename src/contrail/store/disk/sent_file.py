"""The descriptor by which a segment's bytes are sent to other brokers without being mapped.

A segment's own descriptor is closed by the flusher, on its thread, at any moment. This one is
opened for sending and belongs to the loop's thread.
"""

from __future__ import annotations

from typing import NamedTuple

from contrail.runtime.files import FileSystem
from contrail.store.disk.segments import Segment


class FilePlace(NamedTuple):
    """Where bytes of the log are: a descriptor, and a position in its file."""

    fd: int
    position: int


class SentFile:
    """One descriptor at a time, of the segment that was asked for last."""

    def __init__(self, files: FileSystem) -> None:
        self._files = files
        self._segment: Segment | None = None
        self._fd = -1

    def place(self, segment: Segment, physical_offset: int) -> FilePlace:
        """The place of a byte of the segment; it holds until another segment is asked for."""
        if segment is not self._segment:
            self.close()
            self._fd = self._files.open(segment.path, writable=False)
            self._segment = segment
        return FilePlace(self._fd, physical_offset - segment.start)

    def close(self) -> None:
        if self._fd >= 0:
            fd, self._fd, self._segment = self._fd, -1, None
            self._files.close(fd)
