"""Requests of brokers to a client over the client's own connection."""

from __future__ import annotations

import logging
import sys
import threading
import traceback
from collections.abc import Callable, Coroutine, Mapping
from types import FrameType
from typing import Any, Protocol

from contrail.client.compression import readable
from contrail.client.decoding import received_message
from contrail.client.message import ReceivedMessage
from contrail.client.name_servers import NameServers
from contrail.client.sides import ConsumerSide, ProducerSide, TransactionCheck
from contrail.clock import Clock
from contrail.errors import ContrailError, MessageUnreadable, RequestRejected
from contrail.model.properties import ARRIVE_TIME, CORRELATION_ID, PGROUP, decode_properties
from contrail.model.record import decode_record
from contrail.protocol.bodies.reset import decode_reset_offsets
from contrail.protocol.codes import RequestCode, ResponseCode
from contrail.protocol.command import Request, Response
from contrail.protocol.json_style import encode_body
from contrail.wire.connection import Connection

_log = logging.getLogger(__name__)

_STACKS_CHARACTERS_MAX = 100_000


class Host(Protocol):
    """The parts of a client instance that answering a broker needs."""

    producers: dict[str, ProducerSide]
    consumers: dict[str, ConsumerSide]
    clock: Clock
    name_servers: NameServers

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> object: ...


class Reply:
    """A reply to a request-reply call, as a broker pushed it."""

    __slots__ = ("body", "decode_error", "properties", "topic")

    def __init__(
        self,
        topic: str,
        body: bytes,
        properties: dict[str, str],
        decode_error: MessageUnreadable | None = None,
    ) -> None:
        self.topic = topic
        self.body = body
        self.properties = properties
        self.decode_error = decode_error


