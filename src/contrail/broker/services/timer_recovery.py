"""At the start: which timed messages wait.

If the timer files add up, the rows of the slots that are not finished wait, without those the log
says were delivered, and the timer topic is read on from where the check says. If they do not, all
of it is built anew from the log: the messages of the timer topic wait, without those that the log
says was delivered or rolled on. Either way the files are sound and complete at the end.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import groupby

from contrail.broker.services.timer_filing import TimerFiling
from contrail.broker.services.timer_intake import QUEUE_ID, TOPIC, TimerIntake
from contrail.broker.state.causes import Delivered
from contrail.broker.state.timer_records import TimerRecord
from contrail.broker.state.timer_table import TimerTable
from contrail.errors import MessageIllegal, RecordDamaged, StoreLayoutError
from contrail.model.message import StoredMessage
from contrail.model.properties import (
    REAL_TOPIC,
    TIMER_OUT_MS,
    TIMER_ROLL_TIMES,
    UNIQ_KEY,
    read_property,
)
from contrail.model.timer_row import MAGIC_DEFAULT, MAGIC_DELETE, FiledRow
from contrail.model.topic import TIMER_TOPIC
from contrail.store import CELL_COUNT, FileBatch, FoundCheck, MessageStore, RecordMarks, TimerFiles

_log = logging.getLogger(__name__)

_STEP_COUNT = 1000
_ROWS_PER_WRITE = 50_000
_NEVER_MS = -1
# ``_History`` looks at these records; RocketMQ delivers with the property and without a mark.
_MARKS = RecordMarks(frozenset((TOPIC,)), TIMER_OUT_MS.encode())
_DIGITS_MAX = 9


class TimerRecovery:
    """Fills the table; runs once, before anything is served."""

    def __init__(
        self,
        store: MessageStore,
        files: TimerFiles,
        table: TimerTable,
        intake: TimerIntake,
        filing: TimerFiling,
    ) -> None:
        self._store = store
        self._files = files
        self._table = table
        self._intake = intake
        self._filing = filing

    def run(self, delivered: Delivered, now_ms: int, *, is_anew: bool = False) -> None:
        """``is_anew``: the files are not those of the log's last deliveries."""
        try:
            found = self._files.open()
            if is_anew:
                problem = "a slave has none that are kept up to date"
            elif found is None or not self._agrees_with_queue(found):
                problem = "they are missing or damaged"
            else:
                self._load(found, delivered, now_ms)
                return
        except StoreLayoutError as error:
            problem = str(error)
        self._rebuild(problem, delivered, now_ms)

    def _agrees_with_queue(self, found: FoundCheck) -> bool:
        check = found.check
        return 0 <= check.queue_offset <= self._store.queue_offset_max(TOPIC, QUEUE_ID)

    # From the files.

    def _load(self, found: FoundCheck, delivered: Delivered, now_ms: int) -> None:
        rows = _LoadedRows(delivered.waited, self._first_unread(found))
        waiting = rows.of_slots(self._files.unfinished_rows(found))
        if found.check.read_ms > self._table.slot_of(now_ms):
            self._restore_refiled(rows, waiting, found.check.read_ms, now_ms)
        else:
            for row in waiting:
                self._restore(row)
            self._table.read_ms = found.check.read_ms or self._table.advance(now_ms)
        self._count_topics(rows, now_ms)
        self._filing.started()
        low = self._store.queue_offset_min(TOPIC, QUEUE_ID)
        self._intake.queue_offset = max(found.check.queue_offset, low)
        self._write(rows.remaining, now_ms, replaced=frozenset(rows.replaced))
        self._intake.pass_over(delivered.waited | rows.unread)
        self._take_topic(now_ms)
        self._finish(now_ms)

    def _restore_refiled(
        self, rows: _LoadedRows, waiting: Iterator[FiledRow], line_ms: int, now_ms: int
    ) -> None:
        """The clock was set back: the line moves back to it, and files of that are begun anew.

        Messages due below the line are filed in the line's slot, which may be far away now: their
        records say when they are due. The same goes for slots that are too far away for the wheel.
        """
        _log.warning("the clock was set back by %d ms: the timers follow it", line_ms - now_ms)
        self._table.read_ms = self._table.slot_of(now_ms)
        unit = self._table.precision_ms
        line_end_ms, lap_end_ms = line_ms + unit, self._table.read_ms + CELL_COUNT * unit
        refiled = []
        for row in waiting:
            if line_end_ms <= row.slot_ms < lap_end_ms:
                refiled.append(row)
            else:
                refiled += self._placed_anew(row, now_ms)
        refiled.sort(key=lambda row: row.physical_offset)
        for row in refiled:
            self._restore(row)
        # Without a check, after a crash from here on, everything is built anew from the log.
        self._files.reset(self._table.read_ms)
        rows.remaining = refiled
        rows.replaced.clear()

    def _placed_anew(self, row: FiledRow, now_ms: int) -> list[FiledRow]:
        try:
            record = TimerRecord.read(self._store.record_bytes(row.physical_offset))
        except (RecordDamaged, MessageIllegal) as error:
            _log.error("a timer message cannot be read, so it is not delivered: %s", error)
            return []
        # The row says when it was enqueued, but perhaps by a clock that was ahead.
        return [self._table.place(record, min(row.write_ms, now_ms))]

    def _restore(self, row: FiledRow) -> None:
        self._table.restore(row)
        if row.magic & MAGIC_DELETE:
            self._restore_deletion(row.physical_offset)

    def _restore_deletion(self, physical_offset: int) -> None:
        try:
            self._table.delete(TimerRecord.read(self._store.record_bytes(physical_offset)))
        except (RecordDamaged, MessageIllegal) as error:
            _log.error("a recall cannot be read, so its message will come: %s", error)

    def _first_unread(self, found: FoundCheck) -> int:
        """The physical offset of the first message the check does not know."""
        if self._store.row_is_damaged(TOPIC, QUEUE_ID, found.check.queue_offset):
            self._store.repair_row(TOPIC, QUEUE_ID, found.check.queue_offset)
        first = self._store.rows(TOPIC, QUEUE_ID, found.check.queue_offset, 1)
        return first[0].physical_offset if first else self._store.visible_end

    def _count_topics(self, rows: _LoadedRows, now_ms: int) -> None:
        for topic_hash, count in rows.counts.items():
            try:
                sample = TimerRecord.read(self._store.record_bytes(rows.samples[topic_hash]))
            except (RecordDamaged, MessageIllegal):
                continue
            self._table.metrics.add(sample.topic, count, now_ms)

    # From the log.

    def _rebuild(self, problem: str, delivered: Delivered, now_ms: int) -> None:
        low = self._store.queue_offset_min(TOPIC, QUEUE_ID)
        history = _History()
        if low < self._store.queue_offset_max(TOPIC, QUEUE_ID):
            _log.warning("the timer files are built anew from the log: %s", problem)
            history = self._read_history(low)
        self._table.reset(self._table.slot_of(now_ms))
        self._files.reset(self._table.read_ms)
        self._filing.started()
        self._intake.queue_offset = low
        self._write([], now_ms)
        self._intake.pass_over(history.waited | delivered.waited)
        self._take_topic(now_ms)
        self._finish(now_ms)

    def _read_history(self, queue_offset: int) -> _History:
        history = _History()
        if self._store.row_is_damaged(TOPIC, QUEUE_ID, queue_offset):
            self._store.repair_row(TOPIC, QUEUE_ID, queue_offset)
        first = self._store.rows(TOPIC, QUEUE_ID, queue_offset, 1)
        if not first:
            return history
        start = max(first[0].physical_offset, self._store.physical_min)
        try:
            for message in self._store.marked_between(start, self._store.visible_end, _MARKS):
                history.add(message)
        except RecordDamaged as damage:
            _log.warning("%s: messages delivered after it may be delivered again", damage)
        history.settle()
        return history

    # Both.

    def _take_topic(self, now_ms: int) -> None:
        """Enqueue the rest of the topic, writing it down from time to time."""
        while self._intake.step(now_ms, _NEVER_MS, _STEP_COUNT) or self._repaired():
            if self._filing.unfiled_count >= _ROWS_PER_WRITE:
                self._write([], now_ms)
        if self._intake.waits_for_room:
            self._intake.learn_deletions()

    def _repaired(self) -> bool:
        """Whether the intake waits for a row that could be derived from the log again."""
        if not self._intake.is_stuck:
            return False
        return self._store.repair_row(TOPIC, QUEUE_ID, self._intake.queue_offset)

    def _finish(self, now_ms: int) -> None:
        self._write([], now_ms, last=True)

    def _write(
        self,
        rows: list[FiledRow],
        now_ms: int,
        *,
        replaced: frozenset[int] = frozenset(),
        last: bool = False,
    ) -> None:
        rows += self._filing.take_unfiled()
        if last:
            rows += self._end_row()
        self._files.write(
            FileBatch(
                rows=rows,
                read_ms=self._table.read_ms,
                queue_offset=self._intake.queue_offset,
                now_ms=now_ms,
                replaced=replaced,
            )
        )
        self._filing.started()

    def _end_row(self) -> list[FiledRow]:
        """RocketMQ reads the topic on behind the last row's message: let that be the right one."""
        slot_ms = self._table.read_ms - self._table.precision_ms
        last = self._store.rows(TOPIC, QUEUE_ID, self._intake.queue_offset - 1, 1)
        return [
            FiledRow(slot_ms, slot_ms, MAGIC_DEFAULT, row.physical_offset, row.byte_count, 0)
            for row in last
        ]


