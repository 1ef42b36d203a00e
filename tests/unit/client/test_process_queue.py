"""The held messages of a queue, and its progress."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contrail.client.state.flow_control import FlowLimits, hold_reason
from contrail.client.state.process_queue import LOCK_EXPIRES_MS, ProcessQueue


@dataclass
class Held:
    queue_offset: int
    record_bytes: int = 10


def holding(*places: int) -> ProcessQueue[Held]:
    queue: ProcessQueue[Held] = ProcessQueue(0)
    queue.pulled([Held(place) for place in places], max(places, default=-1) + 1)
    return queue


def test_a_queue_that_was_never_pulled_has_no_progress_to_commit() -> None:
    assert ProcessQueue[Held](7).consumer_offset is None


def test_progress_is_the_lowest_message_that_is_not_settled() -> None:
    queue = holding(0, 1, 2, 3)
    queue.settle(2)
    queue.settle(0)
    assert queue.consumer_offset == 1
    queue.settle(1)
    assert queue.consumer_offset == 3


def test_with_no_message_held_progress_is_where_the_next_pull_starts() -> None:
    queue = holding(0)
    queue.settle(0)
    queue.pulled([], 40)
    assert queue.consumer_offset == 40


def test_a_message_is_settled_once() -> None:
    queue = holding(0)
    assert [queue.settle(0), queue.settle(0)] == [True, False]
    assert queue.cached_bytes == 0


def test_a_message_that_comes_twice_is_held_once() -> None:
    queue = holding(0, 1)
    queue.pulled([Held(1), Held(2)], 3)
    assert (len(queue), queue.cached_bytes) == (3, 30)


def test_the_first_messages_come_in_order_without_those_that_are_settled() -> None:
    queue = holding(0, 1, 2, 3)
    queue.settle(1)
    assert [message.queue_offset for message in queue.first(2)] == [0, 2]
    assert holding().first(2) == []


@given(st.lists(st.integers(0, 30), unique=True), st.data())
def test_progress_never_passes_a_message_that_is_held(
    places: list[int], data: st.DataObject
) -> None:
    places.sort()
    queue = holding(*places)
    held = set(places)
    for place in data.draw(st.permutations(places)):
        queue.settle(place)
        held.discard(place)
        assert queue.consumer_offset == min(held, default=queue.next_queue_offset)
        assert queue.cached_bytes == 10 * len(held)
        assert queue.span == (places[-1] - min(held) if held else 0)


def test_a_lock_is_held_until_it_expires() -> None:
    queue = holding()
    assert not queue.holds_lock(0)
    queue.lock(1_000)
    assert queue.holds_lock(1_000 + LOCK_EXPIRES_MS)
    assert not queue.holds_lock(1_001 + LOCK_EXPIRES_MS)


@pytest.mark.proves("client.consumers.flow-control")
def test_a_queue_is_pulled_until_it_holds_too_many_messages_bytes_or_offsets() -> None:
    queue = holding(0, 1, 9)
    assert hold_reason(queue, FlowLimits(3, 30, 9)) is None
    assert "3 messages" in str(hold_reason(queue, FlowLimits(2, 30, 9)))
    assert "30 bytes" in str(hold_reason(queue, FlowLimits(3, 29, 9)))
    assert "9 places" in str(hold_reason(queue, FlowLimits(3, 30, 8)))
    assert hold_reason(queue, FlowLimits(3, 30, None)) is None


def test_smaller_limits_keep_what_is_not_limited() -> None:
    assert FlowLimits(100, 200, None).scaled(0.75) == FlowLimits(75, 150, None)
    assert FlowLimits(100, 200, 40).scaled(0.5) == FlowLimits(50, 100, 20)
