"""Decides how strictly a record's own CRC is looked at, by where the record stands.

A record whose CRC property was wiped looks like one that never had it. So the store notes from
which byte on it has written every record with a CRC: there, one without is damaged.
"""

from __future__ import annotations

from dataclasses import dataclass

IGNORED = 0
WHERE_PRESENT = 1
REQUIRED = 2


@dataclass(frozen=True, slots=True)
class RecordCrcRule:
    """``check`` is what the settings ask for; from ``present_from`` on every record has a CRC."""

    check: int
    present_from: int | None = None

    def mode(self, physical_offset: int) -> int:
        """How a record that starts there, and those behind it, are checked."""
        certain = self.present_from is not None and physical_offset >= self.present_from
        return REQUIRED if self.check and certain else self.check

    def after_start(self, physical_end: int) -> RecordCrcRule:
        """The rule for a run whose log begins to grow at ``physical_end``."""
        if not self.check:
            return RecordCrcRule(self.check)
        present_from = physical_end if self.present_from is None else self.present_from
        return RecordCrcRule(self.check, min(present_from, physical_end))
