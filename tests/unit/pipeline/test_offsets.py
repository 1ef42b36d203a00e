"""Queue offsets: Spark's JSON, the beginning of reads, and the moves of a stream."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contrail.errors import NotThere, OptionInvalid
from contrail.pipeline.offsets import (
    QueueKey,
    Slice,
    asked_times,
    check_place,
    count_between,
    end_of,
    from_json,
    lag_by_queue,
    ranges_to_read,
    reachable,
    require_order,
    share_by_lag,
    start_of,
    start_of_group,
    to_json,
)
from contrail.pipeline.options import Place, PlaceKind

A0, A1, B0 = (
    QueueKey("orders", "broker-a", 0),
    QueueKey("orders", "broker-a", 1),
    QueueKey("orders", "broker-b", 0),
)
RANGES = {A0: (10, 100), A1: (0, 50), B0: (5, 5)}

keys = st.builds(
    QueueKey,
    st.sampled_from(["orders", "bills"]),
    st.sampled_from(["broker-a", "broker:b"]),
    st.integers(0, 9),
)


@st.composite
def lagging(draw: st.DrawFn) -> tuple[dict[QueueKey, int], dict[QueueKey, int]]:
    start = draw(st.dictionaries(keys, st.integers(0, 10**6), min_size=1, max_size=8))
    end = {key: first + draw(st.integers(0, 1000)) for key, first in start.items()}
    return start, end


@given(st.dictionaries(keys, st.integers(0, 2**62)))
def test_offsets_are_read_back_from_their_json(offsets: dict[QueueKey, int]) -> None:
    assert from_json(json.loads(json.dumps(to_json(offsets)))) == offsets


def test_equal_offsets_give_equal_text_in_any_order() -> None:
    shuffled = {B0: 1, A1: 2, A0: 3}
    ordered = {A0: 3, A1: 2, B0: 1}
    text = '{"orders": {"broker-a:0": 3, "broker-a:1": 2, "broker-b:0": 1}}'
    assert json.dumps(to_json(shuffled)) == json.dumps(to_json(ordered)) == text


@pytest.mark.parametrize(
    ("place", "expected"),
    [
        (Place(PlaceKind.EARLIEST), {A0: 10, A1: 0, B0: 5}),
        (Place(PlaceKind.LATEST), {A0: 100, A1: 50, B0: 5}),
        (Place(PlaceKind.OFFSETS, by_queue={A0: 42, A1: -2, B0: -1}), {A0: 42, A1: 0, B0: 5}),
    ],
)
def test_a_place_without_times_needs_no_lookup(place: Place, expected: dict[QueueKey, int]) -> None:
    assert asked_times(place, RANGES) == {}
    assert start_of(place, RANGES, {}) == end_of(place, RANGES, {}) == expected


def test_times_by_queue_are_looked_up_once_for_each_time() -> None:
    place = Place(PlaceKind.TIMESTAMPS, by_queue={A0: 7, A1: 9, B0: 7})
    assert asked_times(place, RANGES) == {7: [A0, B0], 9: [A1]}
    assert asked_times(Place(PlaceKind.TIMESTAMP, timestamp_ms=3), RANGES) == {3: [A0, A1, B0]}


def test_a_time_that_no_message_reaches_is_refused_or_means_the_end() -> None:
    place = Place(PlaceKind.TIMESTAMP, timestamp_ms=7, option="startingTimestamp")
    found = {A0: 60, A1: 50, B0: 5}
    with pytest.raises(OptionInvalid, match=r"startingTimestamp: orders broker-a:1, .*=latest"):
        start_of(place, RANGES, found)
    assert start_of(place, RANGES, found, latest_if_none_is_so_new=True) == found
    assert end_of(place, RANGES, {**found, A1: 51}) == found


def test_a_place_by_queue_names_every_queue_and_no_other() -> None:
    check_place(Place(PlaceKind.OFFSETS, by_queue={A0: 1, A1: 1, B0: 1}), RANGES)
    lacking = Place(PlaceKind.OFFSETS, by_queue={A0: 1, B0: 1}, option="startingOffsets")
    with pytest.raises(OptionInvalid, match="startingOffsets: it lacks orders broker-a:1"):
        check_place(lacking, RANGES)
    other = Place(PlaceKind.OFFSETS, by_queue=dict.fromkeys([A0, A1, B0, ("x", "y", 1)], 1))
    with pytest.raises(OptionInvalid, match="x y:1: no such queue is read"):
        check_place(other, RANGES)


@pytest.mark.proves("spark.source.admission")
@given(lagging(), st.integers(1, 3000))
def test_a_share_uses_the_whole_limit_and_no_more(
    places: tuple[dict[QueueKey, int], dict[QueueKey, int]], count_max: int
) -> None:
    start, end = places
    shared = share_by_lag(start, end, count_max)
    assert all(start[key] <= shared[key] <= end[key] for key in end)
    assert count_between(start, shared) == min(count_max, count_between(start, end))
    behind = [key for key in end if end[key] > start[key]]
    if count_max >= len(behind):
        assert all(shared[key] > start[key] for key in behind)


@given(lagging(), st.integers(1, 3))
def test_queues_take_turns_when_there_is_not_one_offset_for_each(
    places: tuple[dict[QueueKey, int], dict[QueueKey, int]], count_max: int
) -> None:
    start, end = places
    behind = {key for key in end if end[key] > start[key]}
    moved: set[QueueKey] = set()
    at = start
    for _ in range(len(behind)):
        # The queues grow as fast as they are read: a greedy share would stay with the longest.
        reach = {key: at[key] + end[key] - start[key] for key in at}
        after = share_by_lag(at, reach, count_max)
        moved |= {key for key in after if after[key] > at[key]}
        at = after
    assert moved == behind


def test_a_share_is_in_proportion_to_the_lag() -> None:
    start, end = {A0: 0, A1: 0, B0: 0}, {A0: 600, A1: 300, B0: 100}
    assert share_by_lag(start, end, 100) == {A0: 60, A1: 30, B0: 10}


def test_a_stream_waits_for_a_broker_that_is_away_and_enters_new_queues_at_their_beginning() -> (
    None
):
    new = QueueKey("orders", "broker-c", 0)
    ends, losses = reachable({A0: 20, B0: 7}, {A0: (10, 100), new: (30, 90)})
    assert (ends, losses) == ({A0: 100, B0: 7, new: 30}, [])


@pytest.mark.proves("spark.scale.bounded-offsets")
def test_a_deleted_topic_leaves_the_offsets_and_comes_back_as_a_new_one() -> None:
    ends, losses = reachable({A0: 7, B0: 5}, {}, {A0})
    assert (ends, losses) == ({B0: 5}, [])
    assert reachable(ends, {A0: (0, 3), B0: (5, 5)}) == ({A0: 0, B0: 5}, [])


@pytest.mark.proves("spark.scale.bounded-offsets")
def test_an_offset_takes_its_digits_and_the_name_of_its_queue() -> None:
    offsets = {
        QueueKey(f"topic-{topic:04}", "broker-a", queue): 10**9
        for topic in range(1_000)
        for queue in range(8)
    }
    per_queue = len(json.dumps(to_json(offsets))) / len(offsets)
    assert per_queue < len('"broker-a:0": 1000000000, ') + len('"topic-0001": {}, ') / 8 + 1


def test_a_queue_that_ends_before_its_read_offset_is_reported() -> None:
    ends, losses = reachable({A0: 500}, {A0: (0, 3)})
    assert ends == {A0: 3}
    assert losses == [
        "orders broker-a:0 ends at 3 and was read up to 500: "
        "the topic was made anew, or its broker lost messages"
    ]


def test_present_messages_are_read_whole() -> None:
    start, end = {A0: 20, A1: 50, B0: 5}, {A0: 90, A1: 50, B0: 5}
    assert ranges_to_read(start, end, RANGES) == ([Slice(A0, 20, 90)], [])


def test_a_queue_of_a_broker_that_is_away_is_read_as_planned() -> None:
    assert ranges_to_read({A0: 20}, {A0: 90}, {}) == ([Slice(A0, 20, 90)], [])


@pytest.mark.proves("spark.source.data-loss")
@pytest.mark.parametrize(
    ("start", "end", "slices", "loss"),
    [
        (4, 90, [Slice(A0, 10, 90)], "has lost 4 to 10: it begins at 10"),
        (4, 8, [], "has lost 4 to 8: it begins at 10"),
        (20, 120, [Slice(A0, 20, 100)], "ends at 100, before 120"),
        (110, 120, [], "ends at 100, before 110"),
    ],
)
def test_removed_messages_are_cut_off_and_reported(
    start: int, end: int, slices: list[Slice], loss: str
) -> None:
    assert ranges_to_read({A0: start}, {A0: end}, RANGES) == (slices, [f"orders broker-a:0 {loss}"])


@pytest.mark.proves("spark.source.progress")
def test_lag_counts_offsets_after_the_place() -> None:
    assert lag_by_queue({A0: 90, A1: 50}, RANGES) == {A0: 10, A1: 0, B0: 0}


@pytest.mark.parametrize(
    ("starting", "refused"),
    [
        (Place(PlaceKind.OFFSETS, by_queue={A0: 9}, option="startingOffsets"), True),
        (Place(PlaceKind.TIMESTAMP, timestamp_ms=5, option="startingTimestamp"), True),
        (Place(PlaceKind.OFFSETS, by_queue={A0: -2}, option="startingOffsets"), False),
        (Place(PlaceKind.EARLIEST, option="startingOffsets"), False),
    ],
)
def test_a_queue_that_would_end_before_its_start_is_named(starting: Place, refused: bool) -> None:
    """The oldest message left in a queue may be behind the wanted end."""
    ending = Place(PlaceKind.OFFSETS, by_queue={A0: 7}, option="endingOffsets")
    require_order(starting, ending, {A0: 7}, {A0: 7})
    if not refused:
        require_order(starting, ending, {A0: 9}, {A0: 7})
        return
    told = f"endingOffsets: orders broker-a:0 would end at 7, before 9, where {starting.option}"
    with pytest.raises(OptionInvalid, match=told):
        require_order(starting, ending, {A0: 9}, {A0: 7})


def test_a_read_begins_where_the_group_stands_and_at_the_beginning_of_other_queues() -> None:
    place = Place(PlaceKind.GROUP, group="billing", option="startingOffsets")
    ranges = {A0: (2, 10), A1: (3, 10)}
    assert start_of_group(place, ranges, {A0: 7, A1: None}) == {A0: 7, A1: 3}
    assert start_of_group(place, {}, {}) == {}


def test_a_group_without_any_offset_is_refused_by_name() -> None:
    place = Place(PlaceKind.GROUP, group="biling", option="startingOffsets")
    with pytest.raises(NotThere, match="startingOffsets: group 'biling' has no offset on orders"):
        start_of_group(place, {A0: (2, 10)}, {A0: None})
