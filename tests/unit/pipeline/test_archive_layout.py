"""An archive's rules: ranges of rounds, lost messages, closed hours, merged files."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contrail.errors import JobFailed
from contrail.pipeline.jobs.archive_layout import (
    Hour,
    PlacedFile,
    Range,
    Round,
    Sized,
    assigned,
    ending_offsets,
    is_closed,
    lost_spans,
    near_deletion,
    next_round_spans,
    parse_hour,
    place_files,
    plan_merges,
    plan_spans,
    refuse_foreign,
    starting_offsets,
    without_lost,
)
from contrail.pipeline.offsets import QueueKey

A0 = QueueKey("orders", "broker-a", 0)
A1 = QueueKey("orders", "broker-a", 1)
B0 = QueueKey("orders", "broker-b", 0)

spans = st.dictionaries(
    st.builds(
        QueueKey, st.sampled_from(["t", "u"]), st.sampled_from(["a", "b:c"]), st.integers(0, 4)
    ),
    st.tuples(st.integers(0, 10_000), st.integers(1, 10_000)).map(
        lambda pair: Range(pair[0], pair[0] + pair[1])
    ),
    min_size=1,
)


def test_an_archived_queue_goes_on_at_its_end_and_a_new_queue_at_its_oldest_message() -> None:
    ranges = {A0: Range(0, 100), A1: Range(40, 90), B0: Range(0, 7)}
    found = plan_spans({A0: 60, B0: 7}, ranges, {})
    assert found == {A0: Range(60, 100), A1: Range(40, 90)}


def test_only_a_new_queue_begins_at_the_given_time() -> None:
    ranges = {A0: Range(0, 100), A1: Range(40, 90)}
    found = plan_spans({A0: 60}, ranges, {A0: 80, A1: 80})
    assert found == {A0: Range(60, 100), A1: Range(80, 90)}


def test_messages_deleted_before_their_round_are_lost_and_the_rest_is_not() -> None:
    ranges = {A0: Range(50, 100), A1: Range(200, 200)}
    wanted = {A0: Range(30, 100), A1: Range(150, 200)}
    assert lost_spans(wanted, ranges) == {A0: Range(30, 50), A1: Range(150, 200)}
    assert without_lost(wanted, ranges) == {A0: Range(50, 100)}


def test_an_archive_ahead_of_its_queue_is_of_another_queue() -> None:
    refuse_foreign({A0: 100, A1: 500}, {A0: Range(0, 100)})
    with pytest.raises(JobFailed, match=r"'orders', queue broker-a:0 up to queue offset 101"):
        refuse_foreign({A0: 101}, {A0: Range(0, 100)})


def test_a_queue_is_near_deletion_once_retention_has_begun_and_is_close() -> None:
    ranges = {A0: Range(1_000, 11_000), A1: Range(0, 10_000), B0: Range(1_000, 11_000)}
    wanted = {A0: Range(1_900, 11_000), A1: Range(0, 10_000), B0: Range(2_000, 11_000)}
    assert near_deletion(wanted, ranges) == {A0: 900}


@given(spans, st.integers(1, 40_000))
def test_rounds_have_every_message_once_and_in_order(
    todo: dict[QueueKey, Range], most: int
) -> None:
    reached = {queue: span.queue_offset_start for queue, span in todo.items()}
    left = dict(todo)
    while left:
        taken = next_round_spans(left, most)
        assert taken.keys() == left.keys()
        assert sum(span.length for span in taken.values()) <= max(most, 0) + len(left)
        for queue, span in taken.items():
            assert span.queue_offset_start == reached[queue]
            assert span.length > 0
            reached[queue] = span.queue_offset_end
        left = plan_spans(reached, todo, {})
    assert reached == {queue: span.queue_offset_end for queue, span in todo.items()}


@given(spans)
def test_a_round_is_read_back_from_its_file(read: dict[QueueKey, Range]) -> None:
    ends = {queue: span.queue_offset_end for queue, span in read.items()}
    done = Round(7, ends, read, (PlacedFile("a/b.parquet", "a/c.parquet", 3, 99),))
    assert Round.of_json(json.loads(json.dumps(done.as_json()))) == done


def test_the_source_gets_queues_and_offsets() -> None:
    todo = {A1: Range(5, 9), B0: Range(0, 2)}
    assert assigned(todo) == {"orders": ["broker-a:1", "broker-b:0"]}
    assert starting_offsets(todo) == {"orders": {"broker-a:1": 5, "broker-b:0": 0}}
    assert ending_offsets(todo) == {"orders": {"broker-a:1": 9, "broker-b:0": 2}}


def test_only_a_folder_of_an_hour_is_read_as_one() -> None:
    found = parse_hour("topic=%25DLQ%25g/date=2026-11-16/hour=09/x.parquet")
    assert found == Hour("%DLQ%g", "2026-11-16", 9)
    assert parse_hour("_contrail/staging/topic=x") is None
    assert parse_hour("topic=x/date=2026-13-16/hour=09") is None
    assert parse_hour("topic=x/date=2026-11-16/hour=24") is None


def test_an_hour_is_closed_only_after_its_end_and_the_grace() -> None:
    hour = Hour("t", "2026-11-16", 9)
    grace = timedelta(minutes=30)
    assert not is_closed(hour, datetime(2026, 11, 16, 10, 29, tzinfo=UTC), grace)
    assert is_closed(hour, datetime(2026, 11, 16, 10, 30, tzinfo=UTC), grace)


def test_no_two_rounds_give_a_file_the_same_path() -> None:
    staged = [("topic=a/date=d/hour=01/part-1", 5, 50), ("topic=a/date=d/hour=01/part-0", 4, 40)]
    first, second = place_files(3, staged), place_files(4, staged)
    assert [file.place for file in first] == [
        "topic=a/date=d/hour=01/00000003-0000.parquet",
        "topic=a/date=d/hour=01/00000003-0001.parquet",
    ]
    assert [file.rows for file in first] == [4, 5]
    assert not {file.place for file in first} & {file.place for file in second}


def test_adjacent_files_are_merged_up_to_the_target_and_a_large_file_stays() -> None:
    files = [Sized("1", 40), Sized("2", 50), Sized("3", 500), Sized("4", 10), Sized("5", 10)]
    groups = plan_merges(reversed(files), 100)
    assert [[file.name for file in group] for group in groups] == [["1", "2"], ["4", "5"]]


@given(st.lists(st.integers(0, 1_000), max_size=30), st.integers(1, 2_000))
def test_a_merge_has_several_files_in_order_and_keeps_to_its_size(
    sizes: list[int], target: int
) -> None:
    files = [Sized(f"{number:03d}", size) for number, size in enumerate(sizes)]
    groups = plan_merges(files, target)
    merged = [file for group in groups for file in group]
    assert merged == sorted(set(merged))
    for group in groups:
        assert len(group) > 1
        assert sum(file.size_bytes for file in group) <= target
