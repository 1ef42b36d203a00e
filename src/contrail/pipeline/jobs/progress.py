"""Reports of a job's progress. The command line draws a bar; a program may pass its own."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

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
    lags = [_source_lag(source) for source in progress["sources"]]
    known = [lag for lag in lags if lag is not None]
    return sum(known) if known else None


def _source_lag(source: Mapping[str, Any]) -> int | None:
    latest, end = _queues(source.get("latestOffset")), _queues(source.get("endOffset"))
    if latest is None or end is None:
        return None
    return sum(max(0, latest[queue] - end.get(queue, 0)) for queue in latest)


def _queues(offsets: object) -> dict[tuple[str, str], int] | None:
    """A source's offsets, as text or parsed, by topic and queue."""
    if isinstance(offsets, str):
        try:
            offsets = json.loads(offsets)
        except ValueError:
            return None
    if not isinstance(offsets, Mapping):
        return None
    return {
        (topic, queue): int(place)
        for topic, queues in offsets.items()
        if isinstance(queues, Mapping)
        for queue, place in queues.items()
    }
