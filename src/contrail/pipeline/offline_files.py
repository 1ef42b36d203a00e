"""Reads segments for a task, in big reads of verified records that skip damaged bytes.

No file is mapped: a file that shrinks or fails during a read then gives an error and not a
signal. A task is planned below the end of the log, so bytes that are no record are damaged or
were removed since, and ``Losses`` decides whether that ends the query.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from contrail.errors import DataLost
from contrail.kernels.arrow_columns import measure_records
from contrail.kernels.record_layout import REASON_BLANK, REASON_CUT_SHORT, REASON_END
from contrail.kernels.record_scan import check_record
from contrail.pipeline.arrow import (
    BATCH_ROWS_MAX,
    Positions,
    first_bad_body,
    number_table,
    walk_until,
)
from contrail.store.reader import StoreReader

READ_BYTES = 8 << 20
# Gaps between two records below this many bytes are read, which is cheaper than a second read.
_GAP_BYTES = 16 << 10
# No record is larger: a size above it is damage, and not read.
_RECORD_BYTES_SANE = 256 << 20
_LOG = logging.getLogger(__name__)


class Segment(NamedTuple):
    """One file of the log."""

    path: str
    start: int
    end: int


class Chunk(NamedTuple):
    """Records at ``rows`` of ``data``, and the physical offset of each."""

    data: bytes
    rows: Positions
    places: Positions

    def only(self, kept: npt.NDArray[np.bool_]) -> Chunk:
        return self if kept.all() else Chunk(self.data, self.rows[kept], self.places[kept])


@dataclass(frozen=True, slots=True)
class Losses:
    """Decides whether removed or damaged bytes of the log end the query."""

    store_path: str
    fail_on_data_loss: bool

    def note(self, physical_start: int, physical_end: int, why: str) -> None:
        """Raises ``DataLost``, or logs the loss if the query goes on without these bytes."""
        self.note_text(f"bytes {physical_start} to {physical_end} of the log cannot be read: {why}")

    def note_text(self, problem: str) -> None:
        text = f"{self.store_path}: {problem}"
        if self.fail_on_data_loss:
            raise DataLost(f"{text}. To read what is left, set failOnDataLoss=false")
        _LOG.warning("%s; the read goes on behind them (failOnDataLoss=false)", text)


class LogFiles:
    """The part of a log that a task reads."""

    def __init__(
        self, segments: tuple[Segment, ...], losses: Losses, *, record_crc: bool = False
    ) -> None:
        self._segments = segments
        self._losses = losses
        self._record_crc = record_crc

    def chunks(self, physical_start: int, physical_end: int) -> Iterator[Chunk]:
        """All whole records between two record starts, in log order."""
        position = physical_start
        for segment in self._segments:
            if segment.end <= position or position >= physical_end:
                continue
            if segment.start > position:
                self._losses.note(position, segment.start, "no segment file holds them")
            start, end = max(position, segment.start), min(physical_end, segment.end)
            with self._opened(segment, start, end) as fd:
                if fd is not None:
                    yield from self._walk(fd, segment, start, end)
            position = end
        if position < physical_end:
            self._losses.note(position, physical_end, "no segment file holds them")

    def pieces(self, places: Positions, sizes: Positions) -> Iterator[Chunk]:
        """The records at these rising physical offsets, in chunks large enough for a batch."""
        self._note_outside(places, sizes)
        gathered = _Gathered()
        for segment in self._segments:
            first, stop = np.searchsorted(places, [segment.start, segment.end]).tolist()
            if first == stop:
                continue
            here, lengths = places[first:stop], sizes[first:stop]
            ends = here + lengths
            with self._opened(segment, int(here[0]), int(ends[-1])) as fd:
                for low, high in _groups(here, ends) if fd is not None else ():
                    base = int(here[low])
                    data = _pread(fd or 0, int(ends[high - 1]) - base, base - segment.start)
                    gathered.add(data, base, here[low:high], lengths[low:high])
                    if gathered.is_enough:
                        yield self._sound(*gathered.taken())
        if gathered.row_count:
            yield self._sound(*gathered.taken())

    def _note_outside(self, places: Positions, sizes: Positions) -> None:
        """Note rows that point outside all segments."""
        is_held = np.zeros(len(places), np.bool_)
        for segment in self._segments:
            is_held |= (places >= segment.start) & (places < segment.end)
        for index in np.flatnonzero(~is_held).tolist():
            start = int(places[index])
            self._losses.note(start, start + int(sizes[index]), "no segment file holds them")

    def with_whole_bodies(self, chunk: Chunk) -> Chunk:
        """The records whose bodies match their checksums; the others count as lost."""
        while True:
            bad_row = first_bad_body(chunk.data, chunk.rows)
            if bad_row < 0:
                return chunk
            at, start = int(chunk.rows[bad_row]), int(chunk.places[bad_row])
            size = int.from_bytes(chunk.data[at : at + 4], "big")
            self._losses.note(start, start + size, "a body whose checksum is wrong")
            chunk = chunk.only(np.arange(len(chunk.rows)) != bad_row)

    # Private: reading on.

    @contextmanager
    def _opened(self, segment: Segment, start: int, end: int) -> Iterator[int | None]:
        try:
            fd = os.open(segment.path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            why = f"{segment.path} was there when the read was planned: {error.strerror}"
            self._losses.note(start, end, why)
            yield None
            return
        try:
            yield fd
        finally:
            os.close(fd)

    def _walk(self, fd: int, segment: Segment, position: int, end: int) -> Iterator[Chunk]:
        wanted, resumed_at = READ_BYTES, -1
        while position < end:
            asked = min(wanted, end - position)
            data = _pread(fd, asked, position - segment.start)
            wanted = READ_BYTES
            rows, reached, reason = walk_until(data, base_offset=position)
            if len(rows):
                yield self._with_record_crc(Chunk(data, rows, rows + position))
            position += reached
            if reason == REASON_END and reached:
                continue
            size = int.from_bytes(data[reached : reached + 4], "big", signed=True)
            if reason == REASON_BLANK and position + size == segment.end:
                return
            is_cut_by_us = reason == REASON_CUT_SHORT and len(data) == asked
            if is_cut_by_us and (
                reached or asked < size <= min(end - position, _RECORD_BYTES_SANE)
            ):
                wanted = max(size, READ_BYTES)
                continue
            # A second read finds a record that was being written during the first.
            position = self._resume(position, end, may_be_whole=position != resumed_at)
            resumed_at = position

    def _resume(self, position: int, end: int, *, may_be_whole: bool) -> int:
        """The physical offset of the next readable record, found by the store's own reader."""
        reader = StoreReader.open(Path(self._losses.store_path))
        chunks = reader.scan(physical_start=position, physical_end=end)
        found = next((chunk.base + chunk.start for chunk in chunks), end)
        if found == position and may_be_whole:
            return position
        found = found if found > position else end
        why = reader.damaged[0].reason if reader.damaged else "nothing whole was found there"
        self._losses.note(position, found, why)
        return found

    def _with_record_crc(self, chunk: Chunk) -> Chunk:
        """Drops records whose checksum of the whole record is wrong, in stores that write one."""
        if not self._record_crc:
            return chunk
        limit = len(chunk.data)
        kept = np.ones(len(chunk.rows), np.bool_)
        pairs = zip(chunk.rows.tolist(), chunk.places.tolist(), strict=True)
        for index, (row, start) in enumerate(pairs):
            reason, size = check_record(chunk.data, row, limit, start - row, False, 1)
            if reason != REASON_END:
                kept[index] = False
                self._losses.note(start, start + size, "a record whose checksum is wrong")
        return chunk.only(kept)

    def _sound(self, chunk: Chunk, sizes: Positions) -> Chunk:
        """The whole records that queue rows point to."""
        nothing = np.empty(0, np.int64).data
        while True:
            rows = np.ascontiguousarray(chunk.rows)
            bad_row = measure_records(chunk.data, rows.data, b"", nothing, nothing)[0]
            if bad_row < 0:
                found = number_table(chunk.data, rows, ["physicalOffset", "storeSize"])
                is_here = found["physicalOffset"] == chunk.places
                is_here &= found["storeSize"] == sizes
                if is_here.all():
                    return self._with_record_crc(chunk)
                bad_row = int(np.argmin(is_here))
            start = int(chunk.places[bad_row])
            self._losses.note(start, start + int(sizes[bad_row]), "no whole record starts there")
            kept = np.arange(len(rows)) != bad_row
            chunk, sizes = chunk.only(kept), sizes[kept]


