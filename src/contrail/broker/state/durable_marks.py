"""Marks that may be written down only once the log is durable as far as they reach.

A cursor says "everything before me has been delivered". Written before the deliveries are on the
disk, such a cursor would skip undelivered messages after a power cut.
"""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

T = TypeVar("T")


class DurableMarks(Generic[T]):
    """Marks in the order of the log positions they wait for."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[int, T]] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def note(self, physical_end: int, mark: T) -> None:
        """``mark`` holds once the log is durable up to ``physical_end``."""
        waiting = self._waiting
        if waiting and waiting[-1][0] >= physical_end:
            # Nothing was appended in between: the newer mark needs no more than the older one.
            waiting[-1] = (waiting[-1][0], mark)
        else:
            waiting.append((physical_end, mark))

    def take(self, settled_end: int) -> tuple[int, T] | None:
        """The newest mark that holds, with the position it waited for; None if there is none."""
        newest = None
        while self._waiting and self._waiting[0][0] <= settled_end:
            newest = self._waiting.popleft()
        return newest
