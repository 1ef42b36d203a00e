"""Offsets of groups and queues: query, update, search by time, lowest, highest, oldest, clone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

from contrail.broker.services.address_shares import owner_of
from contrail.broker.services.topics import keeps_batches
from contrail.broker.state.consumer_offsets import UNKNOWN, ConsumerOffsets, offsets_key
from contrail.broker.state.consumers import ConsumerTable
from contrail.clock import Clock
from contrail.errors import RequestRejected
from contrail.model.group import SubscriptionGroupConfig
from contrail.model.message import StoredMessage
from contrail.model.stored_entries import check_entry_name, check_offset_entry
from contrail.model.topic import TopicConfig
from contrail.protocol.bodies.consume_stats import encode_correction_offsets
from contrail.protocol.codes import RequestCode, ResponseCode
from contrail.protocol.command import Request, Response
from contrail.protocol.fields import HeaderFields
from contrail.wire.peer import Handler, Peer
from contrail.wire.sliced_requests import InSlices, Steps, in_one_go

_LONG_MAX = (1 << 63) - 1
NO_TIME = -1
ABSENT_QUEUES_MAX = 256
"""How many queues that a topic does not have may have offsets of one group."""


class GroupSettings(Protocol):
    """The groups there are."""

    def get(self, group: str) -> SubscriptionGroupConfig | None: ...


class TopicSettings(Protocol):
    """The topics there are."""

    def get(self, topic: str) -> TopicConfig | None: ...


class QueueRead(Protocol):
    """The outcome of reading a queue."""

    @property
    def messages(self) -> list[StoredMessage]: ...


class QueueStore(Protocol):
    """The store's facts of its queues."""

    def queue_offset_min(self, topic: bytes, queue_id: int) -> int: ...

    def queue_offset_max(self, topic: bytes, queue_id: int) -> int: ...

    def queue_offset_by_time(
        self,
        topic: bytes,
        queue_id: int,
        timestamp_ms: int,
        boundary: Literal["lower", "upper"] = "lower",
    ) -> int: ...

    def get(
        self, topic: bytes, queue_id: int, queue_offset: int, *, count_max: int = 32
    ) -> QueueRead: ...

    def on_disk(
        self, topic: bytes, queue_id: int, queue_offset: int, *, count_max: int = 32
    ) -> OnDisk: ...


class OnDisk(Protocol):
    """The parts of a queue that are not in memory."""

    @property
    def parts(self) -> Sequence[object]: ...


