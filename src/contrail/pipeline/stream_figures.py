"""The lag of topics in the progress of a streaming query, and figures for Prometheus.

Spark lets Python sources put no figures of their own into the progress of a query. The offsets are
there: how far the queues reach, and how far the query is. Imports no pyspark.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from contrail.protocol.prometheus_text import Labels, Metric, MetricKind, head_lines, sample_line

# Queries of which figures are kept; the one that ended first is forgotten first.
_QUERIES_MAX = 1_000

_QUERY = ("query",)
METRICS = (
    Metric("contrail_spark_running", MetricKind.GAUGE, "Whether the query runs.", _QUERY),
    Metric("contrail_spark_batches_total", MetricKind.COUNTER, "Finished batches.", _QUERY),
    Metric("contrail_spark_rows_read_total", MetricKind.COUNTER, "Rows read.", _QUERY),
    Metric("contrail_spark_rows_written_total", MetricKind.COUNTER, "Rows written.", _QUERY),
    Metric(
        "contrail_spark_batch_duration_seconds", MetricKind.GAUGE, "Time of the last batch.", _QUERY
    ),
    Metric(
        "contrail_spark_offsets_behind_latest",
        MetricKind.GAUGE,
        "Offsets that the queues of a topic have after the last batch.",
        ("query", "topic", "measure"),
    ),
)

QueueOffsets = dict[tuple[str, str], int]


class OffsetsBehindLatest(NamedTuple):
    """Over the queues of a topic: how many offsets a query has not read yet."""

    min: int
    avg: float
    max: int


def queue_offsets(offsets: object) -> QueueOffsets | None:
    """A source's offsets in a progress, as text or parsed, by topic and queue; None for others."""
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


def queue_lags(source: Mapping[str, Any]) -> QueueOffsets | None:
    """How many offsets each queue of a source has after a batch; None if that is unknown."""
    latest, end = queue_offsets(source.get("latestOffset")), queue_offsets(source.get("endOffset"))
    if latest is None or end is None:
        return None
    return {queue: max(0, latest[queue] - end.get(queue, 0)) for queue in latest}


def offsets_behind_latest(progress: Mapping[str, Any]) -> dict[str, OffsetsBehindLatest]:
    """The lag of each topic after a batch; without topics whose lag is unknown."""
    by_topic: defaultdict[str, list[int]] = defaultdict(list)
    for source in progress["sources"]:
        for (topic, _), lag in (queue_lags(source) or {}).items():
            by_topic[topic].append(lag)
    return {
        topic: OffsetsBehindLatest(min(lags), sum(lags) / len(lags), max(lags))
        for topic, lags in sorted(by_topic.items())
    }


@dataclass(slots=True)
class _Query:
    """The figures of one query."""

    is_running: bool = True
    batch_id: int = -1
    batch_count: int = 0
    rows_read: int = 0
    rows_written: int = 0
    batch_s: float = 0.0
    behind: dict[str, OffsetsBehindLatest] = field(default_factory=dict)


class StreamFigures:
    """The figures of all queries of a session, by name, or by id where a query has no name."""

    def __init__(self) -> None:
        self._queries: dict[str, _Query] = {}
        self._names: dict[str, str] = {}

    def started(self, query_id: str, name: str | None) -> None:
        """A query has started, maybe for a second time."""
        self._names[query_id] = name or query_id
        self._query(query_id).is_running = True

    def progressed(self, progress: Mapping[str, Any]) -> None:
        """A batch has ended, or a trigger has found nothing."""
        query = self._query(str(progress["id"]))
        batch_id = int(progress["batchId"])
        query.behind = offsets_behind_latest(progress)
        if batch_id <= query.batch_id:
            # A trigger without new messages shows the batch before.
            return
        query.batch_id = batch_id
        query.batch_count += 1
        query.rows_read += sum(int(source["numInputRows"]) for source in progress["sources"])
        # Sinks that do not count say -1.
        query.rows_written += max(0, int(progress["sink"]["numOutputRows"]))
        query.batch_s = float(progress["batchDuration"]) / 1000

    def ended(self, query_id: str) -> None:
        """A query has ended; it is shown until a thousand others have come."""
        self._query(query_id).is_running = False

    def has_ended(self, query: str) -> bool:
        """Whether a query, by its name or id, has been seen and does not run any more."""
        return query in self._queries and not self._queries[query].is_running

    def behind(self, query: str) -> dict[str, OffsetsBehindLatest]:
        """The lag of each topic of a query, by its name or id, after its last trigger."""
        return dict(self._queries[query].behind)

    def text(self) -> str:
        """The figures as Prometheus reads them."""
        return "".join(self._lines())

    def _query(self, query_id: str) -> _Query:
        name = self._names.setdefault(query_id, query_id)
        if name not in self._queries:
            self._make_room()
            self._queries[name] = _Query()
        return self._queries[name]

    def _make_room(self) -> None:
        over = len(self._queries) + 1 - _QUERIES_MAX
        ended = [name for name, query in self._queries.items() if not query.is_running]
        for name in ended[: max(0, over)]:
            del self._queries[name]
            self._names = {one: named for one, named in self._names.items() if named != name}

    def _lines(self) -> Iterator[str]:
        labels = Labels({})
        for metric in METRICS:
            yield head_lines(metric)
            for name, query in list(self._queries.items()):
                for values, value in _samples(metric.name, query):
                    text = labels.text(metric.labels, (name, *values))
                    yield sample_line(metric.name, text, value)


def _samples(metric: str, query: _Query) -> list[tuple[tuple[str, ...], float]]:
    single = {
        "contrail_spark_running": int(query.is_running),
        "contrail_spark_batches_total": query.batch_count,
        "contrail_spark_rows_read_total": query.rows_read,
        "contrail_spark_rows_written_total": query.rows_written,
        "contrail_spark_batch_duration_seconds": query.batch_s,
    }
    if metric in single:
        return [((), single[metric])]
    return [
        ((topic, measure), value)
        for topic, behind in list(query.behind.items())
        for measure, value in behind._asdict().items()
    ]
