"""Lag per topic and the Prometheus text, from the progress of queries."""

from __future__ import annotations

import json
from typing import Any

import pytest

from contrail.pipeline import stream_figures
from contrail.pipeline.stream_figures import (
    OffsetsBehindLatest,
    StreamFigures,
    offsets_behind_latest,
)


def progress(
    batch_id: int,
    *,
    end: object,
    latest: object,
    rows: int = 0,
    written: int = -1,
    query: str = "q",
) -> dict[str, Any]:
    source = {"endOffset": end, "latestOffset": latest, "numInputRows": rows}
    return {
        "id": query,
        "batchId": batch_id,
        "batchDuration": 1_500,
        "sources": [source],
        "sink": {"numOutputRows": written},
    }


END = json.dumps({"orders": {"a:0": 10, "a:1": 4}, "bills": {"a:0": 7}})
LATEST = json.dumps({"orders": {"a:0": 10, "a:1": 9, "b:0": 1}, "bills": {"a:0": 7}})


@pytest.mark.proves("spark.scale.lag-in-progress")
def test_the_lag_of_a_topic_is_over_all_of_its_queues() -> None:
    found = offsets_behind_latest(progress(0, end=END, latest=LATEST))
    assert found == {
        "bills": OffsetsBehindLatest(0, 0.0, 0),
        "orders": OffsetsBehindLatest(0, 2.0, 5),
    }


def test_a_queue_that_fell_back_has_no_lag_and_other_sources_are_left_out() -> None:
    behind = offsets_behind_latest(progress(0, end={"t": {"a:0": 9}}, latest={"t": {"a:0": 2}}))
    assert behind == {"t": OffsetsBehindLatest(0, 0.0, 0)}
    for other in (None, "null", "17", "no json", 5):
        assert offsets_behind_latest(progress(0, end=other, latest=LATEST)) == {}


def test_a_batch_is_counted_once_though_idle_triggers_show_it_again() -> None:
    figures = StreamFigures()
    figures.started("q", "orders-copy")
    figures.progressed(progress(0, end=END, latest=LATEST, rows=20, written=20))
    figures.progressed(progress(0, end=END, latest=END, rows=20, written=20))
    figures.progressed(progress(1, end=END, latest=END, rows=5))
    assert figures.behind("orders-copy")["orders"] == OffsetsBehindLatest(0, 0.0, 0)
    lines = figures.text().splitlines()
    assert 'contrail_spark_running{query="orders-copy"} 1' in lines
    assert 'contrail_spark_batches_total{query="orders-copy"} 2' in lines
    assert 'contrail_spark_rows_read_total{query="orders-copy"} 25' in lines
    assert 'contrail_spark_rows_written_total{query="orders-copy"} 20' in lines
    assert 'contrail_spark_batch_duration_seconds{query="orders-copy"} 1.5' in lines
    labels = 'query="orders-copy",topic="orders",measure="max"'
    assert f"contrail_spark_offsets_behind_latest{{{labels}}} 0" in lines


def test_a_query_that_ended_is_shown_until_others_need_its_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stream_figures, "_QUERIES_MAX", 2)
    figures = StreamFigures()
    for name in ("first", "second"):
        figures.started(name, None)
    assert not figures.has_ended("first") and not figures.has_ended("other")
    figures.ended("first")
    assert figures.has_ended("first")
    assert 'contrail_spark_running{query="first"} 0' in figures.text()
    figures.started("third", None)
    text = figures.text()
    assert '"first"' not in text and '"second"' in text and '"third"' in text
    # Running queries are never forgotten.
    figures.started("fourth", None)
    assert all(f'"{name}"' in figures.text() for name in ("second", "third", "fourth"))


def test_a_query_started_again_goes_on_with_its_counts() -> None:
    figures = StreamFigures()
    figures.started("q", "copy")
    figures.progressed(progress(3, end=END, latest=END, rows=2))
    figures.ended("q")
    figures.started("q", "copy")
    figures.progressed(progress(4, end=END, latest=END, rows=3))
    assert 'contrail_spark_rows_read_total{query="copy"} 5' in figures.text()
