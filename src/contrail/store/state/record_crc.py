"""Decides how strictly a record's own CRC is checked, by the record's physical offset.

A record whose CRC property was wiped looks like a record that never had it. The store therefore
notes from which byte on it has written every record with a CRC: from there on, a record without is
damaged.
"""

from __future__ import annotations

from dataclasses import dataclass

IGNORED = 0
WHERE_PRESENT = 1
REQUIRED = 2


@dataclass(frozen=True, slots=True)
class RecordCrcRule:
    """``check`` comes from the settings; from ``present_from`` on every record has a CRC."""

    check: int
    present_from: int | None = None

    def mode(self, physical_offset: int) -> int:
        """How the record at ``physical_offset``, and the records behind it, are checked."""
        certain = self.present_from is not None and physical_offset >= self.present_from
        return REQUIRED if self.check and certain else self.check

    def after_start(self, physical_end: int) -> RecordCrcRule:
        """The rule after a start that found the log's end at ``physical_end``."""
        if not self.check:
            return RecordCrcRule(self.check)
        present_from = physical_end if self.present_from is None else self.present_from
        return RecordCrcRule(self.check, min(present_from, physical_end))
