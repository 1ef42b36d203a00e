"""An event loop whose timers go by the steady clock, which the feed sets forward.

A timer that goes by the machine's time fires more often where a neighbour makes everything slower:
queues are then derived in more pieces and connections are swept more often, and the instructions
of both are counted.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from contextvars import Context
from typing import Any

import uvloop

from bench import steady_time

# By the machine's time. A chunk that takes longer for another reason costs one step of the timers.
_STANDSTILL_S = 5.0
_STEP_S = 0.005


class SteadyTimer:
    """The handle that ``call_later`` returns."""

    __slots__ = ("args", "callback", "is_cancelled")

    def __init__(self, callback: Callable[..., object], args: tuple[Any, ...]) -> None:
        self.callback = callback
        self.args = args
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True


class SteadyLoop(uvloop.Loop):
    """uvloop, but for timers: until ``release`` they wait for ``set_forward``."""

    def __init__(self) -> None:
        super().__init__()
        self._now_s = 0.0
        self._waiting: list[tuple[float, int, SteadyTimer]] = []
        self._numbers = itertools.count()
        self._is_steady = False

    def hold(self) -> None:
        """From now on timers wait."""
        self._is_steady = True
        self._look_again(-1.0)

    def _look_again(self, last_s: float) -> None:
        """Work that waits for a timer, and the feed behind it, must not wait for ever."""
        if self._is_steady:
            if self._now_s == last_s:
                self.set_forward(_STEP_S)
            super().call_later(_STANDSTILL_S, self._look_again, self._now_s)

    def call_later(  # type: ignore[override]
        self,
        delay: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> object:
        if not self._is_steady:
            return super().call_later(delay, callback, *args, context=context)
        timer = SteadyTimer(callback, args)
        heapq.heappush(self._waiting, (self._now_s + delay, next(self._numbers), timer))
        return timer

    def set_forward(self, seconds: float) -> None:
        """Let so much time pass, and run the timers that are due then."""
        steady_time.set_forward(seconds)
        self._now_s += seconds
        due = []
        while self._waiting and self._waiting[0][0] <= self._now_s:
            due.append(heapq.heappop(self._waiting)[2])
        # A timer that one of these sets waits for the next time, however soon it is due.
        for timer in due:
            if not timer.is_cancelled:
                timer.callback(*timer.args)

    def release(self) -> None:
        """Timers go by the machine's time from now on; those that wait run at once."""
        self._is_steady = False
        waiting, self._waiting = self._waiting, []
        for _, _, timer in waiting:
            if not timer.is_cancelled:
                self.call_soon(timer.callback, *timer.args)
