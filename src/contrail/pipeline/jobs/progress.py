"""Reports of a job's progress. The command line draws a bar; a program may pass its own."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TextIO

from contrail.clock import Clock
from contrail.pipeline.stream_figures import queue_lags

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

_POLL_S = 1
# Spark keeps the progress of a hundred batches.
_BATCHES_KEPT = 200
_STARTS_MAX = 3
_WORKER_LATE = "Python worker failed to connect back"


class Progress(Protocol):
    """Receives a job's progress; never calls the job."""

    def begin(self, what: str, total: int | None) -> None:
        """A stage begins; ``total`` is its amount of work, if known."""

    def at(self, done: int, **facts: object) -> None:
        """``done`` of the stage's total is done."""

    def note(self, text: str) -> None:
        """A remark for the user."""

    def end(self) -> None:
        """The stage is over."""


class Silent:
    """Reports nothing."""

    def begin(self, what: str, total: int | None) -> None:
        pass

    def at(self, done: int, **facts: object) -> None:
        pass

    def note(self, text: str) -> None:
        pass

    def end(self) -> None:
        pass


SILENT = Silent()


class Pace(NamedTuple):
    """How fast a stage is, and how long it will take yet, if that can be said."""

    per_second: float | None
    remaining_s: float | None


class PaceKeeper:
    """Measures a stage from its first report on: a job that goes on begins with work done."""

    def __init__(self, total: int | None) -> None:
        self._total = total
        self._first: tuple[int, int] | None = None

    def at(self, done: int, now_ms: int) -> Pace:
        """The pace when ``done`` of the total is done."""
        if self._first is None:
            self._first = done, now_ms
        done_before, began_ms = self._first
        took_s = (now_ms - began_ms) / 1000
        if took_s <= 0 or done <= done_before:
            return Pace(None, None)
        rate = (done - done_before) / took_s
        return Pace(rate, None if self._total is None else max(0, self._total - done) / rate)


class RoundLines:
    """Writes a line of JSON for each round of a job: a batch, a pass, a part of a stage.

    Reports that say nothing new write nothing.
    """

    def __init__(self, out: TextIO, clock: Clock, job: str) -> None:
        self._out = out
        self._clock = clock
        self._job = job
        self._stage: dict[str, object] = {}
        self._pace = PaceKeeper(None)
        self._last: dict[str, object] | None = None

    def begin(self, what: str, total: int | None) -> None:
        self._stage = {"stage": what, "total": total}
        self._pace = PaceKeeper(total)
        self._last = None

    def at(self, done: int, **facts: object) -> None:
        told = {**self._stage, "done": done, **facts}
        if told == self._last:
            return
        self._last = told
        pace = self._pace.at(done, self._clock.elapsed_ms())
        self._write(
            {
                **told,
                "perSecond": None if pace.per_second is None else round(pace.per_second, 1),
                "remainingSeconds": None if pace.remaining_s is None else round(pace.remaining_s),
            }
        )

    def note(self, text: str) -> None:
        self._write({**self._stage, "note": text})

    def end(self) -> None:
        self._stage, self._last = {}, None

    def _write(self, facts: Mapping[str, object]) -> None:
        line = {"job": self._job, "atMs": self._clock.now_ms(), **facts}
        self._out.write(json.dumps(line, default=str) + "\n")
        self._out.flush()


def watch(
    query: StreamingQuery,
    progress: Progress,
    stop: Callable[[], bool] | None = None,
    *,
    also: Sequence[BatchSum] = (),
) -> int:
    """Report rows and lag until the query ends or ``stop`` is true; returns the rows it read.

    ``also`` are further sums over all batches. A failure of the query is raised as Spark's error.
    """
    rows = BatchSum(_rows_of)
    sums = (rows, *also)
    while not query.awaitTermination(_POLL_S):
        _report(query, rows, sums, progress)
        if stop is not None and stop():
            query.stop()
            break
    _report(query, rows, sums, progress)
    return rows.total


def run_query(
    start: Callable[[], StreamingQuery],
    progress: Progress,
    stop: Callable[[StreamingQuery], bool] | None = None,
    *,
    also: Sequence[BatchSum] = (),
) -> int:
    """``watch`` a query from its start, and restart it if its Python process was late.

    Spark gives a Python process ten seconds to connect, which a busy machine may exceed. The query
    goes on from its checkpoint.
    """
    rows = BatchSum(_rows_of)
    for attempt in range(1, _STARTS_MAX + 1):
        query = start()
        try:
            watch(
                query,
                progress,
                None if stop is None else partial(stop, query),
                also=(rows, *also),
            )
        except Exception as error:
            if attempt == _STARTS_MAX or _WORKER_LATE not in str(error):
                raise
            progress.note("a Python process of Spark's was late; the query is started again")
        else:
            break
        finally:
            query.stop()
    return rows.total


def _rows_of(batch: Mapping[str, Any]) -> int:
    return int(batch["numInputRows"])


def _report(
    query: StreamingQuery, rows: BatchSum, sums: Sequence[BatchSum], progress: Progress
) -> None:
    recent = query.recentProgress
    for one in sums:
        one.add(recent)
    if recent:
        progress.at(rows.total, lag=lag_of(recent[-1]), batch=recent[-1]["batchId"])


class BatchSum:
    """A sum over all batches of a query; Spark itself keeps only the last hundred."""

    def __init__(self, count_of: Callable[[Mapping[str, Any]], int]) -> None:
        self.total = 0
        self._count_of = count_of
        self._counted: dict[int, int] = {}

    def add(self, recent: Sequence[Any]) -> None:
        """Add the new batches of ``recent``, which may repeat batches."""
        for one in recent:
            batch_id, count = int(one["batchId"]), self._count_of(one)
            known = self._counted.get(batch_id, 0)
            self.total += max(0, count - known)
            self._counted[batch_id] = max(count, known)
            self._counted.pop(batch_id - _BATCHES_KEPT, None)


def lag_of(progress: Mapping[str, Any]) -> int | None:
    """How many messages the sources had left after a batch; None if unknown."""
    lags = [queue_lags(source) for source in progress["sources"]]
    known = [sum(lag.values()) for lag in lags if lag is not None]
    return sum(known) if known else None
