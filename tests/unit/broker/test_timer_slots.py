"""Timed messages by slot: order, counts, and no long calls."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from contrail.broker.state.timer_slots import (
    FLAG_DELETE,
    FLAG_ROLL,
    TimerSlots,
    Waiting,
    meta_of,
)

FOREVER_MS = 1 << 60


def drained(slots: TimerSlots, until_ms: int = FOREVER_MS, step: int = 3) -> list[tuple[int, int]]:
    """Slot and physical offset of everything that can be taken."""
    found: list[tuple[int, int]] = []
    idle = 0
    while idle < 50:
        taken = slots.take(until_ms, step)
        if taken is None:
            idle += 1
            continue
        idle = 0
        found += [(taken[0], waiting.physical_offset) for waiting in taken[1]]
    return found


def test_slots_come_in_their_order_and_each_in_the_order_of_adding() -> None:
    slots = TimerSlots(1000)
    for number in range(500):
        slots.add(number * 7 % 13 * 100_000, number, 0)
    found = drained(slots)
    assert found == sorted(found) and len(found) == 500
    assert len(slots) == 0 and slots.slot_ms_min is None


def test_nothing_is_handed_out_before_its_slot() -> None:
    slots = TimerSlots(1000)
    slots.add(5000, 1, 0)
    slots.add(6000, 2, 0)
    assert slots.take(4999, 10) is None
    assert slots.take(5999, 10) == (5000, [Waiting(1, 0)])
    assert slots.take(5999, 10) is None
    assert slots.slot_ms_min == 6000


def test_a_deletion_in_a_crowded_slot_keeps_its_place_so_that_no_call_sorts_the_slot() -> None:
    slots = TimerSlots(1000)
    delete, roll = meta_of(0, FLAG_DELETE), meta_of(0, FLAG_DELETE | FLAG_ROLL)
    for number, meta in enumerate((0, roll, 0, delete)):
        slots.add(5000, number, meta)
    assert [place for _, place in drained(slots)] == [0, 1, 2, 3]


def test_a_row_for_a_slot_that_is_being_taken_comes_last() -> None:
    slots = TimerSlots(1000)
    for number in range(4):
        slots.add(5000, number, 0)
    assert slots.take(5000, 2) == (5000, [Waiting(0, 0), Waiting(1, 0)])
    slots.add(5000, 4, 0)
    slots.add(3000, 9, 0)
    assert drained(slots) == [(3000, 9), (5000, 2), (5000, 3), (5000, 4)]


def test_a_crowded_bucket_is_dealt_out_a_part_at_a_time() -> None:
    slots = TimerSlots(1000)
    for number in range(20_000):
        slots.add(5000 + number % 2 * 1000, number, 0)
    assert slots.take(5000, 100) is None, "the bucket is not dealt out yet"
    slots.add(5000, 20_000, 0)
    found = drained(slots, step=1000)
    evens = [(5000, number) for number in range(0, 20_001, 2)]
    assert found == evens + [(6000, number) for number in range(1, 20_000, 2)]


def test_counts_cut_through_buckets_where_a_bound_does() -> None:
    slots = TimerSlots(1000)
    for second in range(200):
        slots.add(second * 1000, second, 0)
    assert slots.counts_before([5000, 70_000, 199_001, 500_000]) == [5, 70, 200, 200]
    slots.take(0, 10)
    assert slots.counts_before([5000, 70_000]) == [4, 69]


rows = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(0, 300)),
        st.tuples(st.just("take"), st.integers(0, 300)),
    ),
    max_size=80,
)


@given(rows, st.integers(1, 5))
def test_added_rows_are_taken_once_in_any_order(steps: list[tuple[str, int]], size: int) -> None:
    slots = TimerSlots(1000)
    added: dict[int, int] = {}
    taken: list[int] = []
    for number, (what, second) in enumerate(steps):
        if what == "add":
            slots.add(second * 1000, number, 0)
            added[number] = second * 1000
        else:
            found = slots.take(second * 1000, size)
            if found is not None:
                assert found[0] <= second * 1000
                assert all(added[row.physical_offset] == found[0] for row in found[1])
                taken += [row.physical_offset for row in found[1]]
        assert len(slots) == len(added) - len(taken)
        left = [slot for place, slot in added.items() if place not in taken]
        assert not left or (slots.slot_ms_min or 0) <= min(left)
    taken += [place for _, place in drained(slots)]
    assert sorted(taken) == sorted(added)
