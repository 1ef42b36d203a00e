"""The connected clients of a cluster: producers by group, consumers by their groups."""

from __future__ import annotations

from typing import Any

from contrail.client.admin import Admin
from contrail.client.admin_values import ClientConnection, GroupConnections
from contrail.insight.asking import gathered
from contrail.protocol.client_versions import client_version_name

PRODUCER = "producer"
CONSUMER = "consumer"


async def client_rows(admin: Admin, groups: list[str]) -> list[dict[str, Any]]:
    """A row for each client in each group; ``groups`` are those that may have members."""
    rows = [
        _row(PRODUCER, one.group, connection)
        for one in await admin.producers(allow_partial=True)
        for connection in one.connections
    ]

    async def ask(group: str) -> GroupConnections:
        return await admin.group_connections(group, allow_partial=True)

    for one in await gathered(ask, groups):
        rows += [_row(CONSUMER, one.group, connection) for connection in one.connections]
    return rows


def _row(kind: str, group: str, one: ClientConnection) -> dict[str, Any]:
    return {
        "kind": kind,
        "group": group,
        "client_id": one.client_id,
        "address": one.address,
        "language": one.language,
        "version": one.version,
        "release": client_version_name(one.version),
        "brokers": list(one.broker_names),
    }
