"""All timed messages that wait, and the rules by which they are enqueued and finished.

``read_ms`` is the line below which every slot is finished; it never goes back. A message that
belongs to a slot below the line is filed in the line's own slot, so that the files, which forget
everything below, cannot lose it.
"""

from __future__ import annotations

from contrail.broker.state.due_timers import DueTimer, DueTimers
from contrail.broker.state.followed_timers import FollowedTimers, Recall
from contrail.broker.state.timer_metrics import TimerMetrics, TimerTotals
from contrail.broker.state.timer_records import I64_MAX, TimerRecord, as_delivered, as_rolled
from contrail.broker.state.timer_slots import (
    FLAG_DELETE,
    FLAG_DUE,
    FLAG_ROLL,
    TimerSlots,
    Waiting,
    meta_of,
)
from contrail.kernels.java_hash import java_hash
from contrail.model.message import MessageDraft
from contrail.model.timer_row import MAGIC_DEFAULT, MAGIC_DELETE, MAGIC_ROLL, FiledRow

# RocketMQ's bounds for counting timers, in seconds.
HORIZONS_S = (5, 60, 300, 900, 3600, 14_400, 28_800, 86_400)
# RocketMQ's wheel covers seven days of seconds and keeps a minute's slots free.
_WINDOW_SLOTS_MAX = 7 * 86_400 - 60
_I32_MAX = (1 << 31) - 1
_ROLL_AND_DELETE = FLAG_ROLL | FLAG_DELETE


