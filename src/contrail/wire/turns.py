"""How much of each connection is handled in one turn of the event loop.

Requests are taken from a read until the turn's room is used up; the rest of a connection's
bytes waits, undecoded and in order, and the connection is not read meanwhile. Each turn then takes
some requests of every connection that waits. Connections with few requests that have just begun to
wait come first: one with a single request is not kept waiting by those that have sent hundreds.

A request may cost a thousand times another, so a turn ends by time as well: requests are handed
over in pieces of a few kilobytes, a piece ends behind the request that takes it over its time, and
once the pieces of a turn have taken their time together, every request that is left waits for the
next turn. One piece of the connections that wait is handled in each turn whatever the time, so
that those that are read do not keep them waiting. A connection whose requests took long lately
(``Costs``) stands behind those whose requests take little, however few it sends.

Sends that are stored as rows are bounded by bytes alone, and neither counted nor timed: a
connection is read once in a turn, and a full read of the smallest sends costs two milliseconds. To
split them costs more than it saves.
"""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

from contrail.wire.limits import Limits

# Every fourth connection that is handled is one that has waited for longer.
_FRESH_IN_A_ROW = 3

_HALF_LIFE_S = 1.0
# Requests that take less are not counted: most do.
_CHEAP_S = 0.0003

C = TypeVar("C")


class Costs:
    """How long the requests of one connection took lately: a second halves what was counted."""

    __slots__ = ("_lately_s", "_noted_s")

    def __init__(self) -> None:
        self._lately_s = 0.0
        self._noted_s = 0.0

    def note(self, handling_s: float, now_s: float) -> None:
        """Count requests that were handled for ``handling_s`` until now."""
        if handling_s >= _CHEAP_S:
            self._lately_s = self._left(now_s) + handling_s
            self._noted_s = now_s

    def exceed(self, limit_s: float, now_s: float) -> bool:
        return self._lately_s > limit_s and self._left(now_s) > limit_s

    def _left(self, now_s: float) -> float:
        age_s = max(0.0, now_s - self._noted_s)
        return float(self._lately_s * 0.5 ** (age_s / _HALF_LIFE_S))


class Turns(Generic[C]):
    """Holds the connections that wait for their turn, and says how much of each is handled."""

    def __init__(self, limits: Limits) -> None:
        self._all_max = limits.turn_requests_max
        self._one_max = limits.turn_requests_of_one_max
        self._handling_s = limits.turn_handling_s
        self._fresh: deque[C] = deque()
        self._waiting: deque[C] = deque()
        self._left = self._all_max
        self._spent_s = 0.0
        # How many of those that wait are still to be handled in this turn, and how many may be.
        self._fresh_due = self._waiting_due = self._due_max = 0
        self._fresh_in_a_row = 0
        self._none_was_next = True
        # Asked for twice a tick, hence no method: how many connections wait.
        self.waiting_count = 0

    def share(self, connection_count: int) -> int:
        """How many requests of each of ``connection_count`` connections one turn handles."""
        return max(1, min(self._one_max, self._all_max // max(connection_count, 1)))

    # Before the tick of a turn.

    def took(self, request_count: int) -> int:
        """Count requests taken from a read; returns how many the next read may give."""
        self._left -= request_count
        return max(0, min(self._one_max, self._left))

    def begin(self) -> int:
        """A new turn begins; returns how many requests its first read may give."""
        self._left = self._all_max
        self._spent_s = 0.0
        return self._one_max

    # In the tick of a turn.

    def spend(self, handling_s: float) -> None:
        """Count requests that were handled for ``handling_s``."""
        self._spent_s += handling_s

    @property
    def is_over(self) -> bool:
        """Whether the requests that are left wait for the next turn."""
        return self._spent_s >= self._handling_s

    def wait(self, connection: C, *, comes_first: bool) -> None:
        """A connection begins to wait."""
        (self._fresh if comes_first else self._waiting).append(connection)
        self.waiting_count += 1

    def wait_on(self, connection: C) -> None:
        """A connection has had its share and has more."""
        self._waiting.append(connection)
        self.waiting_count += 1

    def call_up(self) -> int:
        """``next_one`` gives those that wait now; returns the share of each."""
        self._fresh_due, self._waiting_due = len(self._fresh), len(self._waiting)
        self._due_max = self._all_max
        self._none_was_next = True
        return self.share(self._fresh_due + self._waiting_due)

    def next_one(self) -> C | None:
        """The next connection of this turn, which waits no more; None when the turn is over."""
        if not self._due_max or (self.is_over and not self._none_was_next):
            return None
        if not self._fresh_due and not self._waiting_due:
            return None
        self._due_max -= 1
        self.waiting_count -= 1
        self._none_was_next = False
        if self._fresh_due and (self._fresh_in_a_row < _FRESH_IN_A_ROW or not self._waiting_due):
            self._fresh_due -= 1
            self._fresh_in_a_row += 1
            return self._fresh.popleft()
        self._waiting_due -= 1
        self._fresh_in_a_row = 0
        return self._waiting.popleft()
