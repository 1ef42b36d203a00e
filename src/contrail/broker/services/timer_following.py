"""The timed messages of a failover group's member: followed by all, delivered by the leader.

Every member takes the timer topic in as its records are committed, so a member that begins to lead
has nothing to read, however many messages wait. ``state.followed_timers`` has the rules.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from contrail.broker.services.timer_filing import TimerFiling
from contrail.broker.services.timer_intake import TimerIntake
from contrail.broker.state.due_timers import DueTimer
from contrail.broker.state.followed_timers import Delivery, FollowedTimers, Recall
from contrail.broker.state.timer_records import TimerRecord
from contrail.broker.state.timer_slots import FLAG_DELETE, Waiting
from contrail.broker.state.timer_table import TimerTable
from contrail.clock import Clock, monotonic_ms
from contrail.errors import MessageIllegal, RecordDamaged
from contrail.model.topic import TIMER_TOPIC
from contrail.store import MessageStore

_log = logging.getLogger(__name__)

# A delivery reaches a follower some time after the leader has made it.
_LATE_MS = 2_000
# This long after a delivery its message has left its slot, or was not timed at all: a clock that is
# far behind the leader's has to wait for the message's own time.
_DOUBT_MS = 60_000
_STEP_COUNT_MAX = 256
_WORK_MS_MAX = 5
# Late messages that are looked at for deletions in one run.
_LOOKED_AT_MAX = 64
_NEVER_MS = -1


class TimerFollowing:
    """Keeps a member's table up to the committed log, and gives it back as it was committed."""

    def __init__(
        self,
        store: MessageStore,
        table: TimerTable,
        intake: TimerIntake,
        filing: TimerFiling,
        clock: Clock,
    ) -> None:
        self._store = store
        self._table = table
        self._intake = intake
        self._filing = filing
        self._clock = clock
        self._leads = False
        # The line below which deletions are to be forgotten, and the slot to be finished before.
        self._forgetting: tuple[int, int] | None = None
        self._followed = table.followed = FollowedTimers()

    # Following.

    def committed(self, place: int, delivery: Delivery) -> None:
        """The log says that the message which waited at ``place`` was delivered or rolled on."""
        if self._leads:
            return
        late = self._followed.note_delivery(place, delivery)
        if late is not None:
            self._finish(*late, delivery)
        else:
            self._followed.doubt(place, self._clock.now_ms() + _DOUBT_MS)

    def settle(self, physical_end: int) -> None:
        """The log is committed up to there."""
        self._followed.settle(physical_end)

    def run(self, now_ms: int, leaders_line_ms: int) -> None:
        """Take in what is committed, within a few milliseconds; nothing is delivered.

        Of slots below ``leaders_line_ms`` nothing is to come: a leader had finished with them.
        """
        over_ms = now_ms - _LATE_MS
        deadline_ms = monotonic_ms() + _WORK_MS_MAX
        is_done = False
        while not is_done and monotonic_ms() < deadline_ms:
            taken = self._intake.step(now_ms, _NEVER_MS, _STEP_COUNT_MAX)
            is_done = not taken + self._pass_over(over_ms)
        self._drop_deleted()
        self._filing.tick(
            now_ms,
            queue_offset=self._intake.queue_offset,
            read_ms=self._table.advance(now_ms, past_deletions=self._intake.waits_for_room),
            is_urgent=self._intake.waits_for_room,
        )
        self._forget_deletions(leaders_line_ms, now_ms)
        self.look_at_doubtful(now_ms)

    def _pass_over(self, over_ms: int) -> int:
        """Slots that are over: their messages were delivered, or are late."""
        taken = self._table.slots.take(over_ms, _STEP_COUNT_MAX)
        if taken is None:
            return 0
        slot_ms, rows = taken
        for waiting in rows:
            if self.was_delivered(slot_ms, waiting):
                continue
            if self._table.is_deletion(waiting):
                # It took effect when it was taken in.
                self._table.drop_row(slot_ms, waiting)
            elif waiting.flags & FLAG_DELETE:
                out_ms = self._out_ms(waiting.physical_offset) or slot_ms
                self._followed.add_late_deletion(slot_ms, waiting, self._table.slot_of(out_ms))
            else:
                self._followed.add_late(slot_ms, waiting)
        return len(rows)

    def was_delivered(self, slot_ms: int, waiting: Waiting) -> bool:
        """Whether a message that leaves its slot was delivered by another leader."""
        delivery = self._followed.take_delivery(waiting.physical_offset)
        if delivery is not None:
            self._finish(slot_ms, waiting, delivery)
        return delivery is not None

    def _finish(self, slot_ms: int, waiting: Waiting, delivery: Delivery) -> None:
        filed_ms = self._table.finish_row(slot_ms, waiting, delivery.topic, self._clock.now_ms())
        self._filing.delivered(filed_ms, delivery.physical_offset, delivery.physical_end)

    def _drop_deleted(self) -> None:
        """No record says that a deleted message is done with."""
        if self._table.due.deletion_slot_ms_min is None:
            return
        for slot_ms, waiting in self._followed.earliest(_LOOKED_AT_MAX):
            try:
                record = TimerRecord.read(self._store.record_bytes(waiting.physical_offset))
            except (RecordDamaged, MessageIllegal):
                # The leader logs it, and passes over it.
                continue
            if self._table.take_deletion_of(record):
                self._followed.drop_late(waiting.physical_offset)
                self._table.drop_row(slot_ms, waiting)

    def _forget_deletions(self, leaders_line_ms: int, now_ms: int) -> None:
        """Forget deletions below the leader's line, once their targets have left this table."""
        if self._forgetting is None:
            first_ms = self._table.due.deletion_slot_ms_min
            if (
                first_ms is not None
                and first_ms < leaders_line_ms
                and not self._intake.behind_count
            ):
                # Targets that were taken in late wait in the slot of this member's line.
                self._forgetting = (leaders_line_ms, max(leaders_line_ms, self._table.read_ms))
        elif self._table.messages_finished_until(now_ms) > self._forgetting[1]:
            self._table.forget_deletions(self._forgetting[0], now_ms)
            for slot_ms, waiting in self._followed.take_deletions(self._forgetting[0]):
                self._table.drop_row(slot_ms, waiting)
            self._forgetting = None

    def look_at_doubtful(self, now_ms: int) -> None:
        """Forget deliveries whose messages are in no slot: retries of messages that were timed."""
        for _ in range(_LOOKED_AT_MAX):
            place = self._followed.take_doubtful(now_ms)
            if place is None:
                return
            out_ms = self._out_ms(place)
            if out_ms is None or (out_ms + _DOUBT_MS < now_ms and not self._intake.behind_count):
                self._followed.take_delivery(place)
            else:
                self._followed.doubt(place, max(out_ms, now_ms) + 2 * _DOUBT_MS)

    def _out_ms(self, place: int) -> int | None:
        """When the timed message that stands there is due; None if there is none."""
        try:
            if self._store.record(place).topic != TIMER_TOPIC:
                return None
            return TimerRecord.read(self._store.record_bytes(place)).out_ms
        except (RecordDamaged, MessageIllegal):
            return None

    @property
    def known_from(self) -> int | None:
        """Where the log must be read from to know all deliveries that the files do not show."""
        return self._followed.known_from

    # Changes of roles.

    def lead(self) -> None:
        """Everything that is committed is taken note of: from now on this member delivers."""
        self._leads = True
        self._forgetting = None
        for slot_ms, waiting in self._followed.take_late():
            self._table.slots.add(slot_ms, *waiting)

    def follow(self) -> None:
        """Another member leads: messages whose delivery may be cut from the log wait again."""
        if not self._leads:
            return
        self._leads = False
        now_ms = self._clock.now_ms()
        timers, recalls = self._followed.take_unsettled()
        self._table.put_away()
        for timer, was_deleted in timers:
            self._table.wait_again(timer, now_ms, was_deleted=was_deleted)
        for recall in recalls:
            self._table.due.undo_deletion(*recall)
        # The files may not say that those slots are finished.
        self._table.read_ms = self._filing.forget_marks()

    # Of the leader.

    @property
    def line_ms(self) -> int:
        """Below it every slot is finished, and its deletions are forgotten."""
        return self._table.read_ms

    def delivered(self, physical_offsets: Sequence[int], timers: Sequence[DueTimer]) -> None:
        self._followed.note_own(physical_offsets, timers)

    def recalled(self, recall: Recall, physical_end: int) -> None:
        self._followed.note_recall(recall, physical_end)

    def deleted(self, timer: DueTimer) -> None:
        """A message came to nothing, perhaps by a recall that is not committed."""
        self._followed.note_deleted(timer)
