"""INVOKE_BROKER_TO_RESET_OFFSET: an operator moves a group to another place in a topic.

By default the broker keeps the new offsets as pending resets, and each queue's next pull is sent
there. With ``useServerSideResetOffset=false`` the clients are told instead, and must be online.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterable

from contrail.broker.handlers.offsets import GroupSettings, QueueStore, TopicSettings
from contrail.broker.state.consumer_offsets import ConsumerOffsets
from contrail.broker.state.consumers import ConsumerTable
from contrail.broker.state.runtime_settings import RuntimeSettings
from contrail.broker.state.shares import THIS_HOST
from contrail.errors import RequestRejected
from contrail.model.topic import TopicConfig
from contrail.protocol.bodies.reset import encode_reset_offsets_as_list, reset_offsets_steps
from contrail.protocol.codes import RequestCode, ResponseCode
from contrail.protocol.command import Request, Response
from contrail.protocol.fields import HeaderFields
from contrail.protocol.json_style import MessageQueue
from contrail.store import AbsentParts
from contrail.wire.peer import Handler, Peer
from contrail.wire.sliced_requests import InSlices, Steps, in_one_go

_log = logging.getLogger(__name__)

ALL_QUEUES = -1
NO_OFFSET = -1
# V3_0_7_SNAPSHOT, the first client that understands the notice.
CLIENT_VERSION_MIN = 28

_PlaceSteps = Generator[None, None, dict[int, int]]
"""Looks offsets up by queue, one step for each."""


class ResetHandlers:
    """Resets a group's offsets, here or by its clients."""

    def __init__(
        self,
        *,
        offsets: ConsumerOffsets,
        consumers: ConsumerTable,
        groups: GroupSettings,
        topics: TopicSettings,
        store: QueueStore,
        settings: RuntimeSettings,
        wake: Callable[[bytes], None] = lambda topic: None,
        in_slices: InSlices = in_one_go,
    ) -> None:
        """``wake`` answers the held pulls of a topic: a reset shall not wait for their time."""
        self.handle_reset = in_slices(self._reset)
        self._wake = wake
        self._offsets = offsets
        self._consumers = consumers
        self._groups = groups
        self._topics = topics
        self._store = store
        self._settings = settings

    def table(self) -> dict[int, Handler]:
        return {RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: self.handle_reset}

    def _reset(self, request: Request, peer: Peer) -> Steps:
        """Look up offsets in steps, one for each queue; then reset all queues together."""
        fields = HeaderFields(request)
        group = fields.text("group")
        topic = self._require_topic(fields.text("topic"))
        if self._settings.config.server_side_reset:
            answer = yield from self._reset_here(group, topic, fields)
        else:
            as_list = request.language == "CPP"
            answer = yield from self._reset_by_clients(group, topic, fields, as_list=as_list)
        _log.info("%s has reset group %r on topic %r", peer.address, group, topic.topic)
        return answer

    def _require_topic(self, topic: str) -> TopicConfig:
        found = self._topics.get(topic)
        if found is None:
            raise RequestRejected(ResponseCode.TOPIC_NOT_EXIST, f"topic {topic!r} does not exist")
        return found

    def _reset_here(self, group: str, topic: TopicConfig, fields: HeaderFields) -> Steps:
        if self._groups.get(group) is None:
            raise RequestRejected(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"group {group!r} does not exist"
            )
        wanted = yield from self._plan_reset(topic, fields)
        if not wanted:
            raise RequestRejected(
                ResponseCode.SYSTEM_ERROR, f"topic {topic.topic!r} has no queues to reset"
            )
        # All of them or none.
        self._offsets.admit(group, topic.topic, THIS_HOST, *wanted)
        for queue_id, consumer_offset in wanted.items():
            self._offsets.assign_reset(group, topic.topic, queue_id, consumer_offset)
        self._wake(topic.topic.encode())
        self._offsets.require_writable()
        table = self._by_queue(topic.topic, wanted)
        return Response(body=(yield from reset_offsets_steps(table)))

    def _plan_reset(self, topic: TopicConfig, fields: HeaderFields) -> _PlaceSteps:
        """The new offset of each queue that is to be reset."""
        queue_id = fields.integer("queueId", ALL_QUEUES)
        timestamp_ms = fields.long("timestamp")
        if queue_id < 0:
            queues = range(topic.read_queue_count)
            return (yield from self._places(topic.topic, queues, timestamp_ms))
        consumer_offset = fields.long("offset", NO_OFFSET)
        if consumer_offset == NO_OFFSET:
            return {queue_id: self._place(topic.topic, queue_id, timestamp_ms)}
        self._check_range(topic.topic, queue_id, consumer_offset)
        return {queue_id: consumer_offset}

    def _check_range(self, topic: str, queue_id: int, consumer_offset: int) -> None:
        low = self._store.queue_offset_min(topic.encode(), queue_id)
        high = self._store.queue_offset_max(topic.encode(), queue_id)
        if not low <= consumer_offset <= high + 1:
            raise RequestRejected(
                ResponseCode.SYSTEM_ERROR,
                f"offset {consumer_offset} is outside queue {queue_id} of topic {topic!r}, "
                f"which holds {low} to {high}",
            )

    def _places(self, topic: str, queues: Iterable[int], timestamp_ms: int) -> _PlaceSteps:
        found: dict[int, int] = {}
        absent = AbsentParts()
        for queue_id in queues:
            with absent:
                found[queue_id] = self._place(topic, queue_id, timestamp_ms)
            yield
        absent.require_none()
        return found

    def _place(self, topic: str, queue_id: int, timestamp_ms: int) -> int:
        """Where a queue was at a time; its end for a time before all times."""
        if timestamp_ms < 0:
            return self._store.queue_offset_max(topic.encode(), queue_id)
        return max(0, self._store.queue_offset_by_time(topic.encode(), queue_id, timestamp_ms))

    def _reset_by_clients(
        self, group: str, topic: TopicConfig, fields: HeaderFields, *, as_list: bool
    ) -> Steps:
        timestamp_ms, force = fields.long("timestamp"), fields.boolean("isForce")
        wanted = yield from self._plan_notice(group, topic, timestamp_ms, force)
        table = self._by_queue(topic.topic, wanted)
        body = yield from reset_offsets_steps(table)
        notice = encode_reset_offsets_as_list(table) if as_list else body
        header = {
            "group": group,
            "isForce": "false",
            "queueId": str(ALL_QUEUES),
            "timestamp": str(timestamp_ms),
            "topic": topic.topic,
        }
        for client in self._clients_that_understand(group):
            client.notify(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, header, notice)
        return Response(body=body)

    def _plan_notice(
        self, group: str, topic: TopicConfig, timestamp_ms: int, force: bool
    ) -> _PlaceSteps:
        """Without force a group only goes back: progress that is behind the time stays."""
        reached = {}
        for queue_id in range(topic.write_queue_count):
            reached[queue_id] = self._offsets.query(group, topic.topic, queue_id)
            if reached[queue_id] < 0:
                raise RequestRejected(
                    ResponseCode.SYSTEM_ERROR,
                    f"group {group!r} has no offset on queue {queue_id} of topic {topic.topic!r}",
                )
        places = yield from self._places(topic.topic, reached, timestamp_ms)
        if force:
            return places
        return {queue_id: min(place, reached[queue_id]) for queue_id, place in places.items()}

    def _clients_that_understand(self, group: str) -> list[Peer]:
        found = self._consumers.find(group)
        if found is None:
            raise RequestRejected(
                ResponseCode.CONSUMER_NOT_ONLINE,
                f"no consumer of group {group!r} is connected, so its offsets cannot be reset",
            )
        for channel in found.channels.values():
            if channel.version < CLIENT_VERSION_MIN:
                raise RequestRejected(
                    ResponseCode.SYSTEM_ERROR,
                    f"client {channel.client_id} of version {channel.version} is too old to be "
                    "told of a reset; upgrade it",
                )
        return list(found.channels)

    def _by_queue(self, topic: str, offsets: dict[int, int]) -> dict[MessageQueue, int]:
        broker_name = self._settings.config.broker_name
        return {
            MessageQueue(topic, broker_name, queue_id): consumer_offset
            for queue_id, consumer_offset in offsets.items()
        }
