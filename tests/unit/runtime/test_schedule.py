"""Periodic jobs: when they are run, and when their owner is to be woken up for them."""

from __future__ import annotations

from contrail.runtime.schedule import Schedule


def test_a_job_is_run_when_it_is_due_and_not_before() -> None:
    schedule, runs = Schedule(0), list[int]()
    schedule.every(40, runs.append, name="one")
    assert schedule.due_in_ms(0) == 40
    schedule.run_due(39)
    assert not runs
    schedule.run_due(41)
    assert runs == [41]
    assert schedule.due_in_ms(41) == 40


def test_a_patient_job_waits_for_others_and_no_longer_than_a_quarter_of_its_interval() -> None:
    schedule, runs = Schedule(0), list[tuple[str, int]]()
    schedule.every(80, lambda now_ms: runs.append(("patient", now_ms)), name="a", is_patient=True)
    assert schedule.due_in_ms(0) == 100
    schedule.every(41, lambda now_ms: runs.append(("exact", now_ms)), name="b")
    now_ms = 0
    for _ in range(4):
        now_ms += schedule.due_in_ms(now_ms)
        schedule.run_due(now_ms)
    assert runs == [
        ("exact", 41),
        ("patient", 82),
        ("exact", 82),
        ("exact", 123),
        ("patient", 164),
        ("exact", 164),
    ]


def test_a_patient_job_that_has_work_left_waits_for_nobody() -> None:
    schedule, runs = Schedule(0), list[int]()
    schedule.every(lambda: 0, runs.append, name="busy", is_patient=True)
    assert schedule.due_in_ms(0) == 0
