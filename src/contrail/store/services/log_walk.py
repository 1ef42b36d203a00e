"""Walks the log on the disk and yields stretches of whole, verified records and damaged ranges.

The files are read with ``pread``, never through a map: a file that shrinks or fails while it is
read then gives an error and not a signal. Below the durable end bytes that are no record are
damage, and the walk goes on at the next sound record; at or above the durable end they end the log.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import NamedTuple, Protocol

from contrail.kernels.record_layout import (
    BLANK_RECORD_BYTES,
    MAGIC_AT,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    REASON_BAD_BODY_CRC,
    REASON_BAD_RECORD_CRC,
    REASON_BAD_SIZE,
    REASON_BLANK,
    REASON_CUT_SHORT,
    REASON_EMPTY,
    REASON_END,
)
from contrail.kernels.record_scan import check_record, scan_records
from contrail.runtime.files import FileSystem, opened

WALK_BYTES = 1 << 20
# No record is larger: a larger size is damage, and the walk does not read that much.
RECORD_BYTES_SANE = 256 << 20
REASONS = (
    "no segment file holds these bytes",
    "a blank record of the wrong length",
    "nothing was written there",
    "an unknown magic number",
    "lengths that do not add up",
    "a record that belongs elsewhere",
    "a body whose checksum is wrong",
    "a record whose checksum is wrong",
    "a record that is cut short",
)
MISSING = REASONS[0]
UNREADABLE = "the disk cannot read it"
# All lengths of such a record add up, so the next record begins behind its size.
_OF_KNOWN_SIZE = frozenset({REASON_BAD_BODY_CRC, REASON_BAD_RECORD_CRC})

# The magic of either record version, or of the blank record, four bytes into it.
_MAGIC_BYTES = 4
_MAGIC = re.compile(
    b"|".join(
        re.escape(magic.to_bytes(_MAGIC_BYTES, "big", signed=True))
        for magic in (MAGIC_V1, MAGIC_V2, MAGIC_BLANK)
    ),
    re.DOTALL,
)


class LogPiece(Protocol):
    """One file of the log."""

    @property
    def path(self) -> Path: ...
    @property
    def start(self) -> int: ...
    @property
    def end(self) -> int: ...


class LogChunk(NamedTuple):
    """Whole records: ``data[start:end]``, whose byte 0 is at physical offset ``base``."""

    data: bytes
    start: int
    end: int
    base: int
    record_count: int
    store_timestamp_ms: int


class DamagedRange(NamedTuple):
    """Bytes of the log that are no sound record."""

    physical_start: int
    physical_end: int
    reason: str


class LogWalk:
    """One pass. ``position`` is the physical offset reached; ``end_reason`` says why it ended."""

    def __init__(
        self,
        files: FileSystem,
        pieces: Sequence[LogPiece],
        *,
        physical_start: int,
        durable_end: int,
        physical_limit: int | None = None,
        check_crc: bool = True,
        record_crc: int = 0,
        chunk_bytes: int = WALK_BYTES,
    ) -> None:
        self._files = files
        self._pieces = pieces
        self._durable_end = durable_end
        self._limit = physical_limit
        self._check_crc = check_crc
        self._record_crc = record_crc
        self._chunk_bytes = chunk_bytes
        self.position = physical_start
        self.end_reason = REASON_END

    def __iter__(self) -> Iterator[LogChunk | DamagedRange]:
        return self.steps()

    def steps(self) -> Generator[LogChunk | DamagedRange, None, None]:
        """The pass; a caller that leaves early closes the generator, which closes the file."""
        for piece in self._pieces:
            if piece.end <= self.position:
                continue
            if self._is_over():
                return
            if piece.start > self.position:
                yield self._damage(piece.start, MISSING)
            yield from self._walk_file(piece)
            if self.end_reason != REASON_END:
                return
        if self.position < self._lasting_end():
            yield self._damage(self._lasting_end(), MISSING)

    def _lasting_end(self) -> int:
        return self._durable_end if self._limit is None else min(self._durable_end, self._limit)

    def _is_over(self) -> bool:
        return self._limit is not None and self.position >= self._limit

    def _damage(self, physical_end: int, reason: str) -> DamagedRange:
        found = DamagedRange(self.position, physical_end, reason)
        self.position = physical_end
        return found

    def _walk_file(self, piece: LogPiece) -> Iterator[LogChunk | DamagedRange]:
        try:
            with opened(self._files, piece.path, writable=False) as fd:
                yield from self._walk_piece(_Window(self._files, fd, piece))
        except FileNotFoundError:
            # Retention removed the file meanwhile: its bytes are no part of the log any more.
            self.position = max(self.position, piece.end)

    def _walk_piece(self, window: _Window) -> Iterator[LogChunk | DamagedRange]:
        end = window.end if self._limit is None else min(window.end, self._limit)
        wanted = self._chunk_bytes
        while self.position < end and self.end_reason == REASON_END:
            base = self.position
            data, reason, code = window.read(base, min(wanted, end - base)), UNREADABLE, -1
            wanted = self._chunk_bytes
            if data:
                position, code, count, _, timestamp_ms = scan_records(
                    data, 0, len(data), base, self._check_crc, self._record_crc
                )
                self.position = base + position
                if count:
                    yield LogChunk(data, 0, position, base, count, timestamp_ms)
                if code == REASON_CUT_SHORT and base + len(data) < end:
                    size = window.record_bytes(self.position)
                    if size and size <= end - self.position:
                        wanted = max(size, self._chunk_bytes)
                        continue
                    code = REASON_BAD_SIZE
                elif code == REASON_BLANK and window.is_blank(self.position):
                    self.position = window.end
                    continue
                if code == REASON_END:
                    continue
                reason = REASONS[code]
                if self.position >= self._durable_end:
                    self.end_reason = code
                    return
            elif base >= self._durable_end:
                self.end_reason = REASON_EMPTY
                return
            yield self._damage(self._next_sound(window, end, code), reason)

    def _next_sound(self, window: _Window, end: int, code: int) -> int:
        """Where the next sound record begins; without one the durable end, or the file's end."""
        if code in _OF_KNOWN_SIZE:
            return min(self.position + window.record_bytes(self.position), end)
        found = window.next_sound(self.position + 1, end)
        return found if found is not None else max(min(end, self._durable_end), self.position + 1)


