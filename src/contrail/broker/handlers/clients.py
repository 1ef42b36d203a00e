"""Clients of the broker: heartbeats, goodbyes, connections, and the check of a filter."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from contrail.broker.services.address_shares import owner_of
from contrail.broker.services.group_changes import GroupChanges, some_names
from contrail.broker.state.client_channels import ClientChannel
from contrail.broker.state.consumers import ConsumerTable
from contrail.broker.state.filter_data import Refusal as FilterRefusal
from contrail.broker.state.producers import ProducerTable
from contrail.broker.state.runtime_settings import RuntimeSettings
from contrail.broker.state.system_names import SystemNames
from contrail.clock import Clock
from contrail.errors import FilterInvalid, RequestRejected
from contrail.model.group import SubscriptionGroupConfig
from contrail.model.stored_entries import check_filter_entry
from contrail.model.subscription import SQL92, SubscriptionData
from contrail.model.topic import TopicConfig
from contrail.protocol.bodies.connections import (
    Connection,
    decode_client_check,
    encode_consumer_connection,
    encode_consumer_ids,
    encode_producer_connection,
    encode_producer_table,
)
from contrail.protocol.bodies.heartbeat import (
    GOES_ON_FIELD,
    ConsumerData,
    Heartbeat,
    decode_heartbeat,
)
from contrail.protocol.codes import RequestCode, ResponseCode
from contrail.protocol.command import Request, Response
from contrail.protocol.fields import HeaderFields
from contrail.protocol.signing import ACCESS_KEY
from contrail.wire.peer import Handler, Peer

_log = logging.getLogger(__name__)

# A topic's system flag: consumers of another unit subscribe to it.
_UNIT_SUBSCRIBED = 2
# The remark of a syntax error may quote a whole expression.
_REASON_CHARACTERS_MAX = 1000


class GroupRules(Protocol):
    """Where a group's settings are found or made."""

    def find(
        self, group: str, now_ms: int, *, client: str = ""
    ) -> SubscriptionGroupConfig | None: ...

    def require(self, group: str, now_ms: int, *, client: str) -> SubscriptionGroupConfig: ...


class TopicSettings(Protocol):
    """The topics there are."""

    def get(self, topic: str) -> TopicConfig | None: ...


class TopicRules(Protocol):
    """Where retry topics are made."""

    @property
    def table(self) -> TopicSettings: ...

    def ensure_retry_topic(
        self, group: str, now_ms: int, *, queue_count: int, order: bool, sys_flag: int
    ) -> TopicConfig: ...


class _Taken:
    """The outcome of a heartbeat for its groups."""

    def __init__(self) -> None:
        self.changed: list[str] = []
        self.skipped: list[str] = []
        self.reason = ""
        self.filters: list[str] = []
        self.filter_reason = ""
        self.wants_full = False

    def skip(self, group: str, reason: str) -> None:
        self.skipped.append(group)
        self.reason = self.reason or reason

    def skip_filter(self, group: str, refusal: FilterRefusal) -> None:
        self.filters += [] if group in self.filters[-1:] else [group]
        reason = f"topic {refusal.topic!r}: {refusal.reason[:_REASON_CHARACTERS_MAX]}"
        self.filter_reason = self.filter_reason or reason

    @property
    def remark(self) -> str | None:
        parts = []
        if self.skipped:
            parts.append(f"not taken: {some_names(self.skipped)}: {self.reason}")
        if self.filters:
            parts.append(f"filters not kept of {some_names(self.filters)}: {self.filter_reason}")
        return "; ".join(parts) or None


