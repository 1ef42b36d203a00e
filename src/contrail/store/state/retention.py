"""Decides which segments may go, and when the disk is too full to take more.

Three levels of disk use count. Above the first, segments past their age go at any hour; above the
second, the oldest go whatever their age; above the third, appends are refused as well, until use
is back at or below the second. Ratios are whole percents, rounded up, as RocketMQ counts them.
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
    """The settings retention goes by, in the units it compares."""

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
    """What is known of the disk, and how far the current round of removals has come.

    A round is at most ``removals_max`` segments, one per interval; ``due_again_ms`` is when to go
    on with one that is under way, and None when the next round may wait for its usual time.
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
        """Take in how full the partition of ``name`` is.

        Refusal ends at the forced level, not at the full one: a store at the brink would switch
        with every segment otherwise.
        """
        level = self._levels[name] = self._rules.level(percent)
        if level is DiskLevel.FULL or (level is DiskLevel.FORCED and name in self._full):
            self._full[name] = percent
        else:
            self._full.pop(name, None)

    @property
    def full_reason(self) -> str | None:
        """Why nothing may be appended, in words; None while there is room."""
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
        """Begin a round, or go on with the one under way. False: nothing may be removed now."""
        manual = self._manual_rounds > 0
        if not (manual or local_hour in self._rules.delete_hours or self._level):
            self.end_round()
            return False
        wait_ms = self._not_before_ms - now_ms
        # A wait longer than the interval means that somebody set the clock back.
        if 0 < wait_ms <= self._rules.removal_interval_ms:
            return False
        if self._left == 0:
            self._left = self._rules.removals_max
            self._manual_rounds -= manual
        return True

    def may_remove(self, modified_ms: int, now_ms: int) -> bool:
        """Whether the oldest segment, last written at ``modified_ms``, may go in this round."""
        at_once = self._rules.forced_enabled and self._level >= DiskLevel.FORCED
        return self._left > 0 and (at_once or now_ms >= modified_ms + self._rules.reserved_ms)

    def commit_removal(self, now_ms: int) -> bool:
        """A segment is gone; True when the next one may follow at once."""
        self._left -= 1
        self._not_before_ms = now_ms + self._rules.removal_interval_ms
        self.due_again_ms = self._not_before_ms if self._left else None
        return self._left > 0 and self._rules.removal_interval_ms == 0

    def end_round(self) -> None:
        """Nothing more qualifies; the next round begins at its usual time."""
        self._left = 0
        self.due_again_ms = None
