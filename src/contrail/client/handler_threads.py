"""Plain functions as handlers: they run in threads, several messages per trip.

Going to a thread and back costs more than a quick handler does. So quick ones get a few messages
at once, and whatever such a run has not begun after a moment goes back to those who are free.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from contrail.client.consumed_message import ConsumedMessage
from contrail.clock import monotonic_ms

_RUN_COUNT_MAX = 64
# A run grows while it takes no longer than this.
_QUICK_MS = 2
# What a run has not begun by then is taken from it.
_RECLAIM_S = 0.05


class Handled(NamedTuple):
    """What came of one message."""

    message: ConsumedMessage
    result: object
    error: BaseException | None
    started_ms: int
    ended_ms: int


class _Run:
    """Messages that one thread handles, one after the other."""

    def __init__(self, function: Callable[[Any], Any], messages: Iterable[ConsumedMessage]) -> None:
        self._function = function
        # The thread takes from one end and the event loop from the other: each step is atomic.
        self.waiting = deque(messages)
        self.handled: list[Handled] = []

    def __call__(self) -> None:
        while True:
            try:
                message = self.waiting.popleft()
            except IndexError:
                return
            self.handled.append(self._handle(message))

    def _handle(self, message: ConsumedMessage) -> Handled:
        message.started_ms = started_ms = monotonic_ms()
        result, error = None, None
        try:
            result = self._function(message)
        except BaseException as problem:
            error = problem
        return Handled(message, result, error, started_ms, monotonic_ms())

    def reclaim(self, put_back: Callable[[list[ConsumedMessage]], None]) -> None:
        """Give back, in their order, those that nobody has begun."""
        idle: list[ConsumedMessage] = []
        while self.waiting:
            try:
                idle.append(self.waiting.pop())
            except IndexError:
                break
        if idle:
            put_back(idle[::-1])


class HandlerThreads:
    """The threads of one handler."""

    def __init__(self, function: Callable[[Any], Any], count_max: int) -> None:
        self._function = function
        self._pool = ThreadPoolExecutor(count_max, "contrail-handler")
        self.run_count = 1

    async def call(self, argument: Any) -> Any:
        """One call, in a thread."""
        loop = asyncio.get_running_loop()
        running = loop.run_in_executor(self._pool, self._function, argument)
        return await self._wait(running)

    async def handle(
        self,
        messages: list[ConsumedMessage],
        put_back: Callable[[list[ConsumedMessage]], None],
    ) -> list[Handled]:
        """Handle messages in one thread; what came of those that were not given back.

        Cancelled, it waits no longer: the thread goes on, and nobody hears what it says.
        """
        loop = asyncio.get_running_loop()
        run = _Run(self._function, messages)
        started_ms = monotonic_ms()
        reclaiming = loop.call_later(_RECLAIM_S, run.reclaim, put_back)
        try:
            await self._wait(loop.run_in_executor(self._pool, run))
        except asyncio.CancelledError:
            run.waiting.clear()
            raise
        finally:
            reclaiming.cancel()
        self._learn(monotonic_ms() - started_ms)
        return run.handled

    async def _wait(self, running: asyncio.Future[Any]) -> Any:
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            running.add_done_callback(_look_away)
            raise

    def _learn(self, took_ms: int) -> None:
        if took_ms <= _QUICK_MS:
            self.run_count = min(2 * self.run_count, _RUN_COUNT_MAX)
        else:
            self.run_count = max(self.run_count // 2, 1)

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)


def _look_away(running: asyncio.Future[Any]) -> None:
    """What is raised after nobody waits any more must not be called forgotten."""
    if not running.cancelled():
        running.exception()
