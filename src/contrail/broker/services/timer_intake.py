"""Reads the timer topic in its order and has its messages wait."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from contrail.broker.services.timer_filing import TimerFiling
from contrail.broker.state.timer_records import TimerRecord
from contrail.broker.state.timer_table import TimerTable
from contrail.errors import MessageIllegal
from contrail.model.properties import UNIQ_KEY
from contrail.model.topic import TIMER_TOPIC
from contrail.store import CELL_COUNT, GetResult, GetStatus, MessageStore

_log = logging.getLogger(__name__)

TOPIC = TIMER_TOPIC.encode()
QUEUE_ID = 0
_BYTES_MAX = 1 << 20
_NOTHING_THERE = frozenset(
    {
        GetStatus.NO_MATCHED_LOGIC_QUEUE,
        GetStatus.NO_MESSAGE_IN_QUEUE,
        GetStatus.OFFSET_OVERFLOW_ONE,
    }
)


class TimerIntake:
    """The cursor in the timer topic."""

    def __init__(self, store: MessageStore, table: TimerTable, filing: TimerFiling) -> None:
        self._store = store
        self._table = table
        self._filing = filing
        self._lap_ms = CELL_COUNT * table.precision_ms
        self.queue_offset = 0
        self._stuck_at = -1
        # Physical offsets, not read yet, of messages that were delivered before the start.
        self._passed_over: frozenset[int] = frozenset()
        self._unread_from = 0
        # Whether the wheel must be written down first; see ``_take``.
        self.waits_for_room = False

    @property
    def behind_count(self) -> int:
        """How many messages have not been looked at."""
        return max(0, self._store.queue_offset_max(TOPIC, QUEUE_ID) - self.queue_offset)

    @property
    def can_go_on(self) -> bool:
        """Whether another step has something to do."""
        return self.behind_count > 0 and not (self.waits_for_room or self.is_stuck)

    @property
    def is_stuck(self) -> bool:
        """Whether the next row must be derived from the log again."""
        return self._stuck_at == self.queue_offset

    @property
    def held_from(self) -> int | None:
        """Where the log must be read from to know the messages to pass over; None: nowhere.

        A delivery stands in the log behind the record that had waited for it.
        """
        return self._unread_from if self._passed_over else None

    def pass_over(self, places: Iterable[int]) -> None:
        """These physical offsets were delivered, or wait already: they are not taken again."""
        first = self._store.rows(TOPIC, QUEUE_ID, self.queue_offset, 1)
        self._unread_from = first[0].physical_offset if first else self._store.physical_min
        self._passed_over = frozenset(place for place in places if place >= self._unread_from)

    def step(self, now_ms: int, near_ms: int, count_max: int) -> int:
        """Take the next messages; returns how many."""
        self.waits_for_room = False
        found = self._store.get(
            TOPIC, QUEUE_ID, self.queue_offset, count_max=count_max, bytes_max=_BYTES_MAX
        )
        if found.status is not GetStatus.FOUND:
            return self._pass_unreadable(found)
        for count, view in enumerate(found.records):
            if not self._take(bytes(view), now_ms, near_ms):
                self.waits_for_room = True
                return count
            self.queue_offset += 1
        self.queue_offset = found.next_queue_offset
        return found.message_count

    def _take(self, data: bytes, now_ms: int, near_ms: int) -> bool:
        """Have it wait; False when the wheel has no room for its slot yet."""
        try:
            record = TimerRecord.read(data)
        except MessageIllegal as illegal:
            _log.error("timer message %d is passed over: %s", self.queue_offset, illegal)
            return True
        if self._passed_over:
            self._unread_from = record.physical_offset
            if record.physical_offset in self._passed_over:
                return True
        row = self._table.place(record, now_ms)
        # Two weeks after a slot its cell is used again. A message overdue that long, because the
        # broker was down, is delivered and written off before the cell gets a new time.
        if row.slot_ms >= self._filing.read_ms + self._lap_ms:
            return False
        if self._was_delivered(record.physical_offset, row.slot_ms):
            return True
        self._filing.enqueued(row, record.physical_offset + record.record_bytes)
        try:
            self._table.enqueue(record, row, now_ms, near_ms)
        except MessageIllegal as illegal:
            log_illegal(record, illegal)
            self._table.metrics.add(record.topic, -1, now_ms)
        return True

    def _was_delivered(self, place: int, filed_ms: int) -> bool:
        """Whether the log of a failover group says so already, for this member is behind."""
        followed = self._table.followed
        delivery = None if followed is None else followed.take_delivery(place)
        if delivery is not None:
            self._filing.delivered(filed_ms, delivery.physical_offset, delivery.physical_end)
        return delivery is not None

    def learn_deletions(self) -> None:
        """Let deletions take effect that the intake has not reached, for want of room."""
        queue_offset, behind = self.queue_offset, self.queue_offset + self.behind_count
        while queue_offset < behind:
            found = self._store.get(TOPIC, QUEUE_ID, queue_offset, bytes_max=_BYTES_MAX)
            for view in found.records:
                self._learn_deletion(bytes(view))
            queue_offset = max(queue_offset + 1, found.next_queue_offset)

    def _learn_deletion(self, data: bytes) -> None:
        try:
            record = TimerRecord.read(data)
        except MessageIllegal:
            # The damaged row is logged when its turn comes.
            return
        if record.deletes:
            self._table.delete(record)

    def _pass_unreadable(self, found: GetResult) -> int:
        """Go on behind messages that are gone."""
        if found.status in _NOTHING_THERE:
            # Messages from here on were sent after the start.
            self._passed_over = frozenset()
            return 0
        behind = found.next_queue_offset
        if found.status is GetStatus.QUEUE_ENTRY_DAMAGED or behind <= self.queue_offset:
            if self._stuck_at != self.queue_offset:
                self._stuck_at = self.queue_offset
                _log.error(
                    "timers wait at queue offset %d for its row to be derived again (%s)",
                    self.queue_offset,
                    found.status.value,
                )
            return 0
        _log.error(
            "timer messages %d to %d cannot be read (%s), at physical offsets %s; passed over",
            self.queue_offset,
            behind - 1,
            found.status.value,
            found.damaged or "that are gone",
        )
        self.queue_offset = behind
        return 1


def log_illegal(record: TimerRecord, illegal: MessageIllegal) -> None:
    _log.error(
        "the timer message at queue offset %d, physical offset %d (%s=%s) can never be delivered "
        "and is passed over: %s",
        record.queue_offset,
        record.physical_offset,
        UNIQ_KEY,
        record.unique_key.decode("utf-8", "replace"),
        illegal,
    )
