"""Periodic jobs: when they run, and which jobs run together."""

from __future__ import annotations

import logging

import pytest

from contrail.runtime.schedule import Schedule


class Jobs:
    """A schedule whose jobs note when they ran."""

    def __init__(self, **intervals: int) -> None:
        self.schedule = Schedule(0)
        self.ran: dict[str, list[int]] = {name: [] for name in intervals}
        for name, interval_ms in intervals.items():
            self.schedule.every(interval_ms, self.ran[name].append, name=name)


def test_a_job_is_run_each_interval_and_once_when_several_have_passed() -> None:
    jobs = Jobs(lone=100)
    for now_ms in (99, 100, 150, 199, 200, 700, 750):
        jobs.schedule.run_due(now_ms)
    assert jobs.ran["lone"] == [100, 200, 700]


def test_a_job_that_is_nearly_due_runs_with_one_that_is() -> None:
    jobs = Jobs(often=40, seldom=50, rare=1000)
    for now_ms in range(0, 2401, 10):
        jobs.schedule.run_due(now_ms)
    assert jobs.ran["often"] == jobs.ran["seldom"] == [*range(40, 2401, 40)]
    # A job due in a quarter of a second is not nearly due.
    assert jobs.ran["rare"] == [1000, 2000]


def test_no_job_runs_early_by_itself() -> None:
    jobs = Jobs(lone=100)
    jobs.schedule.run_due(80)
    assert jobs.schedule.due_in_ms(80) == 20
    assert jobs.ran["lone"] == []


def test_an_interval_may_change_with_the_work_there_is() -> None:
    schedule, ran, interval = Schedule(0), [], [100]
    schedule.every(lambda: interval[0], ran.append, name="changing")
    interval[0] = 0
    schedule.run_due(10)
    assert schedule.due_in_ms(10) == 0
    interval[0] = 30
    assert schedule.due_in_ms(10) == 30
    assert ran == [10]


def test_a_clock_that_is_set_back_silences_no_job() -> None:
    jobs = Jobs(lone=100)
    jobs.schedule.run_due(10_000)
    jobs.schedule.run_due(5000)
    assert jobs.schedule.due_in_ms(5000) == 100
    jobs.schedule.run_due(5100)
    assert jobs.ran["lone"] == [10_000, 5100]


def test_a_job_that_fails_stays_in_the_schedule_and_harms_no_other(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail(now_ms: int) -> None:
        raise RuntimeError("this job has a bug")

    schedule, ran = Schedule(0), []
    schedule.every(100, fail, name="failing")
    schedule.every(100, ran.append, name="sound")
    with caplog.at_level(logging.ERROR, logger="contrail.runtime.schedule"):
        schedule.run_due(100)
        schedule.run_due(200)
    assert ran == [100, 200]
    assert [record.getMessage() for record in caplog.records] == [
        "the periodic job 'failing' failed; it will be tried again"
    ] * 2


def test_without_jobs_the_next_wake_is_far_away() -> None:
    assert Schedule(0).due_in_ms(0) == 1000


@pytest.mark.proves("broker.edges.monotonic-waits")
def test_a_wait_is_over_by_its_own_clock_whatever_the_wall_clock_says() -> None:
    schedule, ran, left_ms = Schedule(0), [], [70]
    schedule.when_over(lambda: left_ms[0], ran.append, name="a wait")
    assert schedule.due_in_ms(3_600_000) == 70
    schedule.run_due(3_600_000)
    assert ran == []
    left_ms[0] = 0
    assert schedule.due_in_ms(-3_600_000) == 0
    schedule.run_due(-3_600_000)
    assert ran == [-3_600_000]
