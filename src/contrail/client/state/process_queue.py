"""The messages of one queue that a consumer pulled and that are not settled yet.

A queue's progress is the offset of its lowest message that is not settled.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Generic, Protocol, TypeVar

LOCK_EXPIRES_MS = 30_000
"""After this long without renewal another member may have the lock."""
BROKER_EXPIRES_MS = 60_000
"""How long a broker keeps the lock of a disconnected client."""


class Held(Protocol):
    """The fields of a message that are used here."""

    queue_offset: int
    record_bytes: int


M = TypeVar("M", bound=Held)


class ProcessQueue(Generic[M]):
    """One assignment of one queue to this consumer; a queue that comes back gets a new one."""

    __slots__ = (
        "_in_hand",
        "_order",
        "cached_bytes",
        "grant",
        "has_pulled",
        "is_dropped",
        "is_locked",
        "last_consume_ms",
        "last_pull_ms",
        "locked_ms",
        "locked_until_ms",
        "next_queue_offset",
        "queue_offset_top",
        "unlock_try_count",
    )

    def __init__(self, next_queue_offset: int) -> None:
        self._in_hand: dict[int, M] = {}
        # In the order of arrival; a message settled out of order is skipped later.
        self._order: deque[int] = deque()
        self.cached_bytes = 0
        self.next_queue_offset = next_queue_offset
        self.queue_offset_top = -1
        self.has_pulled = False
        self.is_dropped = False
        self.is_locked = False
        # When its lock was last requested, until when it is valid, and its grant, if the broker
        # sends one.
        self.locked_ms = 0
        self.locked_until_ms = 0
        self.grant = 0
        self.unlock_try_count = 0
        self.last_pull_ms = 0
        self.last_consume_ms = 0

    def __len__(self) -> int:
        return len(self._in_hand)

    def pulled(self, messages: Iterable[M], next_queue_offset: int) -> None:
        """A pull was answered: add its messages, and set the offset of the next pull."""
        in_hand, order = self._in_hand, self._order
        for message in messages:
            queue_offset = message.queue_offset
            if queue_offset not in in_hand:
                in_hand[queue_offset] = message
                order.append(queue_offset)
                self.cached_bytes += message.record_bytes
        if order:
            self.queue_offset_top = max(self.queue_offset_top, order[-1])
        self.next_queue_offset = next_queue_offset
        self.has_pulled = True

    def settle(self, queue_offset: int) -> bool:
        """The message need not come again; False when it was settled before."""
        message = self._in_hand.pop(queue_offset, None)
        if message is None:
            return False
        self.cached_bytes -= message.record_bytes
        return True

    @property
    def lowest(self) -> M | None:
        """The first message that is not settled."""
        in_hand, order = self._in_hand, self._order
        while order and order[0] not in in_hand:
            order.popleft()
        return in_hand[order[0]] if order else None

    @property
    def span(self) -> int:
        """How far the last message is from the first that is not settled."""
        lowest = self.lowest
        return 0 if lowest is None else self.queue_offset_top - lowest.queue_offset

    @property
    def consumer_offset(self) -> int | None:
        """The offset to commit: None until known."""
        if not self.has_pulled:
            return None
        lowest = self.lowest
        return self.next_queue_offset if lowest is None else lowest.queue_offset

    def first(self, count_max: int) -> list[M]:
        """The first messages that are not settled, in order."""
        in_hand = self._in_hand
        if self.lowest is None:
            return []
        known = (in_hand[place] for place in self._order if place in in_hand)
        return list(islice(known, count_max))

    def __iter__(self) -> Iterator[M]:
        return iter(list(self._in_hand.values()))

    # Locks of ordered queues.

    def lock(self, asked_ms: int, lasts_ms: int = LOCK_EXPIRES_MS, grant: int = 0) -> None:
        """The lock is held, counted from its request, which is before the broker's grant."""
        self.is_locked = True
        self.locked_ms = asked_ms
        self.locked_until_ms = asked_ms + lasts_ms
        self.grant = grant

    def renew(self, *, asked_ms: int, answered_ms: int, lasts_ms: int, grant: int) -> bool:
        """The lock is renewed; False when another member may have had it meanwhile."""
        if self.grant and grant:
            was_ours = grant == self.grant
        elif not grant and lasts_ms >= LOCK_EXPIRES_MS:
            was_ours = answered_ms <= self.locked_ms + BROKER_EXPIRES_MS
        else:
            was_ours = answered_ms <= self.locked_until_ms
        if self.is_locked and was_ours:
            self.lock(asked_ms, lasts_ms, grant)
            return True
        return False

    def holds_lock(self, now_ms: int) -> bool:
        return self.is_locked and now_ms <= self.locked_until_ms
