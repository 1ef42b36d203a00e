"""One group as rows: its members, its queues, its settings, and where members disagree."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from contrail.client.admin import Admin
from contrail.client.admin_values import ClientConnection, GroupConnections, GroupLag, QueueLag
from contrail.errors import ClientError
from contrail.insight.asking import gathered
from contrail.insight.lists import GroupRow, group_rows
from contrail.insight.looks import look
from contrail.model.group import SubscriptionGroupConfig
from contrail.model.topic import RETRY_PREFIX
from contrail.protocol.bodies.running_info import ConsumerRunningInfo
from contrail.protocol.json_style import MessageQueue


async def listed(admin: Admin, *, cluster: str | None, internal: bool) -> list[GroupRow]:
    """Every group that has settings, with its members on every make of broker.

    Raises:
        ClientError: no broker answered.
    """
    seen = await look(admin, cluster=cluster)
    seen.require_one()
    rows = [one for one in group_rows(seen) if one.has_settings]
    rows = [one for one in rows if internal or not one.is_internal]
    return rows if seen.knows_members else await with_members(admin, rows, cluster=cluster)


async def with_members(
    admin: Admin, rows: list[GroupRow], *, cluster: str | None = None
) -> list[GroupRow]:
    """The same rows with members, one request for each row and broker: for visible rows only."""

    async def ask(row: GroupRow) -> GroupRow:
        found = await admin.group_connections(row.group, cluster=cluster, allow_partial=True)
        return filled(row, found)

    return await gathered(ask, rows)


def filled(row: GroupRow, members: GroupConnections) -> GroupRow:
    """The row of a group whose members were asked for by themselves."""
    return replace(
        row,
        members=len(members.connections),
        model=members.message_model or None,
        consume_type=members.consume_type or None,
        topics=sorted({*row.topics, *_plain(members.subscriptions)}),
    )


def _plain(topics: Iterable[str]) -> list[str]:
    return [one for one in topics if not one.startswith(RETRY_PREFIX)]


def lag_rows(
    lag: GroupLag, owners: Mapping[MessageQueue, str] | None = None
) -> list[dict[str, Any]]:
    """A group on each queue; ``owners`` are the members that have it."""
    return [_lag_row(one, (owners or {}).get(one.queue)) for one in lag.queues]


def _lag_row(one: QueueLag, client_id: str | None) -> dict[str, Any]:
    return {
        "topic": one.queue.topic,
        "broker": one.queue.broker_name,
        "queue_id": one.queue.queue_id,
        "queue_offset_max": one.broker_offset,
        "consumer_offset": one.consumer_offset,
        "lag": one.lag,
        "in_flight": one.in_flight,
        "last_timestamp_ms": one.last_timestamp_ms if one.last_timestamp_ms > 0 else None,
        "client_id": client_id,
    }


async def is_known(admin: Admin, group: str) -> bool:
    """Whether a group has settings, offsets or members anywhere."""
    if group in await admin.groups(internal=True, allow_partial=True):
        return True
    if await admin.group_topics(group, allow_partial=True):
        return True
    return (await admin.group_connections(group, allow_partial=True)).is_online


async def described(admin: Admin, group: str) -> dict[str, Any]:
    """Members, subscriptions, queues, settings, and where members or brokers disagree."""
    members = await admin.group_connections(group, allow_partial=True)
    infos = await running_infos(admin, members)
    lag = await admin.lag(group, allow_partial=True)
    settings = await _settings(admin, group)
    return {
        "group": group,
        "model": members.message_model or None,
        "consume_type": members.consume_type or None,
        "consume_from": members.consume_from_where or None,
        "lag": lag.total,
        "consumed_per_second": lag.consumed_per_second,
        "dead_letter_topic": await admin.dead_letter_topic(group),
        "members": [_member_row(one, infos) for one in members.connections],
        "subscriptions": _subscription_rows(members),
        "disagreements": disagreements(infos),
        "queues": lag_rows(lag, queue_owners(infos)),
        "settings": settings,
        "settings_differ": len({str(row) for row in settings.values()}) > 1,
    }


async def running_infos(
    admin: Admin, members: GroupConnections
) -> dict[str, ConsumerRunningInfo | None]:
    """Each member's running info; None for a member that does not answer."""

    async def ask(one: ClientConnection) -> ConsumerRunningInfo | None:
        try:
            return await admin.running_info(members.group, one.client_id)
        except ClientError:
            # It may have left just now, or speak a language whose clients do not answer this.
            return None

    infos = await gathered(ask, members.connections)
    return {one.client_id: info for one, info in zip(members.connections, infos, strict=True)}


def disagreements(infos: Mapping[str, ConsumerRunningInfo | None]) -> list[dict[str, Any]]:
    """Topics to which members of a group subscribe differently: then messages are lost to it."""
    wanted: dict[str, dict[str, str]] = {}
    known = {client_id: info for client_id, info in infos.items() if info is not None}
    for client_id, info in known.items():
        for one in info.subscriptions:
            text = one.sub_string if one.by_tag else f"{one.expression_type}: {one.sub_string}"
            wanted.setdefault(one.topic, {})[client_id] = text
    return [
        {
            "topic": topic,
            "members": [
                {"client_id": client_id, "expression": by_member.get(client_id)}
                for client_id in sorted(known)
            ],
        }
        for topic, by_member in sorted(wanted.items())
        if len(by_member) < len(known) or len(set(by_member.values())) > 1
    ]


def queue_owners(infos: Mapping[str, ConsumerRunningInfo | None]) -> dict[MessageQueue, str]:
    """The member that has each queue, by the members' running info."""
    return {
        queue: client_id
        for client_id, info in infos.items()
        if info is not None
        for queue, held in info.queues.items()
        if not held.is_dropped
    }


def _member_row(one: Any, infos: Mapping[str, ConsumerRunningInfo | None]) -> dict[str, Any]:
    info = infos.get(one.client_id)
    return {
        "client_id": one.client_id,
        "address": one.address,
        "language": one.language,
        "version": one.version,
        "brokers": list(one.broker_names),
        "queues": None if info is None else len(info.queues),
    }


def _subscription_rows(members: GroupConnections) -> list[dict[str, Any]]:
    return [
        {"topic": topic, "type": one.expression_type or "TAG", "expression": one.sub_string}
        for topic, one in members.subscriptions.items()
    ]


async def _settings(admin: Admin, group: str) -> dict[str, dict[str, Any]]:
    tables = await admin.group_configs(allow_partial=True)
    return {
        broker: setting_values(table[group])
        for broker, table in sorted(tables.items())
        if group in table
    }


def setting_values(config: SubscriptionGroupConfig) -> dict[str, Any]:
    """The settings that people change."""
    return {
        "consume_enable": config.consume_enable,
        "consume_broadcast_enable": config.consume_broadcast_enable,
        "consume_message_orderly": config.consume_message_orderly,
        "retry_count_max": config.retry_count_max,
        "retry_queue_count": config.retry_queue_count,
        "retry_policy": config.retry_policy.kind,
        "consume_timeout_minutes": config.consume_timeout_minutes,
    }
