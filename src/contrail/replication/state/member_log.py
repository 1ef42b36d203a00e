"""A member's log in numbers: its positions, its epochs and its voters; and the protocol's times."""

from __future__ import annotations

from dataclasses import dataclass

from contrail.protocol.log_floor import LogFloor
from contrail.replication.state.epochs import EpochStart, EpochTable
from contrail.replication.state.voters import Voters


@dataclass(frozen=True, slots=True)
class MemberTimes:
    """Intervals of the protocol in milliseconds."""

    beat_ms: int = 250
    election_ms_min: int = 1_000
    election_ms_max: int = 2_000
    heard_ms: int = 1_000
    """Votes are refused this long after a leader was heard, and after the start."""
    quorum_ms: int = 2_000
    """A leader without answers of a majority for this long steps down."""
    lease_ms: int = 750
    """Shorter than ``heard_ms``: no other leader is elected while a lease lasts."""


@dataclass(slots=True)
class MemberLog:
    """The positions of the member's own log."""

    end: int
    synced_end: int
    commit: int
    epochs: EpochTable
    voters: Voters
    cut_count: int = 0
    start: int = 0
    """Where the log begins; every byte below was committed."""

    def cut(self, physical_end: int) -> None:
        self.end = physical_end
        self.synced_end = min(self.synced_end, physical_end)
        self.epochs.cut(physical_end)
        self.voters.cut(physical_end)
        self.cut_count += 1

    def begin_at(self, floor: LogFloor) -> None:
        """The log is empty, and its first byte will be that of the floor."""
        self.start = self.end = self.synced_end = self.commit = floor.physical_start
        self.epochs = epochs_of(floor)
        self.voters = Voters(floor.voters, physical_end=floor.voters_end)

    def floor_at(self, physical_start: int) -> LogFloor:
        """The facts that a log which begins at ``physical_start`` does not have itself."""
        voters = self.voters.as_of(physical_start)
        return LogFloor(
            physical_start=physical_start,
            removed_count=self.epochs.removed_count,
            starts=tuple(
                (one.epoch, one.physical_start) for one in self.epochs.before(physical_start)
            ),
            voters=voters.voters,
            voters_end=voters.physical_end,
        )

    def forget_before(self, physical_start: int) -> None:
        """Retention has removed the log below."""
        self.start = physical_start
        self.epochs.forget_before(physical_start)


def epochs_of(floor: LogFloor) -> EpochTable:
    """The epochs of a log that begins at its floor."""
    starts = [EpochStart(*one) for one in floor.starts]
    return EpochTable(starts, removed_count=floor.removed_count)
