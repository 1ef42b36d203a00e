"""LIST_SYSTEM_MESSAGES: operators see the messages of the broker's own topics, page by page.

No data request reads these topics (``state.system_names``); this one is administration, and so is
taken from this host only. Without ``key`` it reads a queue from ``queueOffset``, or from the first
message stored at ``timestamp`` or later; with ``key`` it finds the messages that carry it. A page
of 0 messages tells where the queue begins and ends.
"""

from __future__ import annotations

from contrail.broker.handlers.queries import RESULT_COUNT_MAX
from contrail.broker.state.system_names import SystemNames
from contrail.errors import RequestRejected
from contrail.protocol.codes import RequestCode, ResponseCode
from contrail.protocol.command import Request, Response
from contrail.protocol.fields import HeaderFields
from contrail.store import MessageStore
from contrail.wire.peer import Handler, Peer

PAGE_COUNT = 32
PAGE_COUNT_MAX = 1000
PAGE_BYTES_MAX = 1 << 20


class SystemMessageHandlers:
    """Answers with records as they stand in the log, as a pull does."""

    def __init__(self, store: MessageStore, names: SystemNames) -> None:
        self._store = store
        self._names = names

    def table(self) -> dict[int, Handler]:
        return {RequestCode.LIST_SYSTEM_MESSAGES: self.handle_list}

    def handle_list(self, request: Request, peer: Peer) -> Response:
        fields = HeaderFields(request)
        topic, queue_id = fields.text("topic"), fields.integer("queueId", 0)
        count = fields.integer("maxMsgNums", PAGE_COUNT)
        if not self._names.is_closed(topic):
            raise RequestRejected(
                ResponseCode.INVALID_PARAMETER,
                f"topic {topic!r} is not the broker's own: pull its messages",
            )
        if not 0 <= count <= PAGE_COUNT_MAX:
            raise RequestRejected(
                ResponseCode.INVALID_PARAMETER,
                f"maxMsgNums={count}: ask for 0 to {PAGE_COUNT_MAX} messages",
            )
        key = fields.optional_text("key")
        if key is not None:
            return self._with_key(topic, key)
        queue_offset = fields.optional_long("queueOffset")
        if queue_offset is None:
            queue_offset = self._begin(topic, queue_id, fields)
        return self._page(topic, queue_id, queue_offset, count)

    def _with_key(self, topic: str, key: str) -> Response:
        found = self._store.query_places(topic.encode(), key.encode(), count_max=RESULT_COUNT_MAX)
        body = [self._store.record_bytes(physical_offset) for physical_offset in found.places]
        return Response(body=body, remark=found.damage)

    def _begin(self, topic: str, queue_id: int, fields: HeaderFields) -> int:
        """The place of a time if one is given, else the oldest message."""
        timestamp_ms = fields.optional_long("timestamp")
        if timestamp_ms is None:
            return self._store.queue_offset_min(topic.encode(), queue_id)
        is_upper = fields.text("boundaryType", "lower").lower() == "upper"
        return self._store.queue_offset_by_time(
            topic.encode(), queue_id, timestamp_ms, "upper" if is_upper else "lower"
        )

    def _page(self, topic: str, queue_id: int, queue_offset: int, count: int) -> Response:
        name = topic.encode()
        next_offset, records, remark = queue_offset, list[memoryview](), None
        if count:
            result = self._store.get(
                name, queue_id, queue_offset, count_max=count, bytes_max=PAGE_BYTES_MAX
            )
            next_offset, records = result.next_queue_offset, result.ranges
            if result.problem:
                remark = (
                    f"offset {queue_offset} of queue {queue_id} of {topic!r}: it {result.problem}"
                )
        return Response(
            fields={
                "nextBeginOffset": str(next_offset),
                "minOffset": str(self._store.queue_offset_min(name, queue_id)),
                "maxOffset": str(self._store.queue_offset_max(name, queue_id)),
            },
            body=records,
            remark=remark,
        )
