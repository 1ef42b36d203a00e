"""Decides which records replace a damaged range of the log.

Queue rows say where records began and how long they were, whatever became of the records. Bytes
that no row leads to stay one piece; where the damage reaches the end of its segment, that piece is
the blank record that ends a segment.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from contrail.model.record import BLANK_RECORD_BYTES, RECORD_BYTES_MIN
from contrail.model.replaced_record import NOBODY, LostPlace


class KnownRecord(NamedTuple):
    """A record that a queue row leads to."""

    physical_offset: int
    record_bytes: int
    place: LostPlace
    # When the record was stored, if the row has that time; else 0.
    stored_ms: int = 0


class Piece(NamedTuple):
    """Bytes that become one record, or the blank record that ends a segment."""

    physical_start: int
    physical_end: int
    place: LostPlace = NOBODY
    stored_ms: int = 0
    is_blank: bool = False

    @property
    def byte_count(self) -> int:
        return self.physical_end - self.physical_start


def plan_pieces(
    physical_start: int,
    physical_end: int,
    known: Iterable[KnownRecord],
    *,
    segment_end: int,
    boundary: int | None = None,
) -> list[Piece] | None:
    """The pieces of a damaged range in their order; None if one is too small for a record.

    ``boundary`` is a physical offset where a record begins although no row leads there.
    """
    pieces: list[Piece] = []
    at = physical_start
    for record in sorted(known):
        end = record.physical_offset + record.record_bytes
        if record.physical_offset < at or end > physical_end:
            # Rows may be damaged as well: a row whose record overlaps another or leaves the range
            # is ignored.
            continue
        pieces += _unknown(at, record.physical_offset, boundary)
        pieces.append(Piece(record.physical_offset, end, record.place, record.stored_ms))
        at = end
    rest = list(_unknown(at, physical_end, boundary))
    if rest and physical_end == segment_end:
        rest = [Piece(at, physical_end, is_blank=True)]
    pieces += rest
    return pieces if all(map(_fits, pieces)) else None


def _unknown(start: int, end: int, boundary: int | None) -> Iterator[Piece]:
    if boundary is not None and start < boundary < end:
        yield Piece(start, boundary)
        start = boundary
    if start < end:
        yield Piece(start, end)


def _fits(piece: Piece) -> bool:
    return piece.byte_count >= (BLANK_RECORD_BYTES if piece.is_blank else RECORD_BYTES_MIN)
