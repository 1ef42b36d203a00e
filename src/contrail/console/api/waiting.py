"""Messages that wait: timed ones, and half messages of open transactions."""

from __future__ import annotations

from http import HTTPStatus
from typing import Annotated

import msgspec

from contrail.console.api.lists import Missing
from contrail.console.calls import Call
from contrail.console.contract import Route
from contrail.console.state.roles import Role
from contrail.errors import BrokerRefused, SomeFailed
from contrail.insight.pending_timers import pending_messages
from contrail.insight.transactions import open_transactions

_SCAN_MAX = 2_000


class WaitingQuery(msgspec.Struct, forbid_unknown_fields=True):
    """At most this many, the first due or the oldest."""

    limit: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 100


class TimerTold(msgspec.Struct):
    """A message that waits; without a handle it has a delay level and cannot be recalled."""

    due_timestamp_ms: int
    topic: str
    message_id: str
    broker_name: str
    delay_level: int | None
    tags: str | None
    keys: list[str]
    stored_timestamp_ms: int
    recall_handle: str | None


class TimerHorizon(msgspec.Struct):
    """How many messages are due within so many seconds, beyond the horizon before."""

    within_s: int
    count: int


class TimerPage(msgspec.Struct):
    """``counted`` is what the brokers count, None if they do not; ``total`` what was found."""

    asked_ms: int
    partial: list[Missing]
    counted: int | None
    horizons: list[TimerHorizon]
    total: int
    rows: list[TimerTold]


class TransactionTold(msgspec.Struct):
    """An open half message; ``next_check_ms`` is -1 while no producer of its group is there."""

    broker_name: str
    transaction_id: str
    topic: str
    producer_group: str
    message_id: str
    born_ms: int
    age_ms: int
    check_count: int
    next_check_ms: int


class TransactionPage(msgspec.Struct):
    """Open transactions, the oldest first; ``partial`` names brokers that tell none."""

    asked_ms: int
    partial: list[Missing]
    total: int
    rows: list[TransactionTold]


async def timers(call: Call) -> TimerPage:
    parts, admin = call.parts, call.parts.admin
    now_ms = parts.clock.now_ms()
    missing: list[Missing] = []
    counted: int | None = None
    horizons: dict[int, int] = {}
    try:
        counts = await admin.timer_counts(allow_partial=True)
        counted = sum(sum(one.by_topic.values()) for one in counts.values())
        for one in counts.values():
            for seconds, count in one.by_horizon_s.items():
                horizons[seconds] = horizons.get(seconds, 0) + count
    except (BrokerRefused, SomeFailed) as error:
        missing.append(Missing("", f"timers are not counted: {error}"))
    found = await pending_messages(admin, now_ms, scan_max=_SCAN_MAX)
    rows = [msgspec.convert(one.fields(), TimerTold) for one in found[: call.query.limit]]
    told = [TimerHorizon(seconds, count) for seconds, count in sorted(horizons.items())]
    return TimerPage(now_ms, missing, counted, told, len(found), rows)


async def transactions(call: Call) -> TransactionPage:
    now_ms = call.parts.clock.now_ms()
    found, total, errors = await open_transactions(call.parts.admin, call.query.limit)
    missing = [Missing(name, error) for name, error in sorted(errors.items())]
    rows = msgspec.convert(found, list[TransactionTold], from_attributes=True)
    return TransactionPage(now_ms, missing, total, rows)


_PROBLEMS = (HTTPStatus.NOT_FOUND, HTTPStatus.SERVICE_UNAVAILABLE)

ROUTES = (
    Route(
        method="GET",
        path="/timers",
        name="timers",
        summary="Messages that wait for their time, the first due in front",
        handle=timers,
        query=WaitingQuery,
        answer=TimerPage,
        role=Role.VIEWER,
        problems=_PROBLEMS,
    ),
    Route(
        method="GET",
        path="/transactions",
        name="transactions",
        summary="Half messages that their producer has not decided, the oldest first",
        handle=transactions,
        query=WaitingQuery,
        answer=TransactionPage,
        role=Role.VIEWER,
        problems=_PROBLEMS,
    ),
)
