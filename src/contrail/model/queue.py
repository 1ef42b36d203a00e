"""One queue of one topic."""

from __future__ import annotations

from typing import NamedTuple


class QueueId(NamedTuple):
    """A topic and the number of one of its queues."""

    topic: str
    queue_id: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.queue_id}"
