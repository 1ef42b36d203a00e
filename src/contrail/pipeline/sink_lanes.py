"""Sends a task's requests: in order for each queue, several queues at a time."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from contrail.client.message import MessageQueue
from contrail.client.outgoing import Outgoing
from contrail.client.sink_requests import Stored

# Bytes that may be encoded and not answered; they bound a task's memory.
PENDING_BYTES_MAX = 32 << 20


class Parcel(NamedTuple):
    """One request of a task: units for a queue, or a message that must be sent alone."""

    queue: MessageQueue
    row_count: int
    units: bytes = b""
    alone: Outgoing | None = None

    @property
    def byte_count(self) -> int:
        return len(self.units) if self.alone is None else len(self.alone.body)


class AsyncLanes:
    """Sends the parcels of a queue one by one, in order; a failure ends all lanes."""

    def __init__(
        self, send: Callable[[Parcel], Awaitable[Stored]], pending_bytes_max: int | None = None
    ) -> None:
        self._send = send
        self._bytes_max = PENDING_BYTES_MAX if pending_bytes_max is None else pending_bytes_max
        self._pending_bytes = 0
        self._waiting: dict[MessageQueue, deque[Parcel]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Event()
        self._error: BaseException | None = None
        self._stored = self._dropped = 0

    async def submit(self, parcel: Parcel) -> None:
        """Accept a parcel, after a wait for room if needed.

        Raises:
            ClientError: an earlier parcel was refused.
        """
        while self._pending_bytes >= self._bytes_max and self._error is None:
            self._changed.clear()
            await self._changed.wait()
        self._raise_if_failed()
        self._pending_bytes += parcel.byte_count
        lane = self._waiting.get(parcel.queue)
        if lane is not None:
            lane.append(parcel)
            return
        self._waiting[parcel.queue] = deque([parcel])
        task = asyncio.get_running_loop().create_task(self._serve(parcel.queue))
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    async def _serve(self, queue: MessageQueue) -> None:
        lane = self._waiting[queue]
        while lane:
            parcel = lane.popleft()
            outcome = await self._send(parcel)
            self._stored += outcome.stored_count
            self._dropped += outcome.dropped_count
            self._pending_bytes -= parcel.byte_count
            self._changed.set()
        del self._waiting[queue]

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None and self._error is None:
            self._error = task.exception()
            self.cancel()
        self._changed.set()

    def _raise_if_failed(self) -> None:
        if self._error is not None:
            raise self._error

    async def finish(self) -> Stored:
        """Wait for all parcels; returns the counts of stored and dropped rows.

        Raises:
            ClientError: a parcel was refused; the others have ended too.
        """
        while self._tasks:
            await asyncio.wait(self._tasks)
        self._raise_if_failed()
        return Stored(self._stored, self._dropped)

    def cancel(self) -> None:
        """Stop at once; requests under way may still be stored."""
        for task in self._tasks:
            task.cancel()
