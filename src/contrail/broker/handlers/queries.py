"""Requests for messages by key and by place, and a look into a queue's rows."""

from __future__ import annotations

from typing import Protocol

from contrail.broker.handlers.found_records import FoundRecords
from contrail.broker.services.stored_records import RecordStore, record_at
from contrail.broker.state.consumers import ConsumerTable
from contrail.broker.state.filter_data import FilterData, FilterTable
from contrail.broker.state.system_names import SystemNames
from contrail.errors import RecordDamaged, RequestRejected
from contrail.model.fastjson import dumps
from contrail.model.subscription import SubscriptionData
from contrail.model.topic import TopicConfig
from contrail.protocol.bodies.queue_rows import queue_rows_steps
from contrail.protocol.codes import RequestCode, ResponseCode
from contrail.protocol.command import FRAME_BYTES_MAX, Request, Response
from contrail.protocol.fields import HeaderFields
from contrail.store import PlacesByKey
from contrail.wire.peer import Handler, Peer
from contrail.wire.sliced_requests import InSlices, Steps, in_one_go

RESULT_COUNT_MAX = 64
UNIQUE_KEY_COUNT = 32
UNIQUE_KEY_FLAG = "_UNIQUE_KEY_QUERY"
ROW_COUNT_MAX = 4096
# Room for the frame's header; messages that do not fit are left out, as by a smaller limit.
_BODY_BYTES_MAX = FRAME_BYTES_MAX - (1 << 20)


class MessageLookup(RecordStore, Protocol):
    """The part of the store that these requests need."""

    @property
    def index_end(self) -> tuple[int, int]: ...

    def query_places(
        self, topic: bytes, key: bytes, *, count_max: int, begin_ms: int, end_ms: int
    ) -> PlacesByKey: ...
    def record_bytes(self, physical_offset: int) -> bytes: ...
    def has_queue(self, topic: bytes, queue_id: int) -> bool: ...
    def queue_offset_min(self, topic: bytes, queue_id: int) -> int: ...
    def queue_offset_max(self, topic: bytes, queue_id: int) -> int: ...


class TopicSettings(Protocol):
    """The topics there are."""

    def get(self, topic: str) -> TopicConfig | None: ...


class QueryHandlers:
    """Answers with records as they stand in the log."""

    def __init__(
        self,
        store: MessageLookup,
        topics: TopicSettings,
        consumers: ConsumerTable,
        filters: FilterTable,
        *,
        names: SystemNames,
        in_slices: InSlices = in_one_go,
        records: FoundRecords | None = None,
    ) -> None:
        self._found = records or FoundRecords()
        self.handle_rows = in_slices(self._rows)
        self._names = names
        self._store = store
        self._topics = topics
        self._consumers = consumers
        self._filters = filters

    def table(self) -> dict[int, Handler]:
        return {
            RequestCode.QUERY_MESSAGE: self.handle_query,
            RequestCode.VIEW_MESSAGE_BY_ID: self.handle_view,
            RequestCode.QUERY_CONSUME_QUEUE: self.handle_rows,
        }

    def handle_query(self, request: Request, peer: Peer) -> Response:
        """The newest messages of a topic with a key, in log order.

        Those that are damaged are told of in the remark.
        """
        fields = HeaderFields(request)
        count_max = fields.integer("maxNum")
        if fields.optional_text(UNIQUE_KEY_FLAG) == "true":
            count_max = UNIQUE_KEY_COUNT
        found = self._store.query_places(
            fields.text("topic").encode(),
            fields.text("key").encode(),
            count_max=min(count_max, RESULT_COUNT_MAX),
            begin_ms=fields.long("beginTimestamp"),
            end_ms=fields.long("endTimestamp"),
        )
        records = self._records(found.places)
        timestamp_ms, physical_offset = self._store.index_end if records else (0, 0)
        answer = Response(
            fields={
                "indexLastUpdateTimestamp": str(timestamp_ms),
                "indexLastUpdatePhyoffset": str(physical_offset),
            },
            body=records,
            remark=found.damage,
        )
        if not records:
            answer.code = ResponseCode.QUERY_NOT_FOUND
            answer.remark = "no message has this key in this time; check the topic and the times"
        return answer

    def _records(self, places: list[int]) -> list[bytes]:
        records: list[bytes] = []
        byte_count = 0
        for physical_offset in places:
            record = self._store.record_bytes(physical_offset)
            byte_count += len(record)
            if byte_count > _BODY_BYTES_MAX:
                break
            records.append(record)
        return records

    def handle_view(self, request: Request, peer: Peer) -> Response:
        """The message at a physical offset."""
        physical_offset = HeaderFields(request).long("offset")
        try:
            message = record_at(self._store, physical_offset)
            self._found.require_viewable(request, peer, message.topic)
            self._names.require_viewable(message.topic, by_operator=peer.is_this_host)
            return Response(body=self._store.record_bytes(physical_offset))
        except RecordDamaged as error:
            remark = f"no message starts at physical offset {physical_offset}; check the message id"
            if error.is_record:
                remark = str(error)
            raise RequestRejected(ResponseCode.SYSTEM_ERROR, remark) from error

    def _rows(self, request: Request, peer: Peer) -> Steps:
        """A queue's rows, and a group's filter on the topic."""
        fields = HeaderFields(request)
        topic, queue_id = fields.text("topic"), fields.integer("queueId")
        queue_offset, count = fields.long("index"), fields.integer("count")
        group = fields.optional_text("consumerGroup")
        encoded = topic.encode()
        if not (self._store.has_queue(encoded, queue_id) or self._is_queue(topic, queue_id)):
            raise RequestRejected(
                ResponseCode.SYSTEM_ERROR, f"topic {topic!r} has no queue {queue_id}"
            )
        low = self._store.queue_offset_min(encoded, queue_id)
        high = self._store.queue_offset_max(encoded, queue_id)
        if not low <= queue_offset < high:
            remark = f"index {queue_offset} of queue {queue_id} of {topic!r} is not there"
            return Response(remark=remark)
        subscription, filter_text = self._filter_of(group, topic)
        body = yield from queue_rows_steps(
            self._store.rows(encoded, queue_id, queue_offset, min(count, ROW_COUNT_MAX)),
            queue_offset_min=low,
            queue_offset_max=high,
            subscription=subscription,
            filter_text=filter_text,
        )
        return Response(body=body)

    def _is_queue(self, topic: str, queue_id: int) -> bool:
        """Whether messages may be sent there or read from there, though none ever were."""
        config = self._topics.get(topic)
        if config is None:
            return False
        return 0 <= queue_id < max(config.read_queue_count, config.write_queue_count)

    def _filter_of(
        self, group: str | None, topic: str
    ) -> tuple[SubscriptionData | None, str | None]:
        if group is None:
            return None, None
        subscription = self._consumers.subscription(group, topic)
        if subscription is None:
            return None, f"group {group!r} does not consume {topic!r} now"
        return subscription, _filter_text(self._filters.get(topic, group))


def _filter_text(data: FilterData | None) -> str:
    if data is None:
        return "null"
    return dumps(
        {
            "bornTime": data.born_ms,
            "clientVersion": data.version,
            "consumerGroup": data.group,
            "dead": data.is_dead,
            "deadTime": data.dead_ms,
            "expression": data.expression,
            "expressionType": data.expression_type,
            "topic": data.topic,
        }
    ).decode()
