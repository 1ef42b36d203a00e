"""Writes zeros through a segment ahead of the log, and never over records.

The first write to a block that is only reserved changes the file system's metadata, which the next
sync then has to write as well: with a journal it waits for a commit. Zeros written ahead spare
every send that wait. Each step of zeros is synced by itself, so that no sync of the log has to do
it, and the zeros pause while much is appended to the log.
"""

from __future__ import annotations

import sys
import threading

from contrail.runtime.crashpoints import crashpoint
from contrail.runtime.files import FileSystem, opened, write_zeros
from contrail.store.disk.segments import Segment

_STEP_BYTES = 1 << 20
# Pause between two steps: at 100 MB/s of messages the zeros still stay ahead of the log.
_PAUSE_S = 0.004
# When a pause sees this many bytes appended, the zeros leave the disk to the log.
_BUSY_BYTES = _STEP_BYTES // 2
# How far ahead of the log a step begins, so that no append waits for a slow step.
_DISTANCE_BYTES = 8 << 20
_NOWHERE = sys.maxsize


class ZerosAhead:
    """Keeps zeros and log apart. One worker at a time writes zeros; the log has one writer."""

    def __init__(self, files: FileSystem) -> None:
        self._files = files
        self._changed = threading.Condition()
        self._reached = self._seen = 0
        # The physical offset where the step being written begins.
        self._step_at = _NOWHERE

    def reach(self, physical_end: int) -> None:
        """An append up to ``physical_end`` begins; returns when no zeros can overwrite it."""
        with self._changed:
            self._reached = physical_end
            while self._step_at < physical_end:
                self._changed.wait()

    def write(self, segment: Segment, stop: threading.Event) -> None:
        """Write zeros from the segment's start to its end, except where records already are."""
        # A descriptor of its own: the segment's is closed when the segment is full.
        with opened(self._files, segment.path) as fd:
            position = segment.start
            while position < segment.end:
                position = self._write_step(segment, fd, position)
                if stop.wait(_PAUSE_S):
                    return
                while self._is_log_busy():
                    if stop.wait(_PAUSE_S):
                        return
        crashpoint("segment.zeroed")

    def _write_step(self, segment: Segment, fd: int, position: int) -> int:
        start = self._begin_step(segment, position)
        try:
            end = min(start + _STEP_BYTES, segment.end)
            if start < end:
                for _ in write_zeros(self._files, fd, start - segment.start, end - start):
                    pass
        finally:
            self._end_step()
        if start < end:
            self._files.fsync(fd)
        return max(start, end)

    def _begin_step(self, segment: Segment, position: int) -> int:
        with self._changed:
            if self._reached > segment.start:
                position = max(position, self._reached + _DISTANCE_BYTES)
            self._step_at = position
            return position

    def _end_step(self) -> None:
        with self._changed:
            self._step_at = _NOWHERE
            self._changed.notify_all()

    def _is_log_busy(self) -> bool:
        seen, self._seen = self._seen, self._reached
        return self._seen - seen > _BUSY_BYTES
