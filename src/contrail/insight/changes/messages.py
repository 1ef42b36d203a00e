"""Changes that send: a new message, a stored one again, one that a member is to consume now."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from contrail.client.admin import Admin
from contrail.client.message import Message, ReceivedMessage, SendReceipt
from contrail.client.reserved_names import RESERVED_NAMES
from contrail.errors import ClientError, NotOnCluster
from contrail.insight.changes.planned import (
    DONE,
    FAILED,
    Change,
    Hands,
    Outcome,
    Planned,
    command,
    option,
)
from contrail.model.properties import KEYS, SHARDING_KEY, TAGS
from contrail.model.topic import check_not_system_topic

_BODY_SHOWN = 60


def message_copy(stored: ReceivedMessage, topic: str, properties: Mapping[str, str]) -> Message:
    """``stored`` as producers take it; the copy gets an id of its own."""
    named = {*RESERVED_NAMES, SHARDING_KEY}
    return Message(
        topic,
        stored.body,
        tags=properties.get(TAGS),
        keys=properties.get(KEYS, "").split(),
        properties={name: value for name, value in properties.items() if name not in named},
        sharding_key=properties.get(SHARDING_KEY),
        flag=stored.flag,
    )


def receipt_words(receipt: SendReceipt) -> str:
    queue = receipt.queue
    place = f"{queue.broker_name}/{queue.queue_id}@{receipt.queue_offset}"
    return f"{queue.topic} {place} {receipt.message_id}"


async def sent(hands: Hands, message: Message) -> Outcome:
    """The outcome of one send."""
    try:
        receipt = await hands.send(message)
    except ClientError as error:
        return Outcome(message.topic, FAILED, str(error))
    return Outcome(message.topic, DONE, receipt_words(receipt))


@dataclass(frozen=True)
class SendMessage(Change):
    """Send one message."""

    topic: str
    body: bytes
    tags: str | None = None
    keys: Sequence[str] = ()
    properties: Mapping[str, str] = field(default_factory=dict)
    action = "send message"

    @property
    def target(self) -> str:
        return f"{self.topic} {len(self.body)} bytes"

    async def plan(self, admin: Admin) -> Planned:
        check_not_system_topic(self.topic)
        await admin.topic_route(self.topic)
        steps = [f"a message of {len(self.body):,} bytes is sent to topic {self.topic}"]
        steps += [f"tag {self.tags}"] if self.tags else []
        steps += [f"keys {' '.join(self.keys)}"] if self.keys else []
        words = ["send", self.topic, *option("--tags", self.tags)]
        words += [word for key in self.keys for word in ("--keys", key)]
        pairs = self.properties.items()
        words += [word for name, value in pairs for word in ("--property", f"{name}={value}")]
        try:
            text = self.body.decode()
        except UnicodeDecodeError:
            return Planned(f"send to {self.topic}", steps)
        return Planned(f"send to {self.topic}", steps, [], command([*words, "--", text]))

    async def run(self, hands: Hands) -> list[Outcome]:
        message = Message(
            self.topic,
            self.body,
            tags=self.tags,
            keys=list(self.keys),
            properties=dict(self.properties),
        )
        return [await sent(hands, message)]


@dataclass(frozen=True)
class Resend(Change):
    """Send a stored message again, as it is or with another body; it gets an id of its own."""

    topic: str
    message_id: str
    body: bytes | None = None
    to_topic: str | None = None
    action = "resend message"

    @property
    def target(self) -> str:
        edited = "" if self.body is None else " edited"
        return f"{self.topic} {self.message_id} to {self._to}{edited}"

    @property
    def _to(self) -> str:
        return self.to_topic or self.topic

    async def _message(self, admin: Admin) -> ReceivedMessage:
        found = await admin.message(self.topic, self.message_id)
        if found is None:
            raise NotOnCluster(f"topic {self.topic!r} has no message {self.message_id!r}")
        return found

    async def plan(self, admin: Admin) -> Planned:
        check_not_system_topic(self._to)
        await admin.topic_route(self._to)
        stored = await self._message(admin)
        size = len(stored.body if self.body is None else self.body)
        what = "as it is" if self.body is None else "with the edited body"
        steps = [f"a copy of {self.message_id} goes to topic {self._to}, {what}: {size:,} bytes"]
        warning = "groups that handled the first one handle the copy too"
        return Planned(f"send message {self.message_id} again", steps, [warning])

    async def run(self, hands: Hands) -> list[Outcome]:
        stored = await self._message(hands.admin)
        copy = message_copy(stored, self._to, stored.properties)
        if self.body is not None:
            copy.body = self.body
        return [await sent(hands, copy)]


@dataclass(frozen=True)
class RunOnMember(Change):
    """Have one member of a group consume a message now, outside of its queue."""

    topic: str
    message_id: str
    group: str
    client_id: str
    action = "consume directly"

    @property
    def target(self) -> str:
        return f"{self.message_id} by {self.client_id} of {self.group}"

    async def _message(self, admin: Admin) -> ReceivedMessage:
        found = await admin.message(self.topic, self.message_id)
        if found is None:
            raise NotOnCluster(f"topic {self.topic!r} has no message {self.message_id!r}")
        return found

    async def plan(self, admin: Admin) -> Planned:
        await self._message(admin)
        members = await admin.group_connections(self.group)
        if self.client_id not in {one.client_id for one in members.connections}:
            raise NotOnCluster(f"group {self.group!r} has no member {self.client_id!r} on line")
        step = f"client {self.client_id} of group {self.group} handles message {self.message_id}"
        return Planned("run on one member", [step], ["the group's offset does not move by it"])

    async def run(self, hands: Hands) -> list[Outcome]:
        try:
            stored = await self._message(hands.admin)
            told = await hands.admin.consume_directly(self.group, self.client_id, stored)
        except ClientError as error:
            return [Outcome(self.client_id, FAILED, str(error))]
        return [Outcome(self.client_id, DONE, str(told))]
