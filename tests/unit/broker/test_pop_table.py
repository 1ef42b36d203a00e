"""The table of popped messages, against a model that remembers each message by itself."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from contrail.broker.state.pop_records import Ack, Checkpoint
from contrail.broker.state.pop_table import GRAIN_MS, PopTable

GRACE_MS = 1000


def checkpoint(start: int, pop_ms: int, offsets: tuple[int, ...], invisible_ms: int) -> Checkpoint:
    return Checkpoint("g", "t", 0, start, pop_ms, invisible_ms, offsets, "b", 0)


def test_only_a_checkpoint_that_came_back_becomes_due() -> None:
    table = PopTable(GRACE_MS)
    one = checkpoint(0, 1000, (0, 1), 5000)
    table.add(one)
    assert table.due(10_000, 10) == [] and table.next_due_ms is None
    table.came_back(one, 77)
    assert table.next_due_ms == 7000
    assert table.due(6999, 10) == []
    assert table.due(7000, 10) == table.due(7000, 10) == [one], "until it is settled"
    assert table.settle(one, 0) and not table.settle(one, 0) and not table.settle(one, 9)
    assert table.due(7000, 10) == [one] and table.in_flight("g", "t") == 1
    assert table.settle(one, 1)
    assert table.due(7000, 10) == [] and len(table) == 0 and table.find(one.key) is None


def test_messages_are_open_again_when_their_ack_could_not_be_written() -> None:
    table = PopTable(GRACE_MS)
    one = checkpoint(0, 1000, (0, 1), 5000)
    table.add(one)
    table.came_back(one, 77)
    assert table.settle(one, 0) and table.settle(one, 1)
    table.reopen(one, [0, 1])
    assert one.open_offsets == [0, 1] and table.in_flight("g", "t") == 2
    assert table.find(one.key) is one and table.due(7000, 10) == [one]


def test_acks_of_other_brokers_and_checkpoints_are_nothing() -> None:
    table = PopTable(GRACE_MS)
    one = checkpoint(0, 1000, (0,), 5000)
    table.add(one)
    table.take_ack(Ack(one.key, (0,), "other"), "b")
    table.take_ack(Ack(one.key._replace(pop_time_ms=1), (0,), "b"), "b")
    assert len(table) == 1
    table.take_ack(Ack(one.key, (0,), ""), "b")
    assert len(table) == 0


_STEPS = st.lists(
    st.tuples(
        st.sampled_from(["add", "back", "settle", "drop", "due"]),
        st.integers(0, 5),
        st.integers(0, 40),
    ),
    max_size=60,
)


@given(_STEPS)
def test_the_table_agrees_with_a_model(steps: list[tuple[str, int, int]]) -> None:
    table = PopTable(GRACE_MS)
    known: dict[int, Checkpoint] = {}
    is_open: dict[int, set[int]] = {}
    for what, number, value in steps:
        one = known.get(number)
        if what == "add" and not is_open.get(number):
            offsets = tuple(range(number * 10, number * 10 + 1 + value % 4))
            one = known[number] = checkpoint(number, value, offsets, 100 * value)
            is_open[number] = set(offsets)
            table.add(one)
        elif one is None:
            continue
        elif what == "back":
            table.came_back(one, number)
        elif what == "settle":
            offset = number * 10 + value % 5
            assert table.settle(one, offset) == (offset in is_open[number])
            is_open[number].discard(offset)
        elif what == "drop":
            table.drop(one)
            is_open[number] = set()
        else:
            now_ms = value * 200
            expected = {
                other
                for other in is_open
                if is_open[other]
                and known[other].place >= 0
                and known[other].visible_ms + GRACE_MS <= now_ms // GRAIN_MS * GRAIN_MS
            }
            found = table.due(now_ms, 100)
            assert [one.start_offset for one in found] == [
                one.start_offset
                for one in sorted(found, key=lambda one: -(-one.visible_ms // GRAIN_MS))
            ]
            assert {one.start_offset for one in found} == expected
        assert len(table) == sum(map(len, is_open.values()))
        assert table.in_flight("g", "t") == len(table)
