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
from contrail.client.message_stream import MessageStream
from contrail.client.options import PushOptions
from contrail.client.push_work import Onlookers, PushWork
from contrail.client.settings import ClientSettings
from contrail.client.start_places import parse_consume_from_where, parse_consume_timestamp
from contrail.client.subscriptions import Sql92, Subscriptions
from contrail.clock import SystemClock
from contrail.errors import ClientClosed, ClientError
from contrail.model.topic import TRACE_TOPIC
from contrail.protocol.bodies.heartbeat import ConsumerData, ConsumeType, MessageModel

_log = logging.getLogger(__name__)

F = TypeVar("F", bound=Callable[..., Any])


class PushConsumer:
    """Consumes for a group. Use it in ``async with``, or ``start`` and ``close``.

    A handler, ``@consumer.on_message``, acknowledges by returning and asks for a retry by raising.
    Without one, loop: ``async for message in consumer``; asking for the next message acknowledges
    the one before, and an exception that leaves the ``async with`` block sends it back. In
    ``async with`` consuming begins with the first subscription.
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
        """``telemetry`` is on by itself where a program set OpenTelemetry's provider."""
        check_consumer_group(group)
        self._group = group
        self._settings, shared = split_settings(ConsumerSettings, dict(options))
        self._client_settings = ClientSettings.of(namesrv, **shared)
        self._model = self._settings.model
        self._from_where = parse_consume_from_where(self._settings.consume_from_where)
        # Said again at the start; here a typing mistake is found at once.
        parse_consume_timestamp(self._settings.consume_timestamp, now_ms=0)
        self._strategy = self._settings.strategy
        self._onlookers = Onlookers(tuple(hooks), trace_topic if trace else None, telemetry)
        self._subscriptions = Subscriptions(
            group, with_retries=self._model is MessageModel.CLUSTERING
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
        self._streams: list[MessageStream] = []

    @property
    def group(self) -> str:
        return self._group

    @property
    def client_id(self) -> str:
        """Who this process is to the brokers; known once opened."""
        return self._opened().client_id

    # What to consume, and how.

    async def subscribe(self, topic: str, expression: str | Sql92 | None = "*") -> None:
        """Consume a topic: all of it, by tags (``"paid || refunded"``) or by ``Sql92``.

        A topic without a route is no error: it is consumed once somebody has created it.

        Raises:
            ConfigError: the expression is none.
            BrokerRefused: a broker cannot answer the ``Sql92`` expression.
        """
        clock = self._opened().clock if self._instance is not None else SystemClock()
        subscription = self._subscriptions.put(topic, expression, clock.now_ms())
        if self._work is not None:
            await self._work.subscribed(subscription)
        elif self._instance is not None:
            await self._begin()

    async def unsubscribe(self, topic: str) -> None:
        """Stop consuming a topic; what is being handled is finished."""
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
        """Stop pulling these queues, or all of them; what is held already is still handled."""
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
        """The queues that are this member's at the moment."""
        return sorted(self._work.queues.readers) if self._work is not None else []

    # Life.

    async def start(self) -> None:
        """Consume with the handler. What is sent from now on is not missed.

        Raises:
            ClientError: there is no handler.
            GroupTaken: the process already has a consumer of this group there.
            BrokerRefused: a broker cannot answer a ``Sql92`` subscription.
        """
        if self._handler is None:
            raise ClientError(
                f"consumer {self._group!r} has no handler: register one with @consumer.on_message "
                "before start(), or use `async with` and `async for message in consumer`"
            )
        self._open()
        await self._begin()

    async def run(self) -> None:
        """Consume until somebody calls ``close``, or this is cancelled."""
        await self.start()
        await self._closed.wait()

    async def close(self) -> None:
        """Stop pulling, let handlers finish, keep the progress, and leave the group.

        Handlers have ``await_termination_ms_when_shutdown``. A message that a loop has in hand
        comes again, unless it was acknowledged.
        """
        if self._instance is None or not self._instance.may_be_closed_here():
            return
        if self._closing is None:
            # Half a close would be worse than one that ends a little later.
            self._closing = asyncio.get_running_loop().create_task(
                self._close(asyncio.current_task())
            )
        await asyncio.shield(self._closing)

    async def __aenter__(self) -> Self:
        self._open()
        if self._subscriptions.user_topics():
            await self._begin()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            for stream in self._streams:
                if not stream.is_in_other_hands(asyncio.current_task()):
                    await stream.finish(error)
        finally:
            await self.close()

    def __aiter__(self) -> MessageStream:
        """Messages, one by one.

        Raises:
            ClientError: a handler gets the messages, or nothing is subscribed.
        """
        self._opened()
        if self._handler is not None:
            raise ClientError(f"the messages of consumer {self._group!r} go to its handler")
        if self._work is None:
            raise ClientError(
                f"consumer {self._group!r} has no subscription: await consumer.subscribe(topic)"
            )
        return self._stream_of_this_task(self._work)

    def _stream_of_this_task(self, work: PushWork) -> MessageStream:
        """A loop that was left and begun again goes on: its last message is done."""
        task = asyncio.current_task()
        self._streams = [one for one in self._streams if one.is_of_use]
        for stream in self._streams:
            if stream.owner is task:
                return stream
        self._streams.append(work.stream())
        return self._streams[-1]

    def _open(self) -> None:
        require_same_process(self._process_id, f"consumer {self._group!r}")
        if self._instance is None:
            instance = instances.join(self._client_settings)
            self._instance = instance
            self._closing = None
            self._closed.clear()

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
                await self.close()
                raise

    async def _close(self, caller: asyncio.Task[Any] | None) -> None:
        instance, work, self._work = self._opened(), self._work, None
        try:
            if work is not None:
                await work.end(self._streams, caller)
            if instance.consumers.get(self._group) is self:
                await instance.remove_consumer(self._group)
        finally:
            self._streams.clear()
            self._instance = None
            self._closed.set()
            await instances.leave(instance)

    def _opened(self) -> ClientInstance:
        if self._instance is None:
            raise ClientClosed(
                f"consumer {self._group!r} is not open: use `async with` or await start()"
            )
        require_same_process(self._process_id, f"consumer {self._group!r}")
        return self._instance

    # What the work asks.

    @property
    def subscriptions(self) -> Subscriptions:
        return self._subscriptions

    # What the instance asks, see ``ConsumerSide``.

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
