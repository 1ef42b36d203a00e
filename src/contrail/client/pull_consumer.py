"""``PullConsumer``: the application asks for messages when it wants them.

Either it is given queues (``assign``), or it shares its topics' queues with its group
(``subscribe``). Messages are fetched ahead in the background; ``poll`` hands them out. ``pull`` is
one request and one answer, without any state.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import Self, Unpack

from contrail.client.hooks import ConsumeHook, ConsumeOutcome
from contrail.client.instance import require_same_process
from contrail.client.membership import join_group, leave_group, require_running
from contrail.client.message import MessageQueue, ReceivedMessage
from contrail.client.offset_stores import OffsetStore
from contrail.client.options import PullOptions
from contrail.client.pull_member import OnQueues, PullMember
from contrail.client.pull_settings import split_pull_settings
from contrail.client.pulling import PullResult, pull_once
from contrail.client.queue_places import (
    epoch_ms,
    queue_offset_at,
    queue_offset_max,
    queue_offset_min,
)
from contrail.client.settings import ClientSettings
from contrail.client.state.allocation import sorted_queues
from contrail.client.state.selection import Selection
from contrail.client.subscriptions import Sql92, check_subscription
from contrail.clock import SystemClock
from contrail.errors import OffsetIllegal
from contrail.model.group import check_group_name
from contrail.model.subscription import ALL_TAGS, SQL92, SubscriptionData, parse_subscription
from contrail.model.topic import check_topic_name

_log = logging.getLogger(__name__)

Expression = str | Sql92
"""Tags, such as ``paid || refunded`` (``*`` for all), or an SQL92 expression."""


class PullConsumer:
    """A consumer whose program polls. See ``PullSettings`` and ``ClientSettings`` for options."""

    def __init__(
        self,
        group: str,
        namesrv: str | Sequence[str] | None = None,
        *,
        hooks: Sequence[ConsumeHook] = (),
        **options: Unpack[PullOptions],
    ) -> None:
        check_group_name(group)
        self._settings, shared = split_pull_settings({**options})
        self._client_settings = ClientSettings.of(namesrv, **shared)
        self._selection = Selection(group)
        self._hooks = hooks
        self._clock = SystemClock()
        self._process_id = os.getpid()
        self._member: PullMember | None = None

    # Life.

    async def start(self) -> None:
        """Raises ``GroupTaken`` when this process already consumes for the group.

        A second start does nothing.
        """
        require_same_process(self._process_id, self._name)
        if self._member is None:
            self._member = await join_group(
                self._client_settings,
                lambda instance: PullMember(instance, self._settings, self._selection),
            )

    async def close(self) -> None:
        """Write the progress and leave the group.

        With ``auto_commit`` all messages handed out count as handled, except where an exception
        ends the ``with`` block.
        """
        await self._close(commit=self._settings.auto_commit)

    async def _close(self, *, commit: bool) -> None:
        member = self._member
        if member is None or not member.instance.may_be_closed_here():
            return
        self._member = None
        if commit:
            member.note_progress()
        await leave_group(member)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # Messages that the application failed to handle must come again.
        await self._close(commit=error is None and self._settings.auto_commit)

    @property
    def group(self) -> str:
        return self._selection.group

    @property
    def client_id(self) -> str:
        return self._running().instance.client_id

    @property
    def _name(self) -> str:
        return f"pull consumer of group {self.group!r}"

    def _running(self) -> PullMember:
        return require_running(self._member, self._process_id, self._name)

    # Subscriptions and assignments.

    async def subscribe(self, topic: str, expression: Expression = ALL_TAGS) -> None:
        """Share the topic's queues with the group; excludes ``assign``."""
        self._selection.subscribe(self._subscription(topic, expression))
        if self._member is not None:
            await self._member.come_to([topic])
        self._subscriptions_changed()

    async def unsubscribe(self, topic: str) -> None:
        """Give the topic's queues back to the group."""
        if self._selection.unsubscribe(topic) and self._member is not None:
            self._subscriptions_changed()
            await self._member.rebalancer.run_once()

    def _subscriptions_changed(self) -> None:
        if self._member is not None:
            self._member.instance.beat_soon()
            self._member.rebalancer.soon()

    async def assign(
        self, queues: Collection[MessageQueue], expression: Expression = ALL_TAGS
    ) -> None:
        """Read exactly these queues, whichever members read them; excludes ``subscribe``.

        Raises:
            ClientError: no queue is given, or the consumer has subscribed.
            RouteMissing: a topic does not exist.
        """
        topics = {queue.topic for queue in queues}
        if self._member is not None:
            for topic in topics:
                await self._member.instance.route(topic)
        self._selection.assign(queues, [self._subscription(topic, expression) for topic in topics])
        if self._member is not None:
            known = list(self._member.prefetcher.queues)
            await self._member.replace_queues(known, self._selection.queues)

    def _subscription(self, topic: str, expression: Expression) -> SubscriptionData:
        check_subscription(topic, expression)
        check_topic_name(topic)
        now_ms = self._clock.now_ms()
        if isinstance(expression, Sql92):
            return parse_subscription(topic, expression.expression, SQL92, sub_version=now_ms)
        return parse_subscription(topic, expression, sub_version=now_ms)

    def assignment(self) -> list[MessageQueue]:
        """The queues that are read now."""
        return sorted_queues(self._running().prefetcher.queues)

    # Messages.

    async def poll(
        self, timeout_ms: int = 5_000, count_max: int | None = None
    ) -> list[ReceivedMessage]:
        """Messages, as soon as there are any; an empty list after ``timeout_ms``.

        With ``auto_commit`` messages of earlier calls count as handled from now on.
        """
        member = self._running()
        self._selection.require_chosen()
        if self._settings.auto_commit:
            member.note_progress()
        count = count_max or self._settings.pull_batch_size
        messages = await member.prefetcher.take(count, timeout_ms)
        for hook in self._hooks if messages else ():
            self._tell(hook, messages)
        return messages

    def _tell(self, hook: ConsumeHook, messages: Sequence[ReceivedMessage]) -> None:
        try:
            hook.after_consume(hook.before_consume(self.group, messages), ConsumeOutcome.SUCCESS, 0)
        except Exception:
            # A hook that fails must not keep messages from the application: the next poll would
            # count them as handled.
            _log.exception("the hook %r failed when messages were handed out", hook)

    async def pull(
        self,
        queue: MessageQueue,
        queue_offset: int,
        count_max: int = 32,
        expression: Expression = ALL_TAGS,
        *,
        wait: bool = False,
    ) -> PullResult:
        """Pull once from a queue offset on; with ``wait`` the broker waits for a message.

        Raises:
            OffsetIllegal: the offset is negative or the count below 1.
            ClientError: the broker refused or did not answer.
        """
        member, settings = self._running(), self._settings
        if queue_offset < 0 or count_max < 1:
            raise OffsetIllegal(
                f"pull of {queue}: queue_offset={queue_offset} must be 0 or more, "
                f"and count_max={count_max} 1 or more"
            )
        await member.instance.route(queue.topic)
        waiting_ms, asking_ms = (
            settings.consumer_timeout_ms_when_suspend,
            settings.consumer_pull_timeout_ms,
        )
        return await pull_once(
            member.instance,
            group=self.group,
            queue=queue,
            queue_offset=queue_offset,
            count_max=count_max,
            subscription=self._subscription(queue.topic, expression),
            suspend=wait,
            post_subscription=True,
            suspend_ms=settings.broker_suspend_max_time_ms,
            timeout_ms=waiting_ms if wait else asking_ms,
        )

    async def pause(self, *queues: MessageQueue) -> None:
        """Hand out no messages of these queues, or of any; they keep their offsets."""
        self._set_paused(queues, is_paused=True)

    async def resume(self, *queues: MessageQueue) -> None:
        self._set_paused(queues, is_paused=False)

    def _set_paused(self, queues: Collection[MessageQueue], *, is_paused: bool) -> None:
        member = self._running()
        for queue in queues:
            member.require_assigned(queue)
        chosen = queues or list(member.prefetcher.queues)
        member.prefetcher.set_paused(chosen, is_paused=is_paused)

    # Offsets.

    async def seek(self, queue: MessageQueue, queue_offset: int) -> None:
        """Go on from a queue offset; messages fetched ahead are dropped.

        Raises:
            OffsetIllegal: the queue has no such offset.
            ClientError: the queue is not assigned.
        """
        member = self._running()
        member.require_assigned(queue)
        first = await queue_offset_min(member.instance, queue)
        end = await queue_offset_max(member.instance, queue)
        if not first <= queue_offset <= end:
            raise OffsetIllegal(f"{queue} has places from {first} to {end}, not {queue_offset}")
        # Another member may have got the queue meanwhile.
        member.require_assigned(queue)
        member.prefetcher.seek(queue, queue_offset)

    async def seek_to_begin(self, queue: MessageQueue) -> None:
        await self.seek(queue, await self.queue_offset_min(queue))

    async def seek_to_end(self, queue: MessageQueue) -> None:
        await self.seek(queue, await self.queue_offset_max(queue))

    async def seek_to_time(self, queue: MessageQueue, when: datetime | int) -> None:
        """Go on with the first message stored then (epoch milliseconds) or later."""
        await self.seek(queue, await self.search(queue, when))

    async def queue_offset_min(self, queue: MessageQueue) -> int:
        """The queue offset of the oldest message that is still there."""
        return await queue_offset_min(self._running().instance, queue)

    async def queue_offset_max(self, queue: MessageQueue) -> int:
        """The queue offset the next message will get."""
        return await queue_offset_max(self._running().instance, queue)

    async def search(self, queue: MessageQueue, when: datetime | int) -> int:
        """The queue offset of the first message stored then (epoch milliseconds) or later.

        Raises:
            ConfigError: ``when`` is no time.
        """
        return await queue_offset_at(self._running().instance, queue, epoch_ms(when))

    async def fetch_queues(self, topic: str) -> list[MessageQueue]:
        """The queues of a topic that may be read.

        Raises:
            RouteMissing: the topic does not exist.
        """
        route = await self._running().instance.refresh_route(topic)
        return sorted_queues(route.read_queues)

    async def watch_queues(self, topic: str, on_queues: OnQueues) -> list[MessageQueue]:
        """Call ``on_queues`` when the queues of a topic change, until the consumer is closed.

        Returns the queues it has now.
        """
        queues = await self.fetch_queues(topic)
        self._running().watch(topic, queues, on_queues)
        return queues

    # Progress.

    async def commit(self, consumer_offsets: Mapping[MessageQueue, int] | None = None) -> None:
        """Write the group's progress, and wait until it is written.

        The progress is the offsets behind the messages handed out, or the given offsets.

        Raises:
            ClientError: a queue is not assigned, or its broker did not take the offset, which is
                written again later all the same.
        """
        offsets, queues = self._note(consumer_offsets)
        for problem in (await offsets.persist(queues)).values():
            raise problem

    async def commit_async(
        self, consumer_offsets: Mapping[MessageQueue, int] | None = None
    ) -> None:
        """Like ``commit``, without waiting; a failed write is tried again later."""
        offsets, queues = self._note(consumer_offsets)
        self._running().instance.spawn(_persist(offsets, queues), f"commit {self.group}")

    def _note(
        self, consumer_offsets: Mapping[MessageQueue, int] | None
    ) -> tuple[OffsetStore, Collection[MessageQueue]]:
        member = self._running()
        if consumer_offsets is None:
            return member.offsets, member.note_progress()
        return member.offsets, member.note(consumer_offsets)

    async def committed(self, queue: MessageQueue) -> int | None:
        """The group's stored offset, from which the next member would start.

        Read from the broker, or for broadcasting from the file; offsets not written yet do not
        count. None when there is none.
        """
        return await self._running().offsets.stored(queue)


async def _persist(offsets: OffsetStore, queues: Collection[MessageQueue]) -> None:
    # A failure is logged there, and the offset stays to be written.
    await offsets.persist(queues)
