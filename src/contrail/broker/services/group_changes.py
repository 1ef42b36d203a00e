"""Clients come and go: keeps the tables of producers and consumers, and tells the groups.

When the members or the topics of a group change, each of its clients is told to share the queues
anew (NOTIFY_CONSUMER_IDS_CHANGED). Broadcasting groups share nothing, and the broker or the group
may have the notice switched off: their clients find out with their next periodic look.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from contrail.broker.state.client_channels import ClientChannel
from contrail.broker.state.consumers import ConsumerGroup, ConsumerTable
from contrail.broker.state.filter_data import FilterTable
from contrail.broker.state.filter_data import Refusal as FilterRefusal
from contrail.broker.state.producers import ProducerTable
from contrail.broker.state.queue_locks import QueueLocks
from contrail.broker.state.runtime_settings import RuntimeSettings
from contrail.clock import Clock
from contrail.protocol.bodies.heartbeat import ConsumerData
from contrail.protocol.codes import RequestCode
from contrail.runtime.sparse_log import SparseLog
from contrail.wire.peer import Peer

_log = logging.getLogger(__name__)

# A client may have a thousand groups; a line of the log names this many of them.
_NAMED_MAX = 5


class GroupChanges:
    """The one owner of registering and removing clients, so that no change goes unannounced."""

    def __init__(
        self,
        *,
        producers: ProducerTable,
        consumers: ConsumerTable,
        filters: FilterTable,
        locks: QueueLocks,
        settings: RuntimeSettings,
        clock: Clock,
    ) -> None:
        self._producers = producers
        self._consumers = consumers
        self._filters = filters
        self._locks = locks
        self._settings = settings
        self._clock = clock
        self._refusals = SparseLog(_log)

    def producer_seen(self, group: str, channel: ClientChannel) -> bool:
        """True if the client is new to the group."""
        return self._producers.register(group, channel)

    def consumer_seen(
        self,
        data: ConsumerData,
        channel: ClientChannel,
        *,
        with_subscriptions: bool = True,
        notify: bool = True,
        on_refusal: Callable[[FilterRefusal], None] = lambda refusal: None,
    ) -> bool:
        """Take one group of a heartbeat; ``notify`` is the group's own switch.

        True if the group's clients or topics changed. ``on_refusal`` hears of each filter that is
        not kept.
        """
        changed = self._consumers.register(data, channel, with_subscriptions=with_subscriptions)
        if with_subscriptions:
            for refusal in self._register_filters(data, channel.owner):
                on_refusal(refusal)
        if changed:
            self._announce(self._consumers.groups[data.group], notify)
        return changed

    def _register_filters(self, data: ConsumerData, owner: str) -> list[FilterRefusal]:
        now_ms = self._clock.now_ms()
        refused = self._filters.register(data.group, data.subscriptions, now_ms, owner)
        for refusal in refused:
            # The same heartbeat comes again every half minute.
            self._refusals.warning(
                now_ms,
                "the filter %.200r of group %r on topic %r is not kept: %.500s",
                refusal.expression,
                data.group,
                refusal.topic,
                refusal.reason,
            )
        return refused

    def producer_left(self, group: str, peer: Peer) -> None:
        if self._producers.unregister(group, peer):
            _log.info("producer %s left group %r", peer.address, group)

    def consumer_left(self, group: str, peer: Peer, *, notify: bool = True) -> None:
        left = self._consumers.unregister(group, peer)
        if left is not None:
            _log.info("consumer %s left group %r", peer.address, group)
            self._after_departure(left, notify)

    def connection_closed(self, peer: Peer) -> None:
        """Forget everything that this connection stood for."""
        self._producers.close(peer)
        left = self._consumers.close(peer)
        for group in left:
            self._after_departure(group, True)
        if left:
            names = some_names([group.name for group in left])
            _log.info("consumer %s left with its connection: %s", peer.address, names)

    def expire(self, now_ms: int) -> None:
        """Drop the clients whose heartbeats have stopped, and their connections with them."""
        after_ms = self._settings.config.channel_expired_ms
        for channel in self._producers.expire(now_ms, after_ms=after_ms):
            channel.peer.close("heartbeats_stopped")
        for group, channel in self._consumers.expire(now_ms, after_ms=after_ms):
            channel.peer.close("heartbeats_stopped")
            self._after_departure(group, True)
        self._filters.expire(now_ms)

    def end_locks_of_gone(self, elapsed_ms: int) -> None:
        """End the locks of clients that are gone, and tell clients that may have the queues now.

        Members that could not lock a queue when its holder went look again by themselves: Java
        clients of 4.9 after 20 s only.
        """
        for name in self._locks.end_of_gone(elapsed_ms):
            group = self._consumers.find(name)
            if group is not None:
                self._announce(group, True)

    def _after_departure(self, group: ConsumerGroup, notify: bool) -> None:
        self._locks.client_left(group.name)
        if not group.channels:
            self._filters.unregister(group.name, self._clock.now_ms())
        self._announce(group, notify)

    def _announce(self, group: ConsumerGroup, notify: bool) -> None:
        switched_on = notify and self._settings.config.notify_consumer_ids_changed
        if not switched_on or group.broadcasts:
            return
        for channel in list(group.channels.values()):
            channel.peer.notify(
                RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": group.name}
            )


def some_names(groups: Sequence[str]) -> str:
    """How many groups there are and the names of the first, for a line of the log."""
    named = ", ".join(map(repr, groups[:_NAMED_MAX]))
    return f"{len(groups)} groups ({named}{', ...' if len(groups) > _NAMED_MAX else ''})"
