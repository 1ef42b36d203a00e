"""The overview and the brokers, from the sample, and the history of figures."""

from __future__ import annotations

from http import HTTPStatus
from typing import Annotated, Literal

import msgspec

from contrail.console.api.lists import ListQuery, Missing, known, missing_of, shown
from contrail.console.calls import Call
from contrail.console.contract import Route
from contrail.console.problems import Problem
from contrail.console.services.sampler import Sample, totals_of
from contrail.console.state.roles import Role
from contrail.console.state.series import History
from contrail.insight.lists import GroupRow, TopicRow

_SHOWN = 5
_FIELDS = (
    "broker",
    "broker_id",
    "cluster",
    "address",
    "version",
    "put_per_second",
    "get_per_second",
)


class BrokerRow(msgspec.Struct):
    """A broker; all but its names are None when it did not answer: see ``error``."""

    cluster: str
    broker: str
    broker_id: int
    address: str
    version: str | None
    contrail_version: str | None
    put_per_second: float | None
    get_per_second: float | None
    put_count_today: int | None
    get_count_today: int | None
    disk_used_ratio: float | None
    boot_timestamp_ms: int | None
    uptime_ms: int | None
    perm: str | None
    takes_messages: bool | None
    error: str | None


class Totals(msgspec.Struct):
    """Sums over the brokers that answered; None where none has told it."""

    in_per_second: float | None
    out_per_second: float | None
    lag: int | None
    topics: int
    groups: int
    dead_letters: int | None
    timers: int | None
    halves: int | None


class Overview(msgspec.Struct):
    """A cluster at a glance."""

    sampled_ms: int
    partial: list[Missing]
    name_servers: list[str]
    totals: Totals
    furthest_behind: list[GroupRow]
    busiest: list[TopicRow]
    brokers: list[BrokerRow]


class BrokerPage(msgspec.Struct):
    """Brokers of the sample."""

    sampled_ms: int
    partial: list[Missing]
    total: int
    rows: list[BrokerRow]


class HistoryQuery(msgspec.Struct, forbid_unknown_fields=True):
    """``series``: in, out, lag, group:NAME (its lag) or topic:NAME (messages in a second)."""

    series: Annotated[str, msgspec.Meta(min_length=1, max_length=300)]
    span: Literal["30m", "24h"] = "30m"


async def overview(call: Call) -> Overview:
    sample = known(call.parts.sampler.sample)
    sums = totals_of(sample)
    behind = [row for row in sample.groups if row.lag > 0]
    busy = [row for row in sample.topics if row.put_per_second and row.kind == "normal"]
    return Overview(
        sample.sampled_ms,
        missing_of(sample),
        list(sample.name_servers),
        Totals(
            sums["in"],
            sums["out"],
            None if sums["lag"] is None else int(sums["lag"]),
            len([row for row in sample.topics if row.kind == "normal"]),
            len([row for row in sample.groups if not row.is_internal]),
            _dead_letters(sample),
            sample.timers,
            sample.halves,
        ),
        sorted(behind, key=lambda row: (-row.lag, row.group))[:_SHOWN],
        sorted(busy, key=lambda row: (-(row.put_per_second or 0.0), row.topic))[:_SHOWN],
        _rows(sample),
    )


def _dead_letters(sample: Sample) -> int | None:
    """All dead letters; None where a broker does not tell how far a topic reaches."""
    counts = [row.messages for row in sample.topics if row.kind == "dlq"]
    return None if None in counts else sum(one or 0 for one in counts)


async def brokers(call: Call) -> BrokerPage:
    sample = known(call.parts.sampler.sample)
    found = shown(_rows(sample), call.query, named="broker", fields=_FIELDS)
    return BrokerPage(sample.sampled_ms, missing_of(sample), found.total, found.rows)


def _rows(sample: Sample) -> list[BrokerRow]:
    return msgspec.convert(sample.brokers, list[BrokerRow])


async def history(call: Call) -> History:
    parts, query = call.parts, call.query
    found = parts.sampler.series.told(
        query.series, parts.clock.now_ms(), is_long=query.span == "24h"
    )
    if found is None:
        raise Problem(HTTPStatus.NOT_FOUND, f"there is no history of {query.series!r}")
    return found


ROUTES = (
    Route(
        method="GET",
        path="/overview",
        name="overview",
        summary="The cluster at a glance, from the sample",
        handle=overview,
        answer=Overview,
        role=Role.VIEWER,
        problems=(HTTPStatus.SERVICE_UNAVAILABLE,),
    ),
    Route(
        method="GET",
        path="/brokers",
        name="brokers",
        summary="Brokers with rates and disk, from the sample",
        handle=brokers,
        query=ListQuery,
        answer=BrokerPage,
        role=Role.VIEWER,
        problems=(HTTPStatus.SERVICE_UNAVAILABLE,),
    ),
    Route(
        method="GET",
        path="/history",
        name="history",
        summary="A figure over the last half hour or day",
        handle=history,
        query=HistoryQuery,
        answer=History,
        role=Role.VIEWER,
        problems=(HTTPStatus.NOT_FOUND,),
    ),
)
