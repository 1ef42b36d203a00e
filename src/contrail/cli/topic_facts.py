"""A question of the topic commands before they act."""

from __future__ import annotations

from contrail.cli.exits import NotFound
from contrail.client.blocking.admin import Admin
from contrail.errors import RouteMissing


def require_topic(client: Admin, topic: str) -> None:
    """Raises ``NotFound`` for a topic without a route; where creating it would not help."""
    try:
        client.topic_route(topic)
    except RouteMissing as error:
        raise NotFound(
            f"there is no topic {topic!r}, or no broker that has it is registered: `contrail topic "
            "list` shows those that are"
        ) from error
