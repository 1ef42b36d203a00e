"""Timed messages as a member of a failover group follows them.

A member that follows takes waiting messages in like the leader and delivers none. The log says
which ones the leader delivered or rolled on:

| a message that waits                      | is forgotten                                     |
| ----------------------------------------- | ------------------------------------------------ |
| in its slot                               | when its slot is over, if it was delivered       |
| *late*: its slot is over, it still waits  | when it is delivered, or a deletion is for it    |

A leader has delivered some that are not committed. It keeps those, and deletions that clients
asked for, until they are; once it leads no more they wait again, for they may be cut from the log.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from heapq import heappop, heappush
from typing import NamedTuple

from contrail.broker.state.due_timers import DueTimer, key_of_one
from contrail.broker.state.timer_slots import Waiting

I64_MAX = (1 << 63) - 1


class Delivery(NamedTuple):
    """The record of a message that had waited."""

    physical_offset: int
    physical_end: int
    store_timestamp_ms: int
    # The topic that the message counts for.
    topic: bytes


class Recall(NamedTuple):
    """A deletion that a client asked for, by the slot and the name of its target."""

    slot_ms: int
    key: bytes


class _Unsettled(NamedTuple):
    """A message that is done with once the record at ``physical_offset`` is committed."""

    physical_offset: int
    timer: DueTimer
    was_deleted: bool


class FollowedTimers:
    """The facts about waiting messages that slots and line do not hold."""

    def __init__(self) -> None:
        # Deliveries of messages that are in their slots, in the log's order, by where they waited.
        self._delivered: dict[int, Delivery] = {}
        self._doubts: list[tuple[int, int]] = []
        self._late: dict[int, dict[int, int]] = {}
        self._late_slots: dict[int, int] = {}
        # Late deletions that wait to be rolled on, by the slot of their target's time: they stay
        # until nothing can come for them, so that the files never have a target without them.
        self._deletions: dict[int, tuple[int, int, int]] = {}
        # Of this leader.
        self._unsettled: deque[_Unsettled] = deque()
        self._recalls: dict[Recall, int] = {}

    def __len__(self) -> int:
        """How many messages are late."""
        return len(self._late_slots) + len(self._deletions)

    # Deliveries in the log.

    def note_delivery(self, place: int, delivery: Delivery) -> tuple[int, Waiting] | None:
        """The message that waited at ``place`` is delivered: its slot and row, if it is late."""
        if place in self._deletions:
            slot_ms, meta, _ = self._deletions.pop(place)
            return slot_ms, Waiting(place, meta)
        slot_ms = self._late_slots.pop(place, -1)
        if slot_ms < 0:
            self._delivered[place] = delivery
            return None
        return slot_ms, self._leave(slot_ms, place)

    def take_delivery(self, place: int) -> Delivery | None:
        """The delivery of a message whose row leaves its slot now."""
        return self._delivered.pop(place, None)

    def doubt(self, place: int, look_ms: int) -> None:
        """At that time look whether a message that is in no slot yet can still come into one."""
        heappush(self._doubts, (look_ms, place))

    def take_doubtful(self, now_ms: int) -> int | None:
        """A place to look at now, of a delivery that no row has answered for; None for none."""
        while self._doubts and self._doubts[0][0] <= now_ms:
            _, place = heappop(self._doubts)
            if place in self._delivered:
                return place
        return None

    @property
    def known_from(self) -> int | None:
        """Where the first delivery stands of a message that is still in its slot."""
        first = next(iter(self._delivered.values()), None)
        return None if first is None else first.physical_offset

    # Late messages.

    def add_late(self, slot_ms: int, waiting: Waiting) -> None:
        self._late.setdefault(slot_ms, {})[waiting.physical_offset] = waiting.meta
        self._late_slots[waiting.physical_offset] = slot_ms

    def add_late_deletion(self, slot_ms: int, waiting: Waiting, out_slot_ms: int) -> None:
        self._deletions[waiting.physical_offset] = (slot_ms, waiting.meta, out_slot_ms)

    def take_deletions(self, before_ms: int) -> list[tuple[int, Waiting]]:
        """The late deletions of targets whose time lies before this slot."""
        over = [
            (slot_ms, Waiting(place, meta))
            for place, (slot_ms, meta, out_slot_ms) in self._deletions.items()
            if out_slot_ms < before_ms
        ]
        for _, waiting in over:
            del self._deletions[waiting.physical_offset]
        return over

    def drop_late(self, place: int) -> None:
        self._leave(self._late_slots.pop(place), place)

    def _leave(self, slot_ms: int, place: int) -> Waiting:
        rows = self._late[slot_ms]
        meta = rows.pop(place)
        if not rows:
            del self._late[slot_ms]
        return Waiting(place, meta)

    @property
    def slot_ms_min(self) -> int | None:
        """The earliest slot with something late."""
        slots_ms = [slot_ms for slot_ms, _, _ in self._deletions.values()]
        return min([*slots_ms, *self._late], default=None)

    @property
    def message_slot_ms_min(self) -> int | None:
        """The earliest slot with a late message that is no deletion."""
        return min(self._late, default=None)

    def earliest(self, count_max: int) -> list[tuple[int, Waiting]]:
        """Some of the late ones, those of the earliest slot first."""
        found: list[tuple[int, Waiting]] = []
        for slot_ms in sorted(self._late):
            for place, meta in self._late[slot_ms].items():
                if len(found) >= count_max:
                    return found
                found.append((slot_ms, Waiting(place, meta)))
        return found

    def take_late(self) -> Iterator[tuple[int, Waiting]]:
        """All of them; none is late any more."""
        late, self._late = self._late, {}
        self._late_slots.clear()
        yield from self.take_deletions(I64_MAX)
        for slot_ms in sorted(late):
            for place, meta in late[slot_ms].items():
                yield slot_ms, Waiting(place, meta)

    # A leader's own.

    def note_own(self, physical_offsets: Sequence[int], timers: Sequence[DueTimer]) -> None:
        """This leader has delivered these, in records that are committed one by one."""
        self._unsettled += [
            _Unsettled(*one, was_deleted=False)
            for one in zip(physical_offsets, timers, strict=True)
        ]

    def note_deleted(self, timer: DueTimer) -> None:
        """A message was dropped, perhaps by a recall that is not committed yet."""
        for key in (key_of_one(timer.key, timer.nonce), timer.key):
            end = self._recalls.get(Recall(timer.out_slot_ms, key))
            if end is not None:
                self._unsettled.append(_Unsettled(end - 1, timer, was_deleted=True))
                return

    def note_recall(self, recall: Recall, physical_end: int) -> None:
        self._recalls[recall] = physical_end

    def note_deletion(self, recall: Recall) -> None:
        """The log has a committed deletion of this name."""
        self._recalls.pop(recall, None)

    def settle(self, physical_end: int) -> None:
        """The log is committed up to there."""
        while self._unsettled and self._unsettled[0].physical_offset < physical_end:
            self._unsettled.popleft()
        if self._recalls:
            self._recalls = {
                recall: end for recall, end in self._recalls.items() if end > physical_end
            }

    def take_unsettled(self) -> tuple[list[tuple[DueTimer, bool]], list[Recall]]:
        """All that may be cut from the log: messages that wait again, recalls that are void.

        Of each message it is told whether it was deleted.
        """
        timers = [(one.timer, one.was_deleted) for one in self._unsettled]
        recalls = list(self._recalls)
        self._unsettled.clear()
        self._recalls.clear()
        return timers, recalls
