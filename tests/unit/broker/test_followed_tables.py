"""When a slave asks for which table."""

from __future__ import annotations

import pytest

from contrail.broker.replicas import _TABLES_INTERVAL_MS
from contrail.broker.state.followed_tables import FollowedTable, FollowingSchedule

OURS = [
    FollowedTable.TOPICS,
    FollowedTable.GROUPS,
    FollowedTable.OFFSETS,
    FollowedTable.DELAYS,
]


def test_everything_is_asked_for_first() -> None:
    for is_contrail in (True, False):
        schedule = FollowingSchedule(master_is_contrail=is_contrail)
        assert schedule.due(0) == list(FollowedTable)


@pytest.mark.proves("replication.pair.tables")
def test_a_contrail_master_is_asked_each_second_and_one_of_apache_every_ten_seconds() -> None:
    for is_contrail, interval_ms in ((True, 1_000), (False, 10_000)):
        schedule = FollowingSchedule(master_is_contrail=is_contrail)
        for table in schedule.due(0):
            schedule.taken(table, 10, took_ms=1)
        rarely = set(OURS) - {FollowedTable.OFFSETS}
        assert not rarely & set(schedule.due(9 + interval_ms))
        assert set(OURS) <= set(schedule.due(10 + interval_ms))


def test_a_table_that_takes_long_is_asked_for_less_often() -> None:
    schedule = FollowingSchedule(master_is_contrail=True)
    schedule.taken(FollowedTable.OFFSETS, 0, took_ms=500)
    assert FollowedTable.OFFSETS not in schedule.due(9_999)
    assert FollowedTable.OFFSETS in schedule.due(10_000)


@pytest.mark.proves("replication.pair.tables")
@pytest.mark.parametrize("table", OURS)
def test_one_late_answer_of_a_stopped_master_keeps_no_table_back_for_long(
    table: FollowedTable,
) -> None:
    schedule = FollowingSchedule(master_is_contrail=True)
    schedule.taken(table, 0, took_ms=60_000)
    assert table in schedule.due(20_000)


def test_a_failure_is_tried_again_after_three_seconds() -> None:
    schedule = FollowingSchedule(master_is_contrail=False)
    schedule.failed(FollowedTable.TOPICS, 0)
    assert FollowedTable.TOPICS not in schedule.due(2_999)
    assert FollowedTable.TOPICS in schedule.due(3_000)


@pytest.mark.proves("replication.pair.tables")
@pytest.mark.parametrize("is_contrail", [True, False])
def test_the_timer_checkpoint_is_asked_for_every_three_seconds(is_contrail: bool) -> None:
    schedule = FollowingSchedule(master_is_contrail=is_contrail)
    schedule.taken(FollowedTable.TIMERS, 0, took_ms=1)
    assert FollowedTable.TIMERS not in schedule.due(2_999)
    assert FollowedTable.TIMERS in schedule.due(3_000)


def test_a_table_that_the_master_lacks_is_asked_for_again_after_a_minute() -> None:
    schedule = FollowingSchedule(master_is_contrail=False)
    schedule.lacking(FollowedTable.REQUEST_MODES, 0)
    assert FollowedTable.REQUEST_MODES not in schedule.due(59_999)
    assert FollowedTable.REQUEST_MODES in schedule.due(60_000)


def test_offsets_of_a_contrail_master_are_at_most_a_second_old() -> None:
    schedule = FollowingSchedule(master_is_contrail=True)
    schedule.taken(FollowedTable.OFFSETS, 0, took_ms=1)
    assert FollowedTable.OFFSETS in schedule.due(1_000 - 2 * _TABLES_INTERVAL_MS)
