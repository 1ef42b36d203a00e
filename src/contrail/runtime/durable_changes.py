"""Changes of a table that take effect in memory once its file holds them.

A change is planned first: ``submit`` takes the entries it sets, or removes, and asks for the file
to be written. The writer of the file puts all planned entries into it (``planned``). When the write
has ended, its changes take effect in the order they came, or are dropped if the write failed: then
the table is as before. Changes that are submitted while a write is under way share the next write.

A rule that must know planned entries asks ``newest``.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

_log = logging.getLogger(__name__)

K = TypeVar("K")
V = TypeVar("V")

Done = Callable[[Exception | None], None]
"""Called on the loop once a write has ended, with the error if it failed."""
WhenWritten = Callable[[Done], None]
"""Has a file written, now or after the write under way, and then calls ``Done``."""


def ignore(problem: Exception | None) -> None:
    """For changes that no request waits for."""


def at_once(done: Done) -> None:
    """For tables without a file."""
    done(None)


@dataclass(frozen=True, slots=True)
class Change(Generic[K, V]):
    """Entries by key, None to remove one; ``believe`` applies the change in memory."""

    entries: Mapping[K, V | None]
    now_ms: int
    believe: Callable[[], None]
    done: Done


class DurableChanges(Generic[K, V]):
    """The changes of one table; without a file they take effect in ``submit``."""

    def __init__(self, when_written: WhenWritten | None = None) -> None:
        self.when_written = when_written
        # The table's count of changes that took effect: all of them are written.
        self.epoch: Callable[[], int] = int
        self.believed_epochs = 0
        self._planned: deque[Change[K, V]] = deque()
        self._ahead: dict[K, V | None] | None = None

    @property
    def planned_count(self) -> int:
        return len(self._planned)

    def planned(self) -> Iterator[Change[K, V]]:
        """The changes that a write beginning now must hold, in order."""
        return iter(self._planned)

    def newest(self, key: K, known: V | None) -> V | None:
        """The entry after all planned changes; ``known`` is the table's entry now."""
        if not self._planned:
            return known
        if self._ahead is None:
            self._ahead = {}
            for change in self._planned:
                self._ahead.update(change.entries)
        return self._ahead.get(key, known)

    def submit(
        self,
        entries: Mapping[K, V | None],
        now_ms: int,
        believe: Callable[[], None],
        done: Done = ignore,
    ) -> None:
        """Have ``entries`` written; ``done`` is called once they are durable and in effect."""
        change = Change(entries, now_ms, believe, done)
        if self.when_written is None:
            believe()
            done(None)
            return
        # The writer may refuse one more write, and calls back in a later turn of the loop.
        self.when_written(self._settle)
        self._planned.append(change)
        if self._ahead is not None:
            self._ahead.update(entries)

    def _settle(self, problem: Exception | None) -> None:
        change = self._planned.popleft()
        self._ahead = None
        if problem is None:
            before = self.epoch()
            try:
                change.believe()
                self.believed_epochs += self.epoch() - before
            except Exception as error:
                _log.exception("a change that is in its file could not be carried out")
                problem = error
        change.done(problem)
