"""The messages that a push consumer pops: of all queues of a broker, or of one queue.

A message is held from its pop until it is acknowledged, given back or given up. While it is held,
its invisible time is renewed, so that no other member gets it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from contrail.client.assigned_queues import AssignedQueues
from contrail.client.consumed_message import ConsumedMessage, Reader, as_consumed, lend
from contrail.client.consuming import Batch
from contrail.client.consuming_concurrent import ConcurrentSupply
from contrail.client.message import MessageQueue
from contrail.client.popping import PoppedMessage, ack_once, pop_once, prolong_once
from contrail.client.queue_reader import QueueReader, ReaderOwner
from contrail.client.send_back import SendBack
from contrail.client.state.process_queue import ProcessQueue
from contrail.client.state.retry_delays import (
    DEAD_LETTER,
    FIRST_RETRY_LEVEL,
    LEVEL_MAX,
    delay_ms,
)
from contrail.clock import monotonic_ms
from contrail.errors import ClientError
from contrail.protocol.bodies.heartbeat import ConsumeFromWhere

_log = logging.getLogger(__name__)

_WAIT_MS = 15_000
_WAIT_S_MAX = 5.0
_ACK_AGAIN_S = 1.0
_RENEW_S = 1.0
# Renewed with less than this part of its time left.
_RENEW_PART = 2
_CLOSE_S = 3.0


@dataclass(slots=True, eq=False)
class _Held:
    """A popped message, and until when it is invisible, on the monotonic clock."""

    popped: PoppedMessage
    message: ConsumedMessage
    until_ms: int
    is_renewing: bool = False
    # Its handler takes too long: it may come again elsewhere.
    is_expired: bool = False


class PopReader(QueueReader):
    """One assignment: queue -1 stands for all queues of the topic at a broker."""

    def __init__(self, owner: ReaderOwner, queue: MessageQueue) -> None:
        super().__init__(owner, queue, ProcessQueue(0))
        self._pops = owner
        # By the identity of the message in the handler.
        self._held: dict[int, _Held] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def held_count(self) -> int:
        return len(self._held)

    # Results of its messages.

    def acknowledge(self, message: ConsumedMessage) -> None:
        held = self._let_go(message)
        if held is not None:
            self._spawn(self._ack(held), "ack")

    def release(self, message: ConsumedMessage, after_ms: int) -> None:
        """Let another member have the message, after some time."""
        held = self._let_go(message)
        if held is not None:
            self._spawn(self._give_time(held, after_ms), "release")

    def _let_go(self, message: ConsumedMessage) -> _Held | None:
        held = self._held.pop(id(message), None)
        if len(self._held) < self._pops.settings.pop_threshold_for_queue:
            self.wake()
        return held

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = self._pops.instance.spawn(work, f"{name} in {self.queue}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _ack(self, held: _Held) -> None:
        """Acknowledge until the broker confirms it, or the message's time is over."""
        while True:
            try:
                await ack_once(self._pops.instance, self._pops.group, held.popped)
                return
            except ClientError as error:
                if monotonic_ms() >= held.until_ms:
                    _log.warning("%s is acknowledged too late, and comes again: %s", held, error)
                    return
            await asyncio.sleep(_ACK_AGAIN_S)

    async def _give_time(self, held: _Held, after_ms: int) -> None:
        try:
            await prolong_once(self._pops.instance, self._pops.group, held.popped, after_ms)
        except ClientError as error:
            _log.warning("%r comes again after its invisible time: %s", held.popped, error)

    async def settle(self) -> None:
        """Wait until the broker knows of everything that was decided."""
        if self._tasks:
            await asyncio.wait(set(self._tasks), timeout=_CLOSE_S)

    # Renewal.

    def renew(self, timeout_ms: int) -> None:
        """Give messages whose time is nearly over more of it; not those handled for too long."""
        now_ms, invisible_ms = monotonic_ms(), self._pops.settings.pop_invisible_time_ms
        for held in self._held.values():
            if held.is_renewing or held.is_expired:
                continue
            started_ms = held.message.started_ms
            if started_ms and now_ms - started_ms > timeout_ms:
                held.is_expired = True
                _log.warning("message %s is handled for too long", held.popped.message_id)
            elif held.until_ms - now_ms < invisible_ms // _RENEW_PART:
                held.is_renewing = True
                self._spawn(self._renew(held, invisible_ms), "renew")

    async def _renew(self, held: _Held, invisible_ms: int) -> None:
        asked_ms = monotonic_ms()
        try:
            await prolong_once(self._pops.instance, self._pops.group, held.popped, invisible_ms)
            held.until_ms = asked_ms + invisible_ms
        except ClientError as error:
            _log.warning("%r may come again while it is handled: %s", held.popped, error)
        finally:
            held.is_renewing = False
        if id(held.message) not in self._held:
            # It was acknowledged meanwhile, by the receipt that is dead now.
            await self._ack(held)

    # Reading.

    async def _run(self) -> None:
        while not self.process_queue.is_dropped:
            if self._pops.is_paused(self.queue) or self._is_full:
                await self._wait(_WAIT_S_MAX)
                continue
            asked_ms = self.process_queue.last_pull_ms = monotonic_ms()
            try:
                found = await self._pop()
            except ClientError as error:
                await self._pull_failed(error)
                continue
            self._hand_on(found, asked_ms)

    @property
    def _is_full(self) -> bool:
        return len(self._held) >= self._pops.settings.pop_threshold_for_queue

    async def _pop(self) -> list[PoppedMessage]:
        owner, settings = self._pops, self._pops.settings
        return await pop_once(
            owner.instance,
            group=owner.group,
            subscription=owner.subscription_of(self.queue),
            broker_name=self.queue.broker_name,
            queue_id=self.queue.queue_id,
            count_max=settings.pop_batch_nums,
            invisible_ms=settings.pop_invisible_time_ms,
            wait_ms=_WAIT_MS,
            from_first=settings.from_where is ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
        )

    def _hand_on(self, found: list[PoppedMessage], asked_ms: int) -> None:
        self._last_reason = ""
        if not found:
            return
        counts = self.figures.counts
        counts.pulled_count += len(found)
        counts.pull_count += 1
        answered_ms = monotonic_ms()
        counts.pulling_ms += answered_ms - asked_ms
        messages = [as_consumed(one) for one in found]
        for popped, message in zip(found, messages, strict=True):
            until_ms = answered_ms + popped.receipt.invisible_ms
            self._held[id(message)] = _Held(popped, message, until_ms)
        lend(messages, self)
        self._pops.supply.submit(self, messages)


