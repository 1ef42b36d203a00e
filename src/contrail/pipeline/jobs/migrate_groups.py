"""A migration's consumer groups: where each begins in the target."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from pyspark.sql import SparkSession

from contrail.client.blocking.admin import Admin
from contrail.errors import ClientError
from contrail.model.group import SubscriptionGroupConfig
from contrail.pipeline.jobs.migrate_plan import group_place, queue_of
from contrail.pipeline.jobs.migrate_verify import FirstPlaces, Stretch, first_places


@dataclass(frozen=True)
class GroupMove:
    """What became of one group."""

    group: str
    # Empty for one that was not moved.
    places: Mapping[str, int]
    left: int = 0
    reason: str = ""

    def __str__(self) -> str:
        return self.reason or f"set on {len(self.places)} queues, {self.left} messages left"


@dataclass(frozen=True)
class GroupMover:
    """Maps the offsets of groups from a source topic to the copies in a target."""

    source: Admin
    target: Admin
    source_topic: str
    migration: str

    # The first message of each target queue that is older than the migration.
    older: Mapping[str, int] = field(default_factory=dict)

    def move(self, spark: SparkSession, groups: list[str], copied: Stretch) -> list[GroupMove]:
        """Set each group's offsets on every queue of the target; one that is busy there is left."""
        if not groups:
            return []
        busy = {group for group in groups if self._consumes(group, copied.topic)}
        idle = [group for group in groups if group not in busy]
        moves = [
            GroupMove(group, {}, reason="not set: its members already consume the target")
            for group in sorted(busy)
        ]
        return moves + (self._moved(spark, idle, copied) if idle else [])

    def _moved(self, spark: SparkSession, groups: list[str], copied: Stretch) -> list[GroupMove]:
        consumed = {group: self._consumed(group) for group in groups}
        firsts = first_places(spark, copied, self.migration, consumed)
        return [self._set(group, copied, firsts) for group in groups]

    def _consumed(self, group: str) -> dict[str, int]:
        """A queue on which the group never committed has all of its messages before it."""
        found = self.source.committed_offsets(group, self.source_topic)
        return {
            f"{queue.broker_name}:{queue.queue_id}": max(0, place or 0)
            for queue, place in found.items()
        }

    def _set(self, group: str, copied: Stretch, firsts: FirstPlaces) -> GroupMove:
        self._make(group)
        places = {}
        for name, end in copied.end.items():
            queue = queue_of(copied.topic, name)
            places[name] = group_place(
                unconsumed=firsts.unconsumed.get((group, name)),
                foreign=self.older.get(name, firsts.foreign.get(name)),
                queue_offset_max=end,
                known=self.target.committed(group, queue),
            )
            self.target.commit_offset(group, queue, places[name])
        return GroupMove(
            group, places, left=sum(copied.end[name] - place for name, place in places.items())
        )

    def _consumes(self, group: str, topic: str) -> bool:
        connections = self.target.group_connections(group)
        return connections.is_online and topic in connections.subscriptions

    def _make(self, group: str) -> None:
        """Another cluster may not know the group: it gets the settings that it has here."""
        if group in self.target.groups(internal=True):
            return
        try:
            config = next(iter(self.source.group_config(group).values()))
        except ClientError:
            # It committed offsets without ever having settings; brokers make it when it comes.
            return
        self.target.create_group(group, **_settings(config))


def _settings(config: SubscriptionGroupConfig) -> dict[str, Any]:
    return {one.name: getattr(config, one.name) for one in fields(config) if one.name != "group"}
