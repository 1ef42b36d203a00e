"""All commands, by what they are about."""

from __future__ import annotations

from contrail.cli.mqadmin import (
    brokers,
    browsing,
    clusters,
    consumers,
    export,
    group_changes,
    namesrv,
    offsets,
    queries,
    sending,
    stats,
    topic_changes,
    topics,
)
from contrail.cli.mqadmin.options import Command

FAMILIES: dict[str, tuple[Command, ...]] = {
    "Topics": (*topics.COMMANDS, *topic_changes.COMMANDS),
    "Consumer groups and clients": (*consumers.COMMANDS, *group_changes.COMMANDS),
    "Offsets": offsets.COMMANDS,
    "Messages": (*queries.COMMANDS, *browsing.COMMANDS, *sending.COMMANDS),
    "Clusters and brokers": (*clusters.COMMANDS, *brokers.COMMANDS, *stats.COMMANDS),
    "NameServers": namesrv.COMMANDS,
    "Export": export.COMMANDS,
}
