"""Decides how much of a master's log bytes a slave's log takes: whole, sound records only.

The bytes of a master come cut anywhere. A plan takes the whole records at their beginning, each
checked as after a read from disk, and leaves the rest of the last one for the next call. The blank
record at a segment's end is taken with all its filler, as the master wrote it.
"""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

from contrail.errors import RawBytesRefused
from contrail.kernels.record_layout import (
    BLANK_RECORD_BYTES,
    MAGIC_BLANK,
    REASON_BLANK,
    REASON_CUT_SHORT,
    REASON_END,
)
from contrail.kernels.record_scan import scan_records

_HEAD = Struct(">ii")


class RawPiece(NamedTuple):
    """Bytes ``start`` to ``end`` of the received data, which go to one segment.

    From ``records_end`` on they are the blank record that ends the segment.
    """

    start: int
    records_end: int
    end: int
    physical_offset: int


class RawPlan(NamedTuple):
    """The pieces to write; ``last_record_offset`` is None if they hold no record."""

    pieces: list[RawPiece]
    physical_end: int
    last_record_offset: int | None
    last_store_timestamp_ms: int

    @property
    def byte_count(self) -> int:
        """How many of the received bytes are taken."""
        return self.pieces[-1].end if self.pieces else 0


def plan_raw(
    data: bytes | bytearray | memoryview,
    physical_offset: int,
    *,
    segment_bytes: int,
    record_bytes_max: int,
    takes_bare_blank: bool = True,
) -> RawPlan:
    """The whole records at the beginning of ``data``, which continues the log at an offset.

    Without ``takes_bare_blank`` a blank record is taken only with the record behind it.

    Raises:
        RawBytesRefused: the bytes are no records of this place in the log; none is taken.
    """
    pieces: list[RawPiece] = []
    last_record_offset, timestamp_ms = None, 0
    start = 0
    while start < len(data):
        base = physical_offset - start
        segment_end = (physical_offset // segment_bytes + 1) * segment_bytes
        limit = min(len(data), segment_end - base)
        position, reason, count, last, found_ms = scan_records(data, start, limit, base, True, 0)
        if count:
            last_record_offset, timestamp_ms = base + last, found_ms
        rest = segment_end - base - position
        if reason == REASON_BLANK:
            end = _blank_end(data, position, rest)
        else:
            _require_sound(data, position, limit, reason, rest, base, record_bytes_max)
            end = position
        if end > start:
            pieces.append(RawPiece(start, position, end, physical_offset))
        if base + end < segment_end:
            physical_offset = base + end
            break
        start, physical_offset = end, segment_end
    if pieces and not takes_bare_blank:
        physical_offset = _leave_bare_blank(pieces, physical_offset)
    return RawPlan(pieces, physical_offset, last_record_offset, timestamp_ms)


def _leave_bare_blank(pieces: list[RawPiece], physical_end: int) -> int:
    """Take a blank record at the end out of the plan; returns where the plan ends then."""
    while pieces and pieces[-1].end > pieces[-1].records_end:
        last = pieces.pop()
        physical_end = last.physical_offset + last.records_end - last.start
        if last.records_end > last.start:
            pieces.append(last._replace(end=last.records_end))
    return physical_end


def _blank_end(data: bytes | bytearray | memoryview, position: int, rest: int) -> int:
    """Where the blank record at ``position`` ends: at the segment's end, once all of it is here."""
    size = _HEAD.unpack_from(data, position)[0]
    if size != rest:
        raise RawBytesRefused(
            "segment_end",
            f"a blank record of {size} bytes where {rest} are left of the segment: "
            "mappedFileSizeCommitLog of master and slave must be equal",
        )
    return position + size if len(data) - position >= size else position


def _require_sound(
    data: bytes | bytearray | memoryview,
    position: int,
    limit: int,
    reason: int,
    rest: int,
    base: int,
    record_bytes_max: int,
) -> None:
    """Refuse bytes that cannot become a whole record, however many follow."""
    if reason not in (REASON_END, REASON_CUT_SHORT):
        raise RawBytesRefused(
            "record", f"no sound record at {base + position} (reason {reason}): nothing was written"
        )
    if reason == REASON_CUT_SHORT and limit - position >= _HEAD.size:
        size, magic = _HEAD.unpack_from(data, position)
        if magic != MAGIC_BLANK and size > min(record_bytes_max, rest - BLANK_RECORD_BYTES):
            raise RawBytesRefused(
                "record_size",
                f"a record of {size} bytes at {base + position}: it is larger than maxMessageSize "
                "allows or does not fit its segment",
            )
    if rest < BLANK_RECORD_BYTES:
        raise RawBytesRefused(
            "segment_end", f"the record before {base + position} leaves no room for a blank record"
        )
