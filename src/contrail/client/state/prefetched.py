"""The messages that a pull consumer has fetched ahead of its application, by queue."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from contrail.protocol.json_style import MessageQueue


class Held(Protocol):
    """The fields of a message that are used here."""

    queue_offset: int
    record_bytes: int


M = TypeVar("M", bound=Held)


@dataclass(frozen=True, slots=True)
class PrefetchLimits:
    """How much is held before fetching stops: of one queue, and of all together."""

    queue_count_max: int = 1_000
    queue_bytes_max: int = 100 << 20
    queue_span_max: int = 2_000
    total_count_max: int = 10_000


@dataclass(slots=True)
class PrefetchedQueue(Generic[M]):
    """One queue: fetched messages, and the offset of the next pull (None until known)."""

    messages: deque[M] = field(default_factory=deque)
    next_queue_offset: int | None = None
    cached_bytes: int = 0
    is_paused: bool = False
    # The broker id that the last answer suggests for the next pull.
    broker_id: int = 0

    @property
    def consumer_offset(self) -> int | None:
        """The first queue offset that was not handed out yet: the offset to commit."""
        return self.messages[0].queue_offset if self.messages else self.next_queue_offset

    @property
    def span(self) -> int:
        return self.messages[-1].queue_offset - self.messages[0].queue_offset

    def arrived(self, messages: Iterable[M], next_queue_offset: int) -> None:
        for message in messages:
            self.messages.append(message)
            self.cached_bytes += message.record_bytes
        self.next_queue_offset = next_queue_offset

    def take(self, count_max: int) -> list[M]:
        count = min(count_max, len(self.messages))
        taken = [self.messages.popleft() for _ in range(count)]
        self.cached_bytes -= sum(message.record_bytes for message in taken)
        return taken

    def seek(self, queue_offset: int) -> None:
        self.messages.clear()
        self.cached_bytes = 0
        self.next_queue_offset = queue_offset

    def has_room(self, limits: PrefetchLimits) -> bool:
        return not self.messages or not (
            len(self.messages) > limits.queue_count_max
            or self.cached_bytes > limits.queue_bytes_max
            or self.span > limits.queue_span_max
        )


class Prefetched(Generic[M]):
    """All queues of a consumer; they take turns."""

    def __init__(self, limits: PrefetchLimits) -> None:
        self._limits = limits
        self.queues: dict[MessageQueue, PrefetchedQueue[M]] = {}
        self._turns: deque[MessageQueue] = deque()
        self._total_count = 0

    def add(self, queue: MessageQueue) -> PrefetchedQueue[M]:
        self._turns.append(queue)
        held = self.queues[queue] = PrefetchedQueue[M]()
        return held

    def remove(self, queue: MessageQueue) -> None:
        self._total_count -= len(self.queues.pop(queue).messages)
        self._turns.remove(queue)

    def arrived(self, queue: MessageQueue, messages: Collection[M], next_queue_offset: int) -> None:
        """A pull was answered: add its messages, and set the offset of the next pull."""
        self.queues[queue].arrived(messages, next_queue_offset)
        self._total_count += len(messages)

    def seek(self, queue: MessageQueue, queue_offset: int) -> None:
        """Forget a queue's held messages; the next pull starts at the given offset."""
        held = self.queues[queue]
        self._total_count -= len(held.messages)
        held.seek(queue_offset)

    def set_paused(self, queues: Collection[MessageQueue], *, is_paused: bool) -> None:
        for queue in queues:
            self.queues[queue].is_paused = is_paused

    def may_pull(self, queue: MessageQueue) -> bool:
        """Whether to fetch more of this queue now."""
        held = self.queues[queue]
        is_full = self._total_count > self._limits.total_count_max
        return not held.is_paused and not is_full and held.has_room(self._limits)

    def take(self, count_max: int) -> list[M]:
        """At most ``count_max`` messages, from the queues in turn; each queue's in order."""
        taken: list[M] = []
        for _ in range(len(self._turns)):
            held = self.queues[self._turns[0]]
            if not held.is_paused:
                taken += held.take(count_max - len(taken))
            self._turns.rotate(-1)
            if len(taken) == count_max:
                break
        self._total_count -= len(taken)
        return taken

    def consumer_offsets(self) -> dict[MessageQueue, int]:
        """The offsets to commit, of queues whose offset is known."""
        known = ((queue, held.consumer_offset) for queue, held in self.queues.items())
        return {queue: place for queue, place in known if place is not None}
