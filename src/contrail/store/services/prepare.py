"""Prepares the next segment ahead of need, off the owner's thread.

Allocation and the folder sync come first. Under SYNC_FLUSH zeros are then written through the
segment, also after the log has taken it (``zeros_ahead``). Under ASYNC_FLUSH zeros would only
double the bytes written.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from contrail.errors import DiskFull
from contrail.runtime.files import OUT_OF_SPACE, FileSystem
from contrail.store.disk.segments import Segment, create_segment
from contrail.store.services.zeros_ahead import ZerosAhead


class _Job:
    """One segment being prepared; zeros of the segment before may still be under way."""

    def __init__(self, path: Path, start: int, previous: _Job | None) -> None:
        self.path = path
        self.start = start
        self.previous = previous
        self.created = threading.Event()
        self.stop = threading.Event()
        self.finished = threading.Event()
        self.segment: Segment | None = None
        self.error: OSError | None = None

    def end(self) -> None:
        """Stop the zeros after the current step, and wait for it."""
        self.stop.set()
        self.finished.wait()


class SegmentPreparer:
    """Prepares at most one segment ahead. ``take`` returns it, or creates one if none is ready."""

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
        self._zeros = ZerosAhead(files) if zeroes else None
        self._job: _Job | None = None
        # The segment in use, while zeros are written ahead of the log in it.
        self._taken: _Job | None = None

    def prepare(self, start: int) -> None:
        """Begin the segment at ``start``, unless it is under way or ``ahead`` is off."""
        if not self._ahead or (self._job is not None and self._job.start == start):
            return
        self._discard()
        previous, self._taken = self._taken, None
        if previous is not None:
            previous.stop.set()
        job = self._job = _Job(self._path_for(start), start, previous)
        threading.Thread(target=self._run, args=(job,), name="segment-prepare", daemon=True).start()

    def _run(self, job: _Job) -> None:
        if job.previous is not None:
            job.previous.end()
            job.previous = None
        try:
            job.segment = create_segment(self._files, job.path, job.start, self._segment_bytes)
            job.created.set()
            if self._zeros is not None:
                self._zeros.write(job.segment, job.stop)
        except OSError as error:
            # A segment without zeros works, only slower.
            job.error = error
        finally:
            job.created.set()
            job.finished.set()

    def reach(self, physical_end: int) -> None:
        """An append up to ``physical_end`` begins; returns when no zeros can overwrite it."""
        if self._zeros is not None:
            self._zeros.reach(physical_end)

    def take(self, start: int) -> Segment:
        """The segment that starts at ``start``, allocated and durable.

        Raises:
            DiskFull: the disk has no room; nothing was written, and a later call tries again.
            OSError: the disk failed in another way.
        """
        if self._job is not None and self._job.start != start:
            self._discard()
        job, self._job = self._job, None
        if job is not None:
            job.created.wait()
            if job.segment is not None:
                self._taken = job
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
        job.end()
        if job.segment is not None:
            job.segment.rest()
            self._files.unlink(job.path)
            self._files.sync_folder(job.path.parent)

    def stop(self) -> None:
        """Stop writing zeros, so that the next opening of the folder meets no thread at work."""
        for job in (self._job, self._taken):
            if job is not None:
                job.end()

    def close(self) -> None:
        self._discard()
        self.stop()