class TimerTable:
    """The timers that wait. All times are milliseconds; slots are multiples of the precision."""

    def __init__(self, *, precision_ms: int, roll_window_slots: int, due_count_max: int) -> None:
        self.precision_ms = precision_ms
        if not 2 <= roll_window_slots <= _WINDOW_SLOTS_MAX:
            roll_window_slots = _WINDOW_SLOTS_MAX
        self._window_slots = roll_window_slots
        self._due_count_max = due_count_max
        self._hashes: dict[bytes, int] = {}
        # The topic whose waiting records are noted, by its hash; None but during recovery.
        self._noted_hash: int | None = None
        self._noted: list[int] = []
        # Of a member of a failover group.
        self.followed: FollowedTimers | None = None
        self.reset(0)

    def reset(self, read_ms: int) -> None:
        """Nothing waits."""
        self.read_ms = read_ms
        self.slots = TimerSlots(self.precision_ms)
        self.due = DueTimers()
        self.metrics = TimerMetrics()
        self.totals = TimerTotals()
        # Messages that are filed in a later slot than the one they wait for.
        self._filed_slots: dict[int, int] = {}
        self._noted.clear()

    def note_waiting(self, topic: bytes) -> None:
        """From now on note the places of the waiting records of a topic."""
        self._noted_hash = self._hash(topic)

    def take_noted(self) -> list[int]:
        """The physical offsets noted so far, perhaps with some of other topics; the last call."""
        noted, self._noted, self._noted_hash = self._noted, [], None
        return noted

    def __len__(self) -> int:
        late_count = 0 if self.followed is None else len(self.followed)
        return len(self.slots) + len(self.due) + late_count

    def slot_of(self, time_ms: int) -> int:
        return time_ms // self.precision_ms * self.precision_ms

    # Enqueueing.

    def place(self, record: TimerRecord, now_ms: int) -> FiledRow:
        """Where a message is to be filed; nothing is changed yet."""
        write_ms = self.slot_of(now_ms)
        # Members of a failover group decide alike when a message is rolled on.
        is_followed = self.followed is not None
        since_ms = self.slot_of(record.store_timestamp_ms) if is_followed else write_ms
        slot_ms, magic = self._rolled(self.slot_of(record.out_ms), since_ms)
        if record.deletes:
            magic |= MAGIC_DELETE
        filed_ms = max(slot_ms, self.read_ms)
        if not -_I32_MAX <= filed_ms - write_ms <= _I32_MAX:
            # The file has 32 bits for the distance; it only ever was for information.
            write_ms = filed_ms
        topic_hash = self._hash(record.topic)
        return FiledRow(
            filed_ms, write_ms, magic, record.physical_offset, record.record_bytes, topic_hash
        )

    def _rolled(self, slot_ms: int, since_ms: int) -> tuple[int, int]:
        """The slot to wait in, and the magic: a message too far away waits to be rolled on."""
        unit, window = self.precision_ms, self._window_slots
        beyond_ms = slot_ms - since_ms - window * unit
        if beyond_ms < 0:
            return slot_ms, MAGIC_DEFAULT
        # The last roll leaves time enough for the next one, as RocketMQ has it.
        wait = window // 2 if beyond_ms < window // 3 * unit else window
        return since_ms + wait * unit, MAGIC_DEFAULT | MAGIC_ROLL

    def enqueue(self, record: TimerRecord, row: FiledRow, now_ms: int, near_ms: int) -> None:
        """Have a message wait as placed; one whose slot begins by ``near_ms`` is made ready."""
        if row.topic_hash == self._noted_hash:
            self._noted.append(row.physical_offset)
        write_ms = self.slot_of(now_ms)
        flags = _flags(row.magic)
        own_ms = row.slot_ms if flags & FLAG_ROLL else self.slot_of(record.out_ms)
        if own_ms < write_ms:
            flags |= FLAG_DUE
        wake_ms = own_ms if row.slot_ms > write_ms else row.slot_ms
        if wake_ms != row.slot_ms:
            self._filed_slots[row.physical_offset] = row.slot_ms
        self.metrics.add(record.topic, -1 if flags & FLAG_DELETE else 1, now_ms)
        if record.deletes:
            self.delete(record)
        else:
            delay_ms = None if record.roll_count else record.out_ms - record.born_timestamp_ms
            self.totals.took_in(record.topic, delay_ms)
        waiting = Waiting(row.physical_offset, meta_of(write_ms, flags))
        is_deletion = flags & _ROLL_AND_DELETE == FLAG_DELETE
        if wake_ms <= near_ms and (is_deletion or len(self.due) < self._due_count_max):
            self.make_ready(record, wake_ms, waiting)
        else:
            self.slots.add(wake_ms, *waiting)

    def delete(self, record: TimerRecord) -> None:
        """Take a deletion in: its target is not to be delivered, wherever the two wait."""
        slot_ms = self.slot_of(record.out_ms)
        self.due.delete(slot_ms, record.deleted_key, record.topic)
        if self.followed is not None:
            self.followed.note_deletion(Recall(slot_ms, record.deleted_key))

    def restore(self, row: FiledRow) -> None:
        """A row of the files: it waits where it was filed.

        Unless that is longer than the window, which was larger when it was filed: then it is
        rolled on at the window's end.
        """
        if row.topic_hash == self._noted_hash:
            self._noted.append(row.physical_offset)
        flags = _flags(row.magic)
        wake_ms = min(row.slot_ms, row.write_ms + self._window_slots * self.precision_ms)
        if wake_ms != row.slot_ms:
            flags |= FLAG_ROLL
            self._filed_slots[row.physical_offset] = row.slot_ms
        self.slots.add(wake_ms, row.physical_offset, meta_of(row.write_ms, flags))

    def make_ready(
        self, record: TimerRecord, slot_ms: int, waiting: Waiting, *, with_draft: bool = True
    ) -> None:
        """A waiting message's slot is near: put it in the line for delivery, or have it delete its
        target.

        Raises:
            MessageIllegal: it belongs nowhere.
        """
        flags = waiting.flags
        if self.is_deletion(waiting):
            self.drop_row(slot_ms, waiting)
            self.delete(record)
            return
        draft = self.draft_of(record, waiting)
        self.due.add(
            DueTimer(
                # A message that is rolled on has no time of its own before its slot's.
                slot_ms if flags & FLAG_ROLL else record.deliver_ms(self.precision_ms),
                waiting.physical_offset,
                slot_ms,
                self.slot_of(record.out_ms),
                waiting.meta,
                record.topic,
                b"" if flags & FLAG_ROLL else record.key,
                draft if with_draft else None,
                record.record_bytes,
                record.nonce,
            )
        )

    def draft_of(self, record: TimerRecord, waiting: Waiting) -> MessageDraft:
        """The message that is stored in the end.

        Raises:
            MessageIllegal: it belongs nowhere.
        """
        enqueued_ms = I64_MAX if waiting.flags & FLAG_DUE else waiting.enqueued_ms
        if waiting.flags & FLAG_ROLL:
            return as_rolled(record, record.deliver_ms(self.precision_ms), enqueued_ms)
        return as_delivered(record, enqueued_ms)

    # Finishing.

    def finish(self, timer: DueTimer, now_ms: int, *, was_deleted: bool = False) -> int:
        """A message is done with; returns the slot it is filed in."""
        self.due.finish(timer)
        if was_deleted:
            return self._filed_slots.pop(timer.physical_offset, timer.slot_ms)
        waiting = Waiting(timer.physical_offset, timer.meta)
        return self.finish_row(timer.slot_ms, waiting, timer.topic, now_ms)

    def finish_row(self, slot_ms: int, waiting: Waiting, topic: bytes, now_ms: int) -> int:
        """A message was delivered or rolled on; returns the slot it is filed in."""
        self.metrics.add(topic, 1 if waiting.flags & FLAG_DELETE else -1, now_ms)
        if not waiting.flags & FLAG_ROLL:
            self.totals.dequeued[topic] += 1
        return self.drop_row(slot_ms, waiting)

    def drop_row(self, slot_ms: int, waiting: Waiting) -> int:
        """A message waits no more and comes to nothing; returns the slot it is filed in."""
        return self._filed_slots.pop(waiting.physical_offset, slot_ms)

    def wait_again(self, timer: DueTimer, now_ms: int, *, was_deleted: bool) -> None:
        """A message that was done with waits as before: the reason may be cut from the log."""
        if not was_deleted:
            self.metrics.add(timer.topic, -1 if timer.meta & FLAG_DELETE else 1, now_ms)
            if not timer.meta & FLAG_ROLL:
                self.totals.dequeued[timer.topic] -= 1
        # At the latest there: the files have it no later than the line was then.
        self._filed_slots[timer.physical_offset] = max(timer.slot_ms, self.read_ms)
        self.slots.add(timer.slot_ms, timer.physical_offset, timer.meta)

    def put_away(self) -> None:
        """Messages that were made ready go back to their slots; deletions hold on."""
        for timer in self.due.take_all():
            self.slots.add(timer.slot_ms, timer.physical_offset, timer.meta)

    def is_deletion(self, waiting: Waiting) -> bool:
        """Whether a row deletes another message, and is not rolled on first."""
        return waiting.flags & _ROLL_AND_DELETE == FLAG_DELETE

    def take_deletion_of(self, record: TimerRecord) -> bool:
        """Whether a waiting message was deleted."""
        return self.due.take_deletion_of(self.slot_of(record.out_ms), record.key, record.nonce)

    def advance(self, now_ms: int, *, past_deletions: bool = False) -> int:
        """Move the line up to the first slot that is not finished, and return it.

        Deletions that are not forgotten hold it back: the files forget slots below the line, and
        the target of a deletion may outlast the slot of both, if it was rolled on too late.
        """
        line_ms = self.finished_until(now_ms)
        first_ms = self.due.deletion_slot_ms_min
        if first_ms is not None and not past_deletions:
            line_ms = min(line_ms, first_ms)
        self.read_ms = max(line_ms, self.read_ms)
        return self.read_ms

    def finished_until(self, now_ms: int) -> int:
        """The first slot that is not finished; before the line if the clock was set back."""
        late_ms = None if self.followed is None else self.followed.slot_ms_min
        return self._finished_until(now_ms, late_ms)

    def messages_finished_until(self, now_ms: int) -> int:
        """The same, as if no deletion were late."""
        late_ms = None if self.followed is None else self.followed.message_slot_ms_min
        return self._finished_until(now_ms, late_ms)

    def _finished_until(self, now_ms: int, late_ms: int | None) -> int:
        bounds = (self.slot_of(now_ms), self.slots.slot_ms_min, self.due.slot_ms_min, late_ms)
        return min(bound for bound in bounds if bound is not None)

    def forget_deletions(self, read_ms: int, now_ms: int) -> None:
        """No message whose time is before this can arrive any more."""
        for topic in self.due.forget_deletions(read_ms):
            # The deletion's message never arrived: put back the one that the deletion took off the
            # count.
            self.metrics.add(topic, 1, now_ms)

    # Figures for operators.

    def counts_by_horizon(self, now_ms: int) -> dict[int, int]:
        """How many are due within each of RocketMQ's horizons but not within the one before."""
        bounds = [now_ms + seconds * 1000 for seconds in HORIZONS_S]
        counts = self.slots.counts_before(bounds)
        near = len(self.due)
        return {
            seconds: count - (counts[index - 1] if index else -near)
            for index, (seconds, count) in enumerate(zip(HORIZONS_S, counts, strict=True))
        }

    def _hash(self, topic: bytes) -> int:
        found = self._hashes.get(topic)
        if found is None:
            found = self._hashes[topic] = java_hash(topic)
        return found


def _flags(magic: int) -> int:
    roll = FLAG_ROLL if magic & MAGIC_ROLL else 0
    return roll | (FLAG_DELETE if magic & MAGIC_DELETE else 0)
