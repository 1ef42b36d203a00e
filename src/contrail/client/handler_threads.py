"""Plain functions as handlers: they run in threads, several messages per trip.

Going to a thread and back costs more than a quick handler does. Handlers that take little time
therefore get a few messages together, and messages that such a run has not begun after a moment go
back to free workers.

The threads are daemons, unlike those of Python's own pools, which it waits for when it exits: a
handler that hangs would keep the program from ending. Closing the consumer waits instead, for the
time that handlers have to finish.
"""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import suppress
from contextvars import ContextVar
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple, Protocol

from contrail.client.consumed_message import ConsumedMessage
from contrail.clock import monotonic_ms

_RUN_COUNT_MAX = 64
# A run grows while it takes no longer than this.
_QUICK_MS = 2
# Messages that a run has not begun by then are taken from it.
_RECLAIM_S = 0.05


class Handled(NamedTuple):
    """The result of one message."""

    message: ConsumedMessage
    result: object
    error: BaseException | None
    started_ms: int
    ended_ms: int


class Keeper(Protocol):
    """The source of a run's messages."""

    def put_back(self, batch: list[ConsumedMessage]) -> None: ...
    def abandoned(self, batch: list[ConsumedMessage]) -> None: ...


class _Run:
    """Messages that one thread handles, one after the other."""

    def __init__(self, function: Callable[[Any], Any], messages: Iterable[ConsumedMessage]) -> None:
        self._function = function
        # The thread and the event loop work at the two ends of both deques: each step is atomic.
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
            if message.decode_error is not None:
                raise message.decode_error
            result = self._function(message)
        except BaseException as problem:
            error = problem
        return Handled(message, result, error, started_ms, monotonic_ms())

    def reclaim(self) -> list[ConsumedMessage]:
        """Take back the messages that the thread has not begun."""
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


# Being inside a handler.


class _Stay:
    """One call of a handler. Tasks and threads that it starts inherit this, also after its end."""

    __slots__ = ("is_over", "task", "whose")

    def __init__(self, whose: object, task: asyncio.Task[Any] | None = None) -> None:
        self.whose = whose
        # None: in a thread, whose calls to a loop each come in a task of their own.
        self.task = task
        self.is_over = False


_stay: ContextVar[_Stay | None] = ContextVar("contrail_handler", default=None)


def enter_in_task(whose: object) -> None:
    """From now on this task is inside the handler."""
    _stay.set(_Stay(whose, asyncio.current_task()))


def is_inside(whose: object) -> bool:
    """Whether the caller is that handler: in its task, or from its thread."""
    stay = _stay.get()
    if stay is None or stay.whose is not whose or stay.is_over:
        return False
    return stay.task is None or stay.task is asyncio.current_task()


# Threads.


class _Trip:
    """One piece of work for a thread, and the future that waits for it."""

    def __init__(self, work: Callable[[], None], whose: object, ended: Callable[[], None]) -> None:
        self.loop = asyncio.get_running_loop()
        self.done: asyncio.Future[None] = self.loop.create_future()
        self._work = work
        self._whose = whose
        self._ended = ended

    def __call__(self) -> None:
        """On the thread."""
        stay = _Stay(self._whose)
        _stay.set(stay)
        try:
            self._work()
        finally:
            stay.is_over = True
            # The loop was closed meanwhile: no task waits.
            with suppress(RuntimeError):
                self.loop.call_soon_threadsafe(self._end)

    def _end(self) -> None:
        self._ended()
        if not self.done.done():
            self.done.set_result(None)


Trips = SimpleQueue["_Trip | None"]


def _serve(trips: Trips) -> None:
    """A thread. While it waits it has no reference to its pool, which may be freed meanwhile."""
    while (trip := trips.get()) is not None:
        trip()
        del trip


def _dismiss(trips: Trips, threads: list[threading.Thread]) -> None:
    """Each thread ends when it is back."""
    for _ in threads:
        trips.put(None)


class _Pool:
    """Daemon threads, started when there is work for them. Belongs to one event loop."""

    def __init__(self, count_max: int) -> None:
        self._count_max = count_max
        self._trips: Trips = SimpleQueue()
        self._threads: list[threading.Thread] = []
        # Trips that are not over, also those that wait for a thread.
        self._trip_count = 0
        self._dismiss = weakref.finalize(self, _dismiss, self._trips, self._threads)
        # Daemon threads end with the program.
        self._dismiss.atexit = False

    def send(self, work: Callable[[], None], whose: object) -> asyncio.Future[None]:
        """A future, done when the work is; ``work`` must not raise."""
        trip = _Trip(work, whose, self._ended)
        self._trip_count += 1
        self._trips.put(trip)
        if len(self._threads) < min(self._trip_count, self._count_max):
            name = f"contrail-handler_{len(self._threads)}"
            thread = threading.Thread(target=_serve, args=(self._trips,), name=name, daemon=True)
            self._threads.append(thread)
            thread.start()
        return trip.done

    def _ended(self) -> None:
        self._trip_count -= 1

    def close(self) -> None:
        """Drop the work that has not begun, and cancel the futures that wait for it."""
        while True:
            try:
                trip = self._trips.get_nowait()
            except Empty:
                break
            if trip is not None:
                trip.done.cancel()
        self._dismiss()


class HandlerThreads:
    """The threads of one handler; ``whose`` is its key in ``is_inside``."""

    def __init__(
        self, function: Callable[[Any], Any], count_max: int, whose: object = None
    ) -> None:
        self._function = function
        self._whose = whose
        self._pool = _Pool(count_max)
        # How many messages a run gets.
        self.run_count = 1

    async def call(self, argument: Any) -> Any:
        """One call, in a thread; a cancelled caller does not wait for it."""
        results: list[Any] = []
        errors: list[BaseException] = []

        def work() -> None:
            try:
                results.append(self._function(argument))
            except BaseException as problem:
                errors.append(problem)

        await asyncio.shield(self._pool.send(work, self._whose))
        if errors:
            raise errors.pop()
        return results[0]

    async def handle(
        self,
        messages: list[ConsumedMessage],
        keeper: Keeper,
        conclude: Callable[[Handled], Awaitable[None]],
    ) -> None:
        """Handle messages in one thread; each is concluded, put back or abandoned.

        A cancelled caller does not wait: the thread goes on, and its results are ignored.
        """
        open_messages = {id(message): message for message in messages}
        run = _Run(self._function, messages)
        running = self._pool.send(run, self._whose)
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
            # From here on ``conclude`` is responsible for the message, even if it fails.
            del open_messages[id(handled.message)]
            await conclude(handled)

    def _learn(self, took_ms: int) -> None:
        if took_ms <= _QUICK_MS:
            self.run_count = min(2 * self.run_count, _RUN_COUNT_MAX)
        else:
            self.run_count = max(self.run_count // 2, 1)

    def close(self) -> None:
        self._pool.close()
