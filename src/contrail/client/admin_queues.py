"""The admin client on single queues: a topic's queues, their offsets and times."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Literal

from contrail.client.admin_asking import AdminAsking, number_field
from contrail.client.admin_values import Moment
from contrail.client.queue_places import epoch_ms
from contrail.client.state.routes import TopicRoute
from contrail.protocol.bodies.topics import QueueReach
from contrail.protocol.codes import RequestCode
from contrail.protocol.json_style import MessageQueue

_TIME_UNKNOWN_MS = -1
# The field with the same number in a page of system messages.
_LISTED_AS = {
    RequestCode.GET_MIN_OFFSET: "minOffset",
    RequestCode.GET_MAX_OFFSET: "maxOffset",
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: "nextBeginOffset",
}


class QueueAdmin(AdminAsking):
    """Queues."""

    async def queues(self, topic: str) -> list[MessageQueue]:
        """The queues that consumers read."""
        return sorted(TopicRoute.of(topic, await self.topic_route(topic)).read_queues)

    async def queue_offset_min(self, queue: MessageQueue) -> int:
        """The offset of the oldest message that is still there."""
        # Some brokers say -1 of a queue that was never written.
        return max(0, await self._queue_number(queue, RequestCode.GET_MIN_OFFSET, {}))

    async def queue_offset_max(self, queue: MessageQueue) -> int:
        """The offset that the next message will get."""
        return await self._queue_number(queue, RequestCode.GET_MAX_OFFSET, {})

    async def search_offset(
        self,
        queue: MessageQueue,
        moment: Moment,
        *,
        boundary: Literal["lower", "upper"] = "lower",
    ) -> int:
        """The first message of a queue that was stored at or after a time.

        Of several stored in the same millisecond, ``upper`` is the last one; brokers before 5.0
        know only ``lower``. A time after all messages leads to the end of the queue.
        """
        fields = {"timestamp": str(epoch_ms(moment)), "boundaryType": boundary}
        return await self._queue_number(queue, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, fields)

    async def search_offsets(self, topic: str, moment: Moment) -> dict[MessageQueue, int]:
        """``search_offset`` for all queues of a topic."""
        queues = await self.queues(topic)
        found = await asyncio.gather(*(self.search_offset(queue, moment) for queue in queues))
        return dict(zip(queues, found, strict=True))

    async def earliest_store_time_ms(self, queue: MessageQueue) -> int:
        """When the oldest message of a queue was stored; -1 for an empty queue."""
        code = RequestCode.GET_EARLIEST_MSG_STORETIME
        return await self._queue_number(queue, code, {}, name="timestamp")

    async def _queue_number(
        self,
        queue: MessageQueue,
        code: RequestCode,
        fields: Mapping[str, str],
        *,
        name: str = "offset",
    ) -> int:
        what = f"{code.name} of queue {queue.queue_id} of topic {queue.topic!r}"
        broker = await self._broker_of(queue)
        given = {"topic": queue.topic, "queueId": str(queue.queue_id), **fields}
        page = {**given, "maxMsgNums": "0"}
        listed = await self._list_system(broker, queue.topic, page, what)
        if listed is not None and code in _LISTED_AS:
            return number_field(listed, _LISTED_AS[code], what)
        return number_field(await self._ask(broker, code, given, what), name, what)

    async def _reach(self, queue: MessageQueue) -> QueueReach:
        low, high = await asyncio.gather(self.queue_offset_min(queue), self.queue_offset_max(queue))
        return QueueReach(low, max(0, high), _TIME_UNKNOWN_MS)
