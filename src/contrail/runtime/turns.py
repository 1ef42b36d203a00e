"""Work in many small steps on the event loop: a bounded number of steps in each turn of the loop.

The loop does other work between two turns. Several pieces of work take turns as well, so that a
short one does not wait for the end of a long one.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Protocol

_log = logging.getLogger(__name__)

STEPS_PER_TURN = 256
STEPS_IN_A_ROW = 32


class LaterCalls(Protocol):
    """The methods of an event loop that schedule calls."""

    def call_soon(self, callback: Callable[[], object]) -> Any: ...
    def call_later(self, delay: float, callback: Callable[[], object]) -> Any: ...


class TurnWork:
    """Runs iterators; each ``next`` is one step. Belongs to the event loop's thread."""

    def __init__(
        self,
        loop: LaterCalls,
        *,
        steps_per_turn: int = STEPS_PER_TURN,
        steps_in_a_row: int = STEPS_IN_A_ROW,
    ) -> None:
        self._loop = loop
        self._steps_per_turn = steps_per_turn
        self._steps_in_a_row = steps_in_a_row
        self._line: deque[Iterator[object]] = deque()
        self._is_due = False

    def __len__(self) -> int:
        """How many pieces of work are not done yet."""
        return len(self._line)

    def add(self, steps: Iterator[object]) -> None:
        """Begin ``steps`` in the next turn, or in the turn under way."""
        self._line.append(steps)
        if not self._is_due:
            self._is_due = True
            self._loop.call_soon(self.run_turn)

    def run_turn(self) -> None:
        """Run the steps of one turn; the loop calls it."""
        left, line = self._steps_per_turn, self._line
        try:
            while line and left > 0:
                steps = line.popleft()
                count = min(left, self._steps_in_a_row)
                done = self._run(steps, count)
                left -= max(done, 1)
                if done == count:
                    line.append(steps)
        finally:
            self._is_due = bool(line)
            if line:
                self._loop.call_soon(self.run_turn)

    def _run(self, steps: Iterator[object], count: int) -> int:
        """Run up to ``count`` steps; returns how many. Failed work is logged and ends alone."""
        for done in range(count):
            try:
                next(steps)
            except StopIteration:
                return done
            except Exception:
                _log.exception("work on the event loop failed")
                return done
        return count
