"""Slices of queues become partitions: whole, in order, in the wanted number."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import InputPartition

from contrail.pipeline.offsets import QueueKey, Slice
from contrail.pipeline.partitions import (
    QueueSlice,
    SharedTask,
    Task,
    pieces_of,
    plan_partitions,
)


def slices(*lengths: int) -> list[Slice]:
    return [
        Slice(QueueKey("orders", "broker-a", number), 100, 100 + length)
        for number, length in enumerate(lengths)
    ]


def lengths(partitions: list[Task]) -> list[int]:
    """How many records each partition covers."""
    return [
        sum(part.queue_offset_end - part.queue_offset_start for part in pieces_of(partition))
        for partition in partitions
    ]


def test_a_queue_is_one_partition_and_an_empty_one_is_none() -> None:
    assert plan_partitions(slices(7, 0)) == [QueueSlice("orders", "broker-a", 0, 100, 107)]
    assert plan_partitions([]) == plan_partitions([], min_partitions=4) == []


def test_long_queues_are_cut_and_short_ones_stay_whole() -> None:
    assert lengths(plan_partitions(slices(900, 100), min_partitions=4)) == [300, 300, 300, 100]


def test_no_partition_has_more_records_than_allowed() -> None:
    assert lengths(plan_partitions(slices(10, 3), max_records_per_partition=4)) == [3, 3, 4, 3]


def test_there_are_no_more_partitions_than_records() -> None:
    assert lengths(plan_partitions(slices(2, 1), min_partitions=50)) == [1, 1, 1]


@pytest.mark.proves("spark.source.partitions")
@given(
    st.lists(st.integers(0, 500), max_size=6) | st.lists(st.integers(0, 4), min_size=80),
    st.none() | st.integers(1, 40),
    st.none() | st.integers(1, 60),
)
def test_partitions_cover_the_slices_exactly(
    asked: list[int], min_partitions: int | None, count_max: int | None
) -> None:
    parts = plan_partitions(
        slices(*asked), min_partitions=min_partitions, max_records_per_partition=count_max
    )
    covered = [
        (part.queue_id, place)
        for task in parts
        for part in pieces_of(task)
        for place in range(part.queue_offset_start, part.queue_offset_end)
    ]
    assert covered == [
        (number, 100 + place) for number, length in enumerate(asked) for place in range(length)
    ]
    assert len(parts) >= min(min_partitions or 0, sum(asked))
    assert all(0 < length <= (count_max or length) for length in lengths(parts))


def test_a_partition_can_be_pickled_and_names_its_slice() -> None:
    part = QueueSlice("orders", "broker-a", 3, 5, 9)
    assert pickle.loads(pickle.dumps(part)) == part
    assert hash(pickle.loads(pickle.dumps(part))) == hash(part)
    assert repr(part) == "QueueSlice(orders broker-a:3 [5, 9))"


@pytest.mark.proves("spark.scale.planning-time")
def test_few_records_of_very_many_queues_share_tasks() -> None:
    found = plan_partitions(slices(*[1] * 8_000))
    assert lengths(found) == [125] * 64
    assert all(isinstance(one, SharedTask) for one in found)
    assert [piece.queue_id for one in found for piece in pieces_of(one)] == list(range(8_000))


def test_many_records_of_many_queues_are_spread_over_more_tasks() -> None:
    assert lengths(plan_partitions(slices(*[1_000] * 1_024))) == [4_000] * 256
    assert lengths(plan_partitions(slices(*[1_000] * 200))) == [1_000] * 200


def test_a_long_queue_shares_its_task_with_short_ones_before_it_only() -> None:
    found = plan_partitions(slices(*[1] * 50, 10_000, *[1] * 50))
    assert lengths(found) == [10_050, 50]


def test_as_many_tasks_as_wanted_are_made_of_short_slices() -> None:
    assert lengths(plan_partitions(slices(*[1] * 100), min_partitions=100)) == [1] * 100


def test_a_shared_task_keeps_the_bound_of_records() -> None:
    found = plan_partitions(slices(*[3] * 100), max_records_per_partition=4)
    assert lengths(found) == [3] * 100


def test_a_shared_task_is_a_value_and_spark_s_own_partition_has_no_slices() -> None:
    (first, *_) = plan_partitions(slices(*[1] * 130))
    assert pickle.loads(pickle.dumps(first)) == first
    assert hash(pickle.loads(pickle.dumps(first))) == hash(first)
    assert repr(first).startswith("SharedTask(QueueSlice(orders broker-a:0 [100, 101)),")
    assert pieces_of(InputPartition(None)) == ()