@dataclass(slots=True)
class _LoadedRows:
    """The rows of the files, sorted into those that wait and those that the log knows better."""

    waited: set[int]
    first_unread: int
    # Slots some of whose messages were delivered already, and the messages left there.
    replaced: set[int] = field(default_factory=set)
    remaining: list[FiledRow] = field(default_factory=list)
    # Messages that are in the files although the check does not know of them.
    unread: set[int] = field(default_factory=set)
    counts: Counter[int] = field(default_factory=Counter)
    samples: dict[int, int] = field(default_factory=dict)

    def of_slots(self, rows: Iterator[FiledRow]) -> Iterator[FiledRow]:
        """The rows that still wait; those of one slot follow each other."""
        for slot_ms, of_slot in groupby(rows, key=lambda row: row.slot_ms):
            found = list(of_slot)
            left = [row for row in found if row.physical_offset not in self.waited]
            if len(left) < len(found):
                self.replaced.add(slot_ms)
                self.remaining += left
            for row in left:
                self._count(row)
                yield row

    def _count(self, row: FiledRow) -> None:
        if row.physical_offset >= self.first_unread:
            self.unread.add(row.physical_offset)
        self.counts[row.topic_hash] += -1 if row.magic & MAGIC_DELETE else 1
        self.samples.setdefault(row.topic_hash, row.physical_offset)


