"""Plans when a slave asks for each of its master's tables.

A master of Apache is asked as slaves of 4.9 ask it: every ten seconds; those of 5.x ask each minute
only. A Contrail master is asked each second, for topics and groups only whether they changed, and
for consumer offsets a little oftener. How far timers are is asked every three seconds of both.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

_SECOND_MS = 1_000
# With the round that is late and the answer's way, a second.
_OFFSETS_MS = 800
_TIMERS_MS = 3_000
_APACHE_MS = 10_000
_MINUTE_MS = 60_000
_AFTER_FAILURE_MS = 3_000
# A table that takes long to ask for is asked for less often, so that asking costs little; but not
# much less: a master that stood still for a moment made one answer late, and no table large.
_REST_RATIO = 20
_REST_MS_MAX = 20_000


class FollowedTable(StrEnum):
    """A table of the master."""

    TOPICS = "topics"
    GROUPS = "groups"
    OFFSETS = "consumer offsets"
    DELAYS = "delay offsets"
    TIMERS = "timer checkpoint"
    REQUEST_MODES = "message request modes"


_INTERVALS_MS: Mapping[bool, Mapping[FollowedTable, int]] = {
    True: {
        FollowedTable.TOPICS: _SECOND_MS,
        FollowedTable.GROUPS: _SECOND_MS,
        FollowedTable.OFFSETS: _OFFSETS_MS,
        FollowedTable.DELAYS: _SECOND_MS,
        FollowedTable.TIMERS: _TIMERS_MS,
        FollowedTable.REQUEST_MODES: _APACHE_MS,
    },
    False: dict.fromkeys(FollowedTable, _APACHE_MS) | {FollowedTable.TIMERS: _TIMERS_MS},
}


class FollowingSchedule:
    """When each table is asked for again; times are of a clock that nobody sets."""

    def __init__(self, *, master_is_contrail: bool) -> None:
        self._intervals_ms = _INTERVALS_MS[master_is_contrail]
        self._due_ms = dict.fromkeys(self._intervals_ms, 0)

    def due(self, elapsed_ms: int) -> list[FollowedTable]:
        """The tables to ask for now, in this order."""
        return [table for table, due_ms in self._due_ms.items() if due_ms <= elapsed_ms]

    def taken(self, table: FollowedTable, elapsed_ms: int, *, took_ms: int) -> None:
        """The table was asked for, and is the master's."""
        rest_ms = max(self._intervals_ms[table], min(_REST_RATIO * took_ms, _REST_MS_MAX))
        self._due_ms[table] = elapsed_ms + rest_ms

    def failed(self, table: FollowedTable, elapsed_ms: int) -> None:
        """The master did not answer, or not with its table."""
        self._due_ms[table] = elapsed_ms + _AFTER_FAILURE_MS

    def lacking(self, table: FollowedTable, elapsed_ms: int) -> None:
        """The master keeps no such table: it may be replaced by one that does."""
        self._due_ms[table] = elapsed_ms + _MINUTE_MS
