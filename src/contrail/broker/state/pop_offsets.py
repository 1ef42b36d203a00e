"""Where the next pop of each queue begins, ahead of the committed offsets.

A group's offset may be committed once the checkpoint of the messages before it is durable: after a
power cut the log must know of every message that the offset passes over. Until then only this table
knows the offset. It forgets a queue as soon as all its offsets are committed, so that from then on
the committed offset alone counts.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from contrail.broker.state.pop_table import Queue


class Commit(NamedTuple):
    """An offset that may be committed now."""

    queue: Queue
    consumer_offset: int


class PopOffsets:
    """Offsets in the order of the log positions they wait for."""

    def __init__(self) -> None:
        # By queue: the offset, and how many commits of it wait.
        self._next: dict[Queue, tuple[int, int]] = {}
        self._waiting: deque[tuple[int, Queue, int, int]] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def next_of(self, queue: Queue) -> int | None:
        """Where the next pop begins, if that is ahead of the committed offset."""
        known = self._next.get(queue)
        return None if known is None else known[0]

    def advance(self, queue: Queue, consumer_offset: int) -> None:
        """A pop has taken the messages before this; ``note`` follows once they are in the log."""
        _, count = self._next.get(queue, (0, 0))
        self._next[queue] = (consumer_offset, count + 1)

    def note(
        self, queue: Queue, consumer_offset: int, physical_end: int, physical_start: int
    ) -> None:
        """Commit an advance once the log is durable up to ``physical_end``.

        ``physical_start`` is where the checkpoints of its tick begin.
        """
        self._waiting.append((physical_end, queue, consumer_offset, physical_start))

    @property
    def waiting_from(self) -> int | None:
        """Where the first checkpoint begins whose offset is not committed; None for none."""
        return self._waiting[0][3] if self._waiting else None

    def take_back(self, queue: Queue, consumer_offset: int) -> None:
        """The messages of an advance could not be given out: begin at them again."""
        known = self._next.get(queue)
        if known is not None:
            self._keep(queue, min(known[0], consumer_offset), known[1] - 1)

    def reset(self, queue: Queue) -> None:
        """An operator has moved the queue: advances before that mean nothing any more."""
        self.forget(lambda known: known == queue)

    def forget(self, is_gone: Callable[[Queue], bool]) -> None:
        """Queues, their topic or their group are gone."""
        gone = {queue for queue in self._next if is_gone(queue)}
        if gone:
            self._next = {queue: of for queue, of in self._next.items() if queue not in gone}
            self._waiting = deque(entry for entry in self._waiting if entry[1] not in gone)

    def settle(self, settled_end: int) -> list[Commit]:
        """The offsets that may be committed, as far as the log is durable."""
        commits: dict[Queue, int] = {}
        while self._waiting and self._waiting[0][0] <= settled_end:
            _, queue, consumer_offset, _ = self._waiting.popleft()
            commits[queue] = consumer_offset
            known = self._next.get(queue)
            if known is not None:
                self._keep(queue, known[0], known[1] - 1)
        return [Commit(queue, consumer_offset) for queue, consumer_offset in commits.items()]

    def _keep(self, queue: Queue, consumer_offset: int, count: int) -> None:
        if count > 0:
            self._next[queue] = (consumer_offset, count)
        else:
            self._next.pop(queue, None)