class ClientHandlers:
    """Answers clients' heartbeats, and operators' questions about clients."""

    def __init__(
        self,
        *,
        changes: GroupChanges,
        producers: ProducerTable,
        consumers: ConsumerTable,
        groups: GroupRules,
        topics: TopicRules,
        settings: RuntimeSettings,
        compile_sql: Callable[[str], object],
        clock: Clock,
        names: SystemNames,
    ) -> None:
        self._names = names
        self._changes = changes
        self._producers = producers
        self._consumers = consumers
        self._groups = groups
        self._topics = topics
        self._settings = settings
        self._compile_sql = compile_sql
        self._clock = clock

    def table(self) -> dict[int, Handler]:
        return {
            RequestCode.HEART_BEAT: self.handle_heartbeat,
            RequestCode.UNREGISTER_CLIENT: self.handle_unregister,
            RequestCode.GET_CONSUMER_LIST_BY_GROUP: self.handle_consumer_list,
            RequestCode.CHECK_CLIENT_CONFIG: self.handle_check_config,
            RequestCode.GET_CONSUMER_CONNECTION_LIST: self.handle_consumer_connections,
            RequestCode.GET_PRODUCER_CONNECTION_LIST: self.handle_producer_connections,
            RequestCode.GET_ALL_PRODUCER_INFO: self.handle_all_producers,
        }

    def handle_heartbeat(self, request: Request, peer: Peer) -> Response:
        heartbeat = decode_heartbeat(request.body, now_ms=self._clock.now_ms())
        taken = _Taken()
        for data in heartbeat.consumers:
            self._take_consumer(data, heartbeat, request, peer, taken)
        self._take_producers(heartbeat, request, peer)
        if taken.changed:
            _log.info("consumer %s changed %s", heartbeat.client_id, some_names(taken.changed))
        _refuse_class_filters(heartbeat.consumers)
        for data in heartbeat.consumers:
            self._require_open(data)
        _refuse_illegal_filters(heartbeat.consumers)
        # The old form, which has no fingerprint, is always told that something changed.
        sub_changed = heartbeat.fingerprint == 0 or taken.wants_full
        return Response(
            remark=taken.remark,
            fields={
                "IS_SUPPORT_HEART_BEAT_V2": "true",
                "IS_SUB_CHANGE": "true" if sub_changed else "false",
                **({GOES_ON_FIELD: str(heartbeat.goes_on_ms)} if heartbeat.goes_on_ms else {}),
            },
        )

    def _take_producers(self, heartbeat: Heartbeat, request: Request, peer: Peer) -> None:
        """A connection that stands for as many groups as it may keeps those and gets no others."""
        joined = []
        for group in heartbeat.producer_groups:
            channel = self._channel(heartbeat, request, peer)
            if not self._producers.has_room(group, channel):
                continue
            if self._changes.producer_seen(group, channel):
                joined.append(group)
        if joined:
            _log.info("producer %s joined %s", heartbeat.client_id, some_names(joined))

    def _take_consumer(
        self,
        data: ConsumerData,
        heartbeat: Heartbeat,
        request: Request,
        peer: Peer,
        taken: _Taken,
    ) -> None:
        """Take one group of a heartbeat; one that does not exist and may not be made is skipped."""
        if not self._is_open(data):
            return
        try:
            settings = self._groups.require(data.group, self._clock.now_ms(), client=peer.address)
        except RequestRejected as refusal:
            taken.skip(data.group, refusal.remark)
            return
        if _class_filtered(data) is not None:
            return
        with_subscriptions = not (heartbeat.fingerprint and heartbeat.without_sub)
        channel = self._channel(heartbeat, request, peer)
        problem = self._consumers.refusal(data, channel, with_subscriptions=with_subscriptions)
        if problem is not None:
            taken.skip(data.group, problem)
            return
        self._ensure_retry_topic(data, settings, with_subscriptions)
        changed = self._changes.consumer_seen(
            data,
            channel,
            with_subscriptions=with_subscriptions,
            notify=settings.notify_consumer_ids_changed_enable,
            on_refusal=lambda refusal: taken.skip_filter(data.group, refusal),
        )
        if changed:
            taken.changed.append(data.group)
        differs = self._consumers.take_fingerprint(data.group, heartbeat.fingerprint)
        # A broker that was restarted has no subscriptions that a short heartbeat could rely on.
        if differs or not self._consumers.groups[data.group].subscriptions:
            taken.wants_full = True

    def _require_open(self, data: ConsumerData) -> None:
        """After everything else was taken: a client's other groups go on."""
        self._names.require_group(data.group)
        for subscription in data.subscriptions:
            self._names.require_subscribable(subscription.topic)

    def _is_open(self, data: ConsumerData) -> bool:
        try:
            self._require_open(data)
        except RequestRejected:
            return False
        return True

    def _ensure_retry_topic(
        self, data: ConsumerData, settings: SubscriptionGroupConfig, with_subscriptions: bool
    ) -> None:
        topics: Iterable[str] = [entry.topic for entry in data.subscriptions]
        known = self._consumers.find(data.group)
        if not with_subscriptions and known is not None:
            topics = known.subscriptions
        self._topics.ensure_retry_topic(
            data.group,
            self._clock.now_ms(),
            queue_count=settings.retry_queue_count,
            order=any(self._is_ordered(topic) for topic in topics),
            sys_flag=_UNIT_SUBSCRIBED if data.unit_mode else 0,
        )

    def _is_ordered(self, topic: str) -> bool:
        config = self._topics.table.get(topic)
        return config is not None and config.order

    def _channel(self, heartbeat: Heartbeat, request: Request, peer: Peer) -> ClientChannel:
        """Each group has its own, because a client may leave one group and stay in another."""
        return ClientChannel(
            peer,
            heartbeat.client_id,
            request.language,
            request.version,
            self._clock.now_ms(),
            owner_of(peer),
            heartbeat.goes_on_ms,
            request.fields.get(ACCESS_KEY, ""),
        )

    def handle_unregister(self, request: Request, peer: Peer) -> Response:
        fields = HeaderFields(request)
        producer_group = fields.optional_text("producerGroup")
        consumer_group = fields.optional_text("consumerGroup")
        if producer_group is not None:
            self._changes.producer_left(producer_group, peer)
        if consumer_group is not None:
            # RocketMQ makes the group of a goodbye, too, if there is none.
            settings = self._groups.find(consumer_group, self._clock.now_ms(), client=peer.address)
            notify = settings is None or settings.notify_consumer_ids_changed_enable
            self._changes.consumer_left(consumer_group, peer, notify=notify)
        return Response()

    def handle_consumer_list(self, request: Request, peer: Peer) -> Response:
        name = HeaderFields(request).text("consumerGroup")
        group = self._consumers.find(name)
        if group is None:
            raise RequestRejected(
                ResponseCode.SYSTEM_ERROR, f"no consumer of group {name!r} is connected"
            )
        return Response(body=encode_consumer_ids(group.client_ids()))

    def handle_check_config(self, request: Request, peer: Peer) -> Response:
        """Whether a subscription will work here; clients ask before they start."""
        check = decode_client_check(request.body)
        self._names.require_group(check.group)
        subscription = check.subscription
        if subscription is None:
            return Response()
        self._names.require_subscribable(subscription.topic)
        if subscription.class_filter_mode:
            raise _class_filter_refusal(subscription)
        if not subscription.by_tag:
            self._check_expression(subscription)
        return Response()

    def _check_expression(self, subscription: SubscriptionData) -> None:
        kind = subscription.expression_type
        if not self._settings.config.property_filter:
            raise RequestRejected(
                ResponseCode.SYSTEM_ERROR,
                f"this broker does not filter messages by {kind}; set enablePropertyFilter=true",
            )
        if kind != SQL92:
            remark = f"expression type {kind!r} is unknown; use TAG or SQL92"
            raise RequestRejected(ResponseCode.SUBSCRIPTION_PARSE_FAILED, remark)
        try:
            self._compile_sql(subscription.sub_string)
        except FilterInvalid as error:
            raise RequestRejected(ResponseCode.SUBSCRIPTION_PARSE_FAILED, str(error)) from error

    def handle_consumer_connections(self, request: Request, peer: Peer) -> Response:
        name = HeaderFields(request).text("consumerGroup")
        group = self._consumers.find(name)
        if group is None:
            raise RequestRejected(
                ResponseCode.CONSUMER_NOT_ONLINE, f"no consumer of group {name!r} is connected"
            )
        body = encode_consumer_connection(
            map(_connection, group.channels.values()),
            consume_type=group.consume_type,
            message_model=group.message_model,
            consume_from_where=group.consume_from_where,
            subscriptions=group.subscriptions,
        )
        return Response(body=body)

    def handle_producer_connections(self, request: Request, peer: Peer) -> Response:
        name = HeaderFields(request).text("producerGroup")
        channels = self._producers.channels(name)
        if not channels:
            raise RequestRejected(
                ResponseCode.SYSTEM_ERROR, f"no producer of group {name!r} is connected"
            )
        return Response(body=encode_producer_connection(map(_connection, channels)))

    def handle_all_producers(self, request: Request, peer: Peer) -> Response:
        table: Mapping[str, Iterable[Connection]] = {
            group: [_connection(channel) for channel in channels.values()]
            for group, channels in self._producers.groups.items()
        }
        return Response(body=encode_producer_table(table))


