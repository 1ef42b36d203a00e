"""The connected clients of each consumer group, and its subscriptions.

A group exists while at least one of its clients is connected. Its settings are those of the last
heartbeat, whichever client sent it; its subscriptions are shared by all of its clients.

Consumers of the oldest kind send no subscriptions in heartbeats, but one with every pull: those
are remembered for a while, so that operators see them too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType

from contrail.broker.state.client_channels import EXPIRED_AFTER_MS, MEMBERS_MAX, ClientChannel
from contrail.broker.state.shares import THIS_HOST, Shares
from contrail.broker.state.watched import Watched
from contrail.model.subscription import SubscriptionData
from contrail.protocol.bodies.heartbeat import (
    GROUPS_MAX,
    ConsumeFromWhere,
    ConsumerData,
    ConsumeType,
    MessageModel,
)
from contrail.wire.peer import Peer

PULLED_EXPIRED_AFTER_MS = 600_000
FINGERPRINTS_MAX = 20_000
PULLED_MAX = 20_000
PULLED_CHARACTERS_MAX = 1024
"""How many subscriptions of pulls are remembered, and how long one of them may be."""
SUBSCRIBED_BYTES_MAX = 64 << 20
"""The bytes that subscriptions of all groups may take; a quarter of it from one address."""
_SUBSCRIPTION_BYTES = 256
# An expression is kept compiled.
_EXPRESSION_BYTES = 4096


class ConsumerGroup:
    """One group with connected clients."""

    def __init__(self, data: ConsumerData) -> None:
        self.name = data.group
        self.consume_type: ConsumeType = data.consume_type
        self.message_model: MessageModel = data.message_model
        self.consume_from_where: ConsumeFromWhere = data.consume_from_where
        self.channels: dict[Peer, ClientChannel] = {}
        # The bytes of its subscriptions, and the address that they count for.
        self.byte_count = 0
        self.owner = THIS_HOST
        self._subscriptions: dict[str, SubscriptionData] = {}
        self.subscriptions: Mapping[str, SubscriptionData] = MappingProxyType(self._subscriptions)

    @property
    def broadcasts(self) -> bool:
        return self.message_model is MessageModel.BROADCASTING

    def subscription(self, topic: str) -> SubscriptionData | None:
        return self._subscriptions.get(topic)

    def client_ids(self) -> list[str]:
        """One for each connection, in the order they came."""
        return [channel.client_id for channel in self.channels.values()]

    def channel_of(self, client_id: str) -> ClientChannel | None:
        found = (c for c in self.channels.values() if c.client_id == client_id)
        return next(found, None)

    def take_channel(self, channel: ClientChannel, data: ConsumerData) -> bool:
        """Note a heartbeat; True if its connection is new to the group."""
        self.consume_type = data.consume_type
        self.message_model = data.message_model
        self.consume_from_where = data.consume_from_where
        known = self.channels.get(channel.peer)
        if known is not None:
            known.refresh(channel)
            return False
        self.channels[channel.peer] = channel
        return True

    def take_subscriptions(self, subscriptions: Iterable[SubscriptionData]) -> bool:
        """Adopt a heartbeat's subscriptions; True if the set of topics changed.

        A topic's subscription is replaced only by a newer one, because two clients of a group may
        disagree while one of them is being rolled out.
        """
        before = set(self._subscriptions)
        topics = set()
        for subscription in subscriptions:
            topics.add(subscription.topic)
            old = self._subscriptions.get(subscription.topic)
            if old is None or subscription.sub_version > old.sub_version:
                self._subscriptions[subscription.topic] = subscription
        for topic in before - topics:
            del self._subscriptions[topic]
        return before != topics


class ConsumerTable(Watched):
    """The groups that have connected clients. ``epoch`` grows whenever one may have changed."""

    def __init__(
        self, *, members_max: int = MEMBERS_MAX, bytes_max: int = SUBSCRIBED_BYTES_MAX
    ) -> None:
        super().__init__()
        self.shares = Shares(members_max, members_max // 4)
        self.bytes = Shares(bytes_max, bytes_max // 4)
        self._groups: dict[str, ConsumerGroup] = {}
        self._groups_of: dict[Peer, set[str]] = {}
        self._fingerprints: dict[str, int] = {}
        self._pulled: dict[tuple[str, str], tuple[SubscriptionData, int]] = {}
        self.groups: Mapping[str, ConsumerGroup] = MappingProxyType(self._groups)

    def find(self, group: str) -> ConsumerGroup | None:
        return self._groups.get(group)

    def subscription(self, group: str, topic: str) -> SubscriptionData | None:
        """The subscription of a group's clients to a topic, or else that of its last pull."""
        found = self._groups.get(group)
        said = None if found is None else found.subscription(topic)
        return said or self._pulled_subscription(group, topic)

    def remember_pulled(
        self, group: str, topic: str, subscription: SubscriptionData, now_ms: int
    ) -> None:
        """Note the subscription that came with a pull; the oldest one makes room."""
        if len(subscription.sub_string) > PULLED_CHARACTERS_MAX:
            return
        if len(self._pulled) >= PULLED_MAX and (group, topic) not in self._pulled:
            del self._pulled[next(iter(self._pulled))]
        self._pulled[group, topic] = (subscription, now_ms)

    def _pulled_subscription(self, group: str, topic: str) -> SubscriptionData | None:
        pulled = self._pulled.get((group, topic))
        return None if pulled is None else replace(pulled[0], sub_version=pulled[1])

    def subscribes(self, group: str, topic: str) -> bool:
        """Whether the group wants the topic, or its subscriptions are unknown."""
        found = self._groups.get(group)
        if found is None or not found.subscriptions or (group, topic) in self._pulled:
            return True
        return found.subscription(topic) is not None

    def groups_of_topic(self, topic: str) -> set[str]:
        return {
            name for name, group in self._groups.items() if group.subscription(topic) is not None
        }

    def channel_of(self, group: str, client_id: str) -> ClientChannel | None:
        found = self._groups.get(group)
        return None if found is None else found.channel_of(client_id)

    def client_at(self, group: str, address: str) -> str | None:
        """The client of a group's connection from an ``ip:port``."""
        found = self._groups.get(group)
        if found is None:
            return None
        ids = (c.client_id for peer, c in found.channels.items() if peer.address == address)
        return next(ids, None)

    def refusal(
        self, data: ConsumerData, channel: ClientChannel, *, with_subscriptions: bool
    ) -> str | None:
        """Why one group of a heartbeat is not taken; None if there is room for it."""
        group, owner = self._groups.get(data.group), channel.owner
        if group is None or channel.peer not in group.channels:
            if len(self._groups_of.get(channel.peer, ())) >= GROUPS_MAX:
                return f"a connection consumes for at most {GROUPS_MAX} groups"
            if self.shares.room(owner) <= 0:
                return (
                    f"{self.shares.total} consumers are connected, each counted for each of its "
                    f"groups: at most {self.shares.total_max}, {self.shares.share_max} of one "
                    "address"
                )
        if not with_subscriptions:
            return None
        before = group.byte_count if group is not None and group.owner == owner else 0
        byte_count = _byte_count(data.subscriptions)
        if byte_count - before > self.bytes.room(owner):
            return (
                f"its subscriptions take {byte_count} bytes, and those of all groups may take "
                f"{self.bytes.total_max}, those of one address {self.bytes.share_max}"
            )
        return None

    def client_ids(self, group: str) -> set[str]:
        """The clients of a group; empty when none is connected."""
        found = self._groups.get(group)
        return set() if found is None else set(found.client_ids())

    def register(
        self, data: ConsumerData, channel: ClientChannel, *, with_subscriptions: bool = True
    ) -> bool:
        """Take one group of a heartbeat; True if its clients or its topics changed."""
        group = self._groups.get(data.group)
        if group is None:
            group = self._groups[data.group] = ConsumerGroup(data)
        before = (group.message_model, dict(group.subscriptions))
        joined = group.take_channel(channel, data)
        if joined:
            self.shares.add(channel.owner)
        self._groups_of.setdefault(channel.peer, set()).add(data.group)
        changed = with_subscriptions and group.take_subscriptions(data.subscriptions)
        if with_subscriptions:
            self._count_bytes(group, _byte_count(group.subscriptions.values()), channel.owner)
        # A heartbeat that only says "still here" must not cost every pull its checked plan.
        if joined or before != (group.message_model, dict(group.subscriptions)):
            self.moved()
        return joined or changed

    def take_fingerprint(self, group: str, fingerprint: int) -> bool:
        """Note the fingerprint of a group's subscriptions; True if another one was known."""
        known = self._fingerprints.pop(group, None)
        self._fingerprints[group] = fingerprint
        if len(self._fingerprints) > FINGERPRINTS_MAX:
            # Also groups whose clients are gone have one; the least recent one goes.
            del self._fingerprints[next(iter(self._fingerprints))]
        return known is not None and known != fingerprint

    def unregister(self, group: str, peer: Peer) -> ConsumerGroup | None:
        """Remove a client and return its group as it is now, or None if it was not in it."""
        found = self._groups.get(group)
        channel = None if found is None else found.channels.pop(peer, None)
        if found is None or channel is None:
            return None
        self.shares.remove(channel.owner)
        self.moved()
        groups = self._groups_of[peer]
        groups.discard(group)
        if not groups:
            del self._groups_of[peer]
        if not found.channels:
            del self._groups[group]
            self._count_bytes(found, 0, found.owner)
        return found

    def _count_bytes(self, group: ConsumerGroup, byte_count: int, owner: str) -> None:
        self.bytes.remove(group.owner, group.byte_count)
        group.byte_count, group.owner = byte_count, owner
        self.bytes.add(owner, byte_count)

    def close(self, peer: Peer) -> list[ConsumerGroup]:
        """The connection is gone; returns the groups it left, as they are now."""
        names = sorted(self._groups_of.get(peer, ()))
        left = [self.unregister(name, peer) for name in names]
        return [group for group in left if group is not None]

    def expire(
        self, now_ms: int, *, after_ms: int = EXPIRED_AFTER_MS
    ) -> list[tuple[ConsumerGroup, ClientChannel]]:
        """Remove the clients whose heartbeats have stopped; returns each with its group."""
        pulled_after_ms = now_ms - PULLED_EXPIRED_AFTER_MS
        for key in [key for key, (_, ms) in self._pulled.items() if ms < pulled_after_ms]:
            del self._pulled[key]
        overdue = [
            (group, channel)
            for group in self._groups.values()
            for channel in group.channels.values()
            if channel.expired(now_ms, after_ms)
        ]
        for group, channel in overdue:
            self.unregister(group.name, channel.peer)
        return overdue


def _byte_count(subscriptions: Iterable[SubscriptionData]) -> int:
    """About the bytes that a group's subscriptions take in memory."""
    return sum(
        _SUBSCRIPTION_BYTES
        + len(entry.topic)
        + 2 * len(entry.sub_string)
        + 64 * (len(entry.tags) + len(entry.codes))
        + (0 if entry.by_tag else _EXPRESSION_BYTES)
        for entry in subscriptions
    )
