"""Changes of topics: create, grow, shrink, delete. No step loses a message that a group waits for.

Growing makes new queues readable before producers write to them. Shrinking takes the write
permission of the last queues first; they stay readable until a later run finds them consumed.
"""

from __future__ import annotations

from dataclasses import dataclass

from contrail.client.admin import Admin
from contrail.errors import ConfigError
from contrail.insight.changes.planned import (
    FAILED,
    Change,
    Hands,
    Outcome,
    Planned,
    command,
    tried,
)
from contrail.model.topic import TopicConfig, check_not_system_topic
from contrail.protocol.json_style import MessageQueue


@dataclass(frozen=True)
class CreateTopic(Change):
    """Create a topic on every broker; an existing one is left as it is."""

    topic: str
    queues: int
    order: bool = False
    kind: str | None = None
    action = "create topic"

    @property
    def target(self) -> str:
        return f"{self.topic} queues={self.queues}"

    async def plan(self, admin: Admin) -> Planned:
        check_not_system_topic(self.topic)
        masters = [one for one in await admin.brokers() if one.is_master]
        for one in masters:
            if self.topic in await admin.topic_configs(one.address):
                raise ConfigError(f"topic {self.topic!r} is on {one.broker_name} already: grow it")
        steps = [f"{self.topic} on {one.broker_name}: {self.queues} queues" for one in masters]
        words = ["topic", "create", self.topic, "--queues", str(self.queues)]
        words += ["--order"] if self.order else []
        words += [] if self.kind is None else ["--type", self.kind]
        return Planned(f"topic {self.topic} is created", steps, [], command(words))

    async def run(self, hands: Hands) -> list[Outcome]:
        attributes = {} if self.kind is None else {"message.type": self.kind}
        found = []
        for one in await hands.admin.brokers():
            if one.is_master:
                work = hands.admin.create_topic(
                    self.topic,
                    queues=self.queues,
                    order=self.order,
                    attributes=attributes,
                    broker=one.broker_name,
                )
                found.append(await tried(one.broker_name, work, f"{self.queues} queues"))
        return found


@dataclass(frozen=True)
class GrowTopic(Change):
    """Give a topic more queues: consumers may read them first, then producers write to them."""

    topic: str
    queues: int
    action = "grow topic"

    @property
    def target(self) -> str:
        return f"{self.topic} queues={self.queues}"

    async def plan(self, admin: Admin) -> Planned:
        configs = await self._configs(admin)
        steps = [
            f"{self.topic} on {name}: {one.write_queue_count} -> {self.queues} queues, "
            "first to read, then to write"
            for name, one in configs.items()
        ]
        ordered = any(one.order for one in configs.values())
        warnings = ["keys of this ordered topic go to other queues from then on"] if ordered else []
        words = ["topic", "grow", self.topic, "--queues", str(self.queues)]
        return Planned(f"topic {self.topic} grows", steps, warnings, command(words))

    async def _configs(self, admin: Admin) -> dict[str, TopicConfig]:
        check_not_system_topic(self.topic)
        configs = dict(sorted((await admin.topic_config(self.topic)).items()))
        for name, one in configs.items():
            if self.queues < max(one.read_queue_count, one.write_queue_count):
                raise ConfigError(
                    f"topic {self.topic!r} has {one.read_queue_count} queues on {name}, more than "
                    f"{self.queues}: shrink it"
                )
        return configs

    async def run(self, hands: Hands) -> list[Outcome]:
        admin = hands.admin
        names = list(await self._configs(admin))
        found = []
        for name in names:
            work = admin.update_topic(self.topic, read_queues=self.queues, broker=name)
            found.append(await tried(f"{name}, to read", work))
        if any(one.outcome == FAILED for one in found):
            return found
        for name in names:
            work = admin.update_topic(self.topic, write_queues=self.queues, broker=name)
            found.append(await tried(f"{name}, to write", work))
        return found


