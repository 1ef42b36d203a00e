"""Lag per topic, from the progress of queries."""

from __future__ import annotations

import json
from typing import Any

import pytest

from contrail.pipeline.stream_figures import OffsetsBehindLatest, offsets_behind_latest


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
