"""One topic as rows: its route, its settings by broker, its queues and its groups."""

from __future__ import annotations

from functools import partial
from typing import Any

from contrail.client.admin import Admin
from contrail.client.admin_values import QueueStats
from contrail.insight.asking import gathered
from contrail.insight.lists import topic_kind
from contrail.insight.words import perm_text
from contrail.protocol.bodies.routes import TopicRouteData


async def listed(admin: Admin, *, cluster: str | None, internal: bool) -> list[dict[str, Any]]:
    """Every topic with its kind, by name."""
    plain = await admin.topics(cluster=cluster, internal=False)
    names = await admin.topics(cluster=cluster) if internal else plain
    own = set(names) - set(plain)
    return [{"topic": name, "kind": topic_kind(name, own)} for name in names]


async def listed_with_stats(
    admin: Admin, *, cluster: str | None, internal: bool
) -> list[dict[str, Any]]:
    """The same rows with what the brokers hold of each topic, one request for each and broker."""
    rows = await listed(admin, cluster=cluster, internal=internal)
    return await gathered(partial(with_stats, admin), rows)


async def with_stats(admin: Admin, row: dict[str, Any]) -> dict[str, Any]:
    """The same row with the brokers' settings of the topic."""
    stats = await admin.topic_stats(row["topic"], allow_partial=True)
    return {
        **row,
        "queues": len(stats.queues),
        "messages": stats.count,
        "put_per_second": stats.put_per_second,
        "last_store_timestamp_ms": _newest(stats.queues),
    }


def _newest(queues: tuple[QueueStats, ...]) -> int | None:
    return max((one.last_store_timestamp_ms for one in queues), default=0) or None


async def queue_rows(admin: Admin, topic: str) -> list[dict[str, Any]]:
    """How far each queue reaches."""
    return [_queue_row(one) for one in (await admin.topic_stats(topic)).queues]


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


async def described(admin: Admin, topic: str) -> dict[str, Any]:
    """A topic's route, settings by broker, queues and groups."""
    route = await admin.topic_route(topic)
    configs = await admin.topic_config(topic, allow_partial=True)
    stats = await admin.topic_stats(topic, allow_partial=True)
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
        "clusters": await admin.topic_clusters(topic),
        "order_config": await admin.order_config(topic),
        "messages": stats.count,
        "put_per_second": stats.put_per_second,
        "brokers": rows,
        "queues": [_queue_row(one) for one in stats.queues],
        "groups": await admin.topic_consumers(topic, allow_partial=True),
    }
