"""Requests about topics: create, change, delete, list, and how far their queues reach."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol

from contrail.broker.handlers.saved_answers import SavedAnswer
from contrail.broker.services.topics import Topics
from contrail.broker.state.attributes import parse_changes
from contrail.broker.state.consumer_offsets import ConsumerOffsets
from contrail.broker.state.stats import BrokerStats
from contrail.clock import Clock
from contrail.errors import RecordDamaged, RequestRejected
from contrail.model.data_version import DataVersion
from contrail.model.message import StoredMessage
from contrail.model.topic import LMQ_PREFIX, RETRY_PREFIX, TopicConfig
from contrail.protocol.bodies.tables import TopicList
from contrail.protocol.bodies.topics import (
    QueueReach,
    decode_topic_list,
    encode_topic,
    topic_stats_steps,
    topic_table_steps,
)
from contrail.protocol.codes import RequestCode, ResponseCode
from contrail.protocol.command import Request, Response
from contrail.protocol.fields import HeaderFields
from contrail.protocol.json_style import MessageQueue, body_errors, decode_body
from contrail.runtime.durable_changes import WhenWritten, at_once
from contrail.store import AbsentParts, QueueRow, Retention
from contrail.wire.peer import Answer, Handler, Peer
from contrail.wire.sliced_requests import InSlices, Steps, in_one_go

_log = logging.getLogger(__name__)

# How many entries of a table one answer holds when it is asked for in pieces.
PAGE_COUNT_MAX = 1000
_INT_MAX = (1 << 31) - 1


class TopicData(Protocol):
    """The part of the store that these requests need."""

    @property
    def retention(self) -> Retention: ...

    def queues(self) -> list[tuple[bytes, int]]: ...
    def has_topic(self, topic: bytes) -> bool: ...
    def queue_offset_min(self, topic: bytes, queue_id: int) -> int: ...
    def queue_offset_max(self, topic: bytes, queue_id: int) -> int: ...
    def rows(
        self, topic: bytes, queue_id: int, queue_offset: int, count: int
    ) -> list[QueueRow]: ...
    def record(self, physical_offset: int) -> StoredMessage: ...
    def delete_topic(self, topic: bytes) -> None: ...


class TopicHandlers:
    """Answers the requests of administrators about topics."""

    def __init__(
        self,
        topics: Topics,
        offsets: ConsumerOffsets,
        stats: BrokerStats,
        store: TopicData,
        *,
        broker_name: str,
        clock: Clock,
        in_slices: InSlices = in_one_go,
        offsets_written: WhenWritten = at_once,
        delete_queues: Callable[[bytes], None] | None = None,
        delete_unused: Callable[[bytes], None] | None = None,
    ) -> None:
        """``delete_queues`` removes the queues of a topic whose settings went, ``delete_unused``
        those of one that has none; the store does both but in a failover group."""
        self._delete_queues = delete_queues or store.delete_topic
        self._delete_unused = delete_unused or store.delete_topic
        self._offsets_written = offsets_written
        self._topics = topics
        self._offsets = offsets
        self._stats = stats
        self._store = store
        self._broker_name = broker_name
        self._clock = clock
        self._in_slices = in_slices

    def table(self) -> dict[int, Handler]:
        return {
            RequestCode.UPDATE_AND_CREATE_TOPIC: self.handle_update,
            RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: self.handle_update_list,
            RequestCode.DELETE_TOPIC_IN_BROKER: self.handle_delete,
            RequestCode.GET_TOPIC_CONFIG: self.handle_get,
            RequestCode.GET_ALL_TOPIC_CONFIG: self._in_slices(self._all_topics),
            RequestCode.GET_TOPIC_STATS_INFO: self._in_slices(self._queue_reaches),
            RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: self.handle_system_topics,
            RequestCode.CLEAN_UNUSED_TOPIC: self._in_slices(self._clean_unused),
            RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE: self.handle_clean_expired_queues,
            RequestCode.DELETE_EXPIRED_COMMITLOG: self.handle_delete_expired_segments,
        }

    # Changing.

    def handle_update(self, request: Request, peer: Peer) -> Answer:
        """Create a topic or change its settings; answered once that is durable.

        Shrinking takes effect in two steps, as for RocketMQ: fewer write queues stop producers
        from using the last ones, and consumers go on reading them until the read queues are fewer
        too. No message is removed by either.
        """
        fields = HeaderFields(request)
        requested = TopicConfig(
            topic=fields.text("topic"),
            read_queue_count=fields.integer("readQueueNums"),
            write_queue_count=fields.integer("writeQueueNums"),
            perm=fields.integer("perm"),
            filter_type=fields.text("topicFilterType"),
            sys_flag=fields.integer("topicSysFlag", 0),
            order=fields.boolean("order"),
            attributes=parse_changes(fields.text("attributes", "")),
        )
        topic, address = requested.topic, peer.address
        saved = SavedAnswer(
            request,
            peer,
            f"topic {topic!r}",
            then=lambda: _log.info("topic %r was set by %s", topic, address),
        )
        self._topics.update([requested], self._clock.now_ms(), saved.done)
        return saved.answer()

    def handle_update_list(self, request: Request, peer: Peer) -> Answer:
        """Create or change several topics, or none if one is refused."""
        requested = decode_topic_list(request.body)
        count, address = len(requested), peer.address
        saved = SavedAnswer(
            request,
            peer,
            f"the list of {count} topics",
            then=lambda: _log.info("%d topics were set by %s", count, address),
        )
        self._topics.update(requested, self._clock.now_ms(), saved.done)
        return saved.answer()

    def handle_delete(self, request: Request, peer: Peer) -> Answer:
        """Delete a topic with its data, its groups' offsets and its pop retry topics."""
        topic = HeaderFields(request).text("topic")
        self._topics.check_deletable(topic)
        address = peer.address
        saved = SavedAnswer(
            request,
            peer,
            f"topic {topic!r}",
            then=lambda: _log.info("topic %r was deleted by %s", topic, address),
            # A new topic of that name must not begin where groups were in the old one.
            also=self._offsets_written,
        )
        self._topics.delete(
            [topic, *self._pop_retry_topics(topic)],
            self._clock.now_ms(),
            on_deleted=self._delete_data,
            done=saved.done,
        )
        return saved.answer()

    def _pop_retry_topics(self, topic: str) -> list[str]:
        names = [
            f"{RETRY_PREFIX}{group}{separator}{topic}"
            for group in sorted(self._offsets.groups_of(topic))
            for separator in "+_"
        ]
        return [name for name in names if self._topics.table.get(name) is not None]

    def _delete_data(self, topic: str, existed: bool) -> None:
        self._offsets.remove_topic(topic)
        self._stats.topic_deleted(topic)
        # The store remembers topics that it deleted, so it is not told of names that never existed.
        if existed or self._store.has_topic(topic.encode()):
            self._delete_queues(topic.encode())

    def _clean_unused(self, request: Request, peer: Peer) -> Steps:
        """Delete the data of topics that no longer have settings; a topic is a step."""
        for encoded in sorted({topic for topic, _ in self._store.queues()}):
            topic = encoded.decode("utf-8", "replace")
            known = self._topics.table.get(topic) is not None or self._topics.is_system(topic)
            if not known and not topic.startswith(LMQ_PREFIX):
                self._delete_unused(encoded)
                _log.info("the data of unused topic %r was deleted by %s", topic, peer.address)
            yield
        return Response()

    def handle_clean_expired_queues(self, request: Request, peer: Peer) -> Response:
        """Have the files removed that only lead to messages the log no longer has."""
        self._store.retention.run_once(self._clock.now_ms())
        return Response()

    def handle_delete_expired_segments(self, request: Request, peer: Peer) -> Response:
        """Have segments past their age removed now, at any hour."""
        self._store.retention.request_manual()
        self._store.retention.run_once(self._clock.now_ms())
        _log.warning("removal of expired segments was requested by %s", peer.address)
        return Response()

    # Asking.

    def handle_get(self, request: Request, peer: Peer) -> Response:
        return Response(body=encode_topic(self._require(HeaderFields(request).text("topic"))))

    def _all_topics(self, request: Request, peer: Peer) -> Steps:
        """All topics as they are now, or a page of them for a caller that asks for pages."""
        table = self._topics.table
        page = read_page(request, "topicSeq", "maxTopicNum")
        total = len(table.topics)
        chosen = (
            dict(table.topics)
            if page is None
            else table.page(*fitted(page, table.data_version, total))
        )
        body = yield from topic_table_steps(chosen, table.data_version)
        return Response(fields={"totalTopicNum": str(total)}, body=body)

    def _queue_reaches(self, request: Request, peer: Peer) -> Steps:
        """How far the queues of a topic reach; a queue is a step."""
        topic = HeaderFields(request).text("topic")
        config = self._require(topic)
        queue_count = max(config.read_queue_count, config.write_queue_count)
        reaches: dict[MessageQueue, QueueReach] = {}
        absent = AbsentParts()
        for queue_id in range(queue_count):
            queue = MessageQueue(topic, self._broker_name, queue_id)
            with absent:
                reaches[queue] = self._reach(topic.encode(), queue_id)
            yield
        absent.require_none()
        rate = self._stats.topic_put_per_second(topic)
        return Response(body=(yield from topic_stats_steps(reaches, rate)))

    def _reach(self, topic: bytes, queue_id: int) -> QueueReach:
        high = self._store.queue_offset_max(topic, queue_id)
        return QueueReach(
            queue_offset_min=max(0, self._store.queue_offset_min(topic, queue_id)),
            queue_offset_max=max(0, high),
            last_store_timestamp_ms=self._store_time(topic, queue_id, high - 1),
        )

    def _store_time(self, topic: bytes, queue_id: int, queue_offset: int) -> int:
        """When a message was stored; 0 for none, -1 for one that cannot be read."""
        if queue_offset < 0:
            return 0
        rows = self._store.rows(topic, queue_id, queue_offset, 1)
        try:
            return self._store.record(rows[0].physical_offset).store_timestamp_ms if rows else -1
        except RecordDamaged:
            return -1

    def handle_system_topics(self, request: Request, peer: Peer) -> Response:
        return Response(body=TopicList.of(self._topics.system_topics).encode())

    def _require(self, topic: str) -> TopicConfig:
        found = self._topics.table.get(topic)
        if found is None:
            raise RequestRejected(
                ResponseCode.TOPIC_NOT_EXIST, f"topic {topic!r} does not exist on this broker"
            )
        return found


Page = tuple[DataVersion | None, int, int]
"""A piece of a table: the version that is known of it, the first entry, and how many."""


def fitted(page: Page, version: DataVersion, total: int) -> Page:
    """The page, shorter by one if only the last entry were left out by it.

    RocketMQ's own clients take a table to be complete when they lack a single entry of it.
    """
    known, start, count = page
    first = max(start, 0) if known == version else 0
    leaves_one = count > 1 and first + count == total - 1
    return known, start, count - 1 if leaves_one else count


def read_page(request: Request, first_field: str, count_field: str) -> Page | None:
    """The page of a table that is asked for, and the table's version; None for all of it."""
    fields = HeaderFields(request)
    version = fields.optional_text("dataVersion")
    first, count = fields.optional_integer(first_field), fields.optional_integer(count_field)
    if version is None and first is None and count is None:
        return None
    known = None
    if version is not None and version.strip():
        what = "a data version"
        decoded = decode_body(version.encode(), what)
        with body_errors(what):
            known = DataVersion.from_fields(decoded)
    return known, first or 0, min(PAGE_COUNT_MAX, _INT_MAX if count is None else count)
