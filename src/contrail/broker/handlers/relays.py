"""Questions that only a connected client can answer: the broker passes them on and waits.

The request is parked while a task asks the client over the client's own connection. The tasks
belong to the handlers, and ``close`` ends those that still wait.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Protocol

from contrail.broker.handlers.found_records import FoundRecords
from contrail.broker.handlers.offsets import GroupSettings, TopicSettings
from contrail.broker.services.stored_records import RecordStore, record_at
from contrail.broker.state.client_channels import ClientChannel
from contrail.broker.state.consumers import ConsumerTable
from contrail.broker.state.runtime_settings import RuntimeSettings
from contrail.errors import CallFailed, MessageIllegal, RecordDamaged, RequestRejected
from contrail.model.message_id import decode_offset_message_id
from contrail.protocol.bodies.reset import decode_consumer_status, encode_consumer_status
from contrail.protocol.codes import RequestCode, ResponseCode
from contrail.protocol.command import Request, Response
from contrail.protocol.fields import HeaderFields
from contrail.protocol.json_style import MessageQueue
from contrail.protocol.signing import SIGNED_FIELDS
from contrail.wire.peer import LATER, Answer, Handler, Peer

_log = logging.getLogger(__name__)

RELAY_TIMEOUT_MS = 10_000
STATUS_TIMEOUT_MS = 5_000
RELAYS_MAX = 1000
# V3_1_8_SNAPSHOT and V3_0_7_SNAPSHOT, the first clients that answer these questions.
RELAY_VERSION_MIN = 62
STATUS_VERSION_MIN = 28


class RelayStore(RecordStore, Protocol):
    """Where whole records are read."""

    def record_bytes(self, physical_offset: int) -> bytes:
        """Raises ``RecordDamaged`` if no whole record starts there."""
        ...


class RelayHandlers:
    """Relays running-info, consume-directly and consumer-status requests to clients."""

    def __init__(
        self,
        *,
        consumers: ConsumerTable,
        groups: GroupSettings,
        topics: TopicSettings,
        store: RelayStore,
        settings: RuntimeSettings,
        records: FoundRecords | None = None,
    ) -> None:
        self._consumers = consumers
        self._groups = groups
        self._topics = topics
        self._store = store
        self._found = records or FoundRecords()
        self._settings = settings
        self._waiting: set[asyncio.Task[None]] = set()

    def table(self) -> dict[int, Handler]:
        return {
            RequestCode.GET_CONSUMER_RUNNING_INFO: self.handle_running_info,
            RequestCode.CONSUME_MESSAGE_DIRECTLY: self.handle_consume_directly,
            RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: self.handle_consumer_status,
        }

    async def close(self) -> None:
        """End the questions that still wait for a client."""
        waiting = list(self._waiting)
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)

    def handle_running_info(self, request: Request, peer: Peer) -> Answer:
        channel = self._require_client(request)
        fields = _unsigned(request)
        return self._park(request, peer, self._ask(request, channel, fields, request.body))

    def handle_consume_directly(self, request: Request, peer: Peer) -> Answer:
        """Have a client consume a stored message now; the record itself is sent along."""
        channel = self._require_client(request)
        record = self._record(request, peer)
        fields = _unsigned(request) | self._broker_fields(request)
        return self._park(request, peer, self._ask(request, channel, fields, record))

    def handle_consumer_status(self, request: Request, peer: Peer) -> Answer:
        """Collect the offsets that a group's clients have in memory."""
        fields = HeaderFields(request)
        topic, group = fields.text("topic"), fields.text("group")
        channels = self._status_channels(group, fields.text("clientAddr", "").strip())
        question = {"group": group, "topic": topic}
        return self._park(request, peer, self._collect_status(channels, question))

    def _require_client(self, request: Request) -> ClientChannel:
        fields = HeaderFields(request)
        group, client_id = fields.text("consumerGroup"), fields.text("clientId", "")
        channel = self._consumers.channel_of(group, client_id)
        if channel is None:
            raise RequestRejected(
                ResponseCode.SYSTEM_ERROR, f"client {client_id!r} of group {group!r} is offline"
            )
        _require_version(channel, RELAY_VERSION_MIN)
        return channel

    def _record(self, request: Request, peer: Peer) -> bytes:
        message_id = HeaderFields(request).text("msgId")
        try:
            place = decode_offset_message_id(message_id)
            message = record_at(self._store, place.physical_offset)
            self._found.require_consumable(request, peer, message.topic)
            return self._store.record_bytes(place.physical_offset)
        except (MessageIllegal, RecordDamaged) as error:
            raise RequestRejected(
                ResponseCode.SYSTEM_ERROR, f"no message {message_id!r} is stored here: {error}"
            ) from error

    def _broker_fields(self, request: Request) -> dict[str, str]:
        added = {"brokerName": self._settings.config.broker_name}
        topic = self._topics.get(request.fields.get("topic", ""))
        if topic is not None:
            added["topicSysFlag"] = str(topic.sys_flag)
        group = self._groups.get(request.fields["consumerGroup"])
        if group is not None:
            added["groupSysFlag"] = str(group.sys_flag)
        return added

    def _status_channels(self, group: str, client_id: str) -> list[ClientChannel]:
        """The clients to ask: all of them, or the one that is named."""
        found = self._consumers.find(group)
        if found is None:
            raise RequestRejected(
                ResponseCode.SYSTEM_ERROR, f"no consumer of group {group!r} is connected"
            )
        for channel in found.channels.values():
            _require_version(channel, STATUS_VERSION_MIN)
        return [c for c in found.channels.values() if client_id in ("", c.client_id)]

    def _park(self, request: Request, peer: Peer, work: Coroutine[None, None, Response]) -> Answer:
        if len(self._waiting) >= RELAYS_MAX:
            work.close()
            raise RequestRejected(
                ResponseCode.SYSTEM_BUSY, f"{RELAYS_MAX} questions wait for clients; ask later"
            )
        task = asyncio.get_running_loop().create_task(_answer(request, peer, work))
        self._waiting.add(task)
        task.add_done_callback(self._waiting.discard)
        return LATER

    async def _ask(
        self, request: Request, channel: ClientChannel, fields: dict[str, str], body: bytes
    ) -> Response:
        try:
            found = await channel.peer.call(request.code, fields, body, timeout_ms=RELAY_TIMEOUT_MS)
        except CallFailed as error:
            timed_out = isinstance(error.__cause__, TimeoutError)
            code = ResponseCode.CONSUME_MSG_TIMEOUT if timed_out else ResponseCode.SYSTEM_ERROR
            remark = f"client {channel.client_id} did not answer: {error}"
            raise RequestRejected(code, remark) from error
        return Response(found.code, found.remark, found.fields or None, found.body)

    async def _collect_status(
        self, channels: list[ClientChannel], question: dict[str, str]
    ) -> Response:
        answers = await asyncio.gather(*(_ask_status(c, question) for c in channels))
        by_client = {
            channel.client_id: offsets
            for channel, offsets in zip(channels, answers, strict=True)
            if offsets is not None
        }
        return Response(body=encode_consumer_status(by_client))


