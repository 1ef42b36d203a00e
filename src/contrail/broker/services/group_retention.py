"""How far retention may go at a member of a failover group.

A segment may go once a later one holds a whole, committed snapshot of the tables, all parts of the
broker know what it says, and no learner copies it. The floor of what is left is on the disk first.
Limits are looked up by the store whenever it is about to remove a segment.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol

from contrail.protocol.log_floor import LogFloor
from contrail.replication.state.member import Member

_log = logging.getLogger(__name__)


class RetainedLog(Protocol):
    """The store, as far as its retention goes."""

    retention_limits: dict[str, Callable[[], int]]

    @property
    def segment_bytes(self) -> int: ...
    @property
    def physical_min(self) -> int: ...


class Snapshots(Protocol):
    """The group's tables."""

    @property
    def snapshot_start(self) -> int | None:
        """Where the newest whole, committed snapshot begins."""
        ...

    def removed_before(self, physical_min: int) -> None: ...


class FloorFiles(Protocol):
    """The member's files."""

    def save_floor(self, floor: LogFloor, then: Callable[[BaseException | None], None]) -> None: ...


class GroupMember(Protocol):
    """The member's runner."""

    @property
    def member(self) -> Member | None: ...
    @property
    def files(self) -> FloorFiles: ...


class GroupRetention:
    """Moves the limit on; belongs to the event loop's thread."""

    def __init__(self, store: RetainedLog, tables: Snapshots, runner: GroupMember) -> None:
        self._store = store
        self._tables = tables
        self._runner = runner
        self._limit = store.physical_min
        self._wanted = self._limit
        store.retention_limits["snapshot"] = lambda: self._limit
        store.retention_limits["learners"] = self._learners_limit

    def run(self) -> None:
        """Look for a newer snapshot; write the floor of the log that would begin with it."""
        self._tables.removed_before(self._store.physical_min)
        start, member = self._tables.snapshot_start, self._runner.member
        if start is None or member is None:
            return
        limit = start - start % self._store.segment_bytes
        if limit > self._wanted and limit <= member.log.commit:
            self._wanted = limit
            self._runner.files.save_floor(
                member.log.floor_at(limit), lambda error: self._saved(limit, error)
            )

    def _saved(self, limit: int, error: BaseException | None) -> None:
        if error is None:
            self._limit = limit
        else:
            self._wanted = self._limit
            _log.warning("retention waits: the floor of the log cannot be written: %s", error)

    def _learners_limit(self) -> int:
        """At the leader: the place up to which every connected learner has the log."""
        member = self._runner.member
        ends = (
            []
            if member is None
            else [
                progress.matched_end
                for name, progress in member.progress.items()
                if name in member.connected and name not in member.log.voters.now
            ]
        )
        return min(ends, default=_NO_LIMIT)


_NO_LIMIT = (1 << 63) - 1
