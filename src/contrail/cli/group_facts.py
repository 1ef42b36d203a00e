"""The facts of the group commands as rows: the same for tables and for JSON."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from contrail.cli.exits import NotFound
from contrail.client.admin_values import GroupConnections, GroupLag, QueueLag
from contrail.client.blocking.admin import Admin
from contrail.errors import ClientError
from contrail.model.group import SubscriptionGroupConfig
from contrail.model.topic import RETRY_PREFIX
from contrail.protocol.bodies.running_info import ConsumerRunningInfo
from contrail.protocol.json_style import MessageQueue


def require_group(client: Admin, group: str, *, may_be_made: bool = True) -> None:
    """Raises ``NotFound`` for a group without settings, offsets and members.

    ``may_be_made``: the error suggests to create the group; no help where one is deleted or read.
    """
    if group in client.groups(internal=True) or client.group_topics(group):
        return
    if client.group_connections(group).is_online:
        return
    hint = f", `contrail group create {group}` makes it" if may_be_made else ""
    raise NotFound(
        f"there is no consumer group {group!r}: `contrail group list` shows those that are{hint}"
    )


def consumed_topics(client: Admin, group: str, topic: str | None) -> list[str]:
    """The given topic, else all topics the group has offsets on, without its retry topic.

    Raises:
        RouteMissing: the given topic does not exist.
        NotFound: no topic is given, and the group has consumed none.
    """
    if topic is not None:
        client.topic_route(topic)
        return [topic]
    found = [one for one in client.group_topics(group) if not one.startswith(RETRY_PREFIX)]
    if not found:
        raise NotFound(f"group {group!r} has not consumed anything yet: name a topic by --topic")
    return found


def group_rows(client: Admin, *, cluster: str | None, internal: bool) -> list[dict[str, Any]]:
    """Every group: its members, its model and its lag."""
    names = client.groups(cluster=cluster, internal=internal, allow_partial=True)
    lags = client.lags(cluster=cluster, allow_partial=True)
    rows = []
    for name in names:
        members = client.group_connections(name, cluster=cluster, allow_partial=True)
        rows.append(_group_row(members, lags.get(name)))
    return rows


def _group_row(members: GroupConnections, lag: GroupLag | None) -> dict[str, Any]:
    return {
        "group": members.group,
        "members": len(members.connections),
        "model": members.message_model or None,
        "consume_type": members.consume_type or None,
        "topics": sorted(_plain_topics(members, lag)),
        "lag": None if lag is None else lag.total,
        "consumed_per_second": 0.0 if lag is None else lag.consumed_per_second,
    }


def _plain_topics(members: GroupConnections, lag: GroupLag | None) -> set[str]:
    topics = set(members.subscriptions) | (set() if lag is None else set(lag.by_topic))
    return {topic for topic in topics if not topic.startswith(RETRY_PREFIX)}


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


def described(client: Admin, group: str) -> dict[str, Any]:
    """Members, subscriptions, queues, settings, and where members or brokers disagree."""
    members = client.group_connections(group, allow_partial=True)
    infos = running_infos(client, members)
    lag = client.lag(group, allow_partial=True)
    settings = _settings(client, group)
    return {
        "group": group,
        "model": members.message_model or None,
        "consume_type": members.consume_type or None,
        "consume_from": members.consume_from_where or None,
        "lag": lag.total,
        "consumed_per_second": lag.consumed_per_second,
        "dead_letter_topic": client.dead_letter_topic(group),
        "members": [_member_row(one, infos) for one in members.connections],
        "subscriptions": _subscription_rows(members),
        "disagreements": disagreements(infos),
        "queues": lag_rows(lag, queue_owners(infos)),
        "settings": settings,
        "settings_differ": len({str(row) for row in settings.values()}) > 1,
    }


def running_infos(
    client: Admin, members: GroupConnections
) -> dict[str, ConsumerRunningInfo | None]:
    """Each member's running info; None for a member that does not answer."""
    found: dict[str, ConsumerRunningInfo | None] = {}
    for one in members.connections:
        try:
            found[one.client_id] = client.running_info(members.group, one.client_id)
        except ClientError:
            # It may have left just now, or speak a language whose clients do not answer this.
            found[one.client_id] = None
    return found


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


def _settings(client: Admin, group: str) -> dict[str, dict[str, Any]]:
    tables = client.group_configs(allow_partial=True)
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


def member_words(connections: GroupConnections) -> str:
    count = len(connections.connections)
    return f"{count} member{'' if count == 1 else 's'} on line" if count else "nobody on line"


def total(rows: Iterable[Mapping[str, Any]], name: str) -> int:
    return sum(row[name] or 0 for row in rows)