class Inbound:
    """Answers brokers' requests on behalf of the groups that share an instance."""

    def __init__(self, instance: Host) -> None:
        self._instance = instance
        # The futures that wait for a reply, by correlation id.
        self.waiting_replies: dict[str, Callable[[Reply], None]] = {}
        self._handlers: dict[int, Callable[[Request, Connection], None]] = {
            RequestCode.CHECK_TRANSACTION_STATE: self._check_transaction,
            RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: self._members_changed,
            RequestCode.RESET_CONSUMER_CLIENT_OFFSET: self._reset_offsets,
            RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT: self._status,
            RequestCode.GET_CONSUMER_RUNNING_INFO: self._running_info,
            RequestCode.CONSUME_MESSAGE_DIRECTLY: self._consume_directly,
            RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT: self._take_reply,
        }

    def arrived(self, connection: Connection, request: Request) -> None:
        handler = self._handlers.get(request.code)
        if handler is None:
            remark = f"request code {request.code} is not supported by this client"
            connection.reply(request, Response(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark))
            return
        try:
            handler(request, connection)
        except ContrailError as error:
            _log.warning("a broker's request %d failed: %s", request.code, error)
            connection.reply(request, Response(ResponseCode.SYSTEM_ERROR, str(error)))
        except Exception as error:
            _log.exception("a broker's request %d failed", request.code)
            connection.reply(request, Response(ResponseCode.SYSTEM_ERROR, repr(error)))

    def _check_transaction(self, request: Request, connection: Connection) -> None:
        message = self._record(request, request.fields.get("bname", ""))
        group = message.properties.get(PGROUP, "")
        producer = self._instance.producers.get(group)
        if producer is None:
            _log.warning("a broker checks a transaction of group %r, which is not here", group)
            return
        producer.check_transaction(
            TransactionCheck(
                message=message,
                broker_address=connection.address,
                transaction_id=request.fields.get("transactionId") or message.message_id,
                queue_offset=_number(request, "tranStateTableOffset"),
                physical_offset=_number(request, "commitLogOffset"),
            )
        )

    def _record(self, request: Request, broker_name: str) -> ReceivedMessage:
        return received_message(decode_record(request.body), broker_name)

    def _members_changed(self, request: Request, connection: Connection) -> None:
        consumer = self._instance.consumers.get(request.fields.get("consumerGroup", ""))
        if consumer is not None:
            consumer.members_changed()

    def _reset_offsets(self, request: Request, connection: Connection) -> None:
        fields = request.fields
        consumer = self._instance.consumers.get(fields.get("group", ""))
        if consumer is not None:
            consumer.reset_offsets(fields.get("topic", ""), decode_reset_offsets(request.body))

    def _status(self, request: Request, connection: Connection) -> None:
        fields = request.fields
        consumer = self._instance.consumers.get(fields.get("group", ""))
        table = consumer.consumer_status(fields.get("topic", "")) if consumer else {}
        connection.reply(request, Response(body=encode_body({"messageQueueTable": table})))

    def _running_info(self, request: Request, connection: Connection) -> None:
        consumer = self._instance.consumers.get(request.fields.get("consumerGroup", ""))
        if consumer is None:
            raise RequestRejected(
                ResponseCode.SYSTEM_ERROR,
                f"consumer group {request.fields.get('consumerGroup')!r} is not on this client",
            )
        info = dict(consumer.running_info())
        known = {
            "PROP_NAMESERVER_ADDR": ";".join(self._instance.name_servers.addresses) + ";",
            "PROP_CLIENT_VERSION": "V5_3_3",
        }
        given = info.get("properties")
        info["properties"] = {**known, **(given if isinstance(given, Mapping) else {})}
        if request.fields.get("jstackEnable", "").lower() == "true":
            info["jstack"] = _thread_stacks()
        connection.reply(request, Response(body=encode_body(info)))

    def _consume_directly(self, request: Request, connection: Connection) -> None:
        self._instance.spawn(self._consume_and_reply(request, connection), "consume directly")

    async def _consume_and_reply(self, request: Request, connection: Connection) -> None:
        fields = request.fields
        consumer = self._instance.consumers.get(fields.get("consumerGroup", ""))
        try:
            if consumer is None:
                remark = f"consumer group {fields.get('consumerGroup')!r} is not on this client"
                raise RequestRejected(ResponseCode.SYSTEM_ERROR, remark)
            name = fields.get("brokerName")
            result = await consumer.consume_directly(self._record(request, name or ""), name)
        except ContrailError as error:
            connection.reply(request, Response(ResponseCode.SYSTEM_ERROR, str(error)))
        else:
            connection.reply(request, Response(body=encode_body(result)))

    def _take_reply(self, request: Request, connection: Connection) -> None:
        fields = request.fields
        properties = decode_properties(fields.get("properties", "").encode())
        properties[ARRIVE_TIME] = str(self._instance.clock.now_ms())
        topic = fields.get("topic", "")
        body, problem = readable(request.body, int(fields.get("sysFlag", "0")))
        error = None
        if problem is not None:
            error = MessageUnreadable(f"a reply of topic {topic!r} cannot be decoded: {problem}")
        wake = self.waiting_replies.pop(properties.get(CORRELATION_ID, ""), None)
        connection.reply(request, Response())
        if wake is None:
            _log.info("a reply came that nobody waits for any more: %s", properties)
        else:
            wake(Reply(topic, body, properties, error))


def _number(request: Request, name: str) -> int:
    try:
        return int(request.fields[name])
    except (KeyError, ValueError) as error:
        raise RequestRejected(
            ResponseCode.SYSTEM_ERROR, f"field {name} of request {request.code} is no number"
        ) from error


def _thread_stacks() -> str:
    """The stacks of all threads, each under its name, the innermost call last."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    texts = [
        _stack(names.get(ident, str(ident)), frame)
        for ident, frame in sys._current_frames().items()
    ]
    return "\n".join(sorted(texts))[:_STACKS_CHARACTERS_MAX]


def _stack(name: str, frame: FrameType) -> str:
    return f"{name}\n{''.join(traceback.format_stack(frame))}"
