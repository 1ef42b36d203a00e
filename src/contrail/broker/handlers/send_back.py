"""Messages that a consumer could not handle: stored for another try, or as dead letters.

All checks of the original in its order, and one of ours: a message sent back must be one that
a consumer of the group can have got. The offset in the request is only a number, and could point
into a delayed message, an open transaction, or the middle of somebody's message.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Sequence
from typing import NamedTuple

from contrail.broker.handlers.found_records import FoundRecords
from contrail.broker.services.acknowledgements import Acknowledgements
from contrail.broker.services.deliveries import Deliveries
from contrail.broker.services.groups import Groups
from contrail.broker.services.stored_records import RecordStore, record_at
from contrail.broker.services.topics import Topics
from contrail.broker.state.consumers import ConsumerTable
from contrail.broker.state.placement import TimerRules, place
from contrail.broker.state.retry_policy import (
    belongs_to_other_group,
    is_hidden,
    plan_retry,
    reconsume_count_max,
    retry_draft,
    retry_properties,
)
from contrail.broker.state.runtime_settings import RuntimeSettings
from contrail.broker.state.stats import BrokerStats
from contrail.clock import Clock
from contrail.errors import RecordDamaged, RequestRejected, StoreError
from contrail.model.group import SubscriptionGroupConfig
from contrail.model.message import MessageDraft, StoredMessage
from contrail.model.properties import RETRY_TOPIC, UNIQ_KEY, encode_properties
from contrail.model.topic import Perm, TopicConfig, retry_topic
from contrail.protocol.codes import RequestCode, ResponseCode
from contrail.protocol.command import Request, Response
from contrail.protocol.fields import HeaderFields
from contrail.wire.peer import LATER, Answer, Handler, Peer

_log = logging.getLogger(__name__)

_UNIT_SUB_FLAG = 2


class _SendBack(NamedTuple):
    """The header of a request, read as a whole before anything is checked."""

    physical_offset: int
    group: str
    level: int
    is_unit: bool
    count_max: int | None
    version: int


class SendBackHandlers:
    """Takes messages back from consumers."""

    def __init__(
        self,
        *,
        settings: RuntimeSettings,
        topics: Topics,
        groups: Groups,
        consumers: ConsumerTable,
        store: RecordStore,
        deliveries: Deliveries,
        answers: Acknowledgements,
        stats: BrokerStats,
        clock: Clock,
        delay_table: Sequence[int],
        records: FoundRecords | None = None,
    ) -> None:
        """``delay_table`` holds the delay in ms of each level, beginning with level 1 at 1."""
        self._found = records or FoundRecords()
        self._settings = settings
        self._topics = topics
        self._groups = groups
        self._consumers = consumers
        self._store = store
        self._deliveries = deliveries
        self._answers = answers
        self._stats = stats
        self._clock = clock
        self._delay_table = delay_table

    def table(self) -> dict[int, Handler]:
        return {RequestCode.CONSUMER_SEND_MSG_BACK: self.handle_send_back}

    def handle_send_back(self, request: Request, peer: Peer) -> Answer:
        asked = _read(request)
        group = self._checked_group(asked.group, peer)
        if group.retry_queue_count <= 0:
            # The group wants nothing twice.
            return Response()
        topic = self._checked_retry_topic(group, is_unit=asked.is_unit)
        message = self._checked_message(asked)
        self._found.require_consumable(request, peer, message.topic)
        level = plan_retry(
            message,
            group.retry_policy,
            requested_level=asked.level,
            count_max=reconsume_count_max(group, requested=asked.count_max, version=asked.version),
            delay_table=self._delay_table,
        )
        draft = (
            self._dead(message, group)
            if level is None
            else self._delayed(message, group, topic, level)
        )
        return self._store_copy(request, peer, message, draft, asked.group, is_dead=level is None)

    # Checking.

    def _checked_group(self, name: str, peer: Peer) -> SubscriptionGroupConfig:
        group = self._groups.require(name, self._clock.now_ms(), client=peer.address)
        config = self._settings.config
        if not config.permission & Perm.WRITE:
            raise RequestRejected(
                ResponseCode.NO_PERMISSION,
                f"broker {config.broker_name!r} takes no messages now (brokerPermission)",
            )
        return group

    def _checked_retry_topic(self, group: SubscriptionGroupConfig, *, is_unit: bool) -> TopicConfig:
        known = self._topics.table.get(retry_topic(group.group))
        topic = self._topics.ensure_retry_topic(
            group.group,
            self._clock.now_ms(),
            queue_count=group.retry_queue_count,
            # Heartbeats say whether the group reads ordered topics.
            order=known is not None and known.order,
            sys_flag=_UNIT_SUB_FLAG if is_unit else 0,
        )
        if not topic.writable:
            raise RequestRejected(
                ResponseCode.NO_PERMISSION, f"topic {topic.topic!r} is not writable (perm)"
            )
        return topic

    def _checked_message(self, asked: _SendBack) -> StoredMessage:
        """The message itself, if a consumer of the group can have got it."""
        try:
            message = record_at(self._store, asked.physical_offset)
        except RecordDamaged as error:
            raise _not_found(asked.physical_offset) from error
        if is_hidden(message) or self._topics.names.is_closed(message.topic):
            raise _not_found(asked.physical_offset)
        if self._groups.is_read_forbidden(asked.group, message.topic) or (
            belongs_to_other_group(message.topic, asked.group)
            and self._consumers.subscription(asked.group, message.topic) is None
        ):
            raise RequestRejected(
                ResponseCode.NO_PERMISSION,
                f"group {asked.group!r} does not read topic {message.topic!r}, and sends back "
                "nothing of it",
            )
        return message

    # Storing.

    def _dead(self, message: StoredMessage, group: SubscriptionGroupConfig) -> MessageDraft:
        topic = self._topics.ensure_dlq_topic(group.group, self._clock.now_ms())
        draft = retry_draft(message, topic.topic, 0)
        return draft.with_properties(encode_properties(retry_properties(message, 0)))

    def _delayed(
        self,
        message: StoredMessage,
        group: SubscriptionGroupConfig,
        topic: TopicConfig,
        level: int,
    ) -> MessageDraft:
        # A retry topic that is older than the group's setting may have fewer queues than it says.
        queue_count = min(group.retry_queue_count, max(topic.read_queue_count, 1))
        draft = retry_draft(message, topic.topic, random.randrange(queue_count))
        properties = retry_properties(message, level)
        placed = place(
            draft,
            properties,
            level_max=len(self._delay_table) - 1,
            timers=TimerRules(),
            now_ms=self._clock.now_ms(),
        )
        return placed.with_properties(encode_properties(properties))

    def _store_copy(
        self,
        request: Request,
        peer: Peer,
        message: StoredMessage,
        draft: MessageDraft,
        group: str,
        *,
        is_dead: bool,
    ) -> Answer:
        try:
            run = self._deliveries.append([draft])
        except StoreError as error:
            # The consumer keeps the message and tries again, as RocketMQ's does for any code.
            self._stats.put_failed()
            raise RequestRejected(ResponseCode.SYSTEM_ERROR, str(error)) from error
        if is_dead:
            key = message.properties.get(UNIQ_KEY)
            _log.info("message %r of %r is a dead letter of group %r", key, message.topic, group)

        def release(code: ResponseCode) -> None:
            if code is not ResponseCode.SUCCESS:
                # The consumer sends it back again, in doubt or not: twice is better than never.
                peer.reply(request, Response(ResponseCode.SYSTEM_ERROR, code.name))
                return
            self._count(message, group, is_dead)
            peer.reply(request, Response())

        self._answers.when_safe(peer, run.physical_end, release)
        return LATER

    def _count(self, message: StoredMessage, group: str, is_dead: bool) -> None:
        """By the topic it came from first, unless a producer has made that up."""
        origin = message.properties.get(RETRY_TOPIC, message.topic)
        topic = origin if self._topics.table.get(origin) is not None else message.topic
        self._stats.sent_back(topic, group)
        if is_dead:
            self._stats.given_up(topic, group)


def _read(request: Request) -> _SendBack:
    fields = HeaderFields(request)
    return _SendBack(
        physical_offset=fields.long("offset"),
        group=fields.text("group"),
        level=fields.integer("delayLevel"),
        is_unit=fields.boolean("unitMode"),
        count_max=fields.optional_integer("maxReconsumeTimes"),
        version=request.version,
    )


def _not_found(physical_offset: int) -> RequestRejected:
    return RequestRejected(
        ResponseCode.SYSTEM_ERROR,
        f"no message that a consumer can have got starts at offset {physical_offset}",
    )
