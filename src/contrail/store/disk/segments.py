"""The commit log's segments: pre-sized files of equal length, named by where they start.

A segment is written with ``pwrite`` only and read through a read-only map, so a full or failing
disk is an exception and never a signal. The file name is the start offset in 20 digits. There may
be several folders: segments go to the writable folders in turn.
"""

from __future__ import annotations

import mmap
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from pathlib import Path

from contrail.errors import StoreLayoutError
from contrail.runtime.crashpoints import crashpoint
from contrail.runtime.files import FilePart, FileSystem, opened

_NAME_DIGITS = 20
# A map holds a descriptor; consumers with a long backlog read thousands of segments.
_MAPS_MAX = 64


def segment_name(physical_start: int) -> str:
    return f"{physical_start:0{_NAME_DIGITS}d}"


class Segment:
    """One file of the log. Its descriptor and map are opened when first needed."""

    __slots__ = (
        "_files",
        "_map",
        "_mapped",
        "byte_count",
        "end",
        "open_fd",
        "open_view",
        "path",
        "start",
    )

    def __init__(
        self,
        files: FileSystem,
        path: Path,
        start: int,
        byte_count: int,
    ) -> None:
        self._files = files
        # The descriptor while it is open, else -1; ``fd`` opens it.
        self.open_fd = -1
        self._map: mmap.mmap | None = None
        # The whole segment while it is mapped: None once the map or the file is released.
        self.open_view: memoryview | None = None
        self._mapped: list[Segment] | None = None
        self.path = path
        self.start = start
        self.byte_count = byte_count
        self.end = start + byte_count

    @property
    def fd(self) -> int:
        if self.open_fd < 0:
            self.open_fd = self._files.open(self.path)
        return self.open_fd

    @property
    def map(self) -> mmap.mmap:
        """The whole segment, read-only. Views into it stay valid after the file is removed."""
        if self._map is None:
            with opened(self._files, self.path, writable=False) as fd:
                self._map = self._files.map_read(fd, self.byte_count)
            self.open_view = memoryview(self._map)
            if self._mapped is not None:
                self._mapped.append(self)
                if len(self._mapped) > _MAPS_MAX:
                    self._mapped.pop(0)._unmap()
        return self._map

    def share_maps(self, mapped: list[Segment]) -> None:
        """Count this segment's map among those of its log, of which the oldest is released."""
        self._mapped = mapped

    def view(self, physical_offset: int, byte_count: int) -> memoryview:
        position = physical_offset - self.start
        return memoryview(self.map)[position : position + byte_count]

    def absent(self, physical_offset: int, byte_count: int) -> FilePart | None:
        """The part to bring in before a view of these bytes is read; None: it does not wait."""
        position = physical_offset - self.start
        end = min(position + byte_count, self.byte_count)
        absent_at = self._files.absent_at(self.map, position, end)
        return FilePart(self.path, absent_at, end - absent_at) if absent_at < end else None

    def part(self, physical_offset: int, byte_count: int) -> FilePart:
        """The file part of these bytes, as far as they are in this segment."""
        position = physical_offset - self.start
        return FilePart(self.path, position, min(byte_count, self.byte_count - position))

    def will_need(self, physical_offset: int, byte_count: int) -> None:
        """Ask the system to read these bytes, without waiting for the disk."""
        self._files.will_need(self.map, physical_offset - self.start, byte_count)

    def close_descriptor(self) -> None:
        """Close the descriptor of a full and durable segment, which is not written again."""
        if self.open_fd >= 0:
            fd, self.open_fd = self.open_fd, -1
            self._files.close(fd)

    def rest(self) -> None:
        """Release descriptor and map; readers that hold views keep theirs."""
        self.close_descriptor()
        if self._map is not None and self._mapped is not None:
            self._mapped.remove(self)
        self._unmap()

    def _unmap(self) -> None:
        self._map = self.open_view = None


def create_segment(files: FileSystem, path: Path, start: int, byte_count: int) -> Segment:
    """A new, fully allocated and durable segment of zeros.

    The length is set before the blocks are reserved: a crash leaves a file of length 0, which
    every loader removes, or a file of full length, never one in between.
    """
    files.make_folder(path.parent)
    segment = Segment(files, path, start, byte_count)
    with opened(files, path, create=True) as fd:
        crashpoint("segment.created")
        try:
            files.truncate(fd, byte_count)
            crashpoint("segment.sized")
            files.allocate(fd, byte_count)
            crashpoint("segment.allocated")
            files.fsync(fd)
        except OSError:
            files.unlink(path)
            raise
    files.sync_folder(path.parent)
    # The folder may be new as well, and a durable file in a lost folder is lost.
    files.sync_folder(path.parent.parent)
    crashpoint("segment.durable")
    return segment


