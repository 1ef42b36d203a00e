"""How much may be on its way at once: who sends faster than brokers store must wait."""

from __future__ import annotations

import asyncio
import threading
from collections import deque

from contrail.errors import BackPressure


class Slots:
    """Counts what is under way, and its bytes. Who finds no room waits, first come first served.

    A message larger than all the room there is gets through when nothing else is under way. Who
    waits does so in the event loop; threads may only take what is free, and give it back.
    """

    def __init__(self, *, count_max: int, bytes_max: int) -> None:
        self._count_max = count_max
        self._bytes_max = bytes_max
        self.count = 0
        self.bytes = 0
        self._waiting: deque[tuple[asyncio.Future[None], int]] = deque()
        self._idle: asyncio.Future[None] | None = None
        self._is_ending = False
        self._counting = threading.Lock()

    def take(self, size: int) -> bool:
        """Take a slot at once, if there is room and nobody waits for it."""
        with self._counting:
            if self._waiting or not self._has_room(size):
                return False
            self.count += 1
            self.bytes += size
            return True

    def take_in_thread(self, size: int) -> bool:
        """As ``take``, but only alone, and not once somebody waits for the end."""
        return not self.count and not self._is_ending and self.take(size)

    def _has_room(self, size: int) -> bool:
        if self.count >= self._count_max:
            return False
        return self.bytes + size <= self._bytes_max or self.count == 0

    async def wait(self, size: int, deadline_s: float) -> None:
        """Take a slot when there is room, by the loop's clock not after ``deadline_s``.

        Raises:
            BackPressure: there was none in time; nothing is taken.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        entry = (future, size)
        self._waiting.append(entry)
        # A thread may have given something back after there was no room.
        self._hand_out()
        timer = loop.call_at(deadline_s, self._refuse, future)
        try:
            await future
        except BaseException:
            # Cancelled: perhaps after the slot was handed over.
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
        with self._counting:
            self.count -= 1
            self.bytes -= size
        if self._waiting or self._idle is not None:
            self._settle()

    def give_back_in_thread(self, size: int, loop: asyncio.AbstractEventLoop) -> None:
        with self._counting:
            self.count -= 1
            self.bytes -= size
        if self._waiting or self._idle is not None:
            loop.call_soon_threadsafe(self._settle)

    def _settle(self) -> None:
        """Let those go on who waited for what was given back."""
        self._hand_out()
        if self._idle is not None and not self.count and not self._waiting:
            self._idle.set_result(None)
            self._idle = None

    def _hand_out(self) -> None:
        waiting = self._waiting
        with self._counting:
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
        """Return once nothing is under way; threads may begin nothing any more."""
        self._is_ending = True
        if self._idle is None:
            self._idle = asyncio.get_running_loop().create_future()
        idle = self._idle
        self._settle()
        await asyncio.shield(idle)
