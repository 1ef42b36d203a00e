"""One frame of ``contrail top``: asked of a cluster, and drawn."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from contrail.cli.output import text_of, time_text
from contrail.client.admin_values import GroupLag, TopicStats
from contrail.client.blocking.admin import Admin
from contrail.errors import ClientError
from contrail.insight.lists import topic_ends, topic_rows
from contrail.insight.looks import look as look_at

_WORKERS = 8
# The most topics that are asked about one by one in a frame.
_TOPICS_MAX = 200


@dataclass(frozen=True, slots=True)
class Frame:
    """How a cluster is at one moment; rates are messages a second."""

    now_ms: int
    brokers: list[dict[str, Any]]
    topics: list[dict[str, Any]]
    groups: list[dict[str, Any]]
    # How far each topic reaches, for the rates of the next frame.
    ends: Mapping[str, int] = field(default_factory=dict)

    def facts(self, rows: int) -> dict[str, Any]:
        return {
            "timestamp_ms": self.now_ms,
            "brokers": self.brokers,
            "topics": self.topics[:rows],
            "groups": self.groups[:rows],
        }


def look(admin: Admin, now_ms: Callable[[], int], before: Frame | None) -> Frame:
    """Ask for a frame. Rates of topics come from the frame before, if there is one."""
    moment_ms = now_ms()
    reaches = _reaches(admin)
    known = frozenset(admin.groups(allow_partial=True))
    lags = admin.lags(allow_partial=True)
    return Frame(
        moment_ms,
        brokers=_broker_rows(admin),
        topics=sorted(
            (_topic_row(one, moment_ms, before) for one in reaches),
            key=lambda row: (-row["in_per_second"], row["topic"]),
        ),
        groups=sorted(
            (_group_row(one) for name, one in lags.items() if name in known),
            key=lambda row: (-row["lag"], row["group"]),
        ),
        ends={one.topic: one.end for one in reaches},
    )


class _Reach(NamedTuple):
    """How far a topic reaches, and how many messages a second come in by its brokers' count."""

    topic: str
    end: int
    messages: int
    put_per_second: float


def _reaches(admin: Admin) -> list[_Reach]:
    """Of all topics by one request to each broker, where every broker knows that request."""
    seen = admin.run(look_at)
    names = frozenset(admin.topics(internal=False))
    if seen.tables_only:
        return [_reach_of(one) for one in _topic_stats(admin, sorted(names))]
    ends = topic_ends(seen)
    return [
        _Reach(row.topic, ends[row.topic] or 0, row.messages or 0, row.put_per_second or 0.0)
        for row in topic_rows(seen, frozenset())
        if row.topic in names
    ]


def _reach_of(stats: TopicStats) -> _Reach:
    end = sum(queue.queue_offset_max for queue in stats.queues)
    return _Reach(stats.topic, end, stats.count, stats.put_per_second)


def _topic_stats(admin: Admin, names: Sequence[str]) -> list[TopicStats]:
    def ask(topic: str) -> TopicStats | None:
        try:
            return admin.topic_stats(topic, allow_partial=True)
        except ClientError:
            # The topic was deleted since, or all of its brokers are down, which their rows show.
            return None

    with ThreadPoolExecutor(_WORKERS) as pool:
        found = pool.map(ask, names[:_TOPICS_MAX])
        return [one for one in found if one is not None]


def _topic_row(reach: _Reach, now_ms: int, before: Frame | None) -> dict[str, Any]:
    rate = reach.put_per_second
    if before is not None and reach.topic in before.ends and now_ms > before.now_ms:
        sent = max(0, reach.end - before.ends[reach.topic])
        rate = sent * 1000 / (now_ms - before.now_ms)
    return {"topic": reach.topic, "in_per_second": round(rate, 1), "messages": reach.messages}


def _group_row(lag: GroupLag) -> dict[str, Any]:
    return {
        "group": lag.group,
        "lag": lag.total,
        "out_per_second": round(lag.consumed_per_second, 1),
        "topics": sorted(topic for topic, count in lag.by_topic.items() if count > 0),
    }


def _broker_rows(admin: Admin) -> list[dict[str, Any]]:
    runtimes = admin.broker_runtimes(allow_partial=True)
    rows = []
    for one in admin.brokers():
        runtime = runtimes.get(one.broker_name if one.is_master else one.address)
        told = runtime is not None
        rows.append(
            {
                "broker": one.broker_name,
                "broker_id": one.broker_id,
                "address": one.address,
                "is_answering": told,
                "in_per_second": round(runtime.put_per_second, 1) if runtime else None,
                "out_per_second": round(runtime.get_per_second, 1) if runtime else None,
                "in_today": runtime.put_count_today if runtime else None,
                "out_today": runtime.get_count_today if runtime else None,
                "disk_used_ratio": round(runtime.disk_used_ratio, 4) if runtime else None,
            }
        )
    return rows


def draw(frame: Frame, rows: int) -> Any:
    """The frame as a rich renderable."""
    from rich.console import Group
    from rich.text import Text

    facts = frame.facts(rows)
    brokers = [
        {
            **row,
            "disk": None if row["disk_used_ratio"] is None else f"{row['disk_used_ratio']:.0%}",
            "state": "up" if row["is_answering"] else "NO ANSWER",
        }
        for row in facts["brokers"]
    ]
    return Group(
        Text(f"contrail top  {time_text(frame.now_ms)}", style="bold"),
        _table(
            "Brokers",
            brokers,
            {
                "broker": "broker",
                "address": "address",
                "state": "state",
                "in/s": "in_per_second",
                "out/s": "out_per_second",
                "in today": "in_today",
                "out today": "out_today",
                "disk": "disk",
            },
        ),
        _table(
            "Topics",
            facts["topics"],
            {"topic": "topic", "in/s": "in_per_second", "messages": "messages"},
        ),
        _table(
            "Groups",
            facts["groups"],
            {"group": "group", "lag": "lag", "out/s": "out_per_second", "behind on": "topics"},
        ),
    )


def _table(title: str, rows: Sequence[Mapping[str, Any]], columns: Mapping[str, str]) -> Any:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, title=title, title_justify="left")
    for heading, name in columns.items():
        is_number = bool(rows) and all(isinstance(row[name], int | float | None) for row in rows)
        table.add_column(heading, justify="right" if is_number else "left")
    for row in rows:
        table.add_row(*(text_of(row[name]) for name in columns.values()))
    return table
