"""A job's counts of its query's batches, and its summary."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from contrail.clock import ManualClock
from contrail.pipeline.jobs.progress import (
    SILENT,
    BatchSum,
    Pace,
    PaceKeeper,
    RoundLines,
    lag_of,
    run_query,
    watch,
)
from contrail.pipeline.jobs.summary import Summary


def batch(batch_id: int, rows: int, *, end: int = 0, latest: int = 0) -> dict[str, Any]:
    return {
        "batchId": batch_id,
        "numInputRows": rows,
        "sources": [
            {
                "endOffset": json.dumps({"orders": {"broker-a:0": end}}),
                "latestOffset": json.dumps({"orders": {"broker-a:0": latest}}),
            }
        ],
    }


class FakeQuery:
    """A query that ends after a number of polls, with one more batch at each."""

    def __init__(self, polls: int) -> None:
        self.polls = polls
        self.seen: list[dict[str, Any]] = []
        self.stopped = False

    def awaitTermination(self, timeout: int) -> bool:
        self.seen.append(batch(len(self.seen), 10, end=10 * len(self.seen), latest=100))
        return len(self.seen) >= self.polls

    @property
    def recentProgress(self) -> list[dict[str, Any]]:
        return self.seen[-3:]

    def stop(self) -> None:
        self.stopped = True


class Told:
    def __init__(self) -> None:
        self.calls: list[tuple[int, dict[str, object]]] = []

    def begin(self, what: str, total: int | None) -> None: ...

    def at(self, done: int, **facts: object) -> None:
        self.calls.append((done, facts))

    def note(self, text: str) -> None: ...

    def end(self) -> None: ...


def test_rows_are_counted_once_though_a_batch_is_reported_often() -> None:
    total = BatchSum(lambda one: int(one["numInputRows"]))
    total.add([batch(0, 5), batch(1, 0)])
    total.add([batch(0, 5), batch(1, 7)])
    total.add([batch(1, 7), batch(2, 1)])
    assert total.total == 13


def test_a_count_of_many_batches_does_not_remember_them_all() -> None:
    total = BatchSum(lambda one: int(one["numInputRows"]))
    for number in range(5_000):
        total.add([batch(number, 2)])
    assert total.total == 10_000
    assert len(total._counted) <= 200


def test_the_lag_counts_messages_of_the_source_beyond_the_batch() -> None:
    assert lag_of(batch(3, 1, end=40, latest=100)) == 60
    assert lag_of(batch(3, 1, end=100, latest=100)) == 0


def test_a_source_without_offsets_has_no_lag() -> None:
    unknown = {"sources": [{"endOffset": "5", "latestOffset": None}]}
    assert lag_of(unknown) is None
    assert lag_of({"sources": [{"endOffset": "no json", "latestOffset": "{}"}]}) is None


def test_watching_ends_with_the_query_and_returns_its_rows() -> None:
    told = Told()
    query = FakeQuery(polls=6)
    assert watch(query, told) == 60  # type: ignore[arg-type]
    assert told.calls[-1] == (60, {"lag": 50, "batch": 5})
    assert not query.stopped


def test_watching_stops_the_query_on_request() -> None:
    query = FakeQuery(polls=1_000)
    assert watch(query, SILENT, lambda: len(query.seen) == 4) == 40  # type: ignore[arg-type]
    assert query.stopped


class LateQuery(FakeQuery):
    """Fails after its first batch, because a Python process did not connect."""

    def awaitTermination(self, timeout: int) -> bool:
        super().awaitTermination(timeout)
        raise RuntimeError("[STREAM_FAILED] Python worker failed to connect back. SQLSTATE: XXKST")


def test_a_query_whose_python_was_late_is_restarted_and_its_rows_counted_once() -> None:
    queries = [LateQuery(9), FakeQuery(3)]
    waiting = iter(queries)
    assert run_query(lambda: next(waiting), SILENT) == 30  # type: ignore[arg-type]
    assert all(query.stopped for query in queries)


def test_a_query_that_is_late_every_time_fails_as_does_any_other_failure() -> None:
    with pytest.raises(RuntimeError, match="connect back"):
        run_query(lambda: LateQuery(9), SILENT)  # type: ignore[arg-type,return-value]
    made: list[int] = []

    def broken() -> Any:
        made.append(1)
        raise ValueError("no such topic")

    with pytest.raises(ValueError, match="no such topic"):
        run_query(broken, SILENT)
    assert made == [1]


def test_a_query_is_stopped_by_its_own_progress() -> None:
    query = FakeQuery(1_000)
    total = run_query(lambda: query, SILENT, lambda one: len(one.recentProgress) == 3)  # type: ignore[arg-type,return-value]
    assert total == 30


def test_a_summary_is_one_json_object_whatever_its_values_are() -> None:
    summary = Summary("migrate", "done", {"folder": Path("/x")}, [{"queue": "a:0", "messages": 3}])
    assert json.loads(summary.as_json()) == {
        "job": "migrate",
        "outcome": "done",
        "facts": {"folder": "/x"},
        "table": [{"queue": "a:0", "messages": 3}],
    }


def test_the_pace_is_measured_from_the_first_report_on() -> None:
    keeper = PaceKeeper(1_000)
    assert keeper.at(600, 5_000) == Pace(None, None)
    assert keeper.at(700, 7_000) == Pace(50.0, 6.0)
    assert keeper.at(1_200, 9_000) == Pace(150.0, 0.0)
    without_total = PaceKeeper(None)
    without_total.at(0, 0)
    assert without_total.at(10, 2_000) == Pace(5.0, None)


@pytest.mark.proves("spark.scale.jobs-log")
def test_a_round_is_one_line_of_json_and_a_repeated_report_none() -> None:
    out, clock = io.StringIO(), ManualClock(1_000)
    lines = RoundLines(out, clock, "archive")
    lines.begin("copying", 100)
    lines.at(0, lag=None)
    clock.advance(ms=2_000)
    lines.at(10, lag=90, batch=0)
    lines.at(10, lag=90, batch=0)
    lines.note("a broker is away")
    lines.end()
    found = [json.loads(line) for line in out.getvalue().splitlines()]
    stage = {"job": "archive", "stage": "copying", "total": 100}
    unknown = {"perSecond": None, "remainingSeconds": None}
    assert found == [
        {**stage, "atMs": 1_000, "done": 0, "lag": None, **unknown},
        {
            **stage,
            "atMs": 3_000,
            "done": 10,
            "lag": 90,
            "batch": 0,
            "perSecond": 5.0,
            "remainingSeconds": 18,
        },
        {**stage, "atMs": 3_000, "note": "a broker is away"},
    ]
