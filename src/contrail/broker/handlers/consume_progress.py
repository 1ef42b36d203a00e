"""Operators' requests about groups: consume stats, time spans, topics, groups, subscriptions."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping
from typing import Protocol

from contrail.broker.handlers.offsets import (
    QueueStore,
    TopicSettings,
    earliest_store_time,
    store_time_at,
)
from contrail.broker.state.consumer_offsets import ConsumerOffsets
from contrail.broker.state.consumers import ConsumerTable
from contrail.broker.state.runtime_settings import RuntimeSettings
from contrail.clock import Clock
from contrail.errors import RequestRejected
from contrail.model.group import SubscriptionGroupConfig
from contrail.protocol.bodies.consume_stats import (
    ConsumeStats,
    ConsumeStatsList,
    QueueProgress,
    QueueTimeSpan,
    consume_stats_steps,
    encode_group_list,
    encode_group_subscription,
    time_span_steps,
)
from contrail.protocol.bodies.tables import TopicList
from contrail.protocol.codes import RequestCode, ResponseCode
from contrail.protocol.command import Request, Response
from contrail.protocol.fields import HeaderFields
from contrail.protocol.json_style import MessageQueue
from contrail.store import AbsentParts
from contrail.wire.peer import Handler, Peer
from contrail.wire.sliced_requests import InSlices, Steps, in_one_go


class GroupsByName(Protocol):
    """The groups there are."""

    @property
    def groups(self) -> Mapping[str, SubscriptionGroupConfig]: ...


class PullRates(Protocol):
    """Counts the messages that groups pull."""

    def group_get_per_second(self, topic: str, group: str) -> float: ...


class ProgressHandlers:
    """Answers how far groups have consumed, and which groups consume which topics."""

    def __init__(
        self,
        *,
        offsets: ConsumerOffsets,
        consumers: ConsumerTable,
        groups: GroupsByName,
        topics: TopicSettings,
        store: QueueStore,
        rates: PullRates,
        settings: RuntimeSettings,
        broker_address: str,
        clock: Clock,
        in_slices: InSlices = in_one_go,
    ) -> None:
        self.handle_consume_stats = in_slices(self._consume_stats)
        self.handle_broker_consume_stats = in_slices(self._broker_consume_stats)
        self.handle_time_span = in_slices(self._time_spans)
        self._offsets = offsets
        self._consumers = consumers
        self._groups = groups
        self._topics = topics
        self._store = store
        self._rates = rates
        self._settings = settings
        self._broker_address = broker_address
        self._clock = clock

    def table(self) -> dict[int, Handler]:
        return {
            RequestCode.GET_CONSUME_STATS: self.handle_consume_stats,
            RequestCode.GET_BROKER_CONSUME_STATS: self.handle_broker_consume_stats,
            RequestCode.QUERY_CONSUME_TIME_SPAN: self.handle_time_span,
            RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: self.handle_groups_of_topic,
            RequestCode.QUERY_TOPICS_BY_CONSUMER: self.handle_topics_of_group,
            RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER: self.handle_subscription,
        }

    def _consume_stats(self, request: Request, peer: Peer) -> Steps:
        fields = HeaderFields(request)
        group = fields.text("consumerGroup")
        progress: dict[MessageQueue, QueueProgress] = {}
        tps = 0.0
        absent = AbsentParts()
        for topic in self._stats_topics(group, fields):
            config = self._topics.get(topic)
            if config is not None:
                queues = range(config.read_queue_count)
                progress |= yield from self._progress(group, topic, queues, absent, pulled=True)
                tps += self._rates.group_get_per_second(topic, group)
        absent.require_none()
        return Response(body=(yield from consume_stats_steps(ConsumeStats(progress, tps))))

    def _stats_topics(self, group: str, fields: HeaderFields) -> list[str]:
        """A list of topics is taken as it is; else only the group's subscriptions count."""
        listed = fields.text("topicList", "")
        if listed.strip():
            return [name for name in listed.split(";") if name]
        topic = fields.text("topic", "")
        topics: Iterable[str] = [topic] if topic.strip() else self._offsets.topics_of(group)
        return sorted(name for name in topics if self._consumers.subscribes(group, name))

    def _progress(
        self, group: str, topic: str, queues: range, absent: AbsentParts, *, pulled: bool
    ) -> Generator[None, None, dict[MessageQueue, QueueProgress]]:
        """One step for each queue."""
        broker_name = self._settings.config.broker_name
        found: dict[MessageQueue, QueueProgress] = {}
        for queue_id in queues:
            with absent:
                queue = MessageQueue(topic, broker_name, queue_id)
                found[queue] = self._queue_progress(group, topic, queue_id, pulled)
            yield
        return found

    def _queue_progress(self, group: str, topic: str, queue_id: int, pulled: bool) -> QueueProgress:
        consumer_offset = max(0, self._offsets.query(group, topic, queue_id))
        pulled_offset = self._offsets.query_pulled(group, topic, queue_id) if pulled else 0
        return QueueProgress(
            queue_offset_max=self._store.queue_offset_max(topic.encode(), queue_id),
            consumer_offset=consumer_offset,
            pulled_offset=max(consumer_offset, pulled_offset) if pulled else 0,
            last_ms=max(0, store_time_at(self._store, topic, queue_id, consumer_offset - 1)),
        )

    def _broker_consume_stats(self, request: Request, peer: Peer) -> Steps:
        """Each queue is told of as it was when its row was looked at."""
        ordered_only = HeaderFields(request).boolean("isOrder")
        absent = AbsentParts()
        answer = ConsumeStatsList(self._broker_address)
        for group in list(self._groups.groups):
            entries = yield from self._stats_by_topic(group, ordered_only, absent)
            yield from answer.add(group, entries)
            yield
        absent.require_none()
        return Response(body=answer.encode())

    def _stats_by_topic(
        self, group: str, ordered_only: bool, absent: AbsentParts
    ) -> Generator[None, None, list[ConsumeStats]]:
        entries = []
        for topic in sorted(self._offsets.topics_of(group)):
            config = self._topics.get(topic)
            if config is None or (ordered_only and not config.order):
                continue
            if self._consumers.subscribes(group, topic):
                # RocketMQ counts write queues here, and does not look at pulled offsets.
                queues = range(config.write_queue_count)
                progress = yield from self._progress(group, topic, queues, absent, pulled=False)
                entries.append(
                    ConsumeStats(progress, self._rates.group_get_per_second(topic, group))
                )
        return entries

    def _time_spans(self, request: Request, peer: Peer) -> Steps:
        fields = HeaderFields(request)
        topic, group = fields.text("topic"), fields.text("group")
        config = self._topics.get(topic)
        if config is None:
            raise RequestRejected(ResponseCode.TOPIC_NOT_EXIST, f"topic {topic!r} does not exist")
        spans: list[QueueTimeSpan] = []
        absent = AbsentParts()
        for queue_id in range(config.write_queue_count):
            with absent:
                spans.append(self._time_span(group, topic, queue_id))
            yield
        absent.require_none()
        return Response(body=(yield from time_span_steps(spans)))

    def _time_span(self, group: str, topic: str, queue_id: int) -> QueueTimeSpan:
        queue_offset_max = self._store.queue_offset_max(topic.encode(), queue_id)
        min_ms = earliest_store_time(self._store, topic, queue_id)
        consumer_offset = self._offsets.query(group, topic, queue_id)
        consumed_ms, delay_ms = min_ms, 0
        if consumer_offset > 0:
            consumed_ms = store_time_at(self._store, topic, queue_id, consumer_offset - 1)
        if consumer_offset < queue_offset_max:
            next_ms = store_time_at(self._store, topic, queue_id, consumer_offset)
            delay_ms = self._clock.now_ms() - next_ms
        return QueueTimeSpan(
            queue=MessageQueue(topic, self._settings.config.broker_name, queue_id),
            min_ms=min_ms,
            max_ms=store_time_at(self._store, topic, queue_id, queue_offset_max - 1),
            consumed_ms=consumed_ms,
            delay_ms=delay_ms,
        )

    def handle_groups_of_topic(self, request: Request, peer: Peer) -> Response:
        """The groups that consume a topic: those online, and those that left offsets behind."""
        topic = HeaderFields(request).text("topic")
        groups = self._consumers.groups_of_topic(topic) | self._offsets.groups_of(topic)
        return Response(body=encode_group_list(groups))

    def handle_topics_of_group(self, request: Request, peer: Peer) -> Response:
        topics = self._offsets.topics_of(HeaderFields(request).text("group"))
        return Response(body=TopicList.of(topics, self._broker_address).encode())

    def handle_subscription(self, request: Request, peer: Peer) -> Response:
        fields = HeaderFields(request)
        group, topic = fields.text("group"), fields.optional_text("topic")
        found = None if topic is None else self._consumers.subscription(group, topic)
        return Response(body=encode_group_subscription(group, topic, found))
