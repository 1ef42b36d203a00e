"""Delivers timed messages: to the millisecond, never early, every one of them.

``run`` is called many times a second and works for some milliseconds at most: it takes in new
records of the timer topic, reads near ones, and delivers due ones. Messages wait in
``state.timer_table``; RocketMQ's timer files are written beside it by ``timer_filing``.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from concurrent.futures import Executor

from contrail.broker.services.deliveries import Deliveries
from contrail.broker.services.persistence import Keeping, Render
from contrail.broker.services.timer_filing import TimerFiling
from contrail.broker.services.timer_following import TimerFollowing
from contrail.broker.services.timer_forgetting import TimerForgetting
from contrail.broker.services.timer_intake import QUEUE_ID, TOPIC, TimerIntake, log_illegal
from contrail.broker.services.timer_recovery import TimerRecovery
from contrail.broker.state.causes import Delivered
from contrail.broker.state.due_timers import DueTimer, key_of_one
from contrail.broker.state.followed_timers import Recall
from contrail.broker.state.timer_metrics import TimerTotals, encode_metrics
from contrail.broker.state.timer_records import TimerRecord, as_it_was, dequeue_stamp, stamped
from contrail.broker.state.timer_slots import Waiting
from contrail.broker.state.timer_table import TimerTable
from contrail.clock import Clock, monotonic_ms
from contrail.errors import (
    DeliveryUnderWay,
    MessageIllegal,
    PropertiesTooLarge,
    RecordDamaged,
    StoreError,
)
from contrail.model.message import MessageDraft
from contrail.runtime.files import FileSystem
from contrail.store import AppendedRun, MessageStore, StoreConfig, TimerCheck, TimerFiles

_log = logging.getLogger(__name__)

METRICS_FILE = "timermetrics"
_METRICS_INTERVAL_MS = 1000
_STEP_COUNT_MAX = 256
_STEP_BYTES_MAX = 1 << 20
_WORK_MS_MAX = 5
_IDLE_INTERVAL_MS = 40
# How long before its slot a message is read, so that delivering it takes no reading.
_READ_AHEAD_MS = 2000
# One slot earlier this many messages are brought in, where they may be on the disk only.
_ASKED_COUNT_MAX = 1000
_ASKED_BYTES = 8192
_DUE_COUNT_MAX = 50_000
# Nothing is delivered before everything near is in the line, so that order and deletions hold:
# but for this many runs only, and not with this many in the line.
_HELD_RUNS_MAX = 5
_CROWD = 5000
_HELD_BYTES_MAX = 32 << 20

# Of the time that files are kept, the part that a message may wait before it is stored again.
_KEPT_NUMERATOR, _KEPT_DENOMINATOR = 2, 3
_WINDOW_SLOTS_MIN = 3
_HOUR_MS = 3_600_000

_Pair = tuple[DueTimer, MessageDraft]


class Timers:
    """The way of timed messages from the timer topic to their own."""

    def __init__(
        self,
        store: MessageStore,
        deliveries: Deliveries,
        persistence: Keeping,
        *,
        config: StoreConfig,
        files: FileSystem,
        clock: Clock,
        writer: Executor | None = None,
    ) -> None:
        """``writer`` writes the timer files; None for a thread of their own."""
        self._store = store
        self._deliveries = deliveries
        self._clock = clock
        self._precision_ms = config.timer_precision_ms
        self._asked_slot_ms = -1
        self._table = TimerTable(
            precision_ms=config.timer_precision_ms,
            roll_window_slots=_roll_window_slots(config),
            due_count_max=_DUE_COUNT_MAX,
        )
        self._files = TimerFiles(files, config)
        self._filing = TimerFiling(
            self._files,
            store,
            deliveries,
            interval_ms=config.timer_flush_interval_ms,
            writer=writer,
        )
        self._intake = TimerIntake(store, self._table, self._filing)
        self._forgetting = TimerForgetting(store, self._table, self._intake)
        self._read_ahead_ms = max(_READ_AHEAD_MS, 2 * config.timer_precision_ms)
        self._behind = False
        self._held_runs = 0
        self._refused = False
        self._metrics_written = self._table.metrics.data_version
        self._closed = False
        self._followed: TimerCheck | None = None
        self.following: TimerFollowing | None = None
        persistence.register(
            METRICS_FILE,
            take_changed=self._take_metrics_changed,
            snapshot=self._metrics_snapshot,
            interval_ms=_METRICS_INTERVAL_MS,
        )

    # Life.

    def follow_in_group(self) -> TimerFollowing:
        """The part of a failover group's member; before ``recover``."""
        self.following = TimerFollowing(
            self._store, self._table, self._intake, self._filing, self._clock
        )
        return self.following

    def recover(self, delivered: Delivered, *, is_anew: bool = False) -> None:
        """Learn the waiting messages; before the broker serves requests, for it may take long.

        ``is_anew``: from the log alone, whatever the files say.
        """
        recovery = TimerRecovery(self._store, self._files, self._table, self._intake, self._filing)
        recovery.run(delivered, self._clock.now_ms(), is_anew=is_anew)

    def note_waiting(self, topic: bytes) -> None:
        """Have ``recover`` note where the waiting records of a topic stand."""
        self._table.note_waiting(topic)

    def take_noted(self) -> list[int]:
        """The places that ``recover`` noted, perhaps with some of other topics."""
        return self._table.take_noted()

    def stop(self) -> None:
        """Another member of the group leads: nothing that was made ready is kept."""
        self._behind = self._refused = False
        self._forgetting.begin_anew()
        self._held_runs = 0
        self._asked_slot_ms = -1

    def follow(self, check: TimerCheck) -> None:
        """Note how far the master is; for a slave, which delivers nothing.

        Only told to others: when the slave leads, the log says what was delivered, and says no more
        than it has. By a checkpoint that is ahead of the log messages would be lost.
        """
        self._followed = TimerCheck(
            read_ms=check.read_ms,
            master_queue_offset=check.master_queue_offset,
            state_version=check.state_version,
            timestamp_ms=check.timestamp_ms,
            counter=check.counter,
        )

    def run(self, now_ms: int) -> None:
        """Take, make ready and deliver, as far as some milliseconds go."""
        self._ask_for_next(now_ms + self._read_ahead_ms)
        try:
            is_ready = self._take_and_make_ready(now_ms)
            self._behind = not is_ready
            if is_ready or self._held_runs >= _HELD_RUNS_MAX or len(self._table.due) >= _CROWD:
                self._held_runs = 0
                self._behind |= self._deliver_due()
            else:
                self._held_runs += 1
        except DeliveryUnderWay:
            # The same messages are asked for again, until another broker has all of them.
            self._behind = False
        except StoreError as error:
            self._behind = False
            self._note_refusal(error)
        self._filing.tick(
            now_ms,
            queue_offset=self._intake.queue_offset,
            read_ms=self._line(now_ms),
            is_urgent=self._intake.waits_for_room,
        )
        self._forgetting.tick(now_ms)

    def _line(self, now_ms: int) -> int:
        """How far everything is finished; deletions hold it back, unless the intake needs room."""
        return self._table.advance(now_ms, past_deletions=self._intake.waits_for_room)

    def recall(
        self, topic: bytes, unique_key: bytes, nonce: bytes, out_ms: int, *, physical_end: int
    ) -> None:
        """A deletion has been stored: it holds from now on, however much is still to be taken.

        Its record ends at ``physical_end``.
        """
        recall = Recall(self._table.slot_of(out_ms), key_of_one(topic + b"+" + unique_key, nonce))
        is_new = self._table.due.delete(*recall, topic)
        if is_new and self.following is not None:
            self.following.recalled(recall, physical_end)

    def _ask_for_next(self, near_ms: int) -> None:
        """Reading old messages must not wait for the disk: it runs on the loop's thread."""
        slot_ms = (near_ms // self._precision_ms + 1) * self._precision_ms
        if slot_ms == self._asked_slot_ms:
            return
        self._asked_slot_ms = slot_ms
        for physical_offset in self._table.slots.places(slot_ms, _ASKED_COUNT_MAX):
            self._store.will_need(physical_offset, _ASKED_BYTES)

    def _take_and_make_ready(self, now_ms: int) -> bool:
        """Whether everything that is near is in the line, deletions included."""
        deadline_ms = monotonic_ms() + _WORK_MS_MAX
        near_ms = now_ms + self._read_ahead_ms
        while monotonic_ms() < deadline_ms:
            taken = self._intake.step(now_ms, near_ms, _STEP_COUNT_MAX)
            if not taken + self._make_ready(near_ms):
                return True
        return False

    def _deliver_due(self) -> bool:
        """Whether something that is due is left."""
        deadline_ms = monotonic_ms() + _WORK_MS_MAX
        while monotonic_ms() < deadline_ms:
            if not self._deliver():
                return False
        return True

    @property
    def interval_ms(self) -> int:
        """How long ``run`` can wait: not at all while something is left to do."""
        if self._refused:
            return _IDLE_INTERVAL_MS
        if self._behind or self._intake.can_go_on or self._intake.waits_for_room:
            return 0
        next_ms = self._table.due.deliver_ms_min
        if next_ms is None:
            return _IDLE_INTERVAL_MS
        return min(max(next_ms - self._clock.now_ms(), 1), _IDLE_INTERVAL_MS)

    def close(self) -> None:
        """Write down how far things are; may block. Call it while the store is open."""
        if not self._closed:
            self._closed = True
            now_ms = self._clock.now_ms()
            self._filing.close(
                now_ms, queue_offset=self._intake.queue_offset, read_ms=self._line(now_ms)
            )

    # Figures for operators.

    @property
    def durable_end(self) -> int:
        """The log position up to which the timer files speak for all deliveries."""
        held_from = self._intake.held_from
        known_from = None if self.following is None else self.following.known_from
        bounds = (self._filing.durable_end, held_from, known_from)
        return min(bound for bound in bounds if bound is not None)

    @property
    def pending_count(self) -> int:
        return len(self._table)

    @property
    def behind_count(self) -> int:
        """Messages of the timer topic that were not looked at yet."""
        if self._followed is not None:
            return max(0, self._store.queue_offset_max(TOPIC, QUEUE_ID) - self.next_place)
        return self._intake.behind_count

    @property
    def read_behind_ms(self) -> int:
        """How old the first slot is that is not finished."""
        read_ms = self._followed.read_ms if self._followed is not None else self._table.read_ms
        # Before a slave has asked its master nothing is known.
        return max(0, self._clock.now_ms() - read_ms) if read_ms else 0

    @property
    def near_count(self) -> int:
        """Messages that are read and about to be delivered."""
        return len(self._table.due)

    @property
    def next_place(self) -> int:
        """The queue offset of the first message of the timer topic that was not looked at."""
        if self._followed is not None:
            return self._followed.master_queue_offset
        return self._intake.queue_offset

    @property
    def totals(self) -> TimerTotals:
        """Messages taken in and delivered since the start."""
        return self._table.totals

    def pending_by_topic(self) -> dict[str, int]:
        return self._table.metrics.counts()

    def pending_by_horizon(self) -> dict[int, int]:
        """How many are due within 5 s, 1 min, ... 24 h, each without those of the one before."""
        return self._table.counts_by_horizon(self._clock.now_ms())

    def check_point(self) -> bytes:
        """The body of GET_TIMER_CHECK_POINT."""
        return (self._followed or self._filing.check).encode()

    def metrics(self) -> bytes:
        """The body of GET_TIMER_METRICS."""
        return encode_metrics(*self._table.metrics.snapshot())

    def _take_metrics_changed(self) -> bool:
        version = self._table.metrics.data_version
        changed = version != self._metrics_written
        self._metrics_written = version
        return changed

    def _metrics_snapshot(self) -> Render:
        copy = self._table.metrics.snapshot()
        return lambda: encode_metrics(*copy)

    # Making ready.

    def _make_ready(self, near_ms: int) -> int:
        """Read messages whose slot is near; returns how many."""
        if len(self._table.due) >= _DUE_COUNT_MAX:
            return 0
        taken = self._table.slots.take(near_ms, _STEP_COUNT_MAX)
        if taken is None:
            return 0
        slot_ms, rows = taken
        for waiting in rows:
            if self.following is None or not self.following.was_delivered(slot_ms, waiting):
                self._read_ahead(slot_ms, waiting)
        return len(rows)

    def _read_ahead(self, slot_ms: int, waiting: Waiting) -> None:
        record = self._read(waiting.physical_offset)
        if record is None:
            return
        held = self._table.due.bytes_held + record.record_bytes <= _HELD_BYTES_MAX
        try:
            self._table.make_ready(record, slot_ms, waiting, with_draft=held)
        except MessageIllegal as illegal:
            log_illegal(record, illegal)

    def _read(self, physical_offset: int) -> TimerRecord | None:
        try:
            return TimerRecord.read(self._store.record_bytes(physical_offset))
        except (RecordDamaged, MessageIllegal) as error:
            _log.error(
                "the timer message at physical offset %d cannot be delivered: %s",
                physical_offset,
                error,
            )
            return None

    # Delivering.

    def _deliver(self) -> int:
        """Deliver the next ones that are due; returns how many were dealt with."""
        now_ms = self._clock.now_ms()
        due = self._table.due.take_due(now_ms, _STEP_COUNT_MAX, _STEP_BYTES_MAX)
        if not due:
            return 0
        pairs = self._wanted(due, now_ms)
        try:
            self._append(pairs, now_ms)
        except MessageIllegal:
            self._append_singly(pairs, now_ms)
        except StoreError:
            self._table.due.put_back([timer for timer, _ in pairs])
            raise
        self._refused = False
        return len(due)

    def _wanted(self, due: list[DueTimer], now_ms: int) -> list[_Pair]:
        """The messages that were not deleted, as they will be stored."""
        stamp = dequeue_stamp(now_ms)
        pairs = []
        for timer in due:
            if self._table.due.take_deletion(timer):
                if self.following is not None:
                    self.following.deleted(timer)
                self._table.finish(timer, now_ms, was_deleted=True)
                continue
            draft = timer.draft or self._draft_again(timer)
            if draft is None:
                self._table.finish(timer, now_ms)
            else:
                pairs.append((timer, stamped(draft, stamp)))
        return pairs

    def _draft_again(self, timer: DueTimer) -> MessageDraft | None:
        record = self._read(timer.physical_offset)
        if record is None:
            return None
        return self._table.draft_of(record, Waiting(timer.physical_offset, timer.meta))

    def _append(self, pairs: Sequence[_Pair], now_ms: int) -> None:
        if pairs:
            run = self._deliveries.append([draft for _, draft in pairs])
            self._appended([timer for timer, _ in pairs], run, now_ms)

    def _append_singly(self, pairs: list[_Pair], now_ms: int) -> None:
        """Retry one by one, so that only the invalid message fails."""
        for index, (timer, draft) in enumerate(pairs):
            try:
                self._append_one(timer, draft, now_ms)
            except MessageIllegal as illegal:
                record = self._read(timer.physical_offset)
                if record is not None:
                    log_illegal(record, illegal)
                self._table.finish(timer, now_ms)
            except StoreError:
                self._table.due.put_back([timer for timer, _ in pairs[index:]])
                raise

    def _append_one(self, timer: DueTimer, draft: MessageDraft, now_ms: int) -> None:
        try:
            self._append([(timer, draft)], now_ms)
        except PropertiesTooLarge:
            record = self._read(timer.physical_offset)
            if record is None:
                raise
            self._append([(timer, as_it_was(record, draft))], now_ms)

    def _appended(self, timers: list[DueTimer], run: AppendedRun, now_ms: int) -> None:
        physical_start = run.physical_offsets[0]
        if self.following is not None:
            self.following.delivered(run.physical_offsets, timers)
        for slot_ms in {self._table.finish(timer, now_ms) for timer in timers}:
            self._filing.delivered(slot_ms, physical_start, run.physical_end)

    def _note_refusal(self, error: StoreError) -> None:
        if not self._refused:
            _log.warning("timed messages wait until the store takes messages again: %s", error)
        self._refused = True


def _roll_window_slots(config: StoreConfig) -> int:
    """How far away a message may wait without being rolled on.

    Not longer than its segment is kept: it is stored again well before that is removed.
    """
    slots = config.timer_roll_window_slots
    kept_ms = config.file_reserved_hours * _HOUR_MS
    kept_slots = kept_ms * _KEPT_NUMERATOR // (_KEPT_DENOMINATOR * config.timer_precision_ms)
    if kept_slots < _WINDOW_SLOTS_MIN:
        _log.warning(
            "fileReservedTime=%d (hours) is too short for timed messages: retention may remove "
            "them before their time; set it to 1 or more, and timerPrecisionMs to a minute at most",
            config.file_reserved_hours,
        )
        return slots if kept_ms == 0 else min(slots, _WINDOW_SLOTS_MIN)
    if kept_slots < slots:
        _log.info(
            "timerRollWindowSlot=%d is taken as %d: at most two thirds of fileReservedTime=%d",
            slots,
            kept_slots,
            config.file_reserved_hours,
        )
    return min(slots, kept_slots)