class _Gathered:
    """Reads that are joined until they are large enough for a batch."""

    def __init__(self) -> None:
        self._clear()

    def _clear(self) -> None:
        self._parts: list[bytes] = []
        self._places: list[Positions] = []
        self._rows: list[Positions] = []
        self._sizes: list[Positions] = []
        self._byte_count = 0
        self.row_count = 0

    def add(self, data: bytes, base: int, places: Positions, sizes: Positions) -> None:
        self._parts.append(data)
        self._places.append(places)
        self._rows.append(places - base + self._byte_count)
        self._sizes.append(sizes)
        self._byte_count += len(data)
        self.row_count += len(places)

    @property
    def is_enough(self) -> bool:
        return self._byte_count >= READ_BYTES or self.row_count >= BATCH_ROWS_MAX

    def taken(self) -> tuple[Chunk, Positions]:
        """All gathered records and their sizes; empties the gathering."""
        places, rows = np.concatenate(self._places), np.concatenate(self._rows)
        chunk, sizes = Chunk(b"".join(self._parts), rows, places), np.concatenate(self._sizes)
        self._clear()
        return chunk, sizes


def _groups(places: Positions, ends: Positions) -> Iterator[tuple[int, int]]:
    """Runs of records for one read each: close together and not too long."""
    jumps = np.flatnonzero(places[1:] - ends[:-1] > _GAP_BYTES) + 1
    for low, high in zip([0, *jumps.tolist()], [*jumps.tolist(), len(places)], strict=True):
        while low < high:
            limit = int(places[low]) + READ_BYTES
            stop = low + int(np.searchsorted(ends[low:high], limit, "right"))
            stop = max(stop, low + 1)
            yield low, stop
            low = stop


def _pread(fd: int, byte_count: int, position: int) -> bytes:
    """Bytes of a file; empty if it cannot be read."""
    try:
        return os.pread(fd, byte_count, position)
    except OSError:
        return b""
