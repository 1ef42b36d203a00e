"""A migration's consumer groups: sets the offsets of each in the target."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from pyspark.sql import SparkSession

from contrail.client.blocking.admin import Admin
from contrail.errors import ClientError, JobFailed
from contrail.model.group import SubscriptionGroupConfig
from contrail.pipeline.jobs.checkpoints import Checkpoint
from contrail.pipeline.jobs.migrate_plan import group_place, queue_of
from contrail.pipeline.jobs.migrate_verify import FirstPlaces, Stretch, first_places


@dataclass(frozen=True)
class GroupMove:
    """The outcome of one group."""

    group: str
    # Empty for a group that was not moved.
    places: Mapping[str, int]
    left: int = 0
    reason: str = ""

    def __str__(self) -> str:
        return self.reason or f"set on {len(self.places)} queues, {self.left} messages left"


@dataclass(frozen=True)
class GroupMover:
    """Maps the offsets of groups from a source topic to the copies in a target, each once.

    A run may end between any two steps. The steps and their notes in the checkpoint:

        1  every group is known to every broker of the target
        2  ``group_places``: each queue's planned consumer offset, and the one before
        3  the offsets are set
        4  ``groups_set``: the group is done, and later runs leave it unchanged

    A run that finds a group between 2 and 4 sets only the queues whose offsets are the noted ones
    or smaller: on the others the group has consumed since.
    """

    source: Admin
    target: Admin
    source_topic: str
    migration: str
    checkpoint: Checkpoint

    # The first message from before the migration, by target queue.
    older: Mapping[str, int] = field(default_factory=dict)

    def move(self, spark: SparkSession, groups: list[str], copied: Stretch) -> list[GroupMove]:
        """Set each group's offsets on every queue of the target, unless its members consume it.

        Raises:
            JobFailed: a broker refused an offset; offsets that are set stay set.
        """
        already = set(self.checkpoint.notes["groups_set"])
        waiting = [group for group in groups if group not in already]
        if not waiting:
            return []
        busy = {group for group in waiting if self._consumes(group, copied.topic)}
        idle = [group for group in waiting if group not in busy]
        moves = [GroupMove(group, {}, reason=self._why_left(group)) for group in sorted(busy)]
        if idle:
            self._make_known(idle, {queue_of("", name).broker_name for name in copied.end})
            self._plan(spark, [one for one in idle if one not in self._noted()], copied)
        return moves + [self._moved(group, copied) for group in idle]

    def _noted(self) -> dict[str, dict[str, Any]]:
        """Unfinished plans of earlier runs: by group and queue, [offset, offset before]."""
        return dict(self.checkpoint.notes.get("group_places", {}))

    def _why_left(self, group: str) -> str:
        if group in self._noted():
            return (
                "set in part by a run before, and its members already consume the target: stop "
                "them and run again"
            )
        return "not set: its members already consume the target"

    def _make_known(self, groups: list[str], brokers: set[str]) -> None:
        """Create every group at every broker of the target, which refuses unknown groups."""
        known = self.target.group_configs()
        for group in groups:
            missing = sorted(one for one in brokers if group not in known.get(one, {}))
            if missing:
                settings = self._settings_of(group, known)
                for broker in missing:
                    self.target.create_group(group, broker=broker, **settings)

    def _settings_of(
        self, group: str, known: Mapping[str, Mapping[str, SubscriptionGroupConfig]]
    ) -> dict[str, Any]:
        """The group's settings in the target, else in the source, else the defaults."""
        there = [configs[group] for _, configs in sorted(known.items()) if group in configs]
        if there:
            return _settings(there[0])
        try:
            return _settings(next(iter(self.source.group_config(group).values())))
        except ClientError:
            # The group committed offsets without ever having settings.
            return {}

    def _plan(self, spark: SparkSession, groups: list[str], copied: Stretch) -> None:
        """Note each group's planned offset on each queue."""
        if not groups:
            return
        consumed = {group: self._consumed(group) for group in groups}
        firsts = first_places(spark, copied, self.migration, consumed)
        planned = {group: self._places(group, copied, firsts) for group in groups}
        self.checkpoint.note(group_places={**self._noted(), **planned})

    def _consumed(self, group: str) -> dict[str, int]:
        """The group's offsets; a queue without a commit counts from its first message."""
        found = self.source.committed_offsets(group, self.source_topic)
        return {
            f"{queue.broker_name}:{queue.queue_id}": max(0, place or 0)
            for queue, place in found.items()
        }

    def _places(
        self, group: str, copied: Stretch, firsts: FirstPlaces
    ) -> dict[str, tuple[int, int | None]]:
        places = {}
        for name, end in copied.end.items():
            known = self.target.committed(group, queue_of(copied.topic, name))
            place = group_place(
                unconsumed=firsts.unconsumed.get((group, name)),
                foreign=self.older.get(name, firsts.foreign.get(name)),
                queue_offset_max=end,
                known=known,
            )
            places[name] = (place, known)
        return places

    def _moved(self, group: str, copied: Stretch) -> GroupMove:
        places: dict[str, int] = {}
        planned = self._noted()[group]
        for name, (place, before) in planned.items():
            queue = queue_of(copied.topic, name)
            try:
                known = self.target.committed(group, queue)
                if known is None or known == before or known < place:
                    self.target.commit_offset(group, queue, place)
                    known = place
            except ClientError as error:
                raise JobFailed(
                    f"group {group!r} is set on {len(places)} of {len(planned)} queues of "
                    f"{copied.topic!r}: {error}. Run the same command again when that is mended: "
                    "queues that are set stay so"
                ) from error
            places[name] = known
        self._note_set(group)
        left = sum(max(0, copied.end[name] - place) for name, place in places.items())
        return GroupMove(group, places, left=left)

    def _note_set(self, group: str) -> None:
        unfinished = {name: places for name, places in self._noted().items() if name != group}
        done = sorted({*self.checkpoint.notes["groups_set"], group})
        self.checkpoint.note(groups_set=done, group_places=unfinished)

    def _consumes(self, group: str, topic: str) -> bool:
        connections = self.target.group_connections(group)
        return connections.is_online and topic in connections.subscriptions


def _settings(config: SubscriptionGroupConfig) -> dict[str, Any]:
    return {one.name: getattr(config, one.name) for one in fields(config) if one.name != "group"}
