"""A member's disk as far as the protocol can tell: records, syncs, term and vote.

A sync covers what was written when it *began*; it may end after a cut, and then says nothing of
the bytes written since. A save of term and vote takes time. A crash loses a suffix of what was not
synced, and perhaps the last save.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from random import Random


@dataclass(frozen=True, slots=True)
class Unit:
    """A record with the blank in front of it, if it did not fit into the segment."""

    physical_start: int
    physical_end: int
    epoch: int
    value: int
    voters: frozenset[str] | None = None
    is_marker: bool = False
    blank_bytes: int = 0


@dataclass(slots=True)
class SimulatedDisk:
    """The written units, and the part of them that a crash leaves."""

    units: list[Unit] = field(default_factory=list)
    durable: list[Unit] = field(default_factory=list)
    term: int = 0
    voted_for: str | None = None
    commit_hint: int = 0
    _covered: int = 0

    @property
    def end(self) -> int:
        return self.units[-1].physical_end if self.units else 0

    @property
    def durable_end(self) -> int:
        return self.durable[-1].physical_end if self.durable else 0

    def write(self, unit: Unit) -> None:
        assert unit.physical_start == self.end, "records follow each other"
        self.units.append(unit)

    def sync_begins(self) -> None:
        self._covered = len(self.units)

    def sync_ends(self) -> None:
        """Make durable the units that the sync covered and no cut has removed since."""
        known = len(self.durable)
        self.durable += self.units[known : self._covered]

    def cut(self, physical_end: int, *, is_durable: bool = True) -> None:
        del self.units[self.index_of(physical_end) :]
        assert self.end == physical_end, "a cut inside a record"
        self._covered = min(self._covered, len(self.units))
        if is_durable:
            del self.durable[len(self.units) :]

    def crash(self, random: Random) -> None:
        """Lose what was not synced, but for the first few units of it."""
        if self.units[: len(self.durable)] == self.durable:
            kept = random.randint(len(self.durable), len(self.units))
            del self.units[kept:]
        else:
            self.units = list(self.durable)
        self.durable = list(self.units)
        self._covered = 0

    def index_of(self, physical_offset: int) -> int:
        """The index of the first unit that begins at or behind ``physical_offset``."""
        return bisect_left(self.units, physical_offset, key=lambda unit: unit.physical_start)

    def batch_end(self, start: int, limit: int, bytes_max: int) -> int:
        """Where a batch of whole units from ``start`` ends: at most ``bytes_max``, or one unit."""
        end, index = start, self.index_of(start)
        while index < len(self.units):
            unit_end = self.units[index].physical_end
            if unit_end > limit or (end > start and unit_end - start > bytes_max):
                break
            end, index = unit_end, index + 1
        return end

    def between(self, start: int, end: int) -> list[Unit]:
        return self.units[self.index_of(start) : self.index_of(end)]
