"""Event loops of tests: one that is turned by hand, one whose time passes at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class FakeLoop:
    """Holds scheduled calls; ``turn`` runs the calls that are due, not those they schedule."""

    def __init__(self) -> None:
        self.soon: list[Callable[[], object]] = []
        self.later: list[tuple[float, Callable[[], object]]] = []

    def call_soon(self, callback: Callable[[], object]) -> None:
        self.soon.append(callback)

    def call_later(self, delay: float, callback: Callable[[], object]) -> None:
        self.later.append((delay, callback))

    def turn(self) -> int:
        """One turn of the loop; returns how many calls were due."""
        due, self.soon = self.soon, []
        for callback in due:
            callback()
        return len(due)

    def settle(self) -> int:
        """Turn until no call is due any more; returns how many turns that took."""
        turn_count = 0
        while self.turn():
            turn_count += 1
        return turn_count

    def ring(self) -> None:
        """Run the calls that wait for a time, whatever that time is."""
        due, self.later = self.later, []
        for _, callback in due:
            callback()


class JumpingLoop(asyncio.SelectorEventLoop):
    """Where nothing is left to do, its time jumps to the next timer."""

    def __init__(self) -> None:
        super().__init__()
        self._jumped_s = 0.0

    def time(self) -> float:
        return super().time() + self._jumped_s

    def _run_once(self) -> None:
        given: Any = self
        if not given._ready and given._scheduled:
            self._jumped_s += max(0.0, given._scheduled[0].when() - self.time())
        parent: Any = super()
        parent._run_once()


def run_jumping(work: Coroutine[Any, Any, T]) -> T:
    """``asyncio.run`` in a loop whose sleeps take no time."""
    with asyncio.Runner(loop_factory=JumpingLoop) as runner:
        return runner.run(work)
