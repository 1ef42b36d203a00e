"""The producer: sends, batches, transactions, requests and replies."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Self, Unpack

from contrail.client import instances
from contrail.client.batches import (
    PlaceOf,
    SentMany,
    common_sharding_key,
    cut,
    listed,
    prepare_batch,
)
from contrail.client.hooks import SendHook
from contrail.client.inbound import Reply
from contrail.client.instance import ClientInstance, require_same_process
from contrail.client.message import Message, MessageQueue, ReceivedMessage, SendReceipt
from contrail.client.options import ProducerOptions
from contrail.client.outgoing import Outgoing, prepare
from contrail.client.producer_settings import split_settings
from contrail.client.recall import recall
from contrail.client.request_reply import REQUEST_TIMEOUT_MS, RequestReply
from contrail.client.selectors import HashSelector, Selector
from contrail.client.sender import Choose, Sender
from contrail.client.settings import ClientSettings
from contrail.client.sides import TransactionCheck
from contrail.client.telemetry import propagate, telemetry_hooks
from contrail.client.trace import ProducerTrace, open_trace
from contrail.client.transactions import (
    Checker,
    Transaction,
    TransactionListener,
    TransactionReceipt,
    Transactions,
)
from contrail.errors import ClientClosed, ConfigError, GroupTaken, MessageInvalid, SendFailed
from contrail.model.group import check_group_name
from contrail.model.shown import shown
from contrail.model.topic import TRACE_TOPIC

_log = logging.getLogger(__name__)

# RocketMQ's default group, which its clients refuse as well.
_DEFAULT_GROUP = "DEFAULT_PRODUCER"
_by_sharding_key = HashSelector()


class Producer:
    """Sends messages on behalf of a group. Use it in ``async with``, or ``start`` and ``close``.

    Safe to share between the tasks of its event loop. All producers and consumers of a process and
    a cluster share their connections.
    """

    def __init__(
        self,
        group: str,
        namesrv: str | Sequence[str] | None = None,
        *,
        transaction_listener: TransactionListener | None = None,
        transaction_checker: Checker | None = None,
        trace: bool = False,
        trace_topic: str = TRACE_TOPIC,
        telemetry: bool | None = None,
        hooks: Sequence[SendHook] = (),
        **options: Unpack[ProducerOptions],
    ) -> None:
        """``telemetry`` is on by default where a program set OpenTelemetry's provider."""
        self._group = _checked_group(group)
        self._settings, shared = split_settings(dict(options))
        self._client_settings = ClientSettings.of(namesrv, **shared)
        self._rules = self._settings.outgoing_rules
        self._listener = transaction_listener
        self._checker = transaction_checker
        self._is_traced = trace
        self._trace_topic = trace_topic
        self._telemetry = telemetry
        self._hooks = tuple(hooks)
        self._process_id = os.getpid()
        self._open: _Opened | None = None
        self._async_sends: set[asyncio.Task[SendReceipt]] = set()

    # Life.

    @property
    def group(self) -> str:
        return self._group

    @property
    def client_id(self) -> str:
        """The client id that brokers know; set by ``start``."""
        return self._opened().instance.client_id

    async def start(self) -> None:
        """Join the process's client for the cluster; nothing is sent yet.

        Raises:
            GroupTaken: the process already has a producer of this group there.
            ClientForked: the producer was made before this process was forked.
        """
        require_same_process(self._process_id, f"producer {self._group!r}")
        if self._open is not None:
            return
        instance = instances.join(self._client_settings)
        try:
            instance.add_producer(self)
        except GroupTaken:
            await instances.leave(instance)
            raise
        self._open = self._build(instance)

    def _build(self, instance: ClientInstance) -> _Opened:
        spans = telemetry_hooks(
            self._telemetry, group=self._group, client_id=instance.client_id
        ).send
        hooks = (*spans, *self._hooks)
        sender = Sender(instance, self._group, self._settings, hooks=hooks)
        trace: ProducerTrace | None = None
        if self._is_traced:
            dispatcher = open_trace(instance, self._group, "PRODUCER", self._trace_topic)
            trace = ProducerTrace(instance, self._group, dispatcher)
            sender.hooks.append(trace)
        transactions = Transactions(
            instance,
            sender,
            self._group,
            self._prepare,
            choose_queue=lambda message: _choose(sender, message, None, None, None),
            listener=self._listener,
            checker=self._checker,
            trace=trace,
        )
        replies = RequestReply(instance, sender, self._prepare)
        return _Opened(instance, sender, transactions, replies, trace, has_spans=bool(spans))

    async def close(self) -> None:
        """Wait for sends under way, then leave. New sends are refused from now on."""
        opened = self._open
        if opened is None or not opened.instance.may_be_closed_here():
            return
        self._open = None
        try:
            async with asyncio.timeout(self._settings.send_timeout_ms / 1000):
                if self._async_sends:
                    # Sends may not have begun, and cancelling this call must not cancel them.
                    await asyncio.wait(self._async_sends)
                await opened.sender.slots.until_idle()
        except TimeoutError:
            _log.warning("producer %r was closed with sends under way", self._group)
        finally:
            try:
                if opened.trace is not None:
                    await opened.trace.dispatcher.close()
                await opened.instance.remove_producer(self._group)
            finally:
                await instances.leave(opened.instance)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    # Single messages.

    async def send(
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
        opened = self._opened()
        outgoing = self._prepare(message)
        choose = _chooser(message, queue, selector, selector_arg)
        return await opened.sender.send(outgoing, queue=queue, choose=choose, timeout_ms=timeout_ms)

    def send_async(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        selector: Selector | None = None,
        selector_arg: object = None,
        timeout_ms: int | None = None,
    ) -> asyncio.Future[SendReceipt]:
        """Begin to send a message; the future returns or raises as ``send`` does.

        The send is retried on the same broker, and only when the broker does not answer.

        Raises:
            MessageInvalid: the message breaks a rule; nothing is sent.
        """
        opened = self._opened()
        outgoing = self._prepare(message)
        choose = _chooser(message, queue, selector, selector_arg)
        work = opened.sender.send(
            outgoing, queue=queue, choose=choose, timeout_ms=timeout_ms, retry="async"
        )
        task = asyncio.get_running_loop().create_task(work)
        # The loop itself holds tasks weakly.
        self._async_sends.add(task)
        task.add_done_callback(self._async_sends.discard)
        return task

    async def send_oneway(
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
        opened = self._opened()
        outgoing = self._prepare(message)
        choose = _chooser(message, queue, selector, selector_arg)
        await opened.sender.send_oneway(outgoing, queue, choose=choose, timeout_ms=timeout_ms)

    # Several at once.

    async def send_batch(
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
        opened = self._opened()
        batch = listed(messages, "send_batch()")
        outgoing = self._prepare_batch(batch, opened)
        key = common_sharding_key(batch) if queue is None else None
        selector = _by_sharding_key if key else None
        choose = _chooser(batch[0], queue, selector, key)
        return await opened.sender.send(outgoing, queue=queue, choose=choose, timeout_ms=timeout_ms)

    def _prepare_batch(self, messages: Sequence[Message], opened: _Opened) -> Outgoing:
        instance = opened.instance
        now_ms = instance.clock.now_ms()
        return prepare_batch(
            messages,
            take_id=lambda: instance.unique_ids.take(now_ms),
            bytes_max=self._settings.max_message_size,
            enrich=propagate if opened.has_spans else None,
        )

    async def send_many(
        self, messages: Iterable[Message], *, timeout_ms: int | None = None
    ) -> SentMany:
        """Send any number of messages of any topics in as few batches as they fit, in order.

        Each batch goes to one queue, messages with a sharding key to that key's; ``timeout_ms``
        holds for each.

        Raises:
            MessageInvalid: a message breaks a rule; nothing was sent.
            RouteMissing: no broker has a topic, and none may create it.
            SendFailed: a batch was not sent; the error says how many batches were sent before it.
        """
        opened = self._opened()
        given = listed(messages, "send_many()")
        place_of = await _places(opened.sender, given, timeout_ms)
        prepared = [
            (self._prepare_few(batch, opened), place_of(batch[0]))
            for batch in cut(given, place_of=place_of)
        ]
        receipts: list[SendReceipt] = []
        for outgoing, queue in prepared:
            try:
                receipts.append(
                    await opened.sender.send(outgoing, queue=queue, timeout_ms=timeout_ms)
                )
            except SendFailed as error:
                raise type(error)(
                    f"batch {len(receipts) + 1} of {len(prepared)} failed, those before it are "
                    f"sent: {error}",
                    topic=error.topic,
                    attempts=error.attempts,
                ) from error
        return SentMany(receipts, len(prepared))

    def _prepare_few(self, batch: Sequence[Message], opened: _Opened) -> Outgoing:
        return self._prepare(batch[0]) if len(batch) == 1 else self._prepare_batch(batch, opened)

    # Queues.

    async def publish_queues(self, topic: str) -> list[MessageQueue]:
        """The queues that messages of a topic may be sent to.

        Raises:
            RouteMissing: the topic has no route.
        """
        return list(await self._opened().sender.publish_queues(topic))

    # Transactions.

    def transaction(
        self, message: Message, *, check: Checker | None = None, timeout_ms: int | None = None
    ) -> Transaction:
        """``async with producer.transaction(message):`` the body is the local transaction.

        Raises:
            MessageInvalid: the message breaks a rule; it may not be delayed, among others.
        """
        return self._opened().transactions.transaction(message, check=check, timeout_ms=timeout_ms)

    async def send_in_transaction(
        self, message: Message, arg: Any = None, *, timeout_ms: int | None = None
    ) -> TransactionReceipt:
        """Send a half message, run the ``transaction_listener``, then commit or roll back.

        Raises:
            ConfigError: the producer has no listener.
            MessageInvalid: the message breaks a rule; it may not be delayed, among others.
            SendFailed: the half message was not stored; the listener did not run.
        """
        return await self._opened().transactions.send_in_transaction(
            message, arg, timeout_ms=timeout_ms
        )

    # Request and reply, recall.

    async def request(
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
        opened = self._opened()
        return await opened.replies.request(
            message,
            timeout_ms=timeout_ms,
            choose_queue=lambda: _choose(opened.sender, message, queue, selector, selector_arg),
        )

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
        return await self._opened().replies.reply(
            request, body, tags=tags, keys=keys, properties=properties, timeout_ms=timeout_ms
        )

    async def recall(
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
        opened = self._opened()
        return await recall(
            opened.instance,
            self._group,
            receipt_or_topic,
            handle,
            timeout_ms=timeout_ms,
            trace=opened.trace,
        )

    # Called by the client instance.

    def topics(self) -> Collection[str]:
        return self._open.sender.topics if self._open is not None else ()

    def check_transaction(self, check: TransactionCheck) -> None:
        if self._open is not None:
            self._open.transactions.check(check)

    # Inside.

    def _opened(self) -> _Opened:
        opened = self._open
        if opened is None:
            require_same_process(self._process_id, f"producer {self._group!r}")
            raise ClientClosed(
                f"producer {self._group!r} is not started, or closed: use it inside "
                "its `with` block, or between start() and close()"
            )
        return opened

    def _prepare(self, message: Message) -> Outgoing:
        if not isinstance(message, Message):
            raise _no_message(message)
        instance = self._opened().instance
        now_ms = instance.clock.now_ms()
        unique_id = instance.unique_ids.take(now_ms)
        return prepare(message, unique_id=unique_id, rules=self._rules)


class _Opened:
    """The parts of a started producer."""

    __slots__ = ("has_spans", "instance", "replies", "sender", "trace", "transactions")

    def __init__(
        self,
        instance: ClientInstance,
        sender: Sender,
        transactions: Transactions,
        replies: RequestReply,
        trace: ProducerTrace | None,
        *,
        has_spans: bool,
    ) -> None:
        self.has_spans = has_spans
        self.instance = instance
        self.sender = sender
        self.transactions = transactions
        self.replies = replies
        self.trace = trace


def _checked_group(group: str) -> str:
    given: object = group
    if not isinstance(given, str) or not given.strip():
        raise ConfigError(
            f"group={shown(given)}: name the producer's group, as in Producer('orders')"
        )
    check_group_name(group)
    if group == _DEFAULT_GROUP:
        raise ConfigError(f"group={group!r} is RocketMQ's own: name a group of yours")
    return group


def _chooser(
    message: Message, queue: MessageQueue | None, selector: Selector | None, selector_arg: object
) -> Choose | None:
    """The selector of a message's queue; None when the queue is given, or any may be taken."""
    if queue is not None:
        if selector is not None:
            raise MessageInvalid("both queue= and selector= are given: keep one")
        _require_topic(message.topic, queue)
        return None
    if selector is not None:
        return partial(_chosen, selector, message, selector_arg)
    if message.sharding_key:
        return partial(_chosen, _by_sharding_key, message, message.sharding_key)
    return None


def _chosen(
    selector: Selector, message: Message, selector_arg: object, queues: Sequence[MessageQueue]
) -> MessageQueue:
    chosen: object = selector(queues, message, selector_arg)
    if not isinstance(chosen, MessageQueue):
        raise MessageInvalid(
            f"the selector returned {chosen!r} for a message for topic {message.topic!r}: it must "
            "return one of the queues it is given"
        )
    return chosen


async def _choose(
    sender: Sender,
    message: Message,
    queue: MessageQueue | None,
    selector: Selector | None,
    selector_arg: object,
) -> MessageQueue | None:
    choose = _chooser(message, queue, selector, selector_arg)
    return queue if choose is None else choose(await sender.publish_queues(message.topic))


async def _places(sender: Sender, messages: Sequence[Message], timeout_ms: int | None) -> PlaceOf:
    """The queue each message must go to, by one reading of each topic's route."""
    topics = dict.fromkeys(one.topic for one in messages if one.sharding_key)
    queues = {topic: await sender.publish_queues(topic, timeout_ms) for topic in topics}

    def place_of(message: Message) -> MessageQueue | None:
        key = message.sharding_key
        return _by_sharding_key(queues[message.topic], message, key) if key else None

    return place_of


def _require_topic(topic: str, queue: MessageQueue) -> None:
    if queue.topic != topic:
        raise MessageInvalid(
            f"a message for topic {topic!r} cannot go to a queue of topic {queue.topic!r}: choose "
            "one of publish_queues() of its own topic"
        )


def _no_message(given: object) -> MessageInvalid:
    if isinstance(given, list | tuple | set | frozenset):
        return MessageInvalid(
            f"send() takes one Message, it got a {type(given).__name__} of {len(given)}: "
            "send_batch() sends messages of one topic in one request, send_many() any list"
        )
    return MessageInvalid(f"{shown(given)} is no Message: send Message(topic, body)")
