"""Consumer groups: the list from the sample, one group asked anew."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any, Literal

import msgspec

from contrail.client.admin import Admin
from contrail.console.api.lists import ListQuery, Missing, known, missing_of, shown
from contrail.console.calls import Call
from contrail.console.contract import Route
from contrail.console.problems import Problem
from contrail.console.services.sampler import queue_series
from contrail.console.state.roles import Role
from contrail.console.state.series import LONG_STEP_MS, SHORT_STEP_MS
from contrail.insight.groups import described, is_known, with_members
from contrail.insight.lists import GroupRow

_FIELDS = (
    "group",
    "members",
    "model",
    "consume_type",
    "topics",
    "lag",
    "consumed_per_second",
)


class GroupQuery(ListQuery, forbid_unknown_fields=True):
    """With ``internal`` also the system's groups."""

    internal: bool = False


class GroupPage(msgspec.Struct):
    """Groups of the sample."""

    sampled_ms: int
    partial: list[Missing]
    total: int
    rows: list[GroupRow]


class Member(msgspec.Struct):
    """A connected consumer; ``queues`` is None when it does not tell."""

    client_id: str
    address: str
    language: str
    version: int
    brokers: list[str]
    queues: int | None


class Subscription(msgspec.Struct):
    """A group's subscription to a topic."""

    topic: str
    type: str
    expression: str


class Expression(msgspec.Struct):
    """A member's expression for a topic; None where it does not subscribe."""

    client_id: str
    expression: str | None


class Disagreement(msgspec.Struct):
    """A topic to which the members subscribe differently: messages are lost to the group."""

    topic: str
    members: list[Expression]


class GroupQueue(msgspec.Struct):
    """A group on a queue; offsets are texts, for they may pass 2^53."""

    topic: str
    broker: str
    queue_id: int
    queue_offset_max: str
    consumer_offset: str
    lag: int
    in_flight: int
    last_timestamp_ms: int | None
    client_id: str | None


class GroupSettings(msgspec.Struct):
    """A group's settings on one broker."""

    consume_enable: bool
    consume_broadcast_enable: bool
    consume_message_orderly: bool
    retry_count_max: int
    retry_queue_count: int
    retry_policy: str
    consume_timeout_minutes: int


class GroupTold(msgspec.Struct):
    """A group as its brokers and members tell it now."""

    asked_ms: int
    group: str
    model: str | None
    consume_type: str | None
    consume_from: str | None
    lag: int
    consumed_per_second: float
    dead_letter_topic: str | None
    members: list[Member]
    subscriptions: list[Subscription]
    disagreements: list[Disagreement]
    queues: list[GroupQueue]
    settings: dict[str, GroupSettings]
    settings_differ: bool


class HeatRow(msgspec.Struct):
    """The lag of a group on one queue over time, the oldest first; None where it is not known."""

    topic: str
    broker: str
    queue_id: int
    values: list[float | None]


class Heat(msgspec.Struct):
    """All queues of a group; ``end_ms`` is the end of the last step."""

    step_ms: int
    end_ms: int
    rows: list[HeatRow]


class HeatQuery(msgspec.Struct, forbid_unknown_fields=True):
    """Over half an hour or a day."""

    span: Literal["30m", "24h"] = "30m"


async def heat(call: Call) -> Heat:
    sampler, group = call.parts.sampler, call.path["group"]
    sampler.look_at(group)
    now_ms, is_long = call.parts.clock.now_ms(), call.query.span == "24h"
    step_ms, end_ms = (LONG_STEP_MS if is_long else SHORT_STEP_MS), 0
    rows = []
    for key in sorted(sampler.sample.queue_lags):
        if key[0] != group:
            continue
        told = sampler.series.told(queue_series(*key), now_ms, is_long=is_long)
        if told is not None:
            rows.append(HeatRow(*key[1:], told.values))
            end_ms = told.end_ms
    return Heat(step_ms, end_ms or now_ms, rows)


async def groups(call: Call) -> GroupPage:
    sample = known(call.parts.sampler.sample)
    rows = [row for row in sample.groups if call.query.internal or not row.is_internal]
    found = shown(rows, call.query, named="group", fields=_FIELDS)
    return GroupPage(
        sample.sampled_ms,
        missing_of(sample),
        found.total,
        await _with_members(call.parts.admin, found.rows),
    )


async def _with_members(admin: Admin, rows: list[GroupRow]) -> list[GroupRow]:
    """Apache's brokers have no list of members: they are asked about the visible rows."""
    return await with_members(admin, rows) if any(row.members is None for row in rows) else rows


async def group(call: Call) -> GroupTold:
    asked_ms, name, admin = call.parts.clock.now_ms(), call.path["group"], call.parts.admin
    if not await is_known(admin, name):
        raise Problem(HTTPStatus.NOT_FOUND, f"there is no consumer group {name!r}")
    told: dict[str, Any] = await described(admin, name)
    for row in told["queues"]:
        for field in ("queue_offset_max", "consumer_offset"):
            row[field] = str(row[field])
    return msgspec.convert({**told, "asked_ms": asked_ms}, GroupTold)


ROUTES = (
    Route(
        method="GET",
        path="/groups/{group}/heat",
        name="heat",
        summary="A group's lag on each queue over time",
        handle=heat,
        query=HeatQuery,
        answer=Heat,
        role=Role.VIEWER,
    ),
    Route(
        method="GET",
        path="/groups",
        name="groups",
        summary="Consumer groups with members and lag, from the sample",
        handle=groups,
        query=GroupQuery,
        answer=GroupPage,
        role=Role.VIEWER,
        problems=(HTTPStatus.SERVICE_UNAVAILABLE,),
    ),
    Route(
        method="GET",
        path="/groups/{group}",
        name="group",
        summary="One group: members, subscriptions, queues, settings",
        handle=group,
        answer=GroupTold,
        role=Role.VIEWER,
        problems=(HTTPStatus.NOT_FOUND, HTTPStatus.SERVICE_UNAVAILABLE),
    ),
)
