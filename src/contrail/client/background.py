"""The event loop behind the blocking names: one daemon thread per process, started when needed."""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar
from weakref import WeakSet

from contrail.client.instance import require_same_process
from contrail.errors import ClientError
from contrail.runtime.event_loop import choose_event_loop

_log = logging.getLogger(__name__)

T = TypeVar("T")

_EXIT_TIMEOUT_S = 10.0


class _Waiter:
    """One call of a thread to the loop; cheaper than a ``concurrent.futures.Future``."""

    __slots__ = ("_done", "error", "result", "task")

    def __init__(self) -> None:
        self._done = threading.Lock()
        self._done.acquire()
        self.task: asyncio.Task[Any] | None = None
        self.result: Any = None
        self.error: BaseException | None = None

    def start(self, loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, Any]) -> None:
        self.task = loop.create_task(work)
        self.task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        if task.cancelled():
            self.error = ClientError("the call was cancelled: its client was closed meanwhile")
        else:
            self.error = task.exception()
            self.result = None if self.error is not None else task.result()
        self._done.release()

    def wait(self) -> Any:
        self._done.acquire()
        if self.error is not None:
            raise self.error
        return self.result

    def cancel(self) -> None:
        if self.task is not None:
            self.task.cancel()


class BackgroundLoop:
    """Runs coroutines for threads that are not its own."""

    def __init__(self) -> None:
        self.process_id = os.getpid()
        self.loop = choose_event_loop().new_loop()
        # Closed at exit, so that brokers hear of it and offsets are kept.
        self.open_clients: WeakSet[Any] = WeakSet()
        self._thread = threading.Thread(target=self._serve, name="contrail", daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """What ``work`` returns or raises. Interrupting the waiting thread cancels it.

        Raises:
            ClientForked: the client was made before this process was forked.
            ClientError: called on the loop's own thread, which would wait for itself.
        """
        try:
            self.require_usable()
        except ClientError:
            work.close()
            raise
        waiter = _Waiter()
        self.loop.call_soon_threadsafe(waiter.start, self.loop, work)
        try:
            result: T = waiter.wait()
        except (KeyboardInterrupt, SystemExit):
            self.loop.call_soon_threadsafe(waiter.cancel)
            raise
        return result

    def require_usable(self) -> None:
        """Raises ``ClientForked`` after a fork, ``ClientError`` on the loop's own thread."""
        require_same_process(self.process_id, "this client")
        if threading.current_thread() is self._thread:
            raise ClientError(
                "a blocking call was made on the client's own thread: use the asyncio names of "
                "`contrail.aio` in coroutines, or make the handler a plain function"
            )

    def close_clients(self) -> None:
        """Close what the program left open; each gets a while."""
        for client in list(self.open_clients):
            try:
                self.run(asyncio.wait_for(client.close(), _EXIT_TIMEOUT_S))
            except Exception as error:
                _log.warning("%r was not closed cleanly at exit: %s", client, error)


_lock = threading.Lock()
_current: BackgroundLoop | None = None


def background_loop() -> BackgroundLoop:
    """This process's loop, started now if there is none."""
    global _current
    with _lock:
        if _current is None:
            _current = BackgroundLoop()
        return _current


def _close_at_exit() -> None:
    if _current is not None:
        _current.close_clients()


def _forget_in_child() -> None:
    """The thread did not come along over the fork."""
    global _current, _lock
    _lock = threading.Lock()
    _current = None


atexit.register(_close_at_exit)
os.register_at_fork(after_in_child=_forget_in_child)
