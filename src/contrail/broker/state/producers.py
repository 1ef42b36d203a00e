"""The connected clients of each producer group."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from contrail.broker.state.client_channels import EXPIRED_AFTER_MS, MEMBERS_MAX, ClientChannel
from contrail.broker.state.shares import Shares
from contrail.model.group import PRODUCER_GROUP_LENGTH_MAX
from contrail.protocol.bodies.heartbeat import GROUPS_MAX
from contrail.wire.peer import Peer


class ProducerTable:
    """The connected producers, by group and connection."""

    def __init__(self, *, members_max: int = MEMBERS_MAX) -> None:
        self.shares = Shares(members_max, members_max // 4)
        self._groups: dict[str, dict[Peer, ClientChannel]] = {}
        self._groups_of: dict[Peer, set[str]] = {}
        # In the order they came: of a client that came back, the last connection is the live one.
        self._channels_of: dict[str, dict[tuple[str, Peer], ClientChannel]] = {}
        # The user that a client id belongs to: the first of its connections' users, until all of
        # them are gone. Group and client id are mere claims, and replies follow the id.
        self._holders: dict[str, str] = {}
        self.groups: Mapping[str, Mapping[Peer, ClientChannel]] = MappingProxyType(self._groups)

    def register(self, group: str, channel: ClientChannel) -> bool:
        """Add or refresh a producer; True if its connection is new to the group."""
        channels = self._groups.setdefault(group, {})
        known = channels.get(channel.peer)
        if known is not None:
            self._forget_client(group, known)
            known.refresh(channel)
            self._note_client(group, known)
            return False
        channels[channel.peer] = channel
        self.shares.add(channel.owner)
        self._groups_of.setdefault(channel.peer, set()).add(group)
        self._note_client(group, channel)
        return True

    def channels(self, group: str) -> list[ClientChannel]:
        return list(self._groups.get(group, {}).values())

    def channel_of(self, client_id: str) -> ClientChannel | None:
        """Where a client that produces for any group was heard from last, as its first user."""
        holder = self._holders.get(client_id)
        channels = self._channels_of.get(client_id, {})
        return next((one for one in reversed(channels.values()) if one.user == holder), None)

    def has_room(self, group: str, channel: ClientChannel) -> bool:
        """Whether a connection may stand for one more group, or stands for this one already."""
        if channel.peer in self._groups.get(group, ()):
            return True
        if len(group) > PRODUCER_GROUP_LENGTH_MAX or self.shares.room(channel.owner) <= 0:
            return False
        return self.group_count_of(channel.peer) < GROUPS_MAX

    def group_count_of(self, peer: Peer) -> int:
        """For how many groups a connection produces."""
        return len(self._groups_of.get(peer, ()))

    def unregister(self, group: str, peer: Peer) -> bool:
        """False when the connection did not produce for the group."""
        channels = self._groups.get(group, {})
        channel = channels.pop(peer, None)
        if channel is None:
            return False
        self.shares.remove(channel.owner)
        self._forget_client(group, channel)
        if not channels:
            del self._groups[group]
        self._forget(peer, group)
        return True

    def close(self, peer: Peer) -> list[str]:
        """The connection is gone; returns the groups it produced for."""
        groups = sorted(self._groups_of.get(peer, ()))
        for group in groups:
            self.unregister(group, peer)
        return groups

    def expire(self, now_ms: int, *, after_ms: int = EXPIRED_AFTER_MS) -> list[ClientChannel]:
        """Remove and return the producers whose heartbeats have stopped."""
        overdue = [
            (group, channel)
            for group, channels in self._groups.items()
            for channel in channels.values()
            if channel.expired(now_ms, after_ms)
        ]
        for group, channel in overdue:
            self.unregister(group, channel.peer)
        return [channel for _, channel in overdue]

    def _forget(self, peer: Peer, group: str) -> None:
        groups = self._groups_of[peer]
        groups.discard(group)
        if not groups:
            del self._groups_of[peer]

    def _note_client(self, group: str, channel: ClientChannel) -> None:
        self._channels_of.setdefault(channel.client_id, {})[group, channel.peer] = channel
        self._holders.setdefault(channel.client_id, channel.user)

    def _forget_client(self, group: str, channel: ClientChannel) -> None:
        channels = self._channels_of[channel.client_id]
        del channels[group, channel.peer]
        if not channels:
            del self._channels_of[channel.client_id], self._holders[channel.client_id]
