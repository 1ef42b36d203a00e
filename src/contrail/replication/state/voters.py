"""Voters of a failover group: the members whose copies count, and which majority they form.

A voter record counts from its append, not from its commit, and a cut that removes it brings the
former voters back. One record adds or removes one voter, so that any two majorities share a member.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class VoterRecord:
    """Voters, and where the record that names them ends in the log."""

    physical_end: int
    voters: frozenset[str]


class Voters:
    """The voter records of one member's log; the last one counts."""

    def __init__(self, first: frozenset[str], *, physical_end: int = 0) -> None:
        """``first`` are the voters by a record that ends at ``physical_end``, or by none."""
        self._records = [VoterRecord(physical_end, first)]

    @property
    def now(self) -> frozenset[str]:
        return self._records[-1].voters

    @property
    def changed_end(self) -> int:
        """Where the record that counts ends; the next change waits until it is committed."""
        return self._records[-1].physical_end

    def as_of(self, physical_offset: int) -> VoterRecord:
        """The record that counts at a place of the log, or the first that is known."""
        known = [one for one in self._records if one.physical_end <= physical_offset]
        return known[-1] if known else self._records[0]

    def record(self, physical_end: int, voters: frozenset[str]) -> None:
        """The log has a voter record that ends at ``physical_end``."""
        assert physical_end > self.changed_end, "voter records come in the order of the log"
        if voters != self.now:
            self._records.append(VoterRecord(physical_end, voters))

    def changes_within(self, physical_start: int, physical_end: int) -> bool:
        """Whether a record that changed the voters ends between two places of the log."""
        return any(
            physical_start < one.physical_end <= physical_end for one in reversed(self._records)
        )

    def cut(self, physical_end: int) -> None:
        """Forget the voter records that a cut at ``physical_end`` removed."""
        while len(self._records) > 1 and self._records[-1].physical_end > physical_end:
            self._records.pop()

    def is_majority(self, members: frozenset[str] | set[str]) -> bool:
        return 2 * len(self.now & members) > len(self.now)

    def reached_by_majority(self, values: Mapping[str, int]) -> int:
        """The largest number that a majority of the voters has reached; 0 for a missing voter."""
        reached = sorted((values.get(voter, 0) for voter in self.now), reverse=True)
        return reached[len(reached) // 2] if reached else 0


def is_single_change(before: frozenset[str], after: frozenset[str]) -> bool:
    """Whether ``after`` has one voter more or one less: then their majorities share a member."""
    return len(before ^ after) == 1 and bool(after)