def damaged_range(
    files: FileSystem,
    pieces: Sequence[LogPiece],
    physical_offset: int,
    *,
    durable_end: int,
    record_crc: int = 0,
) -> DamagedRange | None:
    """The damage that begins at ``physical_offset``, as every walk over it names it.

    None when a whole record begins there.
    """
    walk = LogWalk(
        files,
        pieces,
        physical_start=physical_offset,
        durable_end=durable_end,
        physical_limit=durable_end,
        record_crc=record_crc,
    )
    with closing(walk.steps()) as steps:
        found = next(steps, None)
    return found if isinstance(found, DamagedRange) else None


class _Window:
    """Reads of one file by physical offset; unreadable bytes read as empty."""

    def __init__(self, files: FileSystem, fd: int, piece: LogPiece) -> None:
        self._files = files
        self._fd = fd
        self._start = piece.start
        self.end = piece.end

    def read(self, physical_offset: int, byte_count: int) -> bytes:
        try:
            return self._files.pread(self._fd, byte_count, physical_offset - self._start)
        except OSError:
            return b""

    def record_bytes(self, physical_offset: int) -> int:
        """The size a record claims, 0 when no record has that size."""
        size = int.from_bytes(self.read(physical_offset, 4), "big", signed=True)
        return size if BLANK_RECORD_BYTES < size <= RECORD_BYTES_SANE else 0

    def is_blank(self, physical_offset: int) -> bool:
        """Whether a blank record there ends exactly where its file does."""
        size = int.from_bytes(self.read(physical_offset, 4), "big")
        return size == self.end - physical_offset

    def next_sound(self, physical_start: int, physical_end: int) -> int | None:
        """Where the next record with right lengths and physical offset begins, or the blank record.

        Checksums are left to the walk, so that a damaged neighbour is reported on its own.
        """
        position = physical_start
        while position < physical_end:
            data = self.read(position, min(WALK_BYTES, physical_end - position))
            for found in _MAGIC.finditer(data):
                candidate = position + found.start() - MAGIC_AT
                if candidate >= physical_start and self._is_sound(candidate, physical_end):
                    return candidate
            # An unreadable block is passed over in steps of a page.
            position += max(len(data) - _MAGIC_BYTES + 1, 1) if data else 4096
        return None

    def _is_sound(self, physical_offset: int, physical_end: int) -> bool:
        head = self.read(physical_offset, BLANK_RECORD_BYTES)
        if len(head) < BLANK_RECORD_BYTES:
            return False
        reason, size = check_record(head, 0, len(head), physical_offset, False, 0)
        if reason == REASON_BLANK:
            return self.is_blank(physical_offset)
        if reason != REASON_CUT_SHORT or not self.record_bytes(physical_offset):
            return False
        data = self.read(physical_offset, min(size, physical_end - physical_offset))
        return check_record(data, 0, len(data), physical_offset, False, 0)[0] == REASON_END
