"""Messages in no order: any free worker handles one, and sends it back when that fails."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from datetime import timedelta

from contrail.client.consumed_message import ConsumedMessage, Reader, lend
from contrail.client.consuming import Batch
from contrail.client.send_back import SendBack
from contrail.client.state.retry_delays import DEAD_LETTER, FIRST_RETRY_LEVEL, delay_level

_log = logging.getLogger(__name__)

# A message that could not be sent back is handled here again after this long.
LOCAL_RETRY_S = 5.0
# Messages of one queue, in one pass.
_EXPIRED_COUNT_MAX = 16


class ConcurrentSupply:
    """The messages of all queues that are pulled and not handled yet."""

    def __init__(
        self,
        send_back: SendBack,
        *,
        is_broadcasting: bool,
        call_one: Callable[[], None],
        local_retry_s: float = LOCAL_RETRY_S,
    ) -> None:
        self._send_back = send_back
        self._is_broadcasting = is_broadcasting
        self._call_one = call_one
        self._local_retry_s = local_retry_s
        self._ready: deque[ConsumedMessage] = deque()

    # From the readers.

    def submit(self, reader: Reader, messages: Sequence[ConsumedMessage]) -> None:
        self._ready.extend(messages)
        self._call_one()

    def dropped(self, reader: Reader) -> None:
        """Drop a queue: its messages will not be handled."""
        self._ready = deque(one for one in self._ready if one.origin is not reader)

    async def released(self, reader: Reader) -> None:
        """Returns at once: the queue's next owner need not wait for handlers that run here."""

    # To the handlers.

    @property
    def has_more(self) -> bool:
        return bool(self._ready)

    def take(self, count_max: int) -> Batch:
        message = self.take_one()
        if message is None:
            return []
        batch, ready, reader = [message], self._ready, message.origin
        if message.decode_error is not None:
            return batch
        while len(batch) < count_max and ready and ready[0].origin is reader:
            if ready[0].decode_error is not None:
                break
            batch.append(ready.popleft())
        return batch

    def take_one(self) -> ConsumedMessage | None:
        return self._ready.popleft() if self._ready else None

    def take_run(self, count_max: int) -> Batch:
        ready = self._ready
        return [ready.popleft() for _ in range(min(count_max, len(ready)))]

    def put_back(self, batch: Batch) -> None:
        self._ready.extendleft(
            one for one in reversed(batch) if not one.origin.process_queue.is_dropped
        )
        if self._ready:
            self._call_one()

    def succeeded(self, batch: Batch) -> bool:
        for message in batch:
            self.succeeded_one(message)
        return True

    def succeeded_one(self, message: ConsumedMessage) -> bool:
        lease = message.take_lease()
        if lease is not None:
            lease.acknowledge(message)
        return True

    async def failed(self, batch: Batch) -> None:
        for message in batch:
            if not message.is_settled:
                await self.give_back(message.origin, message, None)

    def abandoned(self, batch: Batch) -> None:
        for message in batch:
            if message.take_lease() is not None:
                self._again_later(message.origin, message)

    # Results of handlers.

    async def give_back(
        self,
        reader: Reader,
        message: ConsumedMessage,
        delay: int | float | timedelta | None,
    ) -> None:
        await self._return(reader, message, delay_level(delay))

    async def bury(self, reader: Reader, message: ConsumedMessage) -> None:
        await self._return(reader, message, DEAD_LETTER)

    async def _return(self, reader: Reader, message: ConsumedMessage, level: int) -> None:
        if message.take_lease() is None:
            return
        if self._is_broadcasting:
            _log.warning(
                "message %s of topic %r is skipped: its handler failed, and broadcast messages "
                "are not retried",
                message.message_id,
                message.topic,
            )
            reader.acknowledge(message)
            return
        is_returned = False
        try:
            is_returned = await self._send_back.give_back(message, level)
        finally:
            if is_returned:
                reader.acknowledge(message)
            else:
                message.reconsume_times += 1
                self._again_later(reader, message)

    def _again_later(self, reader: Reader, message: ConsumedMessage) -> None:
        loop = asyncio.get_running_loop()
        loop.call_later(self._local_retry_s, self._again, reader, message)

    def _again(self, reader: Reader, message: ConsumedMessage) -> None:
        if not reader.process_queue.is_dropped:
            lend((message,), reader)
            self._ready.append(message)
            self._call_one()

    async def expire(self, reader: Reader, now_ms: int, timeout_ms: int) -> None:
        """Send back messages whose handler takes too long, so that the queue's progress goes on."""
        process_queue = reader.process_queue
        for _ in range(_EXPIRED_COUNT_MAX):
            message = process_queue.lowest
            if message is None or process_queue.is_dropped or message.started_ms == 0:
                return
            if now_ms - message.started_ms <= timeout_ms:
                return
            _log.warning("message %s is handled for too long", message.message_id)
            if not self._is_broadcasting and not await self._send_back.give_back(
                message, FIRST_RETRY_LEVEL
            ):
                return
            message.take_lease()
            reader.acknowledge(message)
