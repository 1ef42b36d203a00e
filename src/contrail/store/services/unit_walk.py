"""Walks a replicated log by units: a record, with the blank record in front of it if there is one.

Nothing is checked beyond lengths and places: these bytes were verified before they were written.
"""

from __future__ import annotations

from collections.abc import Iterator

from contrail.kernels.record_layout import REASON_BLANK, REASON_END
from contrail.kernels.record_marks import marked_records
from contrail.kernels.record_scan import check_record, scan_records
from contrail.model.message import StoredMessage
from contrail.model.record import decode_record
from contrail.store.disk.segments import Segment, SegmentList

_STEP_BYTES = 1 << 20


class UnitWalk:
    """Reads the log as far as it is written, committed or not."""

    def __init__(self, segments: SegmentList) -> None:
        self._segments = segments

    def units_end(self, physical_start: int, physical_limit: int, bytes_max: int) -> int:
        """Where whole units from ``physical_start`` end: within ``bytes_max``, or one unit.

        ``physical_limit`` is the end of a unit. A batch ends in front of a blank record, or is that
        blank record and the record behind it.
        """
        reached = self._whole_records(
            physical_start, min(physical_limit, physical_start + bytes_max)
        )
        if reached > physical_start:
            return reached
        reason, size = self._unit(physical_start)
        if reason == REASON_BLANK:
            physical_start = self._at(physical_start).end
            _, size = self._unit(physical_start)
        return physical_start + size

    def messages_between(
        self, physical_start: int, physical_end: int, topics: frozenset[bytes]
    ) -> Iterator[StoredMessage]:
        """The messages of some topics, in log order; the rest is not decoded."""
        at = physical_start
        while at < physical_end:
            reached = self._whole_records(at, min(physical_end, at + _STEP_BYTES))
            if reached == at:
                reason, size = self._unit(at)
                reached = self._at(at).end if reason == REASON_BLANK else at + size
            segment = self._at(at)
            data = segment.map[at - segment.start : reached - segment.start]
            if any(topic in data for topic in topics):
                yield from _messages(data, at, topics)
            at = reached

    def naming_between(self, physical_start: int, physical_end: int) -> Iterator[tuple[int, int]]:
        """The records of a stretch that speak of another one, with the place that they name.

        A damaged record hides those behind it in its segment.
        """
        # A member that copied its log begins behind what the leader's retention removed.
        at = max(physical_start, self._segments.physical_min)
        while at < physical_end and (segment := self._segments.at(at)) is not None:
            limit = min(physical_end, segment.end) - segment.start
            position, reason, found = marked_records(segment.map, at - segment.start, limit)
            for start, named in found:
                yield segment.start + start, named
            at = segment.start + position if reason == REASON_END else segment.end

    def _whole_records(self, start: int, limit: int) -> int:
        """Where the whole records that follow ``start`` in its segment end, up to ``limit``."""
        segment = self._at(start)
        position, _, _, _, _ = scan_records(
            segment.map,
            start - segment.start,
            min(limit, segment.end) - segment.start,
            segment.start,
            False,
            0,
        )
        return segment.start + position

    def _unit(self, physical_offset: int) -> tuple[int, int]:
        """Why a walk stops here, and the size of the record or blank record."""
        segment = self._at(physical_offset)
        return check_record(
            segment.map,
            physical_offset - segment.start,
            segment.byte_count,
            segment.start,
            False,
            0,
        )

    def _at(self, physical_offset: int) -> Segment:
        segment = self._segments.at(physical_offset)
        assert segment is not None, f"no segment holds a byte at {physical_offset}"
        return segment


def _messages(
    data: bytes, physical_start: int, topics: frozenset[bytes]
) -> Iterator[StoredMessage]:
    at = 0
    while at < len(data):
        size = int.from_bytes(data[at : at + 4], "big")
        record = data[at : at + size]
        if any(topic in record for topic in topics):
            message = decode_record(record, 0, physical_offset=physical_start + at)
            if message.topic.encode() in topics:
                yield message
        at += size