def _connection(channel: ClientChannel) -> Connection:
    return Connection(
        client_id=channel.client_id,
        address=channel.peer.address,
        language=channel.language,
        version=channel.version,
        last_update_ms=channel.last_heartbeat_ms,
    )


def _class_filtered(data: ConsumerData) -> SubscriptionData | None:
    return next((entry for entry in data.subscriptions if entry.class_filter_mode), None)


def _refuse_class_filters(consumers: Iterable[ConsumerData]) -> None:
    """After everything else was taken: the client's other groups go on."""
    for data in consumers:
        subscription = _class_filtered(data)
        if subscription is not None:
            raise _class_filter_refusal(subscription)


def _refuse_illegal_filters(consumers: Iterable[ConsumerData]) -> None:
    """Expressions are kept in a file: no topic may be named that the file's reader refuses."""
    for data in consumers:
        for entry in data.subscriptions:
            if not entry.by_tag:
                check_filter_entry(entry.topic, data.group, (entry.sub_version,))


def _class_filter_refusal(subscription: SubscriptionData) -> RequestRejected:
    return RequestRejected(
        ResponseCode.SUBSCRIPTION_PARSE_FAILED,
        f"the subscription to topic {subscription.topic!r} filters by a Java class, which this "
        "broker does not run; subscribe with tags or SQL92",
    )
