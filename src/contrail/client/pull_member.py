"""A running pull consumer as its client instance, its group and brokers see it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping

from contrail.client.instance import ClientInstance
from contrail.client.message import MessageQueue, ReceivedMessage
from contrail.client.offset_stores import LocalOffsets, OffsetStore, RemoteOffsets
from contrail.client.prefetching import Prefetcher
from contrail.client.pull_settings import PullSettings
from contrail.client.rebalancing import Rebalancer
from contrail.client.start_places import parse_consume_from_where
from contrail.client.state.allocation import sorted_queues
from contrail.client.state.prefetched import PrefetchedQueue
from contrail.client.state.selection import Selection
from contrail.errors import ClientError, OffsetIllegal
from contrail.protocol.bodies.heartbeat import ConsumerData, ConsumeType, MessageModel

_log = logging.getLogger(__name__)

OnQueues = Callable[[str, list[MessageQueue]], None]
"""Called with a topic and its queues when they change."""


class PullMember:
    """Reads the queues of the selection; made at the consumer's start, dropped at its close."""

    def __init__(
        self, instance: ClientInstance, settings: PullSettings, selection: Selection
    ) -> None:
        self.instance = instance
        self.selection = selection
        self._group = selection.group
        self._settings = settings
        self._started_ms = instance.clock.now_ms()
        self._watched: dict[str, tuple[OnQueues, list[MessageQueue]]] = {}
        self._persisting: asyncio.Task[None] | None = None
        self.offsets: OffsetStore = (
            LocalOffsets(instance, self._group, settings.offset_folder)
            if settings.model is MessageModel.BROADCASTING
            else RemoteOffsets(instance, self._group)
        )
        self.prefetcher = Prefetcher(
            instance, self._group, settings, self.offsets, selection.subscription_of
        )
        self.rebalancer = Rebalancer(
            instance,
            group=self._group,
            message_model=settings.model,
            strategy=settings.strategy,
            on_share=self._take_share,
            topics=lambda: list(selection.shared),
            interval_ms=settings.rebalance_interval_ms,
        )

    async def start(self) -> None:
        """Raises ``GroupTaken``, or ``StateFileDamaged`` for a broadcasting consumer's file."""
        await self.offsets.load()
        self.instance.add_consumer(self)
        for queue in self.selection.queues:
            self.prefetcher.add(queue)
        await self.come_to(self.selection.shared)
        self.rebalancer.start()
        self._persisting = self.instance.spawn(self._persist_forever(), f"persist {self._group}")

    async def come_to(self, topics: Collection[str]) -> None:
        """Queues that are added to these topics from now on are read from their beginning."""
        for topic in topics:
            try:
                await self.instance.route(topic)
            except ClientError as error:
                _log.info("group %s waits for topic %r: %s", self._group, topic, error)
        self.prefetcher.places.note(topics)

    async def stop(self) -> None:
        """Write the progress and leave the group."""
        self.rebalancer.stop()
        if self._persisting is not None:
            self._persisting.cancel()
        await self.prefetcher.close()
        await self.offsets.persist()
        await self.instance.remove_consumer(self._group)

    async def _persist_forever(self) -> None:
        while True:
            await asyncio.sleep(self._settings.auto_commit_interval_ms / 1000)
            await self.offsets.persist()

    # Queues.

    async def _take_share(self, topic: str, share: set[MessageQueue]) -> bool:
        known = {queue for queue in self.prefetcher.queues if queue.topic == topic}
        await self.replace_queues(known, share)
        return True

    async def replace_queues(
        self, known: Collection[MessageQueue], wanted: Collection[MessageQueue]
    ) -> None:
        """Stop reading queues that are not wanted any more, and start the wanted ones."""
        lost = set(known) - set(wanted)
        for queue in lost:
            self.prefetcher.remove(queue)
        if lost:
            _log.info("group %s no longer reads %s", self._group, sorted_queues(lost))
            await self.offsets.persist(lost)
        for queue in lost:
            await self.offsets.remove(queue)
        for queue in sorted_queues(set(wanted) - set(known)):
            # Another member may have consumed further since this one had the queue.
            await self.offsets.remove(queue)
            self.prefetcher.add(queue)

    def require_assigned(self, queue: MessageQueue) -> None:
        if queue in self.prefetcher.queues:
            return
        hint = "the group may be sharing its queues anew: see assignment()"
        if self.selection.is_assigned:
            hint = "assign() it first"
        raise ClientError(f"{queue} is not assigned to this consumer: {hint}")

    def watch(self, topic: str, queues: list[MessageQueue], on_queues: OnQueues) -> None:
        self._watched[topic] = (on_queues, queues)

    # Progress.

    def note_progress(self) -> Collection[MessageQueue]:
        """Count messages handed out as handled, in memory; returns their queues."""
        places = self.prefetcher.held.consumer_offsets()
        for queue, consumer_offset in places.items():
            self.offsets.update(queue, consumer_offset)
        return places.keys()

    def note(self, consumer_offsets: Mapping[MessageQueue, int]) -> Collection[MessageQueue]:
        """Raises ``ClientError`` for a queue that is not assigned, or an invalid offset."""
        for queue, consumer_offset in consumer_offsets.items():
            self.require_assigned(queue)
            if consumer_offset < 0:
                raise OffsetIllegal(f"{queue} has no place {consumer_offset}: commit 0 or more")
        for queue, consumer_offset in consumer_offsets.items():
            self.offsets.update(queue, consumer_offset)
        return consumer_offsets.keys()

    # Called by the client instance.

    @property
    def group(self) -> str:
        return self._group

    def topics(self) -> Collection[str]:
        return {*self.selection.subscriptions, *self._watched}

    def heartbeat_data(self) -> ConsumerData:
        return ConsumerData(
            self._group,
            ConsumeType.CONSUME_ACTIVELY,
            self._settings.model,
            parse_consume_from_where(self._settings.consume_from_where),
            tuple(self.selection.shared.values()),
        )

    def route_changed(self, topic: str) -> None:
        self.rebalancer.soon()
        watched, route = self._watched.get(topic), self.instance.routes.routes.get(topic)
        if watched is None or route is None:
            return
        on_queues, known = watched
        queues = sorted_queues(route.read_queues)
        if queues != known:
            self._watched[topic] = (on_queues, queues)
            on_queues(topic, queues)

    def members_changed(self) -> None:
        self.rebalancer.soon()

    def reset_offsets(self, topic: str, consumer_offsets: Mapping[MessageQueue, int]) -> None:
        for queue, consumer_offset in consumer_offsets.items():
            if queue.topic == topic and queue in self.prefetcher.queues:
                self.prefetcher.seek(queue, consumer_offset)
                self.offsets.update(queue, consumer_offset)

    def consumer_status(self, topic: str) -> Mapping[MessageQueue, int]:
        return self.offsets.snapshot(topic)

    def running_info(self) -> Mapping[str, object]:
        held = self.prefetcher.held.queues
        return {
            "mqTable": {queue: self._queue_info(queue, held[queue]) for queue in held},
            "properties": {
                "PROP_CONSUME_TYPE": ConsumeType.CONSUME_ACTIVELY.value,
                "PROP_CONSUMER_START_TIMESTAMP": str(self._started_ms),
            },
            "statusTable": {},
            "subscriptionSet": [entry.to_fields() for entry in self.selection.shared.values()],
        }

    def _queue_info(
        self, queue: MessageQueue, held: PrefetchedQueue[ReceivedMessage]
    ) -> dict[str, object]:
        messages = held.messages
        committed = self.offsets.known(queue)
        return {
            "cachedMsgCount": len(messages),
            "cachedMsgMaxOffset": messages[-1].queue_offset if messages else 0,
            "cachedMsgMinOffset": messages[0].queue_offset if messages else 0,
            "cachedMsgSizeInMiB": held.cached_bytes >> 20,
            "commitOffset": -1 if committed is None else committed,
            "droped": False,
            "locked": False,
        }

    async def consume_directly(
        self, message: ReceivedMessage, broker_name: str | None
    ) -> Mapping[str, object]:
        raise ClientError(
            f"group {self._group!r} is consumed by a pull consumer: it has no handler that could "
            f"be given message {message.message_id}"
        )
