"""Clients come and go: keeps the tables of producers and consumers, and tells the groups.

When the members or the topics of a group change, each of its clients is told to share the queues
anew (NOTIFY_CONSUMER_IDS_CHANGED). Broadcasting groups share nothing, and the broker or the group
may have the notice switched off: their clients find out with their next periodic look.
"""

from __future__ import annotations

import logging

from contrail.broker.state.client_channels import ClientChannel
from contrail.broker.state.consumers import ConsumerGroup, ConsumerTable
from contrail.broker.state.filter_data import FilterTable
from contrail.broker.state.producers import ProducerTable
from contrail.broker.state.runtime_settings import RuntimeSettings
from contrail.clock import Clock
from contrail.protocol.bodies.heartbeat import ConsumerData
from contrail.protocol.codes import RequestCode
from contrail.wire.peer import Peer

_log = logging.getLogger(__name__)


class GroupChanges:
    """The one that registers and removes clients, so that no change goes unannounced."""

    def __init__(
        self,
        *,
        producers: ProducerTable,
        consumers: ConsumerTable,
        filters: FilterTable,
        settings: RuntimeSettings,
        clock: Clock,
    ) -> None:
        self._producers = producers
        self._consumers = consumers
        self._filters = filters
        self._settings = settings
        self._clock = clock

    def producer_seen(self, group: str, channel: ClientChannel) -> None:
        if self._producers.register(group, channel):
            _log.info("producer %s joined group %r", channel.client_id, group)

    def consumer_seen(
        self,
        data: ConsumerData,
        channel: ClientChannel,
        *,
        with_subscriptions: bool = True,
        notify: bool = True,
    ) -> None:
        """Take one group of a heartbeat; ``notify`` is the group's own switch."""
        changed = self._consumers.register(data, channel, with_subscriptions=with_subscriptions)
        if with_subscriptions:
            self._register_filters(data)
        if changed:
            group = self._consumers.groups[data.group]
            _log.info("consumer group %r changed with %s", data.group, channel.client_id)
            self._announce(group, notify)

    def _register_filters(self, data: ConsumerData) -> None:
        now_ms = self._clock.now_ms()
        for refusal in self._filters.register(data.group, data.subscriptions, now_ms):
            _log.warning(
                "the filter %r of group %r on topic %r does not compile: %s",
                refusal.expression,
                data.group,
                refusal.topic,
                refusal.reason,
            )

    def producer_left(self, group: str, peer: Peer) -> None:
        if self._producers.unregister(group, peer):
            _log.info("producer %s left group %r", peer.address, group)

    def consumer_left(self, group: str, peer: Peer, *, notify: bool = True) -> None:
        left = self._consumers.unregister(group, peer)
        if left is not None:
            self._after_departure(left, peer, notify)

    def connection_closed(self, peer: Peer) -> None:
        """Forget everything that this connection stood for."""
        self._producers.close(peer)
        for group in self._consumers.close(peer):
            self._after_departure(group, peer, True)

    def expire(self, now_ms: int) -> None:
        """Drop the clients whose heartbeats have stopped, and their connections with them."""
        after_ms = self._settings.config.channel_expired_ms
        for channel in self._producers.expire(now_ms, after_ms=after_ms):
            channel.peer.close("heartbeats_stopped")
        for group, channel in self._consumers.expire(now_ms, after_ms=after_ms):
            channel.peer.close("heartbeats_stopped")
            self._after_departure(group, channel.peer, True)
        self._filters.expire(now_ms)

    def _after_departure(self, group: ConsumerGroup, peer: Peer, notify: bool) -> None:
        _log.info("consumer %s left group %r", peer.address, group.name)
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
