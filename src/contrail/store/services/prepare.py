"""Prepares the next segment ahead of need, off the owner's thread.

Allocation and the folder sync come first. Under synchronous flush zeros are then written through in
steps: the first write to an allocated block costs a commit of the file system's journal at the next
sync. They come slowly, so that they do not stand in the way of the log itself. Under asynchronous
flush they would only double what is written. A segment may be taken before the zeros are done; the
worker then stops at its step.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from contrail.errors import DiskFull
from contrail.runtime.crashpoints import crashpoint
from contrail.runtime.files import OUT_OF_SPACE, FileSystem, write_zeros
from contrail.store.disk.segments import Segment, create_segment

# Between two steps: at 100 MB/s of messages the zeros are still there in time.
_PAUSE_S = 0.004


class _Job:
    """One segment being prepared."""

    def __init__(self, path: Path, start: int) -> None:
        self.path = path
        self.start = start
        self.taken = threading.Event()
        self.finished = threading.Event()
        self.segment: Segment | None = None
        self.error: OSError | None = None


class SegmentPreparer:
    """At most one segment ahead. ``take`` hands it over, or makes one on the spot."""

    def __init__(
        self,
        files: FileSystem,
        *,
        segment_bytes: int,
        path_for: Callable[[int], Path],
        ahead: bool = True,
        zeroes: bool = True,
    ) -> None:
        self._files = files
        self._segment_bytes = segment_bytes
        self._path_for = path_for
        self._ahead = ahead
        self._zeroes = zeroes
        self._job: _Job | None = None

    def prepare(self, start: int) -> None:
        """Begin work on the segment that starts there, unless it is under way or ahead is off."""
        if not self._ahead or (self._job is not None and self._job.start == start):
            return
        self._discard()
        job = self._job = _Job(self._path_for(start), start)
        threading.Thread(target=self._run, args=(job,), name="segment-prepare", daemon=True).start()

    def _run(self, job: _Job) -> None:
        try:
            segment = create_segment(self._files, job.path, job.start, self._segment_bytes)
            if self._zeroes:
                self._write_zeros(job, segment)
            job.segment = segment
        except OSError as error:
            job.error = error
        finally:
            job.finished.set()

    def _write_zeros(self, job: _Job, segment: Segment) -> None:
        for _ in write_zeros(self._files, segment.fd, 0, self._segment_bytes):
            if job.taken.wait(_PAUSE_S):
                break
        crashpoint("segment.zeroed")

    def take(self, start: int) -> Segment:
        """The segment that starts there, allocated and durable.

        Raises:
            DiskFull: there is no room for it; nothing was written, and a later call tries again.
            OSError: the disk failed in another way.
        """
        job, self._job = self._job, None
        if job is not None and job.start == start:
            job.taken.set()
            job.finished.wait()
            if job.segment is not None:
                return job.segment
        try:
            return create_segment(self._files, self._path_for(start), start, self._segment_bytes)
        except OSError as error:
            if error.errno not in OUT_OF_SPACE:
                raise
            raise DiskFull(
                f"no room for the next segment of {self._segment_bytes} bytes at {start}: {error}; "
                f"free disk space or shorten fileReservedTime"
            ) from error

    def _discard(self) -> None:
        """Remove a segment that was prepared and never used."""
        job, self._job = self._job, None
        if job is None:
            return
        job.taken.set()
        job.finished.wait()
        if job.segment is not None:
            job.segment.rest()
            self._files.unlink(job.path)
            self._files.sync_folder(job.path.parent)

    def close(self) -> None:
        self._discard()