class OffsetHandlers:
    """Answers where groups are and where queues begin and end."""

    def __init__(
        self,
        *,
        offsets: ConsumerOffsets,
        consumers: ConsumerTable,
        groups: GroupSettings,
        topics: TopicSettings,
        store: QueueStore,
        clock: Clock,
        in_slices: InSlices = in_one_go,
    ) -> None:
        self._in_slices = in_slices
        self._offsets = offsets
        self._consumers = consumers
        self._groups = groups
        self._topics = topics
        self._store = store
        self._clock = clock

    def table(self) -> dict[int, Handler]:
        return {
            RequestCode.QUERY_CONSUMER_OFFSET: self.handle_query,
            RequestCode.UPDATE_CONSUMER_OFFSET: self.handle_update,
            RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: self.handle_search_by_time,
            RequestCode.GET_MAX_OFFSET: self.handle_max,
            RequestCode.GET_MIN_OFFSET: self.handle_min,
            RequestCode.GET_EARLIEST_MSG_STORETIME: self.handle_earliest_time,
            RequestCode.CLONE_GROUP_OFFSET: self.handle_clone,
            RequestCode.QUERY_CORRECTION_OFFSET: self._in_slices(self._corrections),
        }

    def handle_query(self, request: Request, peer: Peer) -> Response:
        """A group's progress on a queue; a client takes QUERY_NOT_FOUND as its first start."""
        fields = HeaderFields(request)
        group, topic = fields.text("consumerGroup"), fields.text("topic")
        queue_id = fields.integer("queueId")
        consumer_offset = self._offsets.query(group, topic, queue_id)
        if consumer_offset < 0:
            from_zero = fields.boolean("setZeroIfNotFound", True)
            if not (from_zero and self._has_first(topic, queue_id)):
                raise RequestRejected(
                    ResponseCode.QUERY_NOT_FOUND,
                    f"group {group!r} has no offset on queue {queue_id} of topic {topic!r}: "
                    "this may be its first start",
                )
            consumer_offset = 0
        return _number("offset", consumer_offset)

    def _has_first(self, topic: str, queue_id: int) -> bool:
        """Whether the queue's very first message is there, and in memory, as RocketMQ asks."""
        name = topic.encode()
        if self._store.queue_offset_min(name, queue_id) > 0:
            return False
        if self._store.queue_offset_max(name, queue_id) <= 0:
            return False
        return not self._store.on_disk(name, queue_id, 0, count_max=1).parts

    def handle_update(self, request: Request, peer: Peer) -> Response:
        fields = HeaderFields(request)
        group, topic = fields.text("consumerGroup"), fields.text("topic")
        if self._groups.get(group) is None:
            raise RequestRejected(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"group {group!r} does not exist"
            )
        settings = self._topics.get(topic)
        if settings is None:
            raise RequestRejected(ResponseCode.TOPIC_NOT_EXIST, f"topic {topic!r} does not exist")
        queue_id = _required(fields.optional_integer("queueId"), "queueId", topic)
        consumer_offset = _required(fields.optional_long("commitOffset"), "commitOffset", topic)
        self._check_queue(group, settings, queue_id)
        check_offset_entry(offsets_key(group, topic), queue_id, consumer_offset)
        self._offsets.admit(group, topic, owner_of(peer), queue_id)
        if not self._offsets.commit(group, topic, queue_id, consumer_offset):
            # Not an error: the client goes on, and its next pull tells it where.
            return Response(remark="ignored: the offset was reset and the group does not know yet")
        self._offsets.stamp(self._clock.now_ms())
        self._offsets.require_writable()
        return Response()

    def _check_queue(self, group: str, settings: TopicConfig, queue_id: int) -> None:
        """Take some queues that are not there, as RocketMQ does, but not any number of them."""
        queue_count = max(settings.read_queue_count, settings.write_queue_count)
        if 0 <= queue_id < queue_count:
            return
        topic = settings.topic
        if self._offsets.queue_count(group, topic) < queue_count + ABSENT_QUEUES_MAX:
            return
        # A topic that was made smaller may have messages in the queues it had before.
        has_messages = self._store.queue_offset_max(topic.encode(), queue_id) > 0
        if not has_messages and self._offsets.query(group, topic, queue_id) == UNKNOWN:
            raise RequestRejected(
                ResponseCode.INVALID_PARAMETER,
                f"queue {queue_id} of topic {topic!r} does not exist: it has {queue_count}",
            )

    def handle_search_by_time(self, request: Request, peer: Peer) -> Response:
        fields = HeaderFields(request)
        upper = fields.text("boundaryType", "lower").lower() == "upper"
        queue_offset = self._store.queue_offset_by_time(
            fields.text("topic").encode(),
            fields.integer("queueId"),
            fields.long("timestamp"),
            "upper" if upper else "lower",
        )
        return _number("offset", queue_offset)

    def handle_max(self, request: Request, peer: Peer) -> Response:
        fields = HeaderFields(request)
        topic = fields.text("topic").encode()
        return _number("offset", self._store.queue_offset_max(topic, fields.integer("queueId")))

    def handle_min(self, request: Request, peer: Peer) -> Response:
        """As RocketMQ's: -1 for a queue of batches that nothing was ever written to, else 0."""
        fields = HeaderFields(request)
        topic, queue_id = fields.text("topic"), fields.integer("queueId")
        low = self._store.queue_offset_min(topic.encode(), queue_id)
        settings = self._topics.get(topic)
        if settings is not None and keeps_batches(settings):
            is_untouched = self._store.queue_offset_max(topic.encode(), queue_id) == 0
            low = -1 if is_untouched else low
        return _number("offset", low)

    def handle_earliest_time(self, request: Request, peer: Peer) -> Response:
        fields = HeaderFields(request)
        topic, queue_id = fields.text("topic"), fields.integer("queueId")
        return _number("timestamp", earliest_store_time(self._store, topic, queue_id))

    def handle_clone(self, request: Request, peer: Peer) -> Response:
        """Copy a group's progress to another group, on one topic or on all of them."""
        fields = HeaderFields(request)
        source, destination = fields.text("srcGroup"), fields.text("destGroup")
        check_entry_name("group", destination)
        wanted = fields.text("topic", "")
        offline = fields.boolean("offline")
        for topic in [wanted] if wanted.strip() else sorted(self._offsets.topics_of(source)):
            known = self._topics.get(topic) is not None
            if known and (offline or self._consumers.subscribes(source, topic)):
                self._offsets.clone(source, destination, topic)
        self._offsets.require_writable()
        return Response()

    def _corrections(self, request: Request, peer: Peer) -> Steps:
        """The lowest offset of any group, by queue; a queue of a group is a step.

        Where the compared group is behind all others, the answer is the largest number there is:
        nothing to correct. The groups to leave out are left out, and nothing else happens to them.
        """
        fields = HeaderFields(request)
        topic, compared = fields.text("topic"), fields.text("compareGroup")
        left_out = set(fields.text("filterGroups", "").split(","))
        lowest: dict[int, int] = {}
        for group in self._offsets.groups_of(topic) - left_out:
            for queue_id, consumer_offset in self._offsets.of_group(group, topic).items():
                if consumer_offset >= self._store.queue_offset_min(topic.encode(), queue_id):
                    known = lowest.get(queue_id, consumer_offset)
                    lowest[queue_id] = min(known, consumer_offset)
                yield
            yield
        for queue_id, consumer_offset in self._offsets.of_group(compared, topic).items():
            if lowest.get(queue_id, consumer_offset) > consumer_offset:
                lowest[queue_id] = _LONG_MAX
        return Response(body=encode_correction_offsets(lowest))


def store_time_at(store: QueueStore, topic: str, queue_id: int, queue_offset: int) -> int:
    """When the message at a place of a queue was stored; -1 if there is none."""
    if queue_offset < 0:
        return NO_TIME
    messages = store.get(topic.encode(), queue_id, queue_offset, count_max=1).messages
    return messages[0].store_timestamp_ms if messages else NO_TIME


def earliest_store_time(store: QueueStore, topic: str, queue_id: int) -> int:
    """When the oldest message of a queue was stored; -1 if it has none."""
    queue_offset = store.queue_offset_min(topic.encode(), queue_id)
    return store_time_at(store, topic, queue_id, queue_offset)


def _required(value: int | None, name: str, topic: str) -> int:
    if value is None:
        raise RequestRejected(
            ResponseCode.INVALID_PARAMETER, f"the field {name} is missing for topic {topic!r}"
        )
    return value


def _number(name: str, value: int) -> Response:
    return Response(fields={name: str(value)})
