"""Topics: the list from the sample, one topic asked anew."""

from __future__ import annotations

from http import HTTPStatus
from typing import Annotated, Any

import msgspec

from contrail.console.api.lists import ListQuery, Missing, known, missing_of, shown
from contrail.console.calls import Call
from contrail.console.contract import Route
from contrail.console.state.roles import Role
from contrail.insight.lists import TopicRow
from contrail.insight.topics import described

_FIELDS = ("topic", "kind", "queues", "messages", "put_per_second", "groups", "lag")


class TopicQuery(ListQuery, forbid_unknown_fields=True):
    """``kind`` names kinds, with commas between: normal, retry, dlq, system."""

    kind: Annotated[
        str, msgspec.Meta(pattern=r"^(normal|retry|dlq|system)(,(normal|retry|dlq|system))*$")
    ] = "normal"


class TopicPage(msgspec.Struct):
    """Topics of the sample."""

    sampled_ms: int
    partial: list[Missing]
    total: int
    rows: list[TopicRow]


class TopicBroker(msgspec.Struct):
    """A topic on one broker."""

    broker: str
    addresses: dict[str, str]
    read_queues: int
    write_queues: int
    perm: str
    order: bool | None
    attributes: dict[str, str]


class TopicQueue(msgspec.Struct):
    """A queue; its offsets are texts, for they may pass 2^53."""

    broker: str
    queue_id: int
    queue_offset_min: str
    queue_offset_max: str
    messages: int
    last_store_timestamp_ms: int | None


class TopicTold(msgspec.Struct):
    """A topic as its brokers tell it now."""

    asked_ms: int
    topic: str
    clusters: list[str]
    order_config: dict[str, int]
    messages: int
    put_per_second: float
    brokers: list[TopicBroker]
    queues: list[TopicQueue]
    groups: list[str]


async def topics(call: Call) -> TopicPage:
    sample = known(call.parts.sampler.sample)
    kinds = frozenset(call.query.kind.split(","))
    rows = [row for row in sample.topics if row.kind in kinds]
    found = shown(rows, call.query, named="topic", fields=_FIELDS)
    return TopicPage(sample.sampled_ms, missing_of(sample), found.total, found.rows)


async def topic(call: Call) -> TopicTold:
    asked_ms = call.parts.clock.now_ms()
    told: dict[str, Any] = await described(call.parts.admin, call.path["topic"])
    for row in told["queues"]:
        for name in ("queue_offset_min", "queue_offset_max"):
            row[name] = str(row[name])
    return msgspec.convert({**told, "asked_ms": asked_ms}, TopicTold)


ROUTES = (
    Route(
        method="GET",
        path="/topics",
        name="topics",
        summary="Topics with size, rate and lag, from the sample",
        handle=topics,
        query=TopicQuery,
        answer=TopicPage,
        role=Role.VIEWER,
        problems=(HTTPStatus.SERVICE_UNAVAILABLE,),
    ),
    Route(
        method="GET",
        path="/topics/{topic}",
        name="topic",
        summary="One topic: brokers, queues and groups",
        handle=topic,
        answer=TopicTold,
        role=Role.VIEWER,
        problems=(HTTPStatus.NOT_FOUND, HTTPStatus.SERVICE_UNAVAILABLE),
    ),
)
