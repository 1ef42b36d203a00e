"""Reports each damaged record once in the process's log, and keeps it for later questions.

Readers report the records they pass over, the scrubber the records it finds damaged.
``damaged_range`` names the bytes, as for ``contrail store verify`` and a refused start.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path

from contrail.errors import RecordDamaged
from contrail.kernels.record_layout import REASON_END
from contrail.kernels.record_scan import check_record
from contrail.model.message import StoredMessage
from contrail.model.record import decode_record
from contrail.runtime.files import FileSystem
from contrail.store.disk.segments import SegmentList
from contrail.store.services.log_walk import DamagedRange, damaged_range
from contrail.store.services.record_places import MisplacedRecord, RecordPlaces
from contrail.store.state.damaged_records import DamagedRecord, DamagedRecords
from contrail.store.state.place_holes import Place
from contrail.store.state.record_crc import RecordCrcRule

_log = logging.getLogger(__name__)

_IS_DAMAGED = "is damaged"
# Damaged messages that one answer names; the others are counted.
_NAMED_MAX = 8


class DamageWatch:
    """The damaged records found in the log; belongs to the store's owner thread."""

    def __init__(
        self,
        root: Path,
        files: FileSystem,
        segments: SegmentList,
        *,
        crc_rule: RecordCrcRule,
        places: RecordPlaces,
        visible_end: Callable[[], int],
    ) -> None:
        self._root = root
        self._places = places
        self._files = files
        self._segments = segments
        self._crc_rule = crc_rule
        self._visible_end = visible_end
        self.records = DamagedRecords()

    def passed_over(self, place: Place, physical_offset: int, size: int) -> None:
        """A read goes on behind a message whose record contradicts its row."""
        self.records.passed_over_count += 1
        known = self.records.at(physical_offset)
        if known is not None and known.topic is not None:
            return
        found = self.range_at(physical_offset)
        if found is None:
            misplaced = self._places.judge_by_row(place, physical_offset, size)
            found = misplaced.range if misplaced is not None else None
        if found is not None:
            self._note(DamagedRecord(*found, *_named(place)))

    def is_misplaced(self, place: Place, physical_offset: int, size: int) -> bool:
        """Whether the row of ``place`` leads to a whole record with another queue or offset."""
        return self._places.judge_by_row(place, physical_offset, size) is not None

    def came_across(self, found: DamagedRange) -> None:
        """The scrubber found damage; the record or its row may still name the message."""
        if self.records.at(found.physical_start) is not None:
            return
        message = self.message_at(found.physical_start)
        if message is None:
            place = self._places.place_of(found.physical_start)
        else:
            place = Place(message.topic.encode(), message.queue_id, message.queue_offset)
        self._note(DamagedRecord(*found, *_named(place)) if place else DamagedRecord(*found))

    def came_across_misplaced(self, found: MisplacedRecord) -> None:
        """A record has another queue or offset than its row; the row names the message."""
        self._note(DamagedRecord(*found.range, *_named(found.place)))

    def misplaced_at(self, physical_offset: int) -> MisplacedRecord | None:
        """The whole record that starts there if it contradicts its row; it is reported."""
        found = self._places.judge(physical_offset)
        if found is not None:
            self.came_across_misplaced(found)
        return found

    def look_at(self, physical_offset: int) -> None:
        """A queue or the index leads there: report damage if no whole record begins there."""
        found = self.range_at(physical_offset)
        if found is not None:
            self.came_across(found)

    def known(self) -> list[DamagedRecord]:
        """The damaged records found so far that are still in the log."""
        self.records.drop_before(self._segments.physical_min)
        return self.records.newest(len(self.records))

    def range_at(self, physical_offset: int) -> DamagedRange | None:
        """The damage that begins there; None where a whole record begins."""
        return damaged_range(
            self._files,
            self._segments.snapshot(),
            physical_offset,
            durable_end=self._visible_end(),
            record_crc=self._crc_rule.mode(physical_offset),
        )

    def message_at(self, physical_offset: int) -> StoredMessage | None:
        """The damaged record, decoded, if all its lengths add up; its body may be damaged."""
        segment = self._segments.at(physical_offset)
        if segment is None or physical_offset >= self._visible_end():
            return None
        position = physical_offset - segment.start
        reason, size = check_record(
            segment.map, position, segment.byte_count, segment.start, False, 0
        )
        if reason != REASON_END:
            return None
        try:
            return decode_record(segment.view(physical_offset, size), 0, check_body_crc=False)
        except RecordDamaged:
            return None

    def problem_at(self, physical_offset: int) -> str | None:
        """Text about the damage that begins there, if it was found."""
        known = self.records.at(physical_offset)
        return None if known is None else f"{_IS_DAMAGED}: {known}"

    def summary(self, which: str, problems: Sequence[str]) -> str:
        """One sentence about the messages an answer leaves out, and how to repair the log."""
        if len(problems) == 1:
            told = f"1 message {which} {problems[0]}"
        else:
            named = [f"one {problem}" for problem in problems[:_NAMED_MAX]]
            if len(problems) > _NAMED_MAX:
                named.append(f"{len(problems) - _NAMED_MAX} more")
            told = f"{len(problems)} messages {which} cannot be returned: {'; '.join(named)}"
        can_be_mended = any(problem.startswith(_IS_DAMAGED) for problem in problems)
        return f"{told}. {self._advice()}" if can_be_mended else told

    def _advice(self) -> str:
        return (
            "Restore the segment from a copy, or stop the broker and run "
            f"`contrail store recover {self._root} --replace-damaged`"
        )

    def _note(self, record: DamagedRecord) -> None:
        if self.records.note(record):
            _log.error(
                "damaged: %s; readers pass over it. %s",
                record,
                self._advice(),
            )


def _named(place: Place) -> tuple[str, int, int]:
    return place.topic.decode("utf-8", "replace"), place.queue_id, place.queue_offset
