"""Changes of consumer groups: seek, skip a message, clone, settings, create, delete."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from contrail.client.admin import Admin
from contrail.client.admin_values import GroupConnections
from contrail.errors import ClientError, ConfigError, NotOnCluster, SomeFailed
from contrail.insight.changes.planned import (
    DONE,
    FAILED,
    Change,
    Hands,
    Outcome,
    Planned,
    command,
    flag,
    option,
    tried,
)
from contrail.insight.groups import is_known
from contrail.insight.words import time_text
from contrail.model.group import SubscriptionGroupConfig, check_not_system_group
from contrail.model.topic import RETRY_PREFIX, dlq_topic, retry_topic
from contrail.protocol.json_style import MessageQueue

EARLIEST, LATEST, TIME, OFFSET = "earliest", "latest", "time", "offset"


async def require_group(admin: Admin, group: str) -> None:
    """Raises ``NotOnCluster`` for a group without settings, offsets and members."""
    if not await is_known(admin, group):
        raise NotOnCluster(
            f"there is no consumer group {group!r}: `contrail group list` shows them"
        )


async def consumed_topics(admin: Admin, group: str, topic: str | None) -> list[str]:
    """The given topic, else all topics the group has offsets on, without its retry topic.

    Raises:
        RouteMissing: the given topic does not exist.
        NotOnCluster: no topic is given, and the group has consumed none.
    """
    if topic is not None:
        await admin.topic_route(topic)
        return [topic]
    topics = await admin.group_topics(group)
    found = [one for one in topics if not one.startswith(RETRY_PREFIX)]
    if not found:
        raise NotOnCluster(f"group {group!r} has not consumed anything yet: name a topic")
    return found


def member_words(connections: GroupConnections) -> str:
    count = len(connections.connections)
    return f"{count} member{'' if count == 1 else 's'} on line" if count else "nobody on line"


def queue_words(queue: MessageQueue) -> str:
    return f"{queue.topic} {queue.broker_name} queue {queue.queue_id}"


def _number(value: int | None) -> str:
    return "none" if value is None else f"{value:,}"


@dataclass(frozen=True)
class Seek(Change):
    """Move a group to another place, with its members on line or not."""

    group: str
    where: str
    # Milliseconds for a time, a queue offset for an offset.
    value: int = 0
    topic: str | None = None
    broker: str | None = None
    queue_id: int | None = None
    action = "seek group"

    @property
    def target(self) -> str:
        parts = [self.group, self.topic, self._queue_text(), f"to {self._place_text()}"]
        return " ".join(one for one in parts if one)

    def _queue_text(self) -> str | None:
        return None if self.broker is None else f"{self.broker}:{self.queue_id}"

    def _place_text(self) -> str:
        if self.where == TIME:
            return time_text(self.value)
        return str(self.value) if self.where == OFFSET else self.where

    async def plan(self, admin: Admin) -> Planned:
        queues = await self._queues(admin)
        members = await admin.group_connections(self.group, allow_partial=True)
        steps = []
        for queue in queues:
            before = await admin.committed(self.group, queue)
            after = await self._place(admin, queue)
            steps.append(f"{queue_words(queue)}: {_number(before)} -> {self._to(after)}")
        words = ["group", "seek", self.group, "--to", self._place_text()]
        words += [*option("--topic", self.topic), *option("--queue", self._queue_text())]
        title = f"group {self.group} ({member_words(members)}) goes to {self._place_text()}"
        return Planned(title, steps, _online_warning(members), command(words))

    def _to(self, after: int) -> str:
        # The end moves all the time: the plan is the end, whichever it is then.
        return "the end" if self.where == LATEST else _number(after)

    async def _queues(self, admin: Admin) -> list[MessageQueue]:
        await require_group(admin, self.group)
        if self.topic is None and (self.broker is not None or self.where == OFFSET):
            raise ConfigError("a queue and an offset need a topic: say whose queue is meant")
        topics = await consumed_topics(admin, self.group, self.topic)
        queues = [queue for topic in topics for queue in await admin.queues(topic)]
        if self.broker is None:
            if self.where == OFFSET and len(queues) > 1:
                raise ConfigError("an offset is a place in one queue: name the queue")
            return queues
        wanted = MessageQueue(topics[0], self.broker, self.queue_id or 0)
        if wanted not in queues:
            raise NotOnCluster(f"topic {topics[0]!r} has no queue {self._queue_text()}")
        return [wanted]

    async def _place(self, admin: Admin, queue: MessageQueue) -> int:
        if self.where == EARLIEST:
            return await admin.queue_offset_min(queue)
        if self.where == LATEST:
            return await admin.queue_offset_max(queue)
        if self.where == TIME:
            return max(0, await admin.search_offset(queue, self.value))
        return self.value

    async def run(self, hands: Hands) -> list[Outcome]:
        admin = hands.admin
        queues = await self._queues(admin)
        went: dict[MessageQueue, int] = {}
        problem = "its broker did not say that it did it"
        try:
            if self.broker is None and self.where != OFFSET:
                for topic in dict.fromkeys(queue.topic for queue in queues):
                    went |= await self._go_on_topic(admin, topic)
            # Brokers that leave offsets to clients skip queues that are not writable.
            for queue in queues:
                if queue not in went:
                    place = await self._place(admin, queue)
                    went |= await admin.reset_to_offset(self.group, queue, place)
        except ClientError as error:
            problem = str(error)
            if isinstance(error, SomeFailed) and isinstance(error.partial, dict):
                went |= error.partial
        return [
            Outcome(queue_words(queue), DONE, f"at {went[queue]:,}")
            if queue in went
            else Outcome(queue_words(queue), FAILED, problem)
            for queue in queues
        ]

    async def _go_on_topic(self, admin: Admin, topic: str) -> Mapping[MessageQueue, int]:
        if self.where == EARLIEST:
            return await admin.reset_to_begin(self.group, topic)
        if self.where == LATEST:
            return await admin.skip_to_end(self.group, topic)
        return await admin.reset_to_time(self.group, topic, self.value)


def _online_warning(members: GroupConnections) -> list[str]:
    if not members.is_online:
        return []
    return ["members are on line: messages that they hold now may still be handled once"]


@dataclass(frozen=True)
class Skip(Change):
    """Have a group go on behind the message at its offset on one queue."""

    group: str
    topic: str
    broker: str
    queue_id: int
    action = "skip message"

    @property
    def target(self) -> str:
        return f"{self.group} {self.topic} {self.broker}:{self.queue_id}"

    @property
    def _queue(self) -> MessageQueue:
        return MessageQueue(self.topic, self.broker, self.queue_id)

    async def _seek(self, admin: Admin) -> Seek:
        place = await admin.committed(self.group, self._queue)
        end = await admin.queue_offset_max(self._queue)
        if place is None or place >= end:
            raise NotOnCluster(f"group {self.group!r} has no message to skip on {self.target}")
        return Seek(self.group, OFFSET, place + 1, self.topic, self.broker, self.queue_id)

    async def plan(self, admin: Admin) -> Planned:
        await require_group(admin, self.group)
        seek = await self._seek(admin)
        planned = await seek.plan(admin)
        title = f"group {self.group} skips message {seek.value - 1:,} of {queue_words(self._queue)}"
        lost = "the skipped message is not handled by this group, unless it is sent again"
        return Planned(title, planned.steps, [lost, *planned.warnings], planned.command)

    async def run(self, hands: Hands) -> list[Outcome]:
        return await (await self._seek(hands.admin)).run(hands)


@dataclass(frozen=True)
class Clone(Change):
    """Copy a group's offsets to another; one that does not exist gets the same settings."""

    group: str
    destination: str
    topic: str | None = None
    action = "clone group"

    @property
    def target(self) -> str:
        return f"{self.group} to {self.destination}"

    async def plan(self, admin: Admin) -> Planned:
        topics = await self._topics(admin)
        steps = []
        for topic in topics:
            before = await admin.committed_offsets(self.destination, topic)
            for queue, place in (await admin.committed_offsets(self.group, topic)).items():
                if place is not None:
                    # The source may go on meanwhile: the plan names the queues.
                    steps.append(f"{queue_words(queue)}: {_number(before.get(queue))} -> copied")
        steps += [f"{self.destination} is created on {one}" for one in await self._missing(admin)]
        words = ["group", "clone", self.group, self.destination, *option("--topic", self.topic)]
        title = f"group {self.destination} gets the offsets of {self.group}"
        return Planned(title, steps, [], command(words))

    async def _topics(self, admin: Admin) -> list[str]:
        if self.group == self.destination:
            raise ConfigError(f"source and destination are both {self.group!r}: name another group")
        await require_group(admin, self.group)
        topics = await consumed_topics(admin, self.group, self.topic)
        members = await admin.group_connections(self.destination)
        if members.is_online:
            raise ClientError(
                f"group {self.destination!r} has {member_words(members)}, which would overwrite "
                "the offsets: stop them first"
            )
        return topics

    async def _missing(self, admin: Admin) -> dict[str, SubscriptionGroupConfig]:
        return {
            broker: table[self.group]
            for broker, table in (await admin.group_configs()).items()
            if self.group in table and self.destination not in table
        }

    async def run(self, hands: Hands) -> list[Outcome]:
        admin = hands.admin
        topics = await self._topics(admin)
        found = []
        for name, config in (await self._missing(admin)).items():
            work = admin.create_group(self.destination, broker=name, **_fields(config))
            found.append(await tried(f"{self.destination} on {name}", work, "created"))
        for topic in topics:
            work_on = admin.clone_offsets(self.group, self.destination, topic)
            found.append(await tried(f"offsets on {topic}", work_on))
        return found


