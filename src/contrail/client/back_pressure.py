"""A bound on sends under way: a producer that sends faster than brokers store must wait."""

from __future__ import annotations

import asyncio
from collections import deque

from contrail.errors import BackPressure


class Slots:
    """Counts sends under way, and their bytes. Sends without room wait, first come first served.

    A message larger than the whole room is sent when no other send is under way.
    """

    def __init__(self, *, count_max: int, bytes_max: int) -> None:
        self._count_max = count_max
        self._bytes_max = bytes_max
        self.count = 0
        self.bytes = 0
        self._waiting: deque[tuple[asyncio.Future[None], int]] = deque()
        self._idle: asyncio.Future[None] | None = None

    def take(self, size: int) -> bool:
        """Take a slot without waiting, if there is room and no other send waits for it."""
        if self._waiting or not self._has_room(size):
            return False
        self.count += 1
        self.bytes += size
        return True

    def _has_room(self, size: int) -> bool:
        if self.count >= self._count_max:
            return False
        return self.bytes + size <= self._bytes_max or self.count == 0

    async def wait(self, size: int, deadline_s: float) -> None:
        """Take a slot as soon as there is room, until ``deadline_s`` of the loop's clock.

        Raises:
            BackPressure: there was no room in time; no slot is taken.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        entry = (future, size)
        self._waiting.append(entry)
        timer = loop.call_at(deadline_s, self._refuse, future)
        try:
            await future
        except BaseException:
            # Cancelled: perhaps after this send got the slot.
            if future.done() and not future.cancelled() and future.exception() is None:
                self.give_back(size)
            raise
        finally:
            timer.cancel()
            self._hand_out()

    def _refuse(self, future: asyncio.Future[None]) -> None:
        if not future.done():
            future.set_exception(
                BackPressure(
                    f"{self.count} sends with {self.bytes} bytes are under way and none ended in "
                    "time: send more slowly, give a longer timeout_ms, or raise "
                    "in_flight_count_max or in_flight_bytes_max"
                )
            )

    def give_back(self, size: int) -> None:
        self.count -= 1
        self.bytes -= size
        if self._waiting:
            self._hand_out()
        if self._idle is not None and not self.count and not self._waiting:
            self._idle.set_result(None)
            self._idle = None

    def _hand_out(self) -> None:
        waiting = self._waiting
        while waiting:
            future, size = waiting[0]
            if future.done():
                waiting.popleft()
            elif self._has_room(size):
                waiting.popleft()
                self.count += 1
                self.bytes += size
                future.set_result(None)
            else:
                return

    async def until_idle(self) -> None:
        """Return once no send is under way."""
        if self.count or self._waiting:
            if self._idle is None:
                self._idle = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._idle)