def _unsigned(request: Request) -> dict[str, str]:
    """The fields for a client: the asker's name and signature are not its business."""
    return {name: text for name, text in request.fields.items() if name not in SIGNED_FIELDS}


async def _ask_status(
    channel: ClientChannel, question: dict[str, str]
) -> dict[MessageQueue, int] | None:
    """A client's offsets; None from one that does not answer, so that the others still count."""
    try:
        found = await channel.peer.call(
            RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, question, timeout_ms=STATUS_TIMEOUT_MS
        )
        if found.code == ResponseCode.SUCCESS and found.body:
            return decode_consumer_status(found.body)
    except (CallFailed, RequestRejected) as error:
        _log.warning("client %s did not tell its offsets: %s", channel.client_id, error)
    return None


async def _answer(request: Request, peer: Peer, work: Coroutine[None, None, Response]) -> None:
    """Reply to a parked request, also when the work fails."""
    try:
        response = await work
    except RequestRejected as refusal:
        response = Response(refusal.code, refusal.remark)
    except Exception as error:
        _log.exception("request %d from %s failed", request.code, peer.address)
        response = Response(ResponseCode.SYSTEM_ERROR, f"the broker failed: {error}")
    peer.reply(request, response)


def _require_version(channel: ClientChannel, lowest: int) -> None:
    if channel.version < lowest:
        raise RequestRejected(
            ResponseCode.SYSTEM_ERROR,
            f"client {channel.client_id} of version {channel.version} is too old to answer; "
            f"upgrade it to a release after V3_1_8 ({RELAY_VERSION_MIN})",
        )
