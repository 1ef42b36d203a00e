"""Request-reply: a reply is pushed to the client that waits for it, and kept.

The requester is found by its client id among the producers that are connected here, so a reply
finds it at every broker to which it sends heartbeats. The responder learns how it answered the
push. Tasks belong to the handlers, and ``close`` ends those that still wait.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter

from contrail.broker.services.acknowledgements import Acknowledgements, count_in_flight
from contrail.broker.services.deliveries import Deliveries
from contrail.broker.services.send_admission import Admitted, SendAdmission
from contrail.broker.state.client_channels import ClientChannel
from contrail.broker.state.producers import ProducerTable
from contrail.broker.state.runtime_settings import RuntimeSettings
from contrail.clock import Clock
from contrail.errors import CallFailed, LocalProtocolError, RequestRejected, StoreError
from contrail.model.message import MessageDraft
from contrail.model.message_id import encode_offset_message_id
from contrail.model.properties import (
    CLUSTER,
    DELAY,
    INNER_NUM,
    MSG_REGION,
    PUSH_REPLY_TIME,
    REPLY_TO_CLIENT,
    TIMER_DELAY_MS,
    TIMER_DELAY_SEC,
    TIMER_DELIVER_MS,
    TRACE_ON,
    TRAN_MSG,
    decode_properties,
    encode_properties,
    remove_property,
)
from contrail.model.record import COMPRESSION_MASK, SYS_FLAG_COMPRESSED
from contrail.protocol.codes import RequestCode, ResponseCode
from contrail.protocol.command import Request, Response
from contrail.protocol.frames import SendRequest
from contrail.protocol.sends import is_unit_send, read_send
from contrail.runtime.sparse_log import SparseLog
from contrail.wire.peer import LATER, Answer, Handler, Peer

_log = logging.getLogger(__name__)

PUSH_TIMEOUT_MS = 10_000
PUSHES_MAX = 10_000
# One requester that does not answer must not use up everybody's share.
PUSHES_PER_REQUESTER_MAX = 1000
# Replies wait in memory, and large ones fill it long before there are too many.
PUSH_BYTES_MAX = 64 << 20
PUSH_BYTES_PER_REQUESTER_MAX = 16 << 20
# A reply is kept as a normal message: it neither waits nor opens a transaction.
_NOT_FOR_REPLIES = (DELAY, TIMER_DELAY_SEC, TIMER_DELAY_MS, TIMER_DELIVER_MS, TRAN_MSG, INNER_NUM)
_KEPT_FLAGS = SYS_FLAG_COMPRESSED | COMPRESSION_MASK


class ReplyHandlers:
    """Routes replies to the clients that asked."""

    def __init__(
        self,
        *,
        settings: RuntimeSettings,
        admission: SendAdmission,
        producers: ProducerTable,
        deliveries: Deliveries,
        answers: Acknowledgements,
        clock: Clock,
        address: str,
        store_host: bytes,
    ) -> None:
        """``address`` is this broker's ``ip:port``, ``store_host`` the same in packed form."""
        self._settings = settings
        self._admission = admission
        self._producers = producers
        self._deliveries = deliveries
        self._answers = answers
        self._clock = clock
        self._address = address
        self._store_host = store_host
        self._problems, self._unkept = SparseLog(_log), SparseLog(_log)
        self._pushes: set[asyncio.Task[None]] = set()
        self._pushes_to: Counter[Peer] = Counter()
        self._push_bytes = 0
        self._push_bytes_to: Counter[Peer] = Counter()

    def table(self) -> dict[int, Handler]:
        return {
            RequestCode.SEND_REPLY_MESSAGE: self.handle_reply,
            RequestCode.SEND_REPLY_MESSAGE_V2: self.handle_reply,
        }

    async def close(self) -> None:
        """End the pushes that still wait for a client."""
        pushes = list(self._pushes)
        for task in pushes:
            task.cancel()
        await asyncio.gather(*pushes, return_exceptions=True)

    def handle_reply(self, request: Request, peer: Peer) -> Answer:
        # A reply that cannot be read is refused without the fields that every other answer has.
        send = read_send(request, peer.packed_host)
        if not request.body:
            raise RequestRejected(ResponseCode.SYSTEM_ERROR, "the message has no body; send one")
        is_unit = is_unit_send(request)
        try:
            admitted = self._admission.admit(_as_kept(send), peer.address, is_unit=is_unit)
            requester = self._find_requester(send)
        except RequestRejected as refusal:
            return Response(refusal.code, refusal.remark, self._region_fields())
        if isinstance(requester, str):
            self._finish(request, peer, admitted, problem=requester)
            return LATER
        self._start_push(request, peer, send, admitted, requester, is_unit)
        return LATER

    def _find_requester(self, send: SendRequest) -> ClientChannel | str:
        """The requester that waits for the reply, or the reason why it cannot be reached."""
        client_id = decode_properties(send.draft.properties).get(REPLY_TO_CLIENT)
        if client_id is None:
            return f"the reply has no property {REPLY_TO_CLIENT}: nobody can be told"
        requester = self._producers.channel_of(client_id)
        if requester is None:
            return f"push reply message fail: client {client_id!r} is not connected to this broker"
        problem = self._no_room_for(requester.peer, _held_bytes(send))
        return (
            requester if problem is None else f"push reply message to {client_id!r} fail: {problem}"
        )

    def _no_room_for(self, peer: Peer, byte_count: int) -> str | None:
        """Why nothing can be pushed to this client now.

        Raises:
            RequestRejected: nothing can be pushed to anybody.
        """
        if len(self._pushes) >= PUSHES_MAX or self._push_bytes + byte_count > PUSH_BYTES_MAX:
            raise RequestRejected(
                ResponseCode.SYSTEM_BUSY,
                f"{len(self._pushes)} replies of {self._push_bytes} bytes wait for clients; "
                "send it later",
            )
        if peer.is_choked:
            return "it does not read what it was sent before"
        others, others_bytes = self._pushes_to[peer], self._push_bytes_to[peer]
        if (
            others >= PUSHES_PER_REQUESTER_MAX
            or others_bytes + byte_count > PUSH_BYTES_PER_REQUESTER_MAX
        ):
            return f"it has not answered {others} others of {others_bytes} bytes"
        return None

    # Pushing.

    def _start_push(
        self,
        request: Request,
        peer: Peer,
        send: SendRequest,
        admitted: Admitted,
        requester: ClientChannel,
        is_unit: bool,
    ) -> None:
        fields = self._push_fields(send, peer, is_unit)
        work = self._push(request, peer, admitted, requester, fields, send.draft.body)
        task = asyncio.get_running_loop().create_task(work)
        byte_count = _held_bytes(send)
        self._pushes.add(task)
        self._count_push(requester.peer, 1, byte_count)
        count_in_flight(peer, 1)

        def ended(task: asyncio.Task[None]) -> None:
            count_in_flight(peer, -1)
            self._pushes.discard(task)
            self._count_push(requester.peer, -1, -byte_count)

        task.add_done_callback(ended)

    def _count_push(self, peer: Peer, count: int, byte_count: int) -> None:
        self._push_bytes += byte_count
        self._push_bytes_to[peer] += byte_count
        self._pushes_to[peer] += count
        if not self._pushes_to[peer]:
            del self._pushes_to[peer], self._push_bytes_to[peer]

    async def _push(
        self,
        request: Request,
        peer: Peer,
        admitted: Admitted,
        requester: ClientChannel,
        fields: dict[str, str],
        body: bytes,
    ) -> None:
        """Push, keep and answer, also when the push fails."""
        problem = None
        try:
            found = await requester.peer.call(
                RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, fields, body, timeout_ms=PUSH_TIMEOUT_MS
            )
            if found.code != ResponseCode.SUCCESS:
                problem = f"it answered {found.code}: {found.remark}"
        except (CallFailed, LocalProtocolError) as error:
            problem = str(error)
        if problem is not None:
            problem = f"push reply message to {requester.client_id!r} fail: {problem}"
        try:
            self._finish(request, peer, admitted, problem=problem)
        except Exception as error:
            _log.exception("a reply of %s could not be answered", peer.address)
            peer.reply(request, Response(ResponseCode.SYSTEM_ERROR, f"the broker failed: {error}"))

    def _push_fields(self, send: SendRequest, peer: Peer, is_unit: bool) -> dict[str, str]:
        draft, now_ms = send.draft, self._clock.now_ms()
        properties = decode_properties(draft.properties) | self._region_fields()
        properties[PUSH_REPLY_TIME] = str(now_ms)
        return {
            "producerGroup": send.producer_group.decode("utf-8", "replace"),
            "topic": draft.topic.decode("utf-8", "replace"),
            "defaultTopic": send.default_topic.decode("utf-8", "replace"),
            "defaultTopicQueueNums": str(send.default_queue_count),
            "queueId": str(draft.queue_id),
            "sysFlag": str(draft.sys_flag),
            "bornTimestamp": str(draft.born_timestamp_ms),
            "flag": str(draft.flag),
            "properties": encode_properties(properties).decode("utf-8", "replace"),
            "reconsumeTimes": str(draft.reconsume_times),
            "unitMode": "true" if is_unit else "false",
            "bornHost": peer.address,
            "storeHost": self._address,
            "storeTimestamp": str(now_ms),
        }

    # Keeping and answering.

    def _finish(
        self, request: Request, peer: Peer, admitted: Admitted, *, problem: str | None
    ) -> None:
        """Answer with the outcome of the push; a reply that cannot be kept changes nothing."""
        response = self._pushed(admitted) if problem is None else self._not_pushed(problem)
        physical_end = self._keep(admitted, response)
        if physical_end is None:
            peer.reply(request, response)
            return
        self._answers.when_safe(peer, physical_end, lambda _: peer.reply(request, response))

    def _pushed(self, admitted: Admitted) -> Response:
        # A client cannot read a success without these, kept or not.
        place = {"msgId": "0", "queueId": str(admitted.queue_id), "queueOffset": "0"}
        return Response(fields=self._region_fields() | place)

    def _not_pushed(self, problem: str) -> Response:
        # A stranger may send replies to nobody as fast as it likes.
        self._problems.warning(self._clock.now_ms(), "%s", problem)
        return Response(ResponseCode.SYSTEM_ERROR, problem, self._region_fields())

    def _keep(self, admitted: Admitted, response: Response) -> int | None:
        """Store the reply and write its place into the answer; the end of its record, if any."""
        if not self._settings.config.replies_stored:
            return None
        try:
            run = self._deliveries.append([_without_cluster(admitted.draft)])
        except StoreError as error:
            self._unkept.warning(
                self._clock.now_ms(), "reply %r could not be kept: %s", admitted.unique_key, error
            )
            return None
        response.fields = {
            **(response.fields or {}),
            "msgId": encode_offset_message_id(self._store_host, run.physical_offsets[0]),
            "queueId": str(admitted.queue_id),
            "queueOffset": str(run.queue_offsets[0]),
        }
        return run.physical_end

    def _region_fields(self) -> dict[str, str]:
        config = self._settings.config
        return {MSG_REGION: config.region, TRACE_ON: "true" if config.trace_on else "false"}


def _held_bytes(send: SendRequest) -> int:
    return len(send.draft.body) + len(send.draft.properties)


def _without_cluster(draft: MessageDraft) -> MessageDraft:
    """RocketMQ names the cluster in every message but in replies."""
    return draft.with_properties(remove_property(draft.properties, CLUSTER))


def _as_kept(send: SendRequest) -> SendRequest:
    properties = send.draft.properties
    for name in _NOT_FOR_REPLIES:
        properties = remove_property(properties, name)
    draft = send.draft._replace(properties=properties, sys_flag=send.draft.sys_flag & _KEPT_FLAGS)
    return send._replace(draft=draft, is_batch=False)