class PopSupply(ConcurrentSupply):
    """Messages that were popped and not handled yet; failed ones become visible later."""

    def __init__(self, send_back: SendBack, *, retries_max: int, call_one: Any) -> None:
        super().__init__(send_back, is_broadcasting=False, call_one=call_one)
        self._retries_max = retries_max

    def dropped(self, reader: Reader) -> None:
        """Drop an assignment: messages that nobody handles become visible to other members."""
        for one in self._ready:
            if one.origin is reader:
                _release(one, 0)
        super().dropped(reader)

    def put_back(self, batch: Batch) -> None:
        for one in batch:
            if one.origin.process_queue.is_dropped:
                _release(one, 0)
        super().put_back(batch)

    def abandoned(self, batch: Batch) -> None:
        for one in batch:
            if one.take_lease() is not None:
                _release(one, 0)

    async def give_back(
        self, reader: Reader, message: ConsumedMessage, delay: int | float | timedelta | None
    ) -> None:
        wanted_ms = None if delay is None else delay_ms(delay)
        if message.take_lease() is None:
            return
        if message.reconsume_times >= self._retries_max:
            await self._give_up(message)
            return
        level = min(FIRST_RETRY_LEVEL + message.reconsume_times, LEVEL_MAX)
        _release(message, delay_ms(level) if wanted_ms is None else wanted_ms)

    async def bury(self, reader: Reader, message: ConsumedMessage) -> None:
        if message.take_lease() is not None:
            await self._give_up(message)

    async def _give_up(self, message: ConsumedMessage) -> None:
        """Make it a dead letter, and acknowledge it once a broker has that."""
        if await self._send_back.give_back(message, DEAD_LETTER):
            message.origin.acknowledge(message)
        else:
            _release(message, delay_ms(FIRST_RETRY_LEVEL))


def _release(message: ConsumedMessage, after_ms: int) -> None:
    assert isinstance(message.origin, PopReader)
    message.origin.release(message, after_ms)


class PoppedQueues(AssignedQueues):
    """This member's assignments; the broker keeps the progress, message by message."""

    async def _take_one(self, queue: MessageQueue, lock: tuple[int, int] | None = None) -> bool:
        if not self._is_closed and queue not in self.readers:
            reader = self.readers[queue] = PopReader(self._owner, queue)
            reader.start()
            _log.info("group %s pops %s", self._owner.group, queue)
        return True

    async def _let_go(self, reader: QueueReader, place: int | None) -> None:
        queue = reader.queue
        try:
            assert isinstance(reader, PopReader)
            while reader.held_count and not self._is_closed:
                # Handlers finish their messages.
                await asyncio.sleep(_RENEW_S)
            await reader.settle()
        finally:
            self._busy.pop(queue, None)
            del self._leaving[queue]

    async def take_share(self, topic: str, queues: set[MessageQueue]) -> bool:
        """Have exactly these; what is given up here may be taken again at once."""
        taken = await super().take_share(topic, queues)
        return taken or all(queue in self.readers or queue in self._busy for queue in queues)

    async def move(self, places: Mapping[MessageQueue, int]) -> None:
        """Offsets are the broker's."""

    async def persist(self) -> None:
        """Progress is the broker's."""

    def progress(self, topic: str) -> dict[MessageQueue, int]:
        return {}

    async def renew_forever(self, timeout_ms: int) -> None:
        """Renew the invisible times of everything that is held, also of assignments given up."""
        while True:
            await asyncio.sleep(_RENEW_S)
            for reader in [*self.readers.values(), *self._busy.values()]:
                assert isinstance(reader, PopReader)
                reader.renew(timeout_ms)

    async def close(self) -> None:
        """Release what no handler has begun, and wait until brokers know of the rest."""
        readers = [*self.readers.values(), *self._busy.values()]
        await super().close()
        for reader in readers:
            assert isinstance(reader, PopReader)
            await reader.settle()
