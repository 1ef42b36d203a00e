"""The event loop behind the blocking names: one daemon thread per process, started when needed."""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
import threading
from collections.abc import Callable, Collection, Coroutine
from importlib import import_module
from typing import Any, ParamSpec, TypeVar
from weakref import WeakSet

from contrail.client.instance import require_same_process
from contrail.errors import ClientClosed, ClientError
from contrail.runtime.event_loop import choose_event_loop

_log = logging.getLogger(__name__)

T = TypeVar("T")
P = ParamSpec("P")

# Added to the time that handlers have to finish.
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

    def start(
        self,
        loop: asyncio.AbstractEventLoop,
        work: Callable[..., Coroutine[Any, Any, Any]],
        given: tuple[Any, ...],
        named: dict[str, Any],
    ) -> None:
        try:
            self._task = loop.create_task(work(*given, **named))
        except Exception as error:
            # No coroutine came of it, for example because of an argument too many: the caller is
            # told, who would wait for ever otherwise.
            self._error = error
            self._finish()
        else:
            self._task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        if task.cancelled():
            self._error = ClientError("the call was cancelled: its client was closed meanwhile")
        else:
            self._error = task.exception()
            self._result = None if self._error is not None else task.result()
        self._finish()

    def _finish(self) -> None:
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
            # The error's traceback refers to this frame: without this, a reference cycle.
            del error

    def cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()


class BackgroundLoop:
    """Runs coroutines for threads that are not its own."""

    def __init__(self) -> None:
        self.process_id = os.getpid()
        self.loop = choose_event_loop().new_loop()
        # Clients to close at exit, so that brokers are notified and offsets are written; the
        # program may have dropped its references.
        self.open_clients: set[Any] = set()
        # Clients among them whose handlers are plain functions, see ``_close_before_thread_pools``.
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
                # These exceptions end the loop, and every waiting thread would wait for ever.
                _log.error("%r was raised on the client's own thread, which goes on", error)

    def run(
        self, work: Callable[P, Coroutine[Any, Any, T]], /, *given: P.args, **named: P.kwargs
    ) -> T:
        """Run ``work`` on the loop; returns or raises as it does. An interrupt cancels it.

        The loop's thread makes the coroutine: Ctrl-C reaches the main thread only, and between
        making a coroutine and handing it over it would leave one that is never awaited.

        Raises:
            ClientForked: the client was made before this process was forked.
            ClientClosed: the interpreter is exiting.
            ClientError: called on the loop's own thread, which would wait for itself.
        """
        self.require_usable()
        waiter = _Waiter()
        try:
            self.loop.call_soon_threadsafe(waiter.start, self.loop, work, given, named)
            result: T = waiter.wait()
        except BaseException:
            # Ctrl-C, or another exception of a signal handler: no thread waits any more.
            if not waiter.is_done:
                self.loop.call_soon_threadsafe(waiter.cancel)
            raise
        return result

    @property
    def is_gone(self) -> bool:
        """Whether clients need no closing: after a fork, and late in an exit."""
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
        """Close the clients that the program left open, concurrently, within a time limit."""
        if clients and not self.is_gone:
            for client in clients:
                self.open_clients.discard(client)
            self.run(_close_all, clients)

    def stop(self) -> None:
        """End the thread; ``run`` raises from now on."""
        if not self.is_gone:
            self.run(_cancel_others)
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
    """Cancel pending tasks: a loop that is closed with some prints warnings."""
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
    """Close consumers with plain handlers: Python ends thread pools before it runs ``atexit``."""
    if _current is not None:
        _current.close_clients(list(_current.thread_pool_clients))


def _close_at_exit() -> None:
    """Close the other clients after the program's own threads, which may still send."""
    if _current is not None:
        _current.close_clients(list(_current.open_clients))
        _current.stop()


def _forget_in_child() -> None:
    """Forget the loop in a child of a fork: its thread exists in the parent only."""
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