def _fields(config: SubscriptionGroupConfig) -> dict[str, Any]:
    names = [name for name in SubscriptionGroupConfig.__slots__ if name != "group"]
    return {name: getattr(config, name) for name in names}


@dataclass(frozen=True)
class SetGroup(Change):
    """Create a group on every broker, or change the given settings of one."""

    group: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    action = "set group"

    @property
    def target(self) -> str:
        told = [f"{name}={value}" for name, value in self.settings.items()]
        return " ".join([self.group, *told])

    async def plan(self, admin: Admin) -> Planned:
        check_not_system_group(self.group)
        tables = await admin.group_configs()
        steps = []
        for broker, table in sorted(tables.items()):
            if self.group not in table:
                steps.append(f"{self.group} is created on {broker}")
                continue
            for name, value in self.settings.items():
                before = getattr(table[self.group], name)
                steps.append(f"{broker}: {name} {before} -> {value}")
        given = self.settings
        words = [
            *("group", "create", self.group),
            *option("--retry-max", given.get("retry_count_max")),
            *flag("orderly", given.get("consume_message_orderly")),
            *flag("consume", given.get("consume_enable")),
            *flag("broadcast", given.get("consume_broadcast_enable")),
        ]
        return Planned(f"settings of group {self.group}", steps, [], command(words))

    async def run(self, hands: Hands) -> list[Outcome]:
        admin = hands.admin
        found = []
        for broker, table in sorted((await admin.group_configs()).items()):
            make = admin.update_group if self.group in table else admin.create_group
            found.append(await tried(broker, make(self.group, broker=broker, **self.settings)))
        return found


