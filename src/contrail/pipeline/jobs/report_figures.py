"""The figures of a report: values that fit a page, and the rules that make them of aggregates."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from contrail.client.admin_values import GroupLag
from contrail.model.topic import DLQ_PREFIX, RETRY_PREFIX

PERCENTILES = (0.5, 0.9, 0.99, 0.999)
# Round widths of buckets, up to a week.
_WIDTHS_MS = tuple(
    seconds * 1000
    for seconds in (
        *(1, 2, 5, 10, 15, 30),
        *(60, 120, 180, 300, 600, 900, 1800),
        *(3600, 7200, 10_800, 21_600, 43_200),
        *(86_400, 172_800, 604_800),
    )
)

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Buckets:
    """Equal stretches of time; the first begins at ``start_ms``, a multiple of the width."""

    start_ms: int
    width_ms: int
    count: int

    @property
    def times_ms(self) -> list[int]:
        return [self.start_ms + number * self.width_ms for number in range(self.count)]


@dataclass(frozen=True, slots=True)
class Figures:
    """All tables of a report. Each list is a table: rows of the same columns."""

    facts: Row
    topics: list[Row] = field(default_factory=list)
    timeline: list[Row] = field(default_factory=list)
    latency: list[Row] = field(default_factory=list)
    latency_timeline: list[Row] = field(default_factory=list)
    lag: list[Row] = field(default_factory=list)
    retries: list[Row] = field(default_factory=list)
    waiting: list[Row] = field(default_factory=list)
    handling: list[Row] = field(default_factory=list)
    skew: list[Row] = field(default_factory=list)
    queues: list[Row] = field(default_factory=list)
    hot_keys: list[Row] = field(default_factory=list)

    def tables(self) -> dict[str, list[Row]]:
        """Every table by name."""
        values = asdict(self)
        del values["facts"]
        return values


def plan_buckets(start_ms: int, end_ms: int, count_max: int) -> Buckets:
    """At most about ``count_max`` buckets that cover ``[start_ms, end_ms]``."""
    span_ms = max(end_ms - start_ms, 1)
    fitting = (width for width in _WIDTHS_MS if span_ms / width <= count_max)
    weeks = math.ceil(span_ms / count_max / _WIDTHS_MS[-1])
    width_ms = next(fitting, weeks * _WIDTHS_MS[-1])
    first_ms = start_ms // width_ms * width_ms
    return Buckets(first_ms, width_ms, (end_ms - first_ms) // width_ms + 1)


def topic_rows(counted: Iterable[Mapping[str, Any]], span_ms: int) -> list[Row]:
    """Traffic by topic, the busiest first."""
    rows = [
        {
            "topic": row["topic"],
            "messages": row["messages"],
            "bytes": row["bytes"],
            "messages_per_second": round(row["messages"] * 1000 / span_ms, 3),
            "bytes_per_second": round(row["bytes"] * 1000 / span_ms, 1),
            "average_bytes": round(row["bytes"] / row["messages"], 1),
        }
        for row in counted
    ]
    return sorted(rows, key=lambda row: (-row["messages"], row["topic"]))


def timeline_rows(counted: Iterable[Mapping[str, Any]], buckets: Buckets) -> list[Row]:
    """Traffic by topic and time, as rates; a bucket without messages has no row."""
    seconds = buckets.width_ms / 1000
    rows = [
        {
            "time_ms": buckets.start_ms + row["bucket"] * buckets.width_ms,
            "topic": row["topic"],
            "messages": row["messages"],
            "bytes": row["bytes"],
            "messages_per_second": round(row["messages"] / seconds, 3),
            "bytes_per_second": round(row["bytes"] / seconds, 1),
        }
        for row in counted
    ]
    return sorted(rows, key=lambda row: (row["time_ms"], row["topic"]))


def percentile_columns(values: Sequence[float | None] | None) -> Row:
    """``p50_ms`` and so on; None without measured values."""
    names = [f"p{format(share * 100, 'g').replace('.', '_')}_ms" for share in PERCENTILES]
    return dict(zip(names, values if values is not None else [None] * len(names), strict=True))


def skew_rows(queues: Iterable[Mapping[str, Any]]) -> list[Row]:
    """The skew of each topic's messages over its queues with messages."""
    by_topic: dict[str, list[Mapping[str, Any]]] = {}
    for row in queues:
        by_topic.setdefault(row["topic"], []).append(row)
    rows = []
    for topic, own in by_topic.items():
        counts = [row["messages"] for row in own]
        mean = sum(counts) / len(counts)
        fullest = max(own, key=lambda row: (row["messages"], row["queue"]))
        deviation = math.sqrt(sum((count - mean) ** 2 for count in counts) / len(counts))
        rows.append(
            {
                "topic": topic,
                "queues": len(counts),
                "fullest_queue": fullest["queue"],
                "fullest_messages": fullest["messages"],
                "mean_messages": round(mean, 1),
                "fullest_to_mean": round(fullest["messages"] / mean, 3),
                "deviation_to_mean": round(deviation / mean, 3),
            }
        )
    return sorted(rows, key=lambda row: (-row["fullest_to_mean"], row["topic"]))


