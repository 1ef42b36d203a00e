"""Messages in order: one handler per queue at a time, and a failed message is tried again in place.

A queue has its turns: it is ready, runs, rests after a failure or without a lock, or is idle.

A handler may end after its queue's lock has run out, when another member may have the queue. Its
result counts only if the broker then says that no other member had the lock in between. Otherwise
the result is dropped, and the message comes again to the queue's owner.

A handler may succeed at its hundredth try; a message that cannot be decoded never will. It has a
number of retries of its own, so that it stops its queue for seconds and not for good.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from enum import Enum

from contrail.client.consumed_message import ConsumedMessage, Reader
from contrail.client.consuming import Batch
from contrail.client.send_back import SendBack
from contrail.client.state.retry_delays import DEAD_LETTER, delay_ms

_log = logging.getLogger(__name__)

_REST_MS_MIN = 10
_REST_MS_MAX = 30_000


class Turn(Enum):
    """The state of a queue."""

    IDLE = "IDLE"
    READY = "READY"
    RUNNING = "RUNNING"
    RESTING = "RESTING"


class OrderlySupply:
    """The queues that have messages to handle."""

    def __init__(
        self,
        send_back: SendBack,
        *,
        is_broadcasting: bool,
        retries_max: int,
        undecoded_retries_max: int,
        rest_ms: int,
        call_one: Callable[[], None],
        may_run: Callable[[Reader], bool],
        is_ours: Callable[[Reader], bool] = lambda reader: True,
        prove: Callable[[Reader], Awaitable[bool]] | None = None,
    ) -> None:
        self._send_back = send_back
        self._is_broadcasting = is_broadcasting
        self._retries_max = retries_max
        self._undecoded_retries_max = undecoded_retries_max
        self._rest_ms = rest_ms
        self._call_one = call_one
        # Whether the queue's lock is held; ``resume`` is called once it is.
        self._may_run = may_run
        # Whether no other member can have the queue now; the second asks its broker whether one had
        # it.
        self._is_ours = is_ours
        self._prove = prove or _always
        # Messages whose handlers succeeded after their queues' locks had run out.
        self._unproven: set[Reader] = set()
        self._ready: deque[Reader] = deque()
        self._leaving: dict[Reader, asyncio.Future[None]] = {}

    # From the readers.

    def submit(self, reader: Reader, messages: Sequence[ConsumedMessage]) -> None:
        if reader.turn in (None, Turn.IDLE):
            self._make_ready(reader)

    def resume(self, reader: Reader) -> None:
        """A queue has rested, or has its lock again."""
        if reader.turn is Turn.RESTING:
            self._make_ready(reader)

    def _make_ready(self, reader: Reader) -> None:
        if reader.process_queue.is_dropped:
            self._make_idle(reader)
            return
        reader.turn = Turn.READY
        self._ready.append(reader)
        self._call_one()

    def _make_idle(self, reader: Reader) -> None:
        reader.turn = Turn.IDLE
        leaving = self._leaving.pop(reader, None)
        if leaving is not None and not leaving.done():
            leaving.set_result(None)

    def dropped(self, reader: Reader) -> None:
        """Drop a queue: its messages are not handed out any more."""
        if reader.turn is not Turn.RUNNING:
            self._make_idle(reader)

    async def released(self, reader: Reader) -> None:
        """Wait until no handler has messages of a dropped queue: the next owner may begin."""
        if reader.turn is Turn.RUNNING:
            leaving = self._leaving.get(reader)
            if leaving is None:
                leaving = self._leaving[reader] = asyncio.get_running_loop().create_future()
            await asyncio.shield(leaving)

    # To the handlers.

    @property
    def has_more(self) -> bool:
        return bool(self._ready)

    def take(self, count_max: int) -> Batch:
        while self._ready:
            reader = self._ready.popleft()
            if reader.turn is not Turn.READY:
                continue
            if reader.process_queue.is_dropped:
                self._make_idle(reader)
                continue
            if not self._may_run(reader):
                reader.turn = Turn.RESTING
                continue
            batch = _decoded_alike(reader.process_queue.first(count_max))
            if batch:
                reader.turn = Turn.RUNNING
                return batch
            self._make_idle(reader)
        return []

    def take_one(self) -> ConsumedMessage | None:
        batch = self.take(1)
        return batch[0] if batch else None

    def take_run(self, count_max: int) -> Batch:
        """One message at a time: the next must not begin before this one is done."""
        return self.take(1)

    def put_back(self, batch: Batch) -> None:
        """The queue's messages were not begun: its turn comes again."""
        if batch:
            self._end_turn(batch[0].origin)

    def succeeded_one(self, message: ConsumedMessage) -> bool:
        return self.succeeded([message])

    def succeeded(self, batch: Batch) -> bool:
        reader = batch[0].origin
        if not self._is_ours(reader):
            self._unproven.add(reader)
            return False
        is_content = True
        for message in batch:
            if message.suspend_ms is not None:
                is_content = False
                continue
            lease = message.take_lease()
            if lease is not None:
                lease.acknowledge(message)
        if is_content:
            self._end_turn(reader)
        return is_content

    def _end_turn(self, reader: Reader) -> None:
        if len(reader.process_queue):
            self._make_ready(reader)
        else:
            self._make_idle(reader)

    async def failed(self, batch: Batch) -> None:
        reader = batch[0].origin
        rest_ms: int | None = None
        is_done = reader in self._unproven
        self._unproven.discard(reader)
        try:
            if not await self._is_still_ours(reader):
                self._make_idle(reader)
                return
            if is_done and self.succeeded(batch):
                return
            for message in batch:
                if not message.is_settled and not await self._is_given_up(reader, message):
                    rest_ms = max(rest_ms or 0, self._rest_of(message))
        except asyncio.CancelledError:
            self._rest(reader, self._rest_ms)
            raise
        if rest_ms is None:
            self._end_turn(reader)
        else:
            self._rest(reader, rest_ms)

    async def _is_still_ours(self, reader: Reader) -> bool:
        return self._is_ours(reader) or await self._prove(reader)

    def abandoned(self, batch: Batch) -> None:
        if batch:
            self._rest(batch[0].origin, self._rest_ms)

    def _rest_of(self, message: ConsumedMessage) -> int:
        wanted_ms, message.suspend_ms = message.suspend_ms, None
        return self._rest_ms if wanted_ms is None else wanted_ms

    def _rest(self, reader: Reader, rest_ms: int) -> None:
        if reader.process_queue.is_dropped:
            self._make_idle(reader)
            return
        reader.turn = Turn.RESTING
        rest_s = min(max(rest_ms, _REST_MS_MIN), _REST_MS_MAX) / 1000
        asyncio.get_running_loop().call_later(rest_s, self.resume, reader)

    async def _is_given_up(self, reader: Reader, message: ConsumedMessage) -> bool:
        """Whether the message was retried often enough, and is sent back or a dead letter."""
        error = message.decode_error
        retries_max = self._retries_max if error is None else self._undecoded_retries_max
        if message.reconsume_times < retries_max or not await self._is_sent_away(message):
            message.reconsume_times += 1
            return False
        if error is not None and self._is_broadcasting:
            _log.error("message %s is passed over: %s", message.message_id, error)
        else:
            _log.warning("message %s is given up after its last retry", message.message_id)
        if message.take_lease() is not None:
            reader.acknowledge(message)
        return True

    async def _is_sent_away(self, message: ConsumedMessage) -> bool:
        """Whether the message may leave the queue: a broker stored it, or none needs to."""
        if self._is_broadcasting:
            return True
        if message.decode_error is not None:
            # Its own broker copies it as it is stored, so that its flags stay with its bytes.
            return await self._send_back.give_back(message, DEAD_LETTER)
        return await self._send_back.send_anew(message)

    # Decisions of a handler about a message.

    async def give_back(
        self,
        reader: Reader,
        message: ConsumedMessage,
        delay: int | float | timedelta | None,
    ) -> None:
        message.suspend_ms = self._rest_ms if delay is None else delay_ms(delay)

    async def bury(self, reader: Reader, message: ConsumedMessage) -> None:
        if not await self._is_still_ours(reader):
            return
        if self._is_broadcasting or await self._send_back.give_back(message, DEAD_LETTER):
            if message.take_lease() is not None:
                reader.acknowledge(message)
        else:
            message.suspend_ms = self._rest_ms

    async def expire(self, reader: Reader, now_ms: int, timeout_ms: int) -> None:
        """Order is worth waiting for: nothing expires."""


def _decoded_alike(batch: Batch) -> Batch:
    """The messages before the first that cannot be decoded, or that message alone."""
    for number, message in enumerate(batch):
        if message.decode_error is not None:
            return batch[: max(number, 1)]
    return batch


async def _always(reader: Reader) -> bool:
    return True
