"""Reads one queue: pulls, waits while enough messages are held, and hands messages on."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Protocol

from contrail.client.consumed_message import ConsumedMessage, lend
from contrail.client.message import MessageQueue, SendReceipt
from contrail.client.pulling import PullResult, PullStatus, follow_leader, pull_once
from contrail.client.state.consume_figures import TopicFigures
from contrail.client.state.flow_control import FlowLimits, hold_reason
from contrail.client.state.leader_changes import ShortPauses, may_have_moved
from contrail.client.state.process_queue import ProcessQueue
from contrail.client.state.routes import MASTER_ID
from contrail.clock import monotonic_ms
from contrail.errors import BrokerRefused, ClientError
from contrail.model.subscription import SubscriptionData
from contrail.model.topic import RETRY_PREFIX
from contrail.protocol.codes import ResponseCode

if TYPE_CHECKING:
    from contrail.client.consumer_settings import ConsumerSettings
    from contrail.client.instance import ClientInstance

_log = logging.getLogger(__name__)

_FLOW_CONTROLLED_S = 0.02
# A stopped reader resumes when its held messages fall to this part of the bound, so that it does
# not stop again with the next pull.
_RESUME_PART = 0.75
_UNLOCKED_S = 0.2
# A waiting reader looks again after this long: a lost wake-up must not stop a queue for good.
_WAIT_S_MAX = 5.0
# Codes: the broker does not know this member, or has an older subscription of it.
_UNKNOWN_HERE = frozenset(
    {
        ResponseCode.SUBSCRIPTION_NOT_EXIST,
        ResponseCode.SUBSCRIPTION_NOT_LATEST,
        ResponseCode.FILTER_DATA_NOT_EXIST,
        ResponseCode.FILTER_DATA_NOT_LATEST,
    }
)


class Supply(Protocol):
    """Hands messages to handlers, and takes their results."""

    def submit(self, reader: QueueReader, messages: Sequence[ConsumedMessage]) -> None: ...
    async def give_back(
        self,
        reader: QueueReader,
        message: ConsumedMessage,
        delay: int | float | timedelta | None,
    ) -> None: ...
    async def bury(self, reader: QueueReader, message: ConsumedMessage) -> None: ...


class ReaderOwner(Protocol):
    """The consumer, as a reader of one of its queues sees it."""

    @property
    def group(self) -> str: ...
    @property
    def instance(self) -> ClientInstance: ...
    @property
    def settings(self) -> ConsumerSettings: ...
    @property
    def commits_with_pulls(self) -> bool: ...
    @property
    def needs_locks(self) -> bool: ...
    @property
    def supply(self) -> Supply: ...

    def subscription_of(self, queue: MessageQueue) -> SubscriptionData: ...
    def is_paused(self, queue: MessageQueue) -> bool: ...
    def figures_of(self, topic: str) -> TopicFigures: ...
    async def place_moved(self, reader: QueueReader, queue_offset: int) -> None: ...
    async def reply(self, message: ConsumedMessage, body: bytes) -> SendReceipt: ...


class QueueReader:
    """One assigned queue; is the ``Lease`` of its messages."""

    def __init__(
        self, owner: ReaderOwner, queue: MessageQueue, process_queue: ProcessQueue[ConsumedMessage]
    ) -> None:
        self.queue = queue
        self.process_queue = process_queue
        self.figures = owner.figures_of(queue.topic)
        self.task: asyncio.Task[None] | None = None
        # For ordered queues, see ``consuming_orderly``.
        self.turn: object = None
        self._owner = owner
        self._limits: FlowLimits = owner.settings.flow_limits
        self._resume_limits = self._limits.scaled(_RESUME_PART)
        self._broker_id = MASTER_ID
        self._room: asyncio.Event | None = None
        self._last_reason = ""
        self._short_pauses = ShortPauses()

    def start(self) -> None:
        self.task = self._owner.instance.spawn(self._run(), f"read {self.queue}")

    @property
    def is_dead(self) -> bool:
        """Whether the reader should read and does not: its task ended by an unexpected error."""
        return self.task is not None and self.task.done() and not self.process_queue.is_dropped

    def stop(self) -> None:
        """Stop reading."""
        if self.task is not None:
            self.task.cancel()

    def drop(self) -> None:
        """Stop reading; held messages are not handed out any more."""
        self.process_queue.is_dropped = True
        self.stop()

    def wake(self) -> None:
        """Wake the reader: a condition that it waits for may have changed."""
        if self._room is not None:
            self._room.set()

    # Results of its messages.

    def acknowledge(self, message: ConsumedMessage) -> None:
        process_queue = self.process_queue
        process_queue.settle(message.queue_offset)
        if self._room is not None and hold_reason(process_queue, self._resume_limits) is None:
            self._room.set()

    async def give_back(
        self, message: ConsumedMessage, delay: int | float | timedelta | None
    ) -> None:
        await self._owner.supply.give_back(self, message, delay)

    async def bury(self, message: ConsumedMessage) -> None:
        await self._owner.supply.bury(self, message)

    async def reply(self, message: ConsumedMessage, body: bytes) -> SendReceipt:
        return await self._owner.reply(message, body)

    # Reading.

    async def _run(self) -> None:
        process_queue, interval_s = self.process_queue, self._owner.settings.pull_interval_ms / 1000
        while not process_queue.is_dropped:
            if not await self._may_pull():
                continue
            process_queue.last_pull_ms = monotonic_ms()
            try:
                result = await self._pull()
            except ClientError as error:
                await self._pull_failed(error)
                continue
            if result.status is PullStatus.OFFSET_ILLEGAL:
                _log.warning("%s has no place %d", self.queue, process_queue.next_queue_offset)
                await self._owner.place_moved(self, result.next_queue_offset)
                return
            self._take(result)
            if interval_s and result.messages:
                await asyncio.sleep(interval_s)

    async def _may_pull(self) -> bool:
        """Whether to pull now; if not, returns after waiting for the obstacle."""
        if self._owner.is_paused(self.queue):
            await self._wait(_WAIT_S_MAX)
            return False
        if self._owner.needs_locks and not self.process_queue.holds_lock(monotonic_ms()):
            await self._wait(_UNLOCKED_S)
            return False
        reason = hold_reason(self.process_queue, self._limits)
        if reason is None:
            return True
        _log.debug("%s is not pulled: %s", self.queue, reason)
        await self._wait(_WAIT_S_MAX)
        return False

    async def _wait(self, timeout_s: float) -> None:
        self._room = asyncio.Event()
        try:
            async with asyncio.timeout(timeout_s):
                await self._room.wait()
        except TimeoutError:
            pass  # Check again.
        finally:
            self._room = None

    async def _pull(self) -> PullResult:
        owner, process_queue = self._owner, self.process_queue
        return await pull_once(
            owner.instance,
            group=owner.group,
            queue=self.queue,
            queue_offset=process_queue.next_queue_offset,
            count_max=owner.settings.pull_batch_size,
            subscription=owner.subscription_of(self.queue),
            # Nothing is handled while it is 0.
            commit_offset=(process_queue.consumer_offset or None)
            if owner.commits_with_pulls
            else None,
            suspend=True,
            broker_id=self._broker_id,
            kind=ConsumedMessage,
        )

    def _take(self, result: PullResult) -> None:
        self._last_reason = ""
        self._short_pauses.reset()
        self._broker_id = result.suggested_broker_id
        messages: Sequence[ConsumedMessage] = result.messages
        self.process_queue.pulled(messages, result.next_queue_offset)
        if messages:
            counts = self.figures.counts
            counts.pulled_count += len(messages)
            counts.pull_count += 1
            counts.pulling_ms += monotonic_ms() - self.process_queue.last_pull_ms
            lend(messages, self)
            self._owner.supply.submit(self, messages)

    async def _pull_failed(self, error: ClientError) -> None:
        code = error.code if isinstance(error, BrokerRefused) else None
        reason = str(error)
        # An error that repeats every second is logged once.
        is_new, self._last_reason = reason != self._last_reason, reason
        is_retry = self.queue.topic.startswith(RETRY_PREFIX)
        _log.log(
            logging.WARNING if is_new and not is_retry else logging.DEBUG,
            "group %s tries again: %s",
            self._owner.group,
            reason,
        )
        if code == ResponseCode.FLOW_CONTROL:
            await asyncio.sleep(_FLOW_CONTROLLED_S)
            return
        if code in _UNKNOWN_HERE:
            self._owner.instance.beat_soon()
        if code is None or may_have_moved(error):
            self._owner.instance.refresh_soon(self.queue.topic)
        await asyncio.sleep(self._pause_s(error))

    def _pause_s(self, error: ClientError) -> float:
        usual_s = self._owner.settings.pull_time_delay_ms_when_exception / 1000
        is_short = follow_leader(self._owner.instance, self.queue.broker_name, error)
        return self._short_pauses.next_s(usual_s) if is_short else usual_s
