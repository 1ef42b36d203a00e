"""The segments that retention may remove, and when the disk is too full."""

from __future__ import annotations

from pathlib import Path

import pytest

from contrail.errors import ConfigError
from contrail.store.config import StoreConfig, parse_delete_hours
from contrail.store.state.retention import (
    MANUAL_ROUNDS,
    DiskLevel,
    RetentionRules,
    RetentionState,
)

NOW_MS = 1_760_000_000_000
HOUR_MS = 3_600_000
OLD_MS = NOW_MS - 73 * HOUR_MS
YOUNG_MS = NOW_MS - 71 * HOUR_MS


def rules(**settings: object) -> RetentionRules:
    return RetentionRules.from_config(StoreConfig(root=Path("somewhere"), **settings))  # type: ignore[arg-type]


def state(percent: int = 10, **settings: object) -> RetentionState:
    made = RetentionState(rules(**settings))
    made.judge_partition("log", percent)
    return made


@pytest.mark.parametrize(
    ("percent", "level"),
    [
        (75, DiskLevel.CALM),
        (76, DiskLevel.BUSY),
        (85, DiskLevel.BUSY),
        (86, DiskLevel.FORCED),
        (90, DiskLevel.FORCED),
        (91, DiskLevel.FULL),
    ],
)
def test_a_level_begins_above_its_ratio(percent: int, level: DiskLevel) -> None:
    assert rules().level(percent) is level


def test_ratios_out_of_range_are_moved_into_it() -> None:
    high = rules(disk_used_ratio_max=100, disk_clean_forcibly_ratio=99, disk_warning_ratio=99)
    assert (high.busy_percent, high.forced_percent, high.full_percent) == (95, 85, 90)
    low = rules(disk_used_ratio_max=0, disk_clean_forcibly_ratio=0, disk_warning_ratio=0)
    assert (low.busy_percent, low.forced_percent, low.full_percent) == (10, 30, 35)


def test_a_ratio_that_is_moved_is_the_same_wherever_it_counts() -> None:
    config = StoreConfig(root=Path("somewhere"), disk_clean_forcibly_ratio=99)
    assert config.disk_clean_forcibly_ratio == 85


@pytest.mark.parametrize(
    ("text", "hours"), [("04", {4}), ("04;16", {4, 16}), (" 0 ; 23 ;", {0, 23})]
)
def test_the_hours_of_deletion_are_separated_by_semicolons(text: str, hours: set[int]) -> None:
    assert parse_delete_hours(text) == hours


@pytest.mark.parametrize("text", ["24", "four", "-1", "04,05"])
def test_a_deletion_hour_that_is_no_hour_is_refused_by_name(text: str) -> None:
    with pytest.raises(ConfigError, match="deleteWhen"):
        parse_delete_hours(text)


def test_outside_the_hour_on_a_calm_disk_no_segment_may_be_removed() -> None:
    assert not state().plan_round(NOW_MS, local_hour=5)
    assert state().plan_round(NOW_MS, local_hour=4)


def test_on_a_busy_disk_old_segments_go_at_any_hour_and_young_ones_stay() -> None:
    busy = state(80)
    assert busy.plan_round(NOW_MS, local_hour=12)
    assert busy.may_remove(OLD_MS, NOW_MS)
    assert not busy.may_remove(YOUNG_MS, NOW_MS)


def test_a_segment_may_go_exactly_when_its_time_is_over() -> None:
    due = state()
    due.plan_round(NOW_MS, local_hour=4)
    assert due.may_remove(NOW_MS - 72 * HOUR_MS, NOW_MS)
    assert not due.may_remove(NOW_MS - 72 * HOUR_MS + 1, NOW_MS)


def test_above_the_forced_ratio_age_does_not_count_unless_that_is_switched_off() -> None:
    forced = state(86)
    forced.plan_round(NOW_MS, local_hour=12)
    assert forced.may_remove(NOW_MS, NOW_MS)
    patient = state(86, clean_forcibly=False)
    patient.plan_round(NOW_MS, local_hour=12)
    assert not patient.may_remove(YOUNG_MS, NOW_MS)
    assert patient.may_remove(OLD_MS, NOW_MS)


def test_refusal_begins_above_the_warning_ratio_and_ends_at_the_forced_one() -> None:
    judged = state(90)
    assert judged.full_reason is None
    judged.judge_partition("log", 91)
    assert "91 %" in (judged.full_reason or "")
    judged.judge_partition("log", 86)
    assert judged.full_reason is not None
    judged.judge_partition("log", 85)
    assert judged.full_reason is None


def test_either_partition_alone_stops_appends() -> None:
    judged = state(10)
    judged.judge_partition("queues", 95)
    assert "queues" in (judged.full_reason or "")
    judged.judge_partition("log", 95)
    judged.judge_partition("queues", 10)
    assert "log" in (judged.full_reason or "")


def test_a_round_ends_at_its_cap_and_pauses_between_removals() -> None:
    full = state(95, delete_files_max=2, delete_interval_ms=100)
    assert full.plan_round(NOW_MS, local_hour=1)
    assert not full.commit_removal(NOW_MS)
    assert full.due_again_ms == NOW_MS + 100
    assert not full.plan_round(NOW_MS + 99, local_hour=1)
    assert full.plan_round(NOW_MS + 100, local_hour=1)
    full.commit_removal(NOW_MS + 100)
    assert full.due_again_ms is None
    assert not full.may_remove(OLD_MS, NOW_MS + 100)


def test_without_an_interval_a_round_removes_segments_without_pause() -> None:
    full = state(95, delete_files_max=2, delete_interval_ms=0)
    full.plan_round(NOW_MS, local_hour=1)
    assert full.commit_removal(NOW_MS)
    assert not full.commit_removal(NOW_MS)


def test_a_clock_that_was_set_back_does_not_stop_removal() -> None:
    full = state(95)
    full.plan_round(NOW_MS, local_hour=1)
    full.commit_removal(NOW_MS)
    assert full.plan_round(NOW_MS - HOUR_MS, local_hour=1)


def test_a_manual_request_is_good_for_twenty_rounds() -> None:
    asked = state()
    asked.request_manual()
    rounds = 0
    while asked.plan_round(NOW_MS, local_hour=12):
        asked.end_round()
        rounds += 1
    assert rounds == MANUAL_ROUNDS == 20
