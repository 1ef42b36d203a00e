"""The rules of a report's figures."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from contrail.client.admin_values import GroupLag, QueueLag
from contrail.pipeline.jobs.report_figures import (
    Buckets,
    group_of,
    hot_key_rows,
    lag_rows,
    percentile_columns,
    plan_buckets,
    retry_rows,
    skew_rows,
    timeline_rows,
    topic_rows,
    with_empty_queues,
)
from contrail.protocol.json_style import MessageQueue


@given(
    st.integers(0, 2_000_000_000_000),
    st.integers(0, 10**12),
    st.integers(1, 500),
)
def test_buckets_cover_the_time_and_are_about_as_many_as_asked(
    start_ms: int, span_ms: int, count_max: int
) -> None:
    buckets = plan_buckets(start_ms, start_ms + span_ms, count_max)
    assert buckets.start_ms <= start_ms
    assert buckets.start_ms % buckets.width_ms == 0
    assert buckets.times_ms[-1] <= start_ms + span_ms < buckets.times_ms[-1] + buckets.width_ms
    assert buckets.count <= count_max + 1


def test_topics_are_listed_with_rates_busiest_first() -> None:
    counted = [
        {"topic": "a", "messages": 10, "bytes": 100},
        {"topic": "b", "messages": 30, "bytes": 60},
    ]
    rows = topic_rows(counted, 10_000)
    assert [row["topic"] for row in rows] == ["b", "a"]
    assert rows[0]["messages_per_second"] == 3.0 and rows[0]["average_bytes"] == 2.0


def test_a_timeline_has_the_times_of_its_buckets() -> None:
    counted = [{"topic": "a", "bucket": 2, "messages": 10, "bytes": 100}]
    (row,) = timeline_rows(counted, Buckets(60_000, 5_000, 4))
    assert (row["time_ms"], row["messages_per_second"], row["bytes_per_second"]) == (70_000, 2, 20)


def test_percentiles_have_names_also_without_values() -> None:
    names = ["p50_ms", "p90_ms", "p99_ms", "p99_9_ms"]
    assert percentile_columns([1, 2, 3, 4]) == dict(zip(names, [1, 2, 3, 4], strict=True))
    assert percentile_columns(None) == dict.fromkeys(names)


def test_a_queue_without_messages_makes_a_topic_uneven() -> None:
    counted = [{"topic": "a", "queue": "b:0", "messages": 8, "bytes": 80}]
    queues = with_empty_queues(
        counted, [("a", "b:0"), ("a", "b:10"), ("a", "b:9"), ("idle", "b:0")]
    )
    assert [row["queue"] for row in queues] == ["b:0", "b:9", "b:10"]
    (row,) = skew_rows(queues)
    assert (row["queues"], row["fullest_queue"], row["fullest_to_mean"]) == (3, "b:0", 3.0)


def test_retries_and_dead_letters_of_a_group_are_one_row() -> None:
    counted = [
        {"topic": "%RETRY%g", "origin": "orders", "messages": 5, "bytes": 1},
        {"topic": "%RETRY%g+orders", "origin": "orders", "messages": 2, "bytes": 1},
        {"topic": "%DLQ%g", "origin": "orders", "messages": 1, "bytes": 1},
        {"topic": "%DLQ%other", "origin": None, "messages": 4, "bytes": 1},
    ]
    assert retry_rows(counted) == [
        {"group": "other", "topic": "", "retries": 0, "dead_letters": 4},
        {"group": "g", "topic": "orders", "retries": 7, "dead_letters": 1},
    ]


def test_a_group_whose_name_ends_like_a_topic_keeps_it_without_an_origin() -> None:
    assert group_of("%RETRY%g_orders", "") == "g_orders"
    assert group_of("%RETRY%g_orders", "orders") == "g"


def test_lag_is_listed_by_topic_with_its_age() -> None:
    queues = (
        QueueLag(MessageQueue("orders", "b", 0), 10, 4, 6, 5_000, 1),
        QueueLag(MessageQueue("orders", "b", 1), 10, 10, 0, 1_000),
        QueueLag(MessageQueue("%RETRY%g", "b", 0), 1, 0, 1, 0),
    )
    rows = lag_rows({"g": GroupLag("g", queues, 7)}, 9_000)
    assert [(row["topic"], row["lag"], row["behind_ms"]) for row in rows] == [
        ("orders", 6, 4_000),
        ("%RETRY%g", 1, None),
    ]
    assert rows[0]["queues_behind"] == 1 and rows[0]["in_flight"] == 1


def test_a_key_that_came_once_is_not_hot() -> None:
    found = [{"topic": "a", "keys": [{"item": "x", "count": 3}, {"item": "y", "count": 1}]}]
    assert hot_key_rows(found, {"a": 12}) == [
        {"topic": "a", "key": "x", "messages": 3, "share": 0.25}
    ]
