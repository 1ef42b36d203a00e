"""Pushed filters: exact ones are dropped, Spark gets the others back."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)

from contrail.pipeline.offsets import QueueKey, Slice
from contrail.pipeline.pushed_filters import (
    NOTHING_PUSHED,
    TIME_MARGIN_MS,
    Pushed,
    before_time_ms,
    from_time_ms,
    narrow_slices,
    push,
)

A0, A1, B0 = (
    QueueKey("orders", "broker-a", 0),
    QueueKey("orders", "broker-a", 1),
    QueueKey("bills", "broker-b", 0),
)
SLICES = [Slice(A0, 0, 100), Slice(A1, 0, 100), Slice(B0, 0, 100)]


def exactly(*filters: Filter) -> Pushed:
    """The pushed part of filters that all must be applied exactly."""
    pushed, unhandled = push(filters, with_tags=True)
    assert unhandled == []
    return pushed


def left(*filters: Filter) -> list[Slice]:
    return narrow_slices(SLICES, exactly(*filters), {}, {})


def test_queues_are_chosen_by_topic_broker_and_number() -> None:
    assert left(EqualTo(("topic",), "bills")) == [SLICES[2]]
    assert left(In(("topic",), ("orders", "x", None))) == SLICES[:2]
    assert left(EqualNullSafe(("brokerName",), "broker-a"), EqualTo(("queueId",), 1)) == [SLICES[1]]


def test_filters_on_one_column_intersect() -> None:
    assert left(In(("queueId",), (0, 1)), EqualTo(("queueId",), 0)) == [SLICES[0], SLICES[2]]
    assert left(EqualTo(("topic",), "bills"), EqualTo(("topic",), "orders")) == []
    assert left(EqualTo(("topic",), None)) == []


@pytest.mark.parametrize(
    ("filters", "bounds"),
    [
        ([GreaterThan(("queueOffset",), 9)], (10, 100)),
        ([GreaterThanOrEqual(("queueOffset",), 9)], (9, 100)),
        ([LessThan(("queueOffset",), 9)], (0, 9)),
        ([LessThanOrEqual(("queueOffset",), 9)], (0, 10)),
        ([EqualTo(("queueOffset",), 9)], (9, 10)),
        ([GreaterThan(("queueOffset",), 9), GreaterThan(("queueOffset",), 3)], (10, 100)),
        ([LessThan(("queueOffset",), 9), LessThan(("queueOffset",), 3)], (0, 3)),
    ],
)
def test_offsets_are_bounded_exactly(filters: list[Filter], bounds: tuple[int, int]) -> None:
    assert left(*filters)[0] == Slice(A0, *bounds)


def test_bounds_without_any_offset_leave_no_slice() -> None:
    assert left(GreaterThan(("queueOffset",), 50), LessThan(("queueOffset",), 50)) == []


def test_a_list_of_offsets_narrows_and_goes_back_to_spark() -> None:
    asked = In(("queueOffset",), (3, 9, None))
    pushed, unhandled = push([asked], with_tags=True)
    assert unhandled == [asked]
    assert (pushed.queue_offset_start, pushed.queue_offset_end) == (3, 10)


def test_tags_become_the_subscription_unless_it_has_an_expression() -> None:
    asked = In(("tags",), ("paid", "open"))
    assert exactly(asked).tag_expression == "open || paid"
    assert exactly(asked, EqualTo(("tags",), "paid")).tag_expression == "paid"
    assert exactly(asked, EqualTo(("tags",), "lost")).is_empty
    assert push([asked], with_tags=False) == (NOTHING_PUSHED, [asked])


@pytest.mark.parametrize("tag", ["", "*", "a||b", " a", "a|"])
def test_a_tag_that_a_subscription_would_read_otherwise_goes_back_to_spark(tag: str) -> None:
    asked = EqualTo(("tags",), tag)
    assert push([asked], with_tags=True) == (NOTHING_PUSHED, [asked])


def test_times_narrow_with_a_margin_and_always_go_back_to_spark() -> None:
    at = datetime(2026, 1, 1, 0, 0, 0, 1500, tzinfo=UTC)
    at_ms = int(datetime(2026, 1, 1, tzinfo=UTC).timestamp() * 1000) + 1
    filters = [GreaterThanOrEqual(("storeTimestamp",), at), LessThan(("storeTimestamp",), at)]
    pushed, unhandled = push(filters, with_tags=True)
    assert unhandled == filters
    assert (pushed.stored_from_ms, pushed.stored_before_ms) == (at_ms, at_ms + 1)
    assert from_time_ms(pushed) == at_ms - TIME_MARGIN_MS
    assert before_time_ms(pushed) == at_ms + 1 + TIME_MARGIN_MS
    assert from_time_ms(NOTHING_PUSHED) is before_time_ms(NOTHING_PUSHED) is None
    cut = narrow_slices(SLICES, NOTHING_PUSHED, {A0: 20, A1: 0}, {A0: 30, B0: 0})
    assert cut == [Slice(A0, 20, 30), Slice(A1, 0, 100)]


@pytest.mark.parametrize(
    "asked",
    [
        IsNotNull(("topic",)),
        Not(EqualTo(("topic",), "orders")),
        StringStartsWith(("topic",), "ord"),
        EqualTo(("region",), "eu"),
        EqualTo(("properties", "topic"), "eu"),
        EqualTo(("queueId",), "0"),
        EqualNullSafe(("tags",), None),
        GreaterThan(("storeTimestamp",), datetime(2026, 1, 1)),
        GreaterThan(("queueOffset",), "7"),
    ],
)
def test_an_unknown_filter_changes_nothing_and_goes_back_to_spark(asked: Filter) -> None:
    assert push([asked], with_tags=True) == (NOTHING_PUSHED, [asked])
