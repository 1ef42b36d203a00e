"""Plain functions as handlers: they run in threads, several messages per trip.

Going to a thread and back costs more than a quick handler does. So quick ones get a few messages
at once, and whatever such a run has not begun after a moment goes back to those who are free.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, Protocol

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


class Keeper(Protocol):
    """Where the messages of a run come from."""

    def put_back(self, batch: list[ConsumedMessage]) -> None: ...
    def abandoned(self, batch: list[ConsumedMessage]) -> None: ...


class _Run:
    """Messages that one thread handles, one after the other."""

    def __init__(self, function: Callable[[Any], Any], messages: Iterable[ConsumedMessage]) -> None:
        self._function = function
        # The thread and the event loop work at the two ends of both: each step is atomic.
        self._waiting = deque(messages)
        self._handled: deque[Handled] = deque()

    def __call__(self) -> None:
        while True:
            try:
                message = self._waiting.popleft()
            except IndexError:
                return
            self._handled.append(self._handle(message))

    def _handle(self, message: ConsumedMessage) -> Handled:
        message.started_ms = started_ms = monotonic_ms()
        result, error = None, None
        try:
            result = self._function(message)
        except BaseException as problem:
            error = problem
        return Handled(message, result, error, started_ms, monotonic_ms())

    def reclaim(self) -> list[ConsumedMessage]:
        """Those that the thread has not begun, which it will not begin now."""
        idle: list[ConsumedMessage] = []
        while self._waiting:
            try:
                idle.append(self._waiting.pop())
            except IndexError:
                break
        return idle[::-1]

    def harvest(self) -> Iterator[Handled]:
        while self._handled:
            yield self._handled.popleft()


class HandlerThreads:
    """The threads of one handler."""

    def __init__(self, function: Callable[[Any], Any], count_max: int) -> None:
        self._function = function
        self._pool = ThreadPoolExecutor(count_max, "contrail-handler")
        # How many messages a run gets.
        self.run_count = 1

    async def call(self, argument: Any) -> Any:
        """One call, in a thread."""
        loop = asyncio.get_running_loop()
        running = loop.run_in_executor(self._pool, self._function, argument)
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            running.add_done_callback(_look_away)
            raise

    async def handle(
        self,
        messages: list[ConsumedMessage],
        keeper: Keeper,
        conclude: Callable[[Handled], Awaitable[None]],
    ) -> None:
        """Handle messages in one thread; each is concluded, put back or abandoned.

        Cancelled, it waits no longer: the thread goes on, and nobody hears what it says.
        """
        open_messages = {id(message): message for message in messages}
        run = _Run(self._function, messages)
        running = asyncio.get_running_loop().run_in_executor(self._pool, run)
        started_ms = monotonic_ms()
        try:
            done, _ = await asyncio.wait({running}, timeout=_RECLAIM_S)
            if not done:
                idle = run.reclaim()
                for message in idle:
                    del open_messages[id(message)]
                keeper.put_back(idle)
                await self._conclude(run, open_messages, conclude)
                await asyncio.wait({running})
            self._learn(monotonic_ms() - started_ms)
            await self._conclude(run, open_messages, conclude)
        except BaseException:
            run.reclaim()
            keeper.abandoned(list(open_messages.values()))
            raise

    async def _conclude(
        self,
        run: _Run,
        open_messages: dict[int, ConsumedMessage],
        conclude: Callable[[Handled], Awaitable[None]],
    ) -> None:
        for handled in run.harvest():
            # Whoever concludes answers for it from here on, even if that fails.
            del open_messages[id(handled.message)]
            await conclude(handled)

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
