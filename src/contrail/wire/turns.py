"""How much of each connection is handled in one turn of the event loop.

Requests are taken from a read until the turn's room is used up; what is left of a connection's
bytes waits, undecoded and in order, and the connection is not read meanwhile. Each turn then takes
some requests of every connection that waits. Connections that have just begun to wait come first:
one with a single request is not kept waiting by those that have sent hundreds.

Sends that are stored as rows are bounded by bytes alone: a connection is read once in a turn, and
a full read of the smallest sends costs two milliseconds. To split them costs more than it saves.
"""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

from contrail.wire.limits import Limits

# Of each turn a quarter is kept for connections that have waited for longer.
_FRESH_PART = 3, 4

C = TypeVar("C")


class Turns(Generic[C]):
    """Holds the connections that wait for their turn, and says how many requests each may have."""

    def __init__(self, limits: Limits) -> None:
        self._all_max = limits.turn_requests_max
        self._one_max = limits.turn_requests_of_one_max
        self._fresh: deque[C] = deque()
        self._waiting: deque[C] = deque()
        self._left = self._all_max

    def __len__(self) -> int:
        return len(self._fresh) + len(self._waiting)

    def share(self, connection_count: int) -> int:
        """How many requests of each of so many connections one turn handles."""
        return max(1, min(self._one_max, self._all_max // max(connection_count, 1)))

    # Before the tick of a turn.

    def took(self, request_count: int) -> int:
        """So many requests were taken from a read; returns how many the next read may give."""
        self._left -= request_count
        return max(0, min(self._one_max, self._left))

    def begin(self) -> int:
        """A new turn begins; returns how many requests its first read may give."""
        self._left = self._all_max
        return self._one_max

    # In the tick of a turn.

    def wait(self, connection: C) -> None:
        """A connection begins to wait."""
        self._fresh.append(connection)

    def wait_on(self, connection: C) -> None:
        """A connection has had its share and has more."""
        self._waiting.append(connection)

    def take(self) -> list[tuple[C, int]]:
        """The connections of this turn with their shares; they do not wait any more."""
        count_max = self._all_max
        if self._waiting:
            count_max = max(1, count_max * _FRESH_PART[0] // _FRESH_PART[1])
        chosen = [self._fresh.popleft() for _ in range(min(count_max, len(self._fresh)))]
        room = self._all_max - len(chosen)
        chosen += [self._waiting.popleft() for _ in range(min(room, len(self._waiting)))]
        share = self.share(len(chosen))
        return [(connection, share) for connection in chosen]