@dataclass(frozen=True)
class ShrinkTopic(Change):
    """Take queues away: first for writing; a later run, once they are consumed, for reading."""

    topic: str
    queues: int
    action = "shrink topic"

    @property
    def target(self) -> str:
        return f"{self.topic} queues={self.queues}"

    async def plan(self, admin: Admin) -> Planned:
        configs = await self._configs(admin)
        wide = {name for name, one in configs.items() if one.write_queue_count > self.queues}
        left = await self._left(admin, configs)
        steps, warnings = [], []
        for name, one in configs.items():
            if name in wide:
                steps.append(
                    f"{self.topic} on {name}: {one.write_queue_count} -> {self.queues} to write"
                )
            elif not left and not wide:
                steps.append(
                    f"{self.topic} on {name}: {one.read_queue_count} -> {self.queues} to read"
                )
        if wide:
            warnings.append("the last queues stay readable: plan it again when they are consumed")
        elif left:
            raise ConfigError(f"messages are left in the last queues: {'; '.join(left)}")
        words = ["topic", "shrink", self.topic, "--queues", str(self.queues)]
        return Planned(f"topic {self.topic} shrinks", steps, warnings, command(words))

    async def _configs(self, admin: Admin) -> dict[str, TopicConfig]:
        check_not_system_topic(self.topic)
        configs = {
            name: one
            for name, one in sorted((await admin.topic_config(self.topic)).items())
            if max(one.read_queue_count, one.write_queue_count) > self.queues
        }
        if not configs:
            raise ConfigError(f"topic {self.topic!r} has {self.queues} queues or fewer already")
        return configs

    async def _left(self, admin: Admin, configs: dict[str, TopicConfig]) -> list[str]:
        """The messages that groups have yet to read in the queues to remove, by their offsets."""
        groups: list[str | None] = [*await admin.topic_consumers(self.topic)] or [None]
        found = []
        for queue in self._going(configs):
            low, high = await admin.queue_offset_min(queue), await admin.queue_offset_max(queue)
            for group in groups if high > low else []:
                begin = None if group is None else await admin.committed(group, queue)
                messages = high - max(low, begin or 0)
                if messages > 0:
                    who = "no group consumes the topic" if group is None else f"group {group}"
                    place = f"queue {queue.queue_id} on {queue.broker_name}"
                    found.append(f"{place}: {messages:,} messages left ({who})")
        return sorted(found)

    def _going(self, configs: dict[str, TopicConfig]) -> list[MessageQueue]:
        return [
            MessageQueue(self.topic, name, queue_id)
            for name, one in configs.items()
            for queue_id in range(self.queues, max(one.read_queue_count, one.write_queue_count))
        ]

    async def run(self, hands: Hands) -> list[Outcome]:
        admin = hands.admin
        configs = await self._configs(admin)
        wide = [name for name, one in configs.items() if one.write_queue_count > self.queues]
        found = []
        for name in wide:
            work = admin.update_topic(self.topic, write_queues=self.queues, broker=name)
            found.append(await tried(f"{name}, to write", work))
        if wide:
            return found
        before = await self._ends(admin, configs)
        for name in configs:
            work = admin.update_topic(self.topic, read_queues=self.queues, broker=name)
            found.append(await tried(f"{name}, to read", work))
        if await self._ends(admin, configs) == before:
            return found
        # A producer with an older route wrote meanwhile: its message must not be out of reach.
        for name, one in configs.items():
            await admin.update_topic(self.topic, read_queues=one.read_queue_count, broker=name)
        told = "messages came just then: the queues may be read again, plan it anew"
        return [Outcome(name, FAILED, told) for name in configs]

    async def _ends(self, admin: Admin, configs: dict[str, TopicConfig]) -> int:
        return sum([await admin.queue_offset_max(queue) for queue in self._going(configs)])


@dataclass(frozen=True)
class DeleteTopic(Change):
    """Delete a topic with its messages."""

    topic: str
    action = "delete topic"

    @property
    def target(self) -> str:
        return self.topic

    async def plan(self, admin: Admin) -> Planned:
        check_not_system_topic(self.topic)
        configs = await admin.topic_config(self.topic)
        groups = await admin.topic_consumers(self.topic)
        stats = await admin.topic_stats(self.topic)
        steps = [f"{self.topic} is deleted on {name}" for name in sorted(configs)]
        warnings = [f"its {stats.count:,} messages are lost"] if stats.count else []
        if groups:
            warnings.append(f"groups consume it: {', '.join(groups)}")
        title = f"topic {self.topic} is deleted"
        return Planned(title, steps, warnings, command(["topic", "delete", self.topic]))

    async def run(self, hands: Hands) -> list[Outcome]:
        return [await tried(self.topic, hands.admin.delete_topic(self.topic), "deleted")]
