"""Request-reply: a message that waits for an answer, and the answer to such a message.

The reply does not go through a queue: the broker that gets it pushes it to the requesting client,
over that client's own connection.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING
from uuid import uuid4

from contrail.client.inbound import Reply
from contrail.client.message import Message, MessageQueue, ReceivedMessage, SendReceipt
from contrail.errors import ClientError, MessageInvalid, NoReply, SendFailed
from contrail.model.properties import CLUSTER, CORRELATION_ID, MSG_TYPE, REPLY_TO_CLIENT, TTL
from contrail.protocol.codes import RequestCode

if TYPE_CHECKING:
    from contrail.client.instance import ClientInstance
    from contrail.client.outgoing import Outgoing
    from contrail.client.sender import Sender

_log = logging.getLogger(__name__)

REQUEST_TIMEOUT_MS = 3_000
_REPLY_TOPIC_SUFFIX = "_REPLY_TOPIC"
_REPLY_TYPE = "reply"

ChooseQueue = Callable[[], Awaitable[MessageQueue | None]]


class RequestReply:
    """Requests and replies of one producer."""

    def __init__(
        self, instance: ClientInstance, sender: Sender, prepare: Callable[[Message], Outgoing]
    ) -> None:
        self._instance = instance
        self._sender = sender
        self._prepare = prepare
        self._is_known_to_brokers = False

    # The side that asks.

    async def request(
        self,
        message: Message,
        *,
        timeout_ms: int = REQUEST_TIMEOUT_MS,
        choose_queue: ChooseQueue | None = None,
    ) -> Reply:
        """Send a message and wait for the reply of the consumer that gets it.

        Raises:
            NoReply: no reply came within ``timeout_ms``, counted from now.
            SendFailed: the request itself was not sent.
            MessageUnreadable: the reply came, and cannot be decompressed.
        """
        outgoing = self._request(message, timeout_ms)
        waiting = self._instance.inbound.waiting_replies
        correlation_id = outgoing.properties[CORRELATION_ID]
        reply: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        waiting[correlation_id] = lambda found: None if reply.done() else reply.set_result(found)
        problem = "the request itself was not sent in that time"
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await self._make_known(message.topic)
                queue = await choose_queue() if choose_queue is not None else None
                await self._ask(outgoing, queue, timeout_ms, reply)
                problem = "is a consumer of the topic running, and does it reply?"
                found = await reply
        except TimeoutError as error:
            raise NoReply(
                f"no reply to request {correlation_id} on topic {message.topic!r} within "
                f"{timeout_ms} ms: {problem}"
            ) from error
        finally:
            waiting.pop(correlation_id, None)
        if found.decode_error is not None:
            raise found.decode_error
        return found

    def _request(self, message: Message, timeout_ms: int) -> Outgoing:
        outgoing = self._prepare(message)
        outgoing.properties[CORRELATION_ID] = str(uuid4())
        outgoing.properties[REPLY_TO_CLIENT] = self._instance.client_id
        outgoing.properties[TTL] = str(timeout_ms)
        return outgoing

    async def _make_known(self, topic: str) -> None:
        """Send a heartbeat first: a broker pushes replies only to producers it knows."""
        if not self._is_known_to_brokers or topic not in self._instance.routes.routes:
            await self._instance.route(topic, template=True)
            await self._instance.beat()
            self._is_known_to_brokers = True

    async def _ask(
        self,
        outgoing: Outgoing,
        queue: MessageQueue | None,
        timeout_ms: int,
        reply: asyncio.Future[Reply],
    ) -> None:
        try:
            await self._sender.send(outgoing, queue=queue, timeout_ms=timeout_ms, retry="async")
        except SendFailed:
            # A reply proves that the request arrived, even if its send failed.
            if not reply.done():
                raise

    # The side that answers.

    async def reply(
        self,
        request: ReceivedMessage,
        body: bytes,
        *,
        tags: str | None = None,
        keys: Sequence[str] = (),
        properties: Mapping[str, str] | None = None,
        timeout_ms: int | None = None,
    ) -> SendReceipt:
        """Answer a message that was sent with ``request``.

        Raises:
            MessageInvalid: the message is no request.
            SendFailed: the reply did not reach the requesting client.
        """
        outgoing = reply_to(
            request, body, self._prepare, tags=tags, keys=keys, properties=properties
        )
        queue = await self._queue_beside(request, outgoing.topic)
        if queue is not None:
            try:
                return await self._sender.send(outgoing, queue=queue, timeout_ms=timeout_ms)
            except SendFailed as error:
                _log.info("the reply is sent by another way: %s", error)
        return await self._sender.send(outgoing, timeout_ms=timeout_ms)

    async def _queue_beside(self, request: ReceivedMessage, topic: str) -> MessageQueue | None:
        """A queue on the request's own broker: that broker knows the requesting client."""
        try:
            route = await self._instance.route(topic)
        except ClientError:
            # The send raises with the cause, or finds another route.
            return None
        name = request.queue.broker_name
        return next((one for one in route.write_queues if one.broker_name == name), None)


def reply_to(
    request: ReceivedMessage,
    body: bytes,
    prepare: Callable[[Message], Outgoing],
    *,
    tags: str | None = None,
    keys: Sequence[str] = (),
    properties: Mapping[str, str] | None = None,
) -> Outgoing:
    """The reply to a request, ready to be sent.

    Raises:
        MessageInvalid: the message is no request.
    """
    asked = request.properties
    missing = [name for name in (CORRELATION_ID, REPLY_TO_CLIENT, CLUSTER) if not asked.get(name)]
    if missing:
        raise MessageInvalid(
            f"message {request.message_id} of topic {request.topic!r} is no request (it lacks "
            f"{', '.join(missing)}): reply only to what was sent with request()"
        )
    topic = asked[CLUSTER] + _REPLY_TOPIC_SUFFIX
    outgoing = prepare(Message(topic, body, tags=tags, keys=keys, properties=properties or {}))
    outgoing.properties[MSG_TYPE] = _REPLY_TYPE
    for name in (CORRELATION_ID, REPLY_TO_CLIENT, TTL):
        if name in asked:
            outgoing.properties[name] = asked[name]
    outgoing.code = RequestCode.SEND_REPLY_MESSAGE_V2
    return outgoing
