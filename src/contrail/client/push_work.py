"""A running push consumer: readers, handlers, progress and locks."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Coroutine
from typing import Any, NamedTuple, Protocol

from contrail.client.assigned_queues import AssignedQueues
from contrail.client.broker_rebalancing import BrokerRebalancer
from contrail.client.consumed_message import ConsumedMessage, Reader
from contrail.client.consumer_settings import ConsumerSettings
from contrail.client.consuming import Bell, Handler, HandlerRun, Watch, Workers
from contrail.client.consuming_concurrent import ConcurrentSupply
from contrail.client.consuming_orderly import OrderlySupply
from contrail.client.hooks import ConsumeHook
from contrail.client.instance import ClientInstance
from contrail.client.message import Message, MessageQueue, SendReceipt
from contrail.client.message_stream import MessageStreams, Owner
from contrail.client.offset_stores import LocalOffsets, OffsetStore, RemoteOffsets
from contrail.client.outgoing import Outgoing, prepare
from contrail.client.pop_reader import PoppedQueues, PopSupply
from contrail.client.producer_settings import ProducerSettings
from contrail.client.queue_locks import QueueLocks
from contrail.client.queue_reader import QueueReader
from contrail.client.rebalancing import Rebalancer
from contrail.client.request_reply import RequestReply
from contrail.client.running_info import running_info
from contrail.client.send_back import INNER_PRODUCER_GROUP, SendBack
from contrail.client.sender import Sender
from contrail.client.start_places import (
    StartPlaces,
    parse_consume_from_where,
    parse_consume_timestamp,
)
from contrail.client.state.consume_figures import TopicFigures
from contrail.client.subscribed_topics import SubscribedTopics
from contrail.client.subscriptions import Subscriptions
from contrail.client.telemetry import telemetry_hooks
from contrail.client.trace import ConsumerTrace, TraceDispatcher, open_trace
from contrail.clock import monotonic_ms
from contrail.model.subscription import SubscriptionData
from contrail.protocol.bodies.heartbeat import MessageModel

_log = logging.getLogger(__name__)

_UNLOCKED_REST_S = 1.0
_START_AGAIN_S = 0.2
_EXPIRE_INTERVAL_S_MAX = 60.0


class Consumer(Protocol):
    """The consumer that owns the work."""

    @property
    def group(self) -> str: ...
    @property
    def subscriptions(self) -> Subscriptions: ...

    def topics(self) -> Collection[str]: ...
    def is_paused(self, queue: MessageQueue) -> bool: ...


class Onlookers(NamedTuple):
    """The observers of handling."""

    hooks: tuple[ConsumeHook, ...]
    # None: no message trace.
    trace_topic: str | None
    telemetry: bool | None


class PushWork:
    """Readers, handlers, progress and locks of one consumer; is the owner of its readers."""

    def __init__(
        self,
        consumer: Consumer,
        instance: ClientInstance,
        settings: ConsumerSettings,
        onlookers: Onlookers,
    ) -> None:
        self.group = consumer.group
        self.instance = instance
        self.settings = settings
        is_broadcasting = settings.model is MessageModel.BROADCASTING
        self.commits_with_pulls = not is_broadcasting
        self.needs_locks = settings.orderly and not is_broadcasting
        self.figures: dict[str, TopicFigures] = {}
        self.started_ms = instance.clock.now_ms()
        self.handler_run: HandlerRun | None = None
        self._consumer = consumer
        self._is_over = False
        self._bell = Bell()
        self._workers: Workers | None = None
        self._loops: list[asyncio.Task[None]] = []
        self._trace: TraceDispatcher | None = None
        hooks = onlookers.hooks
        if onlookers.trace_topic is not None:
            self._trace = open_trace(instance, self.group, "CONSUMER", onlookers.trace_topic)
            hooks = (*hooks, ConsumerTrace(instance, self._trace))
        spans = telemetry_hooks(onlookers.telemetry, group=self.group, client_id=instance.client_id)
        hooks = (*hooks, *spans.consume)
        self._timeout_ms = int(settings.consume_timeout_minutes * 60_000)
        self._watch = Watch(self.group, hooks, self._timeout_ms)
        self._sender = Sender(instance, INNER_PRODUCER_GROUP, ProducerSettings())
        self._replies = RequestReply(instance, self._sender, self._prepared)
        self._offsets = self._open_offsets(is_broadcasting)
        self._places = StartPlaces(
            instance,
            self._offsets,
            parse_consume_from_where(settings.consume_from_where),
            parse_consume_timestamp(settings.consume_timestamp, now_ms=self.started_ms),
        )
        self._locks = QueueLocks(instance, self.group) if self.needs_locks else None
        self.supply = self._open_supply(is_broadcasting)
        self.queues = (PoppedQueues if settings.pop else AssignedQueues)(
            self,
            self.supply,
            self._offsets,
            self._locks,
            places=self._places,
            share_again=lambda: self.rebalancer.soon(),
        )
        self.rebalancer = (BrokerRebalancer if settings.pop else Rebalancer)(
            instance,
            group=self.group,
            message_model=settings.model,
            strategy=settings.strategy,
            on_share=self.queues.take_share,
            topics=consumer.topics,
            interval_ms=settings.rebalance_interval_ms,
        )
        self._topics = SubscribedTopics(instance, self.group, consumer.subscriptions)
        self.streams = MessageStreams(
            self.supply, self._bell, self._watch, lambda: self._is_over, instance.spawn
        )

    def _open_offsets(self, is_broadcasting: bool) -> OffsetStore:
        if is_broadcasting:
            return LocalOffsets(self.instance, self.group, self.settings.offset_folder)
        return RemoteOffsets(self.instance, self.group)

    def _open_supply(self, is_broadcasting: bool) -> ConcurrentSupply | OrderlySupply:
        settings = self.settings
        send_back = SendBack(
            self.instance, self.group, retries_max=settings.retries_max, sender=self._sender
        )
        if settings.pop:
            return PopSupply(send_back, retries_max=settings.retries_max, call_one=self._call_one)
        if not settings.orderly:
            return ConcurrentSupply(
                send_back, is_broadcasting=is_broadcasting, call_one=self._call_one
            )
        return OrderlySupply(
            send_back,
            is_broadcasting=is_broadcasting,
            retries_max=settings.retries_max,
            undecoded_retries_max=settings.undecoded_retries_max,
            rest_ms=settings.suspend_current_queue_time_ms,
            call_one=self._call_one,
            may_run=self._may_run,
            is_ours=self._is_ours,
            prove=self._prove,
        )

    # The beginning.

    async def begin(self, handler: Handler | None) -> None:
        """Returns once this member has its share, so that no message sent afterwards is missed."""
        await self._offsets.load()
        if handler is not None:
            self.hire(handler)
        await self._topics.find()
        self._places.note(self._consumer.subscriptions.user_topics())
        await self.instance.beat()
        is_settled = await self.rebalancer.run_once()
        while self.settings.start_timeout_ms and not is_settled and not self._is_over:
            await asyncio.sleep(_START_AGAIN_S)
            await self._topics.find()
            await self.instance.beat()
            is_settled = await self.rebalancer.run_once()
        # A handler that got a message already may have closed the consumer.
        if not self._is_over:
            self.rebalancer.start()
            self._start_loops()

    def _start_loops(self) -> None:
        self._spawn_loop(self._persist_forever(), "progress")
        self._spawn_loop(self._topics.watch(), "topics")
        if isinstance(self.queues, PoppedQueues):
            self._spawn_loop(self.queues.renew_forever(self._timeout_ms), "renewals")
        elif self._locks is not None:
            self._spawn_loop(self.queues.renew_locks_forever(self._locks), "locks")
        else:
            self._spawn_loop(self._expire_forever(), "timeouts")

    def _spawn_loop(self, work: Coroutine[Any, Any, None], name: str) -> None:
        self._loops.append(self.instance.spawn(work, f"{name} of {self.group}"))

    def hire(self, handler: Handler) -> None:
        """From now on the handler gets the messages."""
        settings = self.settings
        self.handler_run = HandlerRun(handler, settings.consume_thread_max)
        self._workers = Workers(
            self.supply,
            self._bell,
            self.handler_run,
            self._watch,
            group=self.group,
            count_max=settings.consume_thread_max,
            batch_count_max=settings.consume_message_batch_max_size,
        )
        self._workers.call_one()

    def _call_one(self) -> None:
        if self._workers is not None:
            self._workers.call_one()
        else:
            self._bell.ring()

    # Topics.

    async def subscribed(self, subscription: SubscriptionData) -> None:
        await self._topics.find_one(subscription)
        self._places.note([subscription.topic])
        await self.instance.beat()
        await self.rebalancer.run_once()

    async def unsubscribed(self) -> None:
        await self.rebalancer.run_once()
        await self.instance.beat()

    # The end.

    async def end(self, caller: Owner | None) -> None:
        """Let handlers and loops finish their messages, and write the progress.

        The caller may be one of the loops: it is not waited for.
        """
        timeout_s = self.settings.await_termination_ms_when_shutdown / 1000
        self._is_over = True
        self.rebalancer.stop()
        for loop in self._loops:
            loop.cancel()
        self.streams.stop()
        self.queues.stop_reading()
        self._bell.ring_all()
        deadline_ms = monotonic_ms() + int(timeout_s * 1000)
        if self._workers is not None:
            await self._workers.stop(timeout_s)
        await self.streams.wait(caller, deadline_ms)
        await self.queues.close()
        if self._trace is not None:
            await self._trace.close()

    # Periodic work.

    async def _persist_forever(self) -> None:
        while True:
            await asyncio.sleep(self.settings.persist_consumer_offset_interval_ms / 1000)
            now_ms = self.instance.clock.now_ms()
            for figures in self.figures.values():
                figures.remember(now_ms)
            await self.queues.persist()

    async def _expire_forever(self) -> None:
        interval_s = min(self._timeout_ms / 1000, _EXPIRE_INTERVAL_S_MAX)
        while True:
            await asyncio.sleep(interval_s)
            for reader in list(self.queues.readers.values()):
                await self.supply.expire(reader, monotonic_ms(), self._timeout_ms)

    # Locks.

    def _is_ours(self, reader: Reader) -> bool:
        return not self.needs_locks or reader.process_queue.holds_lock(monotonic_ms())

    def _may_run(self, reader: Reader) -> bool:
        if self._is_ours(reader):
            return True
        self.instance.spawn(self._lock_again(reader), f"lock {reader.queue}")
        return False

    async def _lock_again(self, reader: Reader) -> None:
        assert isinstance(self.supply, OrderlySupply)
        if await self._prove(reader):
            self.supply.resume(reader)

    async def _prove(self, reader: Reader) -> bool:
        """Ask the broker until it answers; whether this member had the lock all the time."""
        assert self._locks is not None
        while True:
            await self.queues.renew_locks(self._locks, [reader.queue])
            if self._is_ours(reader):
                return True
            if reader.process_queue.is_dropped or self._is_over:
                return False
            await asyncio.sleep(_UNLOCKED_REST_S)

    # Called by readers, see ``ReaderOwner``.

    def subscription_of(self, queue: MessageQueue) -> SubscriptionData:
        return self._consumer.subscriptions.require(queue)

    def is_paused(self, queue: MessageQueue) -> bool:
        return self._consumer.is_paused(queue)

    def figures_of(self, topic: str) -> TopicFigures:
        return self.figures.setdefault(topic, TopicFigures())

    async def place_moved(self, reader: QueueReader, queue_offset: int) -> None:
        # In a task of its own: the reader's task ends with its queue.
        self.instance.spawn(
            self.queues.move({reader.queue: queue_offset}), f"move in {reader.queue}"
        )

    async def reply(self, message: ConsumedMessage, body: bytes) -> SendReceipt:
        return await self._replies.reply(message, body)

    def _prepared(self, message: Message) -> Outgoing:
        now_ms = self.instance.clock.now_ms()
        return prepare(
            message,
            unique_id=self.instance.unique_ids.take(now_ms),
            rules=ProducerSettings().outgoing_rules,
        )

    def wake_readers(self) -> None:
        for reader in self.queues.readers.values():
            reader.wake()

    def running_info(self) -> dict[str, object]:
        return running_info(
            self.settings,
            subscriptions=self._consumer.subscriptions.all(),
            readers=self.queues.readers,
            figures=self.figures,
            started_ms=self.started_ms,
            now_ms=self.instance.clock.now_ms(),
            monotonic_now_ms=monotonic_ms(),
        )