@dataclass(slots=True)
class _History:
    """The log's facts about the messages of the timer topic."""

    # Physical offsets of those that were delivered or rolled on.
    waited: set[int] = field(default_factory=set)
    _timers: dict[tuple[str, int], list[int]] = field(default_factory=dict)
    _delivered: set[str] = field(default_factory=set)
    _rolls: dict[str, int] = field(default_factory=dict)

    def add(self, message: StoredMessage) -> None:
        mark = message.prepared_transaction_offset
        if message.topic == TIMER_TOPIC:
            self._add_timer(message, is_marked=mark < 0)
        if mark < 0:
            self.waited.add(-1 - mark)
        elif TIMER_OUT_MS.encode() in message.raw_properties and message.topic != TIMER_TOPIC:
            # Delivered by RocketMQ, which leaves no mark: the unique key has to do.
            unique_key = read_property(message.raw_properties, UNIQ_KEY)
            if unique_key:
                self._delivered.add(f"{message.topic}+{unique_key}")

    def _add_timer(self, message: StoredMessage, *, is_marked: bool) -> None:
        raw = message.raw_properties
        unique_key = read_property(raw, UNIQ_KEY)
        if not unique_key:
            return
        key = f"{read_property(raw, REAL_TOPIC)}+{unique_key}"
        rolls = _roll_count(read_property(raw, TIMER_ROLL_TIMES))
        self._timers.setdefault((key, rolls), []).append(message.physical_offset)
        if rolls and not is_marked:
            self._rolls[key] = max(rolls, self._rolls.get(key, 0))

    def settle(self) -> None:
        """Add the facts that only unique keys tell."""
        for (key, rolls), places in self._timers.items():
            if key in self._delivered or rolls < self._rolls.get(key, 0):
                self.waited.update(places)
        self._timers.clear()


def _roll_count(text: str | None) -> int:
    """How often it was rolled on; a client may have put anything there."""
    text = text or ""
    is_count = text.isascii() and text.isdigit() and len(text) <= _DIGITS_MAX
    return int(text) if is_count else 0
