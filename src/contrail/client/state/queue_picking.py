"""Picks the queue of the next message, when the application chose none."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from contrail.protocol.json_style import MessageQueue

_INDEX_MASK = 0x7FFFFFFF


class QueuePicker:
    """Goes round one topic's queues, starting at a random queue in each client."""

    __slots__ = ("_index", "queues")

    def __init__(self, queues: Sequence[MessageQueue], start: int) -> None:
        assert queues, "a topic without queues has no route"
        self.queues = queues
        self._index = start & _INDEX_MASK

    @property
    def index(self) -> int:
        return self._index

    def restart(self, start: int) -> None:
        """Go on from a random queue."""
        self._index = start & _INDEX_MASK

    def next(self) -> MessageQueue:
        """The next queue in the round."""
        self._index = index = (self._index + 1) & _INDEX_MASK
        queues = self.queues
        return queues[index % len(queues)]

    def next_elsewhere(self, broker_name: str | None) -> MessageQueue:
        """The next queue that is not on the failed broker; if there is none, any queue."""
        found = self.next_where(lambda queue: queue.broker_name != broker_name)
        return found or self.next()

    def next_where(self, suits: Callable[[MessageQueue], bool]) -> MessageQueue | None:
        """The next queue that suits, after one round at most."""
        for _ in range(len(self.queues)):
            queue = self.next()
            if suits(queue):
                return queue
        return None
