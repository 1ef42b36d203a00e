"""``Producer`` without ``await``. Made by scripts/make_blocking_twins.py, not by hand."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from contrail.client.batches import (
    SentMany,
)
from contrail.client.blocking.client import BlockingClient
from contrail.client.inbound import Reply
from contrail.client.message import Message, MessageQueue, ReceivedMessage, SendReceipt
from contrail.client.producer import Producer as _Twin
from contrail.client.request_reply import REQUEST_TIMEOUT_MS
from contrail.client.selectors import Selector
from contrail.client.transactions import (
    TransactionReceipt,
)


class ProducerCalls(BlockingClient[_Twin]):
    """Every coroutine of ``contrail.client.producer.Producer`` as a call that waits."""

    def send(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        selector: Selector | None = None,
        selector_arg: object = None,
        timeout_ms: int | None = None,
    ) -> SendReceipt:
        """Send a message and return the broker's receipt.

        The send is retried on another broker, twice by default, when a broker does not answer or
        cannot store the message now; not when you chose the queue. ``timeout_ms`` covers all
        attempts.

        Raises:
            MessageInvalid: the message breaks a rule; nothing was sent.
            RouteMissing: no broker has the topic, and none may create it.
            SendFailed: no attempt went through; ``SendTimedOut`` when the message may be stored
                anyway.
            BackPressure: no room for another send within ``timeout_ms``.
        """
        return self._run(
            self._twin.send,
            message,
            queue=queue,
            selector=selector,
            selector_arg=selector_arg,
            timeout_ms=timeout_ms,
        )

    def send_oneway(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        selector: Selector | None = None,
        selector_arg: object = None,
        timeout_ms: int | None = None,
    ) -> None:
        """Send a message one-way: without an answer from the broker, and without retries.

        Raises:
            MessageInvalid: the message breaks a rule; nothing was sent.
            RouteMissing: no broker has the topic, and none may create it.
            SendFailed: the broker cannot be reached.
            BackPressure: earlier bytes were not taken by the broker within ``timeout_ms``.
        """
        return self._run(
            self._twin.send_oneway,
            message,
            queue=queue,
            selector=selector,
            selector_arg=selector_arg,
            timeout_ms=timeout_ms,
        )

    def send_batch(
        self,
        messages: Sequence[Message],
        *,
        queue: MessageQueue | None = None,
        timeout_ms: int | None = None,
    ) -> SendReceipt:
        """Send messages of one topic in one request, into one queue; they are not compressed.

        If they have a sharding key, which must be the same then, the queue is that key's.

        Raises:
            MessageInvalid: they may not go together, or have more than ``max_message_size`` bytes;
                ``send_many`` takes any number.
            SendFailed: none of them was sent.
        """
        return self._run(self._twin.send_batch, messages, queue=queue, timeout_ms=timeout_ms)

    def send_many(self, messages: Iterable[Message], *, timeout_ms: int | None = None) -> SentMany:
        """Send any number of messages of any topics in as few batches as they fit, in order.

        Each batch goes to one queue, messages with a sharding key to that key's; ``timeout_ms``
        holds for each.

        Raises:
            MessageInvalid: a message breaks a rule; nothing was sent.
            RouteMissing: no broker has a topic, and none may create it.
            SendFailed: a batch was not sent; the error says how many batches were sent before it.
        """
        return self._run(self._twin.send_many, messages, timeout_ms=timeout_ms)

    def publish_queues(self, topic: str) -> list[MessageQueue]:
        """The queues that messages of a topic may be sent to.

        Raises:
            RouteMissing: the topic has no route.
        """
        return self._run(self._twin.publish_queues, topic)

    def send_in_transaction(
        self, message: Message, arg: Any = None, *, timeout_ms: int | None = None
    ) -> TransactionReceipt:
        """Send a half message, run the ``transaction_listener``, then commit or roll back.

        Raises:
            ConfigError: the producer has no listener.
            MessageInvalid: the message breaks a rule; it may not be delayed, among others.
            SendFailed: the half message was not stored; the listener did not run.
        """
        return self._run(self._twin.send_in_transaction, message, arg, timeout_ms=timeout_ms)

    def request(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        selector: Selector | None = None,
        selector_arg: object = None,
        timeout_ms: int = REQUEST_TIMEOUT_MS,
    ) -> Reply:
        """Send a message and return the reply of the consumer that gets it.

        Raises:
            NoReply: no reply came in time.
            MessageUnreadable: the reply came, and cannot be decompressed.
            SendFailed: the request itself was not sent.
        """
        return self._run(
            self._twin.request,
            message,
            queue=queue,
            selector=selector,
            selector_arg=selector_arg,
            timeout_ms=timeout_ms,
        )

    def reply(
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
        return self._run(
            self._twin.reply,
            request,
            body,
            tags=tags,
            keys=keys,
            properties=properties,
            timeout_ms=timeout_ms,
        )

    def recall(
        self,
        receipt_or_topic: SendReceipt | str,
        handle: str | None = None,
        *,
        timeout_ms: int | None = None,
    ) -> str:
        """Take back a message with ``deliver_at`` or ``delay`` before its time; returns its id.

        Raises:
            MessageInvalid: there is no handle, or it belongs to another topic.
            BrokerRefused: too late, or the broker does not recall; the message says which.
        """
        return self._run(self._twin.recall, receipt_or_topic, handle, timeout_ms=timeout_ms)
