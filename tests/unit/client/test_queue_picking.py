"""The round of a topic's queues."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from contrail.client.state.queue_picking import QueuePicker
from contrail.protocol.json_style import MessageQueue


def queues(**counts: int) -> list[MessageQueue]:
    return [MessageQueue("t", name, at) for name, count in counts.items() for at in range(count)]


@given(start=st.integers(0, 1 << 33), a=st.integers(1, 8), b=st.integers(0, 8))
def test_every_queue_has_its_turn_once_in_a_round_wherever_the_round_begins(
    start: int, a: int, b: int
) -> None:
    both = queues(a=a, b=b)
    # Where the counter begins anew a round may be cut.
    picker = QueuePicker(both, start % (1 << 30))
    assert {picker.next() for _ in both} == set(both)


def test_two_starts_begin_with_different_queues() -> None:
    three = queues(a=3)
    assert [QueuePicker(three, start).next().queue_id for start in range(3)] == [1, 2, 0]


def test_the_broker_that_failed_last_is_left_out() -> None:
    picker = QueuePicker(queues(a=4, b=1), 0)
    assert {picker.next_elsewhere("a").broker_name for _ in range(20)} == {"b"}


def test_the_only_broker_is_taken_although_it_failed() -> None:
    picker = QueuePicker(queues(a=2), 0)
    assert {picker.next_elsewhere("a").queue_id for _ in range(4)} == {0, 1}


def test_the_counter_begins_anew_before_it_leaves_32_bits() -> None:
    picker = QueuePicker(queues(a=3), (1 << 31) - 1)
    assert picker.next().queue_id == 0
    assert picker.index == 0
