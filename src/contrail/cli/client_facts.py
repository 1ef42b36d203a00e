"""The connected clients as rows: the same for tables and for JSON."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from typing import Any

from contrail.client.admin_values import ClientConnection
from contrail.client.blocking.admin import Admin
from contrail.model.subscription import SubscriptionData
from contrail.protocol.bodies.running_info import ConsumerRunningInfo
from contrail.protocol.client_versions import client_version_name
from contrail.protocol.json_style import MessageQueue

_WORKERS = 8
PRODUCER = "producer"
CONSUMER = "consumer"


@dataclass(frozen=True, slots=True)
class Client:
    """A client in one group."""

    kind: str
    group: str
    connection: ClientConnection
    details: dict[str, Any] = field(default_factory=dict)

    def row(self) -> dict[str, Any]:
        one = self.connection
        return {
            "kind": self.kind,
            "group": self.group,
            "client_id": one.client_id,
            "address": one.address,
            "language": one.language,
            "version": one.version,
            "release": client_version_name(one.version),
            "brokers": list(one.broker_names),
        }


def clients(admin: Admin, group: str | None = None) -> list[Client]:
    """Every client of every group, or of one."""
    found = [
        Client(PRODUCER, one.group, connection)
        for one in admin.producers(allow_partial=True)
        for connection in one.connections
        if group in (None, one.group)
    ]
    names = admin.groups(allow_partial=True) if group is None else [group]
    with ThreadPoolExecutor(_WORKERS) as pool:
        members = pool.map(lambda name: admin.group_connections(name, allow_partial=True), names)
        for one in members:
            found += [
                Client(
                    CONSUMER,
                    one.group,
                    connection,
                    {
                        "message_model": one.message_model,
                        "consume_type": one.consume_type,
                        "consume_from_where": one.consume_from_where,
                    },
                )
                for connection in one.connections
            ]
    return found


def running_facts(info: ConsumerRunningInfo) -> dict[str, Any]:
    """A consumer's own view, for JSON."""
    return {
        "subscriptions": [_subscription(one) for one in info.subscriptions],
        "queues": [
            {**_queue(queue), **asdict(info.queues[queue])} for queue in sorted(info.queues)
        ],
        "rates": [{"topic": topic, **asdict(one)} for topic, one in sorted(info.rates.items())],
        "properties": dict(sorted(info.properties.items())),
        "stack": info.jstack,
    }


def _queue(queue: MessageQueue) -> dict[str, Any]:
    return {"topic": queue.topic, "broker": queue.broker_name, "queue_id": queue.queue_id}


def _subscription(one: SubscriptionData) -> dict[str, Any]:
    return {
        "topic": one.topic,
        "expression": one.sub_string,
        "expression_type": one.expression_type,
    }
