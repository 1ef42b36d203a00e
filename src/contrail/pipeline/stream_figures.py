"""The lag of topics in the progress of a streaming query.

Spark lets Python sources put no figures of their own into the progress of a query. The offsets are
there: how far the queues reach, and how far the query is. Imports no pyspark.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping
from typing import Any, NamedTuple

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
