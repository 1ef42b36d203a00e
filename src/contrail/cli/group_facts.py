"""Questions of the group commands before they act, and their words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from contrail.cli.exits import NotFound
from contrail.client.admin_values import GroupConnections
from contrail.client.blocking.admin import Admin
from contrail.model.topic import RETRY_PREFIX


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


def member_words(connections: GroupConnections) -> str:
    count = len(connections.connections)
    return f"{count} member{'' if count == 1 else 's'} on line" if count else "nobody on line"


def total(rows: Iterable[Mapping[str, Any]], name: str) -> int:
    return sum(row[name] or 0 for row in rows)
