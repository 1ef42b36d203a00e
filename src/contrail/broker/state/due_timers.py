"""Timed messages whose slot is near: read, and delivered by the millisecond.

A slot stays open until every message of it is done with. A deletion holds for messages whose own
time lies in its slot, from the moment it is known: also while one of the two, or both, are far away
and wait in another slot to be rolled on.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import NamedTuple

from contrail.model.message import MessageDraft
from contrail.model.properties import PAIR_END


def key_of_one(key: bytes, nonce: bytes) -> bytes:
    """The name that a deletion has if it is for one message of several with this key.

    No key holds the byte that ends a property.
    """
    return key + PAIR_END + nonce if nonce else key


class DueTimer(NamedTuple):
    """One message that is about to be delivered; they are ordered by time, then by place."""

    deliver_ms: int
    physical_offset: int
    slot_ms: int
    # The slot of its own time; it may wait in another one.
    out_slot_ms: int
    meta: int
    topic: bytes
    key: bytes
    # None: too much is in memory already, it is read again when it is delivered.
    draft: MessageDraft | None
    byte_count: int
    # The nonce that tells messages with one key apart; empty for none.
    nonce: bytes = b""


class DueTimers:
    """The messages of the open slots, and the deletions for them."""

    def __init__(self) -> None:
        self._heap: list[DueTimer] = []
        self._open: dict[int, int] = {}
        # By the slot of their time: the deletions, and the topic of each as long as its message
        # was not there.
        self._deletions: dict[int, dict[bytes, bytes | None]] = {}
        self._deletion_slots: list[int] = []
        self.bytes_held = 0

    def __len__(self) -> int:
        return len(self._heap)

    @property
    def slot_ms_min(self) -> int | None:
        """The earliest slot that is open."""
        return min(self._open, default=None)

    @property
    def deliver_ms_min(self) -> int | None:
        """When the next one is due."""
        return self._heap[0].deliver_ms if self._heap else None

    @property
    def deletion_slot_ms_min(self) -> int | None:
        """The earliest slot of which a deletion is remembered."""
        return self._deletion_slots[0] if self._deletion_slots else None

    def add(self, timer: DueTimer) -> None:
        heappush(self._heap, timer)
        self._open[timer.slot_ms] = self._open.get(timer.slot_ms, 0) + 1
        if timer.draft is not None:
            self.bytes_held += timer.byte_count

    def delete(self, slot_ms: int, key: bytes, topic: bytes) -> bool:
        """A message whose time is in this slot is not to be delivered, if it has not been yet.

        ``topic`` is that of the deletion itself; the key may name any. False if there is a deletion
        of this name already.
        """
        keys = self._deletions.get(slot_ms)
        if keys is None:
            keys = self._deletions[slot_ms] = {}
            heappush(self._deletion_slots, slot_ms)
        if key in keys:
            return False
        keys[key] = topic
        return True

    def undo_deletion(self, slot_ms: int, key: bytes) -> None:
        """The deletion of this name came to nothing."""
        keys = self._deletions.get(slot_ms)
        if keys is not None:
            keys.pop(key, None)

    def take_all(self) -> list[DueTimer]:
        """All messages, in no order: no slot is open any more."""
        heap, self._heap = self._heap, []
        self._open.clear()
        self.bytes_held = 0
        return heap

    def take_due(self, now_ms: int, count_max: int, bytes_max: int) -> list[DueTimer]:
        """The next ones that are due, deleted ones included; they are done with ``finish``."""
        heap, byte_count = self._heap, 0
        taken: list[DueTimer] = []
        while heap and heap[0].deliver_ms <= now_ms and len(taken) < count_max:
            byte_count += heap[0].byte_count
            if taken and byte_count > bytes_max:
                break
            taken.append(heappop(heap))
        return taken

    def put_back(self, timers: list[DueTimer]) -> None:
        """Put messages back that could not be delivered now: they are next again."""
        for timer in timers:
            heappush(self._heap, timer)

    def take_deletion(self, timer: DueTimer) -> bool:
        """Whether this message was deleted."""
        return self.take_deletion_of(timer.out_slot_ms, timer.key, timer.nonce)

    def take_deletion_of(self, out_slot_ms: int, own_key: bytes, nonce: bytes) -> bool:
        """Whether the message of this time, key and nonce was deleted."""
        keys = self._deletions.get(out_slot_ms)
        if not keys:
            return False
        # Deletions of operators and of Apache's brokers are for every message with the key.
        for key in (key_of_one(own_key, nonce), own_key):
            if key in keys:
                keys[key] = None
                return True
        return False

    def finish(self, timer: DueTimer) -> None:
        """Forget a message that was delivered, rolled on, deleted or given up."""
        left = self._open[timer.slot_ms] - 1
        if left:
            self._open[timer.slot_ms] = left
        else:
            del self._open[timer.slot_ms]
        if timer.draft is not None:
            self.bytes_held -= timer.byte_count

    def forget_deletions(self, read_ms: int) -> list[bytes]:
        """Slots before this time are finished; returns the topics of deletions without effect."""
        missed = []
        while self._deletion_slots and self._deletion_slots[0] < read_ms:
            keys = self._deletions.pop(heappop(self._deletion_slots))
            missed += [topic for topic in keys.values() if topic is not None]
        return missed