def with_empty_queues(
    counted: Iterable[Mapping[str, Any]], known: Iterable[tuple[str, str]]
) -> list[Row]:
    """Messages by queue, including queues without messages, which are the most uneven."""
    rows: dict[tuple[str, str], Row] = {
        (topic, queue): {"topic": topic, "queue": queue, "messages": 0, "bytes": 0}
        for topic, queue in known
    }
    for row in counted:
        rows[row["topic"], row["queue"]] = {
            name: row[name] for name in ("topic", "queue", "messages", "bytes")
        }
    busy = {topic for (topic, _), row in rows.items() if row["messages"]}
    kept = [row for row in rows.values() if row["topic"] in busy]
    return sorted(kept, key=lambda row: (row["topic"], *queue_order(row["queue"])))


def queue_order(queue: str) -> tuple[str, int]:
    """Sorts ``broker-a:10`` behind ``broker-a:9``."""
    broker_name, _, queue_id = queue.rpartition(":")
    return broker_name, int(queue_id)


def retry_rows(counted: Iterable[Mapping[str, Any]]) -> list[Row]:
    """Retries and dead letters by group and original topic."""
    rows: dict[tuple[str, str], Row] = {}
    for row in counted:
        is_dead = row["topic"].startswith(DLQ_PREFIX)
        origin = row["origin"] or ""
        group = group_of(row["topic"], origin)
        found = rows.setdefault(
            (group, origin), {"group": group, "topic": origin, "retries": 0, "dead_letters": 0}
        )
        found["dead_letters" if is_dead else "retries"] += row["messages"]
    return sorted(
        rows.values(), key=lambda row: (-row["dead_letters"], -row["retries"], row["group"])
    )


def group_of(topic: str, origin: str) -> str:
    """The group of a retry or dead-letter topic; a pop retry topic also names the origin."""
    group = topic.removeprefix(DLQ_PREFIX).removeprefix(RETRY_PREFIX)
    for joint in ("+", "_"):
        if origin and group.endswith(joint + origin):
            return group.removesuffix(joint + origin)
    return group


def lag_rows(lags: Mapping[str, GroupLag], now_ms: int) -> list[Row]:
    """The lag of each group on each topic; ``behind_ms`` by the last consumed message."""
    rows = []
    for group, lag in lags.items():
        for topic, count in lag.by_topic.items():
            own = [entry for entry in lag.queues if entry.queue.topic == topic]
            waiting = [entry.last_timestamp_ms for entry in own if entry.lag > 0]
            known = [time_ms for time_ms in waiting if time_ms > 0]
            rows.append(
                {
                    "group": group,
                    "topic": topic,
                    "lag": count,
                    "queues_behind": len(waiting),
                    "in_flight": sum(entry.in_flight for entry in own),
                    "behind_ms": now_ms - min(known) if known else None,
                }
            )
    return sorted(rows, key=lambda row: (-row["lag"], row["group"], row["topic"]))


def hot_key_rows(found: Iterable[Mapping[str, Any]], totals: Mapping[str, int]) -> list[Row]:
    """The most frequent keys of each topic; a key with one message is not hot."""
    rows = [
        {
            "topic": row["topic"],
            "key": item["item"],
            "messages": item["count"],
            "share": round(item["count"] / totals[row["topic"]], 5),
        }
        for row in found
        for item in row["keys"]
        if item["count"] > 1
    ]
    return sorted(rows, key=lambda row: (-row["messages"], row["topic"], row["key"]))
