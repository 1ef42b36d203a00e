"""The event loop behind the blocking names: one daemon thread per process, started when needed."""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
import threading
from collections.abc import Collection, Coroutine
from importlib import import_module
from typing import Any, TypeVar
from weakref import WeakSet

from contrail.client.instance import require_same_process
from contrail.errors import ClientClosed, ClientError
from contrail.runtime.event_loop import choose_event_loop

_log = logging.getLogger(__name__)

T = TypeVar("T")

# Beyond what handlers are promised.
_EXIT_TIMEOUT_S = 10.0
_STOP_TIMEOUT_S = 2.0


class _Waiter:
    """One call of a thread to the loop; cheaper than a ``concurrent.futures.Future``."""

    __slots__ = ("_done", "_error", "_result", "_task", "is_done")

    def __init__(self) -> None:
        self._done = threading.Lock()
        self._done.acquire()
        self._task: asyncio.Task[Any] | None = None
        self._result: Any = None
        self._error: BaseException | None = None
        self.is_done = False

    def start(self, loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, Any]) -> None:
        self._task = loop.create_task(work)
        self._task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        if task.cancelled():
            self._error = ClientError("the call was cancelled: its client was closed meanwhile")
        else:
            self._error = task.exception()
            self._result = None if self._error is not None else task.result()
        self.is_done = True
        self._done.release()

    def wait(self) -> Any:
        self._done.acquire()
        error, self._error = self._error, None
        if error is None:
            return self._result
        try:
            raise error
        finally:
            # The error's traceback knows this frame: a circle that nobody would need.
            del error

    def cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()


class BackgroundLoop:
    """Runs coroutines for threads that are not its own."""

    def __init__(self) -> None:
        self.process_id = os.getpid()
        self.loop = choose_event_loop().new_loop()
        # Closed at exit, so that brokers hear of it and offsets are kept; a program may hold none
        # of them any more.
        self.open_clients: set[Any] = set()
        # Those of them whose handlers are plain functions, see ``_close_before_thread_pools``.
        self.thread_pool_clients: WeakSet[Any] = WeakSet()
        self._is_over = False
        self._thread = threading.Thread(target=self._serve, name="contrail", daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        asyncio.set_event_loop(self.loop)
        while not self._is_over:
            try:
                self.loop.run_forever()
            except (KeyboardInterrupt, SystemExit) as error:
                # They leave the loop at once, and everybody who waits would wait for ever.
                _log.error("%r was raised on the client's own thread, which goes on", error)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """What ``work`` returns or raises. Interrupting the waiting thread cancels it.

        Raises:
            ClientForked: the client was made before this process was forked.
            ClientClosed: the interpreter is exiting.
            ClientError: called on the loop's own thread, which would wait for itself.
        """
        try:
            self.require_usable()
        except ClientError:
            work.close()
            raise
        waiter = _Waiter()
        try:
            self.loop.call_soon_threadsafe(waiter.start, self.loop, work)
            result: T = waiter.wait()
        except BaseException:
            # Ctrl-C, or whatever a signal's handler raised: nobody waits any more.
            if not waiter.is_done:
                self.loop.call_soon_threadsafe(waiter.cancel)
            raise
        return result

    @property
    def is_gone(self) -> bool:
        """Whether there is nothing left to close: after a fork, and late in an exit."""
        return self._is_over or os.getpid() != self.process_id

    def require_usable(self) -> None:
        """Raises ``ClientForked`` after a fork, ``ClientError`` on the loop's own thread."""
        require_same_process(self.process_id, "this client")
        if self._is_over:
            raise ClientClosed("the interpreter is exiting, and the client with it")
        if threading.current_thread() is self._thread:
            raise ClientError(
                "a blocking call was made on the client's own thread: use the asyncio names of "
                "`contrail.aio` in coroutines, or make the handler a plain function"
            )

    # The end.

    def close_clients(self, clients: Collection[Any]) -> None:
        """Close what the program left open, all at once; they get a while."""
        if clients and not self.is_gone:
            for client in clients:
                self.open_clients.discard(client)
            self.run(_close_all(clients))

    def stop(self) -> None:
        """End the thread; nothing can be run any more."""
        if not self.is_gone:
            self.run(_cancel_others())
            self._is_over = True
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join(_STOP_TIMEOUT_S)
            if not self._thread.is_alive():
                self.loop.close()


async def _close_all(clients: Collection[Any]) -> None:
    await asyncio.gather(*(_close(client) for client in clients))


async def _close(client: Any) -> None:
    timeout_s = _EXIT_TIMEOUT_S + getattr(client, "handlers_timeout_s", 0.0)
    try:
        await asyncio.wait_for(client.close(), timeout_s)
    except Exception as error:
        _log.warning("%r was not closed cleanly at exit: %r", client, error)


async def _cancel_others() -> None:
    """Nothing may be pending when the loop goes: it would complain."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    if others:
        await asyncio.wait(others, timeout=_STOP_TIMEOUT_S)


_lock = threading.Lock()
_current: BackgroundLoop | None = None


def background_loop() -> BackgroundLoop:
    """This process's loop, started now if there is none."""
    global _current
    with _lock:
        if _current is None:
            _current = BackgroundLoop()
        return _current


def _close_before_thread_pools() -> None:
    """Python ends thread pools first: handlers in threads would fail from then on."""
    if _current is not None:
        _current.close_clients(list(_current.thread_pool_clients))


def _close_at_exit() -> None:
    """After the program's own threads: they may still send."""
    if _current is not None:
        _current.close_clients(list(_current.open_clients))
        _current.stop()


def _forget_in_child() -> None:
    """The thread did not come along over the fork."""
    global _current, _lock
    _lock = threading.Lock()
    _current = None


atexit.register(_close_at_exit)
os.register_at_fork(after_in_child=_forget_in_child)
# Called in the reverse order of registration: the pools' own is registered with their module. Not
# a public name, and nothing but a few retries at exit is lost without it.
if hasattr(threading, "_register_atexit"):
    import_module("concurrent.futures.thread")
    threading._register_atexit(_close_before_thread_pools)
