"""Turns at a resource that threads and event loops must use one at a time."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from concurrent.futures import Future

from contrail.errors import ClientError


class Turns:
    """One holder at a time, in the order of requests: tasks of any event loop, and threads."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._lock = threading.Lock()
        self._waiting: deque[Future[None]] = deque()
        self._is_taken = False

    async def take(self) -> None:
        turn = self._ask()
        try:
            await asyncio.wrap_future(turn)
        except asyncio.CancelledError:
            if not turn.cancel():
                # The turn came at that moment.
                self.give()
            raise

    def take_now(self) -> None:
        """Raises ``ClientError`` rather than keep an event loop waiting."""
        turn = self._ask()
        if not turn.done() and _is_on_a_loop():
            if not turn.cancel():
                self.give()
            raise ClientError(
                f"{self._what} is in use: coroutines must not wait for it with the plain "
                "names; await its async ones, such as `aclose()`"
            )
        try:
            turn.result()
        except BaseException:
            # Interrupted.
            if not turn.cancel():
                self.give()
            raise

    def _ask(self) -> Future[None]:
        turn: Future[None] = Future()
        with self._lock:
            if self._is_taken:
                self._waiting.append(turn)
            else:
                self._is_taken = True
                turn.set_result(None)
        return turn

    def give(self, _: object = None) -> None:
        """Pass the turn on; may be used as a done callback."""
        with self._lock:
            while self._waiting:
                turn = self._waiting.popleft()
                if turn.set_running_or_notify_cancel():
                    turn.set_result(None)
                    return
            self._is_taken = False


def _is_on_a_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
