"""The facts of the topic commands as rows: the same for tables and for JSON."""

from __future__ import annotations

from typing import Any

from contrail.cli.exits import NotFound
from contrail.cli.perms import perm_text
from contrail.client.admin_values import QueueStats
from contrail.client.blocking.admin import Admin
from contrail.errors import RouteMissing
from contrail.model.topic import DLQ_PREFIX, RETRY_PREFIX
from contrail.protocol.bodies.routes import TopicRouteData


def listed(client: Admin, *, cluster: str | None, internal: bool) -> list[dict[str, Any]]:
    """Every topic with its kind, by name."""
    plain = client.topics(cluster=cluster, internal=False)
    names = client.topics(cluster=cluster) if internal else plain
    known = frozenset(plain)
    return [{"topic": name, "kind": _kind(name, name in known)} for name in names]


def _kind(topic: str, is_plain: bool) -> str:
    if topic.startswith(RETRY_PREFIX):
        return "retry"
    if topic.startswith(DLQ_PREFIX):
        return "dlq"
    return "normal" if is_plain else "system"


def with_stats(client: Admin, row: dict[str, Any]) -> dict[str, Any]:
    """The same row with the brokers' settings of the topic."""
    stats = client.topic_stats(row["topic"], allow_partial=True)
    return {
        **row,
        "queues": len(stats.queues),
        "messages": stats.count,
        "put_per_second": stats.put_per_second,
        "last_store_timestamp_ms": _newest(stats.queues),
    }


def _newest(queues: tuple[QueueStats, ...]) -> int | None:
    return max((one.last_store_timestamp_ms for one in queues), default=0) or None


def require_topic(client: Admin, topic: str) -> None:
    """Raises ``NotFound`` for a topic without a route; where creating it would not help."""
    try:
        client.topic_route(topic)
    except RouteMissing as error:
        raise NotFound(
            f"there is no topic {topic!r}, or no broker that has it is registered: `contrail topic "
            "list` shows those that are"
        ) from error


def queue_rows(client: Admin, topic: str) -> list[dict[str, Any]]:
    """How far each queue reaches."""
    return [_queue_row(one) for one in client.topic_stats(topic).queues]


def _queue_row(stats: QueueStats) -> dict[str, Any]:
    known_ms = stats.last_store_timestamp_ms
    return {
        "broker": stats.queue.broker_name,
        "queue_id": stats.queue.queue_id,
        "queue_offset_min": stats.queue_offset_min,
        "queue_offset_max": stats.queue_offset_max,
        "messages": stats.count,
        "last_store_timestamp_ms": known_ms if known_ms > 0 else None,
    }


def route_rows(route: TopicRouteData) -> list[dict[str, Any]]:
    """Each broker of a route: addresses by id, queue counts, permission."""
    addresses = {one.broker_name: one.addresses for one in route.brokers}
    return [
        {
            "broker": queue.broker_name,
            "addresses": {
                str(broker_id): address
                for broker_id, address in sorted(addresses.get(queue.broker_name, {}).items())
            },
            "read_queues": queue.read_queue_count,
            "write_queues": queue.write_queue_count,
            "perm": perm_text(queue.perm),
        }
        for queue in route.queues
    ]


def described(client: Admin, topic: str) -> dict[str, Any]:
    """A topic's route, settings by broker, queues and groups."""
    route = client.topic_route(topic)
    configs = client.topic_config(topic, allow_partial=True)
    stats = client.topic_stats(topic, allow_partial=True)
    rows = []
    for row in route_rows(route):
        config = configs.get(row["broker"])
        rows.append(
            {
                **row,
                "order": None if config is None else config.order,
                "attributes": {} if config is None else dict(config.attributes),
            }
        )
    return {
        "topic": topic,
        "clusters": client.topic_clusters(topic),
        "order_config": client.order_config(topic),
        "messages": stats.count,
        "put_per_second": stats.put_per_second,
        "brokers": rows,
        "queues": [_queue_row(one) for one in stats.queues],
        "groups": client.topic_consumers(topic, allow_partial=True),
    }