@dataclass(frozen=True)
class DeleteGroup(Change):
    """Delete a group's settings and offsets; with ``topics`` its retry and dead-letter topics."""

    group: str
    topics: bool = False
    action = "delete group"

    @property
    def target(self) -> str:
        return self.group

    async def plan(self, admin: Admin) -> Planned:
        members = await self._members(admin)
        behind = await admin.lag(self.group, allow_partial=True)
        read = [topic for topic in behind.by_topic if not topic.startswith(RETRY_PREFIX)]
        tables = await admin.group_configs()
        steps = [f"its settings on {one} go" for one in sorted(tables) if self.group in tables[one]]
        steps.append(f"its offsets on {', '.join(read) or 'no topic'} are lost")
        if self.topics:
            names = (retry_topic(self.group), dlq_topic(self.group))
            steps += [f"topic {name} is deleted with its messages" for name in names]
        words = ["group", "delete", self.group, *(["--topics"] if self.topics else [])]
        title = f"group {self.group} is deleted ({member_words(members)})"
        return Planned(title, steps, [], command(words))

    async def _members(self, admin: Admin) -> GroupConnections:
        check_not_system_group(self.group)
        await require_group(admin, self.group)
        members = await admin.group_connections(self.group)
        if members.is_online:
            raise ClientError(
                f"group {self.group!r} has {member_words(members)}, which would create it again: "
                "stop them first"
            )
        return members

    async def run(self, hands: Hands) -> list[Outcome]:
        await self._members(hands.admin)
        work = hands.admin.delete_group(self.group, remove_offsets=True, remove_topics=self.topics)
        return [await tried(self.group, work, "deleted")]
