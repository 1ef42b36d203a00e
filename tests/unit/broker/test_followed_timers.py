"""Timed messages as members of a failover group follow them."""

from __future__ import annotations

import pytest

from contrail.broker.state.due_timers import DueTimer
from contrail.broker.state.followed_timers import Delivery, FollowedTimers, Recall
from contrail.broker.state.timer_slots import Waiting
from contrail.broker.state.timer_table import TimerTable

pytestmark = pytest.mark.proves("replication.failover.kinds")
DELIVERY = Delivery(900, 1_000, 5_000, b"orders")


def due(place: int, key: bytes = b"orders+k") -> DueTimer:
    return DueTimer(5_000, place, 5_000, 5_000, 0, b"orders", key, None, 100)


def test_a_late_message_is_done_when_its_delivery_is_committed() -> None:
    followed = FollowedTimers()
    followed.add_late(4_000, Waiting(100, 8))
    assert (len(followed), followed.slot_ms_min) == (1, 4_000)
    assert followed.note_delivery(100, DELIVERY) == (4_000, Waiting(100, 8))
    assert (len(followed), followed.known_from) == (0, None)


def test_a_delivery_waits_for_the_slot_of_its_message() -> None:
    followed = FollowedTimers()
    assert followed.note_delivery(100, DELIVERY) is None
    assert followed.known_from == 900
    assert followed.take_delivery(100) == DELIVERY
    assert followed.take_delivery(100) is None


def test_a_committed_beginning_of_a_run_is_settled() -> None:
    followed = FollowedTimers()
    followed.note_own([1_000, 1_100], [due(100), due(200)])
    followed.settle(1_100)
    timers, _ = followed.take_unsettled()
    assert [timer.physical_offset for timer, _ in timers] == [200]


def test_a_message_that_an_uncommitted_recall_dropped_waits_again() -> None:
    followed = FollowedTimers()
    recall = Recall(5_000, b"orders+k")
    followed.note_recall(recall, 2_000)
    followed.note_deleted(due(100))
    followed.note_deleted(due(200, b"orders+other"))
    timers, recalls = followed.take_unsettled()
    assert [(timer.physical_offset, was_deleted) for timer, was_deleted in timers] == [(100, True)]
    assert recalls == [recall]


def test_deletions_hold_the_line_and_not_the_messages_bound() -> None:
    table = TimerTable(precision_ms=1_000, roll_window_slots=100, due_count_max=10)
    followed = table.followed = FollowedTimers()
    followed.add_late_deletion(3_000, Waiting(100, 3), 7_000)
    assert table.finished_until(9_500) == 3_000
    assert table.messages_finished_until(9_500) == 9_000
    assert followed.take_deletions(7_000) == []
    assert followed.take_deletions(8_000) == [(3_000, Waiting(100, 3))]
    assert table.finished_until(9_500) == 9_000
