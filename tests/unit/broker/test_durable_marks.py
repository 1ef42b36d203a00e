"""Marks wait for the log."""

from __future__ import annotations

from contrail.broker.state.causes import Delivered, cause_mark
from contrail.broker.state.durable_marks import DurableMarks
from contrail.model.record import TRANSACTION_COMMIT


def test_a_mark_is_not_given_before_the_log_is_durable_that_far() -> None:
    marks: DurableMarks[str] = DurableMarks()
    marks.note(100, "a")
    marks.note(200, "b")
    assert marks.take(99) is None
    assert marks.take(150) == (100, "a")
    assert marks.take(150) is None
    assert marks.take(200) == (200, "b")


def test_only_the_newest_of_those_that_hold_is_given() -> None:
    marks: DurableMarks[int] = DurableMarks()
    for end in range(10):
        marks.note(end, end)
    assert marks.take(7) == (7, 7)
    assert len(marks) == 2


def test_a_newer_mark_at_the_same_place_replaces_the_older() -> None:
    marks: DurableMarks[str] = DurableMarks()
    marks.note(100, "a")
    marks.note(100, "b")
    assert marks.take(100) == (100, "b")


def test_a_delivered_record_names_the_one_that_waited() -> None:
    delivered = Delivered()
    delivered.add(0, cause_mark(0))
    delivered.add(0, cause_mark(4711))
    delivered.add(0, 0)
    assert delivered.waited == {0, 4711}
    assert delivered.committed == set()


def test_a_commit_names_its_half_message_even_at_the_very_beginning() -> None:
    delivered = Delivered()
    delivered.add(TRANSACTION_COMMIT, 0)
    delivered.add(TRANSACTION_COMMIT | 1, 99)
    assert delivered.committed == {0, 99}
    assert delivered.waited == set()
