"""The push consumer: messages come to it, by long polling, and go to a handler or a loop."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

from contrail.client import instances
from contrail.client.consumer_settings import (
    ConsumerSettings,
    check_consumer_group,
    split_settings,
)
from contrail.client.consuming import Handler
from contrail.client.consuming_directly import consume_directly
from contrail.client.hooks import ConsumeHook
from contrail.client.instance import ClientInstance, require_same_process
from contrail.client.message import MessageQueue, ReceivedMessage
from contrail.client.message_stream import MessageStream, Owner
from contrail.client.options import PushOptions
from contrail.client.push_work import Onlookers, PushWork
from contrail.client.settings import ClientSettings
from contrail.client.start_places import parse_consume_from_where, parse_consume_timestamp
from contrail.client.subscriptions import Sql92, Subscriptions
from contrail.clock import SystemClock
from contrail.errors import ClientClosed, ClientError
from contrail.model.subscription import SubscriptionData
from contrail.model.topic import TRACE_TOPIC
from contrail.protocol.bodies.heartbeat import ConsumerData, ConsumeType, MessageModel

_log = logging.getLogger(__name__)

F = TypeVar("F", bound=Callable[..., Any])


class PushConsumer:
    """Consumes for a group. Use it in ``async with``, or ``start`` and ``close``.

    A handler, ``@consumer.on_message``, acknowledges by returning and asks for a retry by raising.
    Without one, loop: ``async for message in consumer``; asking for the next message acknowledges
    the one before, and so does leaving the ``async with`` block. An exception that leaves the block
    sends it back, and so does beginning another loop. In ``async with`` consuming begins with the
    first subscription.
    """

    def __init__(
        self,
        group: str,
        namesrv: str | Sequence[str] | None = None,
        *,
        trace: bool = False,
        trace_topic: str = TRACE_TOPIC,
        telemetry: bool | None = None,
        hooks: Sequence[ConsumeHook] = (),
        **options: Unpack[PushOptions],
    ) -> None:
        """``telemetry`` is on by default where a program set OpenTelemetry's provider."""
        check_consumer_group(group)
        self._group = group
        self._settings, shared = split_settings(ConsumerSettings, dict(options))
        self._client_settings = ClientSettings.of(namesrv, **shared)
        self._model = self._settings.model
        self._from_where = parse_consume_from_where(self._settings.consume_from_where)
        # Checked again at the start; checked here, a typing mistake is found at once.
        parse_consume_timestamp(self._settings.consume_timestamp, now_ms=0)
        self._strategy = self._settings.strategy
        self._onlookers = Onlookers(tuple(hooks), trace_topic if trace else None, telemetry)
        self._subscriptions = Subscriptions(
            # Pops read the group's retries themselves.
            group,
            with_retries=self._model is MessageModel.CLUSTERING and not self._settings.pop,
        )
        self._handler: Handler | None = None
        self._paused: set[MessageQueue] = set()
        self._is_all_paused = False
        self._process_id = os.getpid()
        self._instance: ClientInstance | None = None
        self._work: PushWork | None = None
        self._beginning: asyncio.Lock = asyncio.Lock()
        self._closing: asyncio.Task[None] | None = None
        self._closed = asyncio.Event()

    @property
    def group(self) -> str:
        return self._group

    @property
    def client_id(self) -> str:
        """The client id that brokers know; set by ``start``."""
        return self._opened().client_id

    # Subscriptions and handlers.

    async def subscribe(self, topic: str, expression: str | Sql92 | None = "*") -> None:
        """Consume a topic: all of it, by tags (``"paid || refunded"``) or by ``Sql92``.

        A topic without a route is no error: it is consumed once it is created.

        Raises:
            ConfigError: the expression is invalid.
            BrokerRefused: a broker cannot answer the ``Sql92`` expression; the former subscription
                stays.
        """
        known = self._subscriptions.of(topic)
        subscription = self._subscriptions.put(topic, expression, self._now_ms())
        try:
            if self._work is not None:
                await self._work.subscribed(subscription)
            elif self._instance is not None:
                await self._begin()
        except BaseException:
            self._subscribe_as_before(topic, known)
            raise

    def _subscribe_as_before(self, topic: str, known: SubscriptionData | None) -> None:
        if known is None:
            self._subscriptions.remove(topic)
        else:
            # With a newer version than the one that failed: a broker may have that one.
            text = known.sub_string
            self._subscriptions.put(topic, text if known.by_tag else Sql92(text), self._now_ms())
        if self._work is not None:
            self._work.rebalancer.soon()

    def _now_ms(self) -> int:
        return (self._opened().clock if self._instance is not None else SystemClock()).now_ms()

    async def unsubscribe(self, topic: str) -> None:
        """Stop consuming a topic; messages in handlers are finished."""
        self._subscriptions.remove(topic)
        if self._work is not None:
            await self._work.unsubscribed()

    def on_message(self, function: F) -> F:
        """Handle messages one by one, with ``async def`` or, in threads, with ``def``."""
        self._set_handler(Handler(function, takes_list=False))
        return function

    def on_messages(self, function: F) -> F:
        """Handle messages in lists of up to ``consume_message_batch_max_size``."""
        self._set_handler(Handler(function, takes_list=True))
        return function

    def _set_handler(self, handler: Handler) -> None:
        if self._handler is not None:
            raise ClientError(
                f"consumer {self._group!r} has a handler already: let it look at message.topic, or "
                "use a consumer for each"
            )
        self._handler = handler
        if self._work is not None:
            self._work.hire(handler)

    def pause(self, *queues: MessageQueue) -> None:
        """Stop pulling these queues, or all of them; messages already pulled are still handled."""
        if queues:
            self._paused.update(queues)
        else:
            self._is_all_paused = True

    def resume(self, *queues: MessageQueue) -> None:
        """Go on with these queues, or with all."""
        if queues:
            self._paused.difference_update(queues)
        else:
            self._is_all_paused = False
            self._paused.clear()
        if self._work is not None:
            self._work.wake_readers()

    def is_paused(self, queue: MessageQueue) -> bool:
        return self._is_all_paused or queue in self._paused

    def assigned_queues(self) -> list[MessageQueue]:
        """The queues that this member has now."""
        return sorted(self._work.queues.readers) if self._work is not None else []

    # Life.

    async def start(self) -> None:
        """Consume with the handler. Messages sent from now on are not missed.

        Raises:
            ClientError: there is no handler.
            GroupTaken: the process already has a consumer of this group there.
            BrokerRefused: a broker cannot answer a ``Sql92`` subscription.

        With ``start_timeout_ms`` also ``ClientError`` when the consumer has no share of its topics
        by then.
        """
        if self._handler is None:
            raise ClientError(
                f"consumer {self._group!r} has no handler: register one with @consumer.on_message "
                "before start(), or loop over it inside its `with` or `async with` block"
            )
        await self._open_and_begin()

    async def run(self) -> None:
        """Consume until another task calls ``close``, or this call is cancelled."""
        await self.start()
        await self._closed.wait()

    @property
    def handlers_timeout_s(self) -> float:
        """How long ``close`` waits for handlers."""
        return self._settings.await_termination_ms_when_shutdown / 1000

    async def close(self) -> None:
        """Stop pulling, let handlers finish, keep the progress, and leave the group.

        Handlers and the bodies of loops have ``await_termination_ms_when_shutdown``. A call from a
        handler returns at once: the consumer is closed after the handler has returned, and its
        message counts. A message that a loop still has in hand comes again, unless it was
        acknowledged.
        """
        await self._close_by(asyncio.current_task())

    async def _close_by(self, caller: Owner | None) -> None:
        """Close for a task or thread, without waiting for its own loop."""
        if self._instance is None or not self._instance.may_be_closed_here():
            return
        if self._closing is None:
            # Shielded: a half-done close would be worse than a late one.
            self._closing = asyncio.get_running_loop().create_task(self._close(caller))
        if self._handler is None or not self._handler.is_caller:
            await asyncio.shield(self._closing)

    async def __aenter__(self) -> Self:
        if self._subscriptions.user_topics():
            await self._open_and_begin()
        else:
            self._open()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._leave(asyncio.current_task(), error)

    async def _leave(self, caller: Owner | None, error: BaseException | None) -> None:
        """The end of a ``with`` block of a task or thread."""
        try:
            if self._work is not None:
                await self._work.streams.finish(caller, error)
        finally:
            await self._close_by(caller)

    def __aiter__(self) -> MessageStream:
        """Messages, one by one.

        Raises:
            ClientError: a handler gets the messages, or no topic is subscribed.
        """
        return self._begin_loop(asyncio.current_task())

    def _begin_loop(self, owner: Owner | None) -> MessageStream:
        """A loop of a task or thread; it has one at a time."""
        self._opened()
        if self._handler is not None:
            raise ClientError(f"the messages of consumer {self._group!r} go to its handler")
        if self._work is None:
            raise ClientError(
                f"consumer {self._group!r} has no subscription: call its subscribe(topic) first"
            )
        return self._work.streams.begin(owner)

    def _open(self) -> None:
        require_same_process(self._process_id, f"consumer {self._group!r}")
        if self._instance is None:
            instance = instances.join(self._client_settings)
            self._instance = instance
            self._closing = None
            self._closed.clear()

    async def _open_and_begin(self) -> None:
        self._open()
        limit_ms = self._settings.start_timeout_ms
        try:
            async with asyncio.timeout(limit_ms / 1000 if limit_ms else None) as limit:
                await self._begin()
        except BaseException as error:
            await self.close()
            if isinstance(error, TimeoutError) and limit.expired():
                topics = ", ".join(map(repr, self._subscriptions.user_topics()))
                raise ClientError(
                    f"consumer {self._group!r} has no share of {topics} after {limit_ms} ms: see "
                    "that NameServer and brokers answer and that the topics exist, or raise "
                    "start_timeout_ms"
                ) from error
            raise

    async def _begin(self) -> None:
        async with self._beginning:
            if self._work is not None:
                return
            instance = self._opened()
            try:
                instance.add_consumer(self)
                self._work = PushWork(self, instance, self._settings, self._onlookers)
                await self._work.begin(self._handler)
            except BaseException:
                # The caller may be cancelled; a half-done end would be worse than a late one.
                ending = self._end_work(instance, asyncio.current_task())
                await asyncio.shield(instance.spawn(ending, f"end of {self._group}"))
                raise

    async def _end_work(self, instance: ClientInstance, caller: Owner | None) -> None:
        work, self._work = self._work, None
        if work is not None:
            await work.end(caller)
        if instance.consumers.get(self._group) is self:
            await instance.remove_consumer(self._group)

    async def _close(self, caller: Owner | None) -> None:
        instance = self._opened()
        try:
            await self._end_work(instance, caller)
        finally:
            self._instance = None
            self._closed.set()
            await instances.leave(instance)

    def _opened(self) -> ClientInstance:
        if self._instance is None:
            raise ClientClosed(
                f"consumer {self._group!r} is not open: use it inside its `with` or `async with` "
                "block, or between start() and close()"
            )
        require_same_process(self._process_id, f"consumer {self._group!r}")
        return self._instance

    # Called by the work.

    @property
    def subscriptions(self) -> Subscriptions:
        return self._subscriptions

    # Called by the instance, see ``ConsumerSide``.

    def topics(self) -> Collection[str]:
        return self._subscriptions.topics()

    def heartbeat_data(self) -> ConsumerData:
        return ConsumerData(
            self._group,
            ConsumeType.CONSUME_PASSIVELY,
            self._model,
            self._from_where,
            self._subscriptions.all(),
        )

    def route_changed(self, topic: str) -> None:
        self.members_changed()

    def members_changed(self) -> None:
        if self._work is not None:
            self._work.rebalancer.soon()

    def reset_offsets(self, topic: str, consumer_offsets: Mapping[MessageQueue, int]) -> None:
        work = self._work
        if work is not None:
            places = {queue: to for queue, to in consumer_offsets.items() if queue.topic == topic}
            self._opened().spawn(work.queues.move(places), f"reset {topic}")

    def consumer_status(self, topic: str) -> Mapping[MessageQueue, int]:
        return self._work.queues.progress(topic) if self._work is not None else {}

    def running_info(self) -> Mapping[str, object]:
        return self._work.running_info() if self._work is not None else {}

    async def consume_directly(
        self, message: ReceivedMessage, broker_name: str | None
    ) -> Mapping[str, object]:
        run = self._work.handler_run if self._work is not None else None
        return await consume_directly(run, message, is_orderly=self._settings.orderly)