class SegmentList:
    """All segments in order. The owner thread adds and removes; readers take snapshots."""

    def __init__(
        self,
        files: FileSystem,
        *,
        folders: tuple[Path, ...],
        read_only_folders: tuple[Path, ...] = (),
        segment_bytes: int,
        full_ratio: float = 1.0,
    ) -> None:
        self._files = files
        self._folders = folders
        self._read_only = frozenset(read_only_folders)
        self._full_ratio = full_ratio
        self.segment_bytes = segment_bytes
        self._segments: list[Segment] = []
        self._starts: list[int] = []
        self._mapped: list[Segment] = []

    def load(self) -> list[str]:
        """Find the segments of every folder; returns texts about files that were removed."""
        found = sorted(self._found(), key=lambda segment: segment.start)
        tidied = self._drop_empty_last(found)
        for segment in found:
            self._require_length(segment)
        self._segments, self._starts = [], []
        for segment in found:
            self.add(segment)
        return tidied

    def _found(self) -> Iterator[Segment]:
        for folder in dict.fromkeys((*self._folders, *self._read_only)):
            for entry in self._files.entries(folder):
                if entry.is_dir():
                    continue
                path = Path(entry.path)
                if not (entry.name.isdigit() and len(entry.name) == _NAME_DIGITS):
                    raise StoreLayoutError(
                        f"{path} is not a commit log segment: move it out of the folder"
                    )
                yield Segment(self._files, path, int(entry.name), self.segment_bytes)

    def _drop_empty_last(self, found: list[Segment]) -> list[str]:
        """Remove a last file of length 0: a crash interrupted the segment's creation."""
        if not found or found[-1].path.stat().st_size:
            return []
        last = found.pop()
        self._files.unlink(last.path)
        return [f"removed {last.path.name}, whose creation was interrupted"]

    def _require_length(self, segment: Segment) -> None:
        byte_count = segment.path.stat().st_size
        if byte_count != self.segment_bytes:
            raise StoreLayoutError(
                f"{segment.path} has {byte_count} bytes, but mappedFileSizeCommitLog is "
                f"{self.segment_bytes}: set that to the size the folder was written with, or "
                f"restore the file from a copy"
            )

    def gap(self) -> tuple[int, int] | None:
        """The first missing byte range between two segments, if any."""
        for before, after in zip(self._segments, self._segments[1:], strict=False):
            if before.end != after.start:
                return before.end, after.start
        return None

    def path_for(self, physical_start: int) -> Path:
        """The path of a new segment: writable folders take turns, full folders are skipped."""
        writable = [folder for folder in self._folders if folder not in self._read_only]
        open_ones = [folder for folder in writable if not self._is_full(folder)] or writable
        if not open_ones:
            raise StoreLayoutError(
                "every commit log folder is read-only: name one in storePathCommitLog"
            )
        number = physical_start // self.segment_bytes
        return sorted(open_ones)[number % len(open_ones)] / segment_name(physical_start)

    def _is_full(self, folder: Path) -> bool:
        if len(self._folders) == 1 or not self._files.exists(folder):
            return False
        return self._files.usage_ratio(folder) > self._full_ratio

    def add(self, segment: Segment) -> None:
        segment.share_maps(self._mapped)
        self._segments.append(segment)
        self._starts.append(segment.start)

    def remove_first(self) -> Segment:
        """Forget and unlink the oldest segment; readers keep the views they hold."""
        segment = self._segments[0]
        self._files.unlink(segment.path)
        crashpoint("segment.unlinked")
        del self._segments[0], self._starts[0]
        segment.rest()
        return segment

    def remove_after(self, physical_end: int) -> list[Segment]:
        """Unlink every segment that starts at or after ``physical_end``, the newest first.

        The folder is synced after each: a crash must not bring back a later one without the one
        before it, which would look like a hole in the log.
        """
        removed = []
        while self._segments and self._segments[-1].start >= physical_end:
            segment = self._segments.pop()
            self._starts.pop()
            segment.rest()
            self._files.unlink(segment.path)
            crashpoint("segment.cut_off")
            self._files.sync_folder(segment.path.parent)
            removed.append(segment)
        return removed

    def at(self, physical_offset: int) -> Segment | None:
        """The segment that holds this byte."""
        index = bisect_right(self._starts, physical_offset) - 1
        if index < 0:
            return None
        segment = self._segments[index]
        return segment if physical_offset < segment.end else None

    def starts_at(self, physical_offset: int) -> bool:
        """Whether a segment starts there, or would next."""
        return physical_offset % self.segment_bytes == 0

    def between(self, physical_start: int, physical_end: int) -> list[Segment]:
        """Segments that hold any byte of the range, in order."""
        return [s for s in self.snapshot() if s.start < physical_end and s.end > physical_start]

    def parts(self, physical_start: int, physical_end: int) -> list[FilePart]:
        """The file parts of these bytes of the log."""
        return [
            FilePart(
                segment.path,
                max(physical_start, segment.start) - segment.start,
                min(physical_end, segment.end) - max(physical_start, segment.start),
            )
            for segment in self.between(physical_start, physical_end)
        ]

    def snapshot(self) -> list[Segment]:
        return list(self._segments)

    def folders(self) -> Iterable[Path]:
        return self._folders

    @property
    def physical_min(self) -> int:
        return self._segments[0].start if self._segments else 0

    @property
    def physical_limit(self) -> int:
        """One past the last byte any file could hold."""
        return self._segments[-1].end if self._segments else 0

    def __len__(self) -> int:
        return len(self._segments)

    def close(self) -> None:
        for segment in self._segments:
            segment.rest()
