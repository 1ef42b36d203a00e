"""Decides which segments may be removed, and when the disk is too full for appends.

There are three levels of disk use. Above the first, segments past their age are removed at any
hour; above the second, the oldest are removed whatever their age; above the third, appends are
refused as well, until use is back at or below the second. Ratios are whole percents, rounded up, as
RocketMQ counts them.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple, Self

from contrail.store.config import StoreConfig

# One manual request is good for this many rounds, as in RocketMQ.
MANUAL_ROUNDS = 20

_HOUR_MS = 3_600_000
_HOURS_A_DAY = 24


class DiskLevel(IntEnum):
    """How full a partition is."""

    CALM = 0
    BUSY = 1
    FORCED = 2
    FULL = 3


class RetentionRules(NamedTuple):
    """The settings of retention, in the units it compares."""

    reserved_ms: int
    delete_hours: frozenset[int]
    removals_max: int
    removal_interval_ms: int
    forced_enabled: bool
    busy_percent: int
    forced_percent: int
    full_percent: int

    @classmethod
    def from_config(cls, config: StoreConfig) -> Self:
        """Read the settings, which keep the ratios within RocketMQ's ranges."""
        return cls(
            reserved_ms=config.file_reserved_hours * _HOUR_MS,
            delete_hours=config.delete_hours,
            removals_max=config.delete_files_max,
            removal_interval_ms=config.delete_interval_ms,
            forced_enabled=config.clean_forcibly,
            busy_percent=config.disk_used_ratio_max,
            forced_percent=config.disk_clean_forcibly_ratio,
            full_percent=config.disk_warning_ratio,
        )

    def level(self, percent: int) -> DiskLevel:
        if percent > self.full_percent:
            return DiskLevel.FULL
        if percent > self.forced_percent:
            return DiskLevel.FORCED
        return DiskLevel.BUSY if percent > self.busy_percent else DiskLevel.CALM


class RetentionState:
    """How full each partition is, and how far the current round of removals has come.

    A round removes at most ``removals_max`` segments, one per interval; ``due_again_ms`` is when
    the round under way goes on, and None if no round is under way.
    """

    def __init__(self, rules: RetentionRules) -> None:
        self._rules = rules
        self._levels: dict[str, DiskLevel] = {}
        self._full: dict[str, int] = {}
        self._manual_rounds = 0
        self._left = 0
        self._not_before_ms = 0
        self.due_again_ms: int | None = None

    def judge_partition(self, name: str, percent: int) -> None:
        """Note how full the partition of ``name`` is.

        Appends are refused until use falls to the forced level, not just below the full level:
        otherwise a store at the full level would switch with every segment.
        """
        level = self._levels[name] = self._rules.level(percent)
        if level is DiskLevel.FULL or (level is DiskLevel.FORCED and name in self._full):
            self._full[name] = percent
        else:
            self._full.pop(name, None)

    @property
    def full_reason(self) -> str | None:
        """Why appends are refused, as text; None while there is room."""
        if not self._full:
            return None
        where = " and ".join(
            f"the {name} is {self._full[name]} % full" for name in sorted(self._full)
        )
        return (
            f"{where} (diskSpaceWarningLevelRatio is {self._rules.full_percent}): free space, or "
            f"wait for retention to bring it to {self._rules.forced_percent} %"
        )

    @property
    def _level(self) -> DiskLevel:
        return max(self._levels.values(), default=DiskLevel.CALM)

    def request_manual(self) -> None:
        self._manual_rounds = MANUAL_ROUNDS

    def plan_round(self, now_ms: int, local_hour: int) -> bool:
        """Begin a round, or go on with the round under way. False: remove no segment now."""
        manual = self._manual_rounds > 0
        if not (manual or local_hour in self._rules.delete_hours or self._level):
            self.end_round()
            return False
        wait_ms = self._not_before_ms - now_ms
        # A wait longer than the interval means that the clock was set back.
        if 0 < wait_ms <= self._rules.removal_interval_ms:
            return False
        if self._left == 0:
            self._left = self._rules.removals_max
            self._manual_rounds -= manual
        return True

    def may_remove(self, modified_ms: int, now_ms: int) -> bool:
        """Whether this round may remove the oldest segment, last written at ``modified_ms``."""
        at_once = self._rules.forced_enabled and self._level >= DiskLevel.FORCED
        return self._left > 0 and (at_once or now_ms >= modified_ms + self._rules.reserved_ms)

    def commit_removal(self, now_ms: int) -> bool:
        """Count a removed segment; True if the next removal needs no pause."""
        self._left -= 1
        self._not_before_ms = now_ms + self._rules.removal_interval_ms
        self.due_again_ms = self._not_before_ms if self._left else None
        return self._left > 0 and self._rules.removal_interval_ms == 0

    def end_round(self) -> None:
        """End the round: no further segment qualifies until the next round."""
        self._left = 0
        self.due_again_ms = None
