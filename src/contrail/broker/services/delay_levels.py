"""Delivers messages after their delay level: in order, never early, from a cursor per level.

``run`` is called many times a second and works for some milliseconds at most. Due messages of one
level are appended in one run; a level waits only for itself, and for a store that takes nothing.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Mapping
from itertools import takewhile

from contrail.broker.services.cursor_file import CursorFile
from contrail.broker.services.deliveries import Deliveries
from contrail.broker.services.persistence import Persistence
from contrail.broker.state.causes import Delivered
from contrail.broker.state.clock_steps import ClockSteps
from contrail.broker.state.delay_cursors import CursorsSnapshot, DelayCursors, delivery_of
from contrail.clock import monotonic_ms
from contrail.errors import DeliveryUnderWay, MessageIllegal, RecordDamaged, StoreError
from contrail.model.message import MessageDraft, StoredMessage
from contrail.model.properties import UNIQ_KEY, read_property
from contrail.model.record import decode_record
from contrail.model.topic import SCHEDULE_TOPIC
from contrail.store import (
    DELAY_OFFSETS,
    DelayOffsetTable,
    GetResult,
    GetStatus,
    MessageStore,
    QueueRow,
)

_log = logging.getLogger(__name__)

_TOPIC = SCHEDULE_TOPIC.encode()
_RUN_COUNT_MAX = 64
# A level's first messages are brought into memory this long before the first is due.
_ASKED_AHEAD_MS = 1000
_RUN_BYTES_MAX = 1 << 20
_WORK_MS_MAX = 5
_IDLE_INTERVAL_MS = 40
# Rows looked at in one go at the start.
_RECOVERY_ROWS = 4096
_NOTHING_THERE = frozenset(
    {
        GetStatus.NO_MATCHED_LOGIC_QUEUE,
        GetStatus.NO_MESSAGE_IN_QUEUE,
        GetStatus.OFFSET_OVERFLOW_ONE,
    }
)

_Pair = tuple[bytes, MessageDraft]
"""The record of a message that waited, and the draft that is delivered."""


class DelayLevels:
    """The way of delayed messages from the schedule topic to their own."""

    def __init__(
        self,
        store: MessageStore,
        deliveries: Deliveries,
        persistence: Persistence,
        cursors: DelayCursors,
        *,
        interval_ms: int,
    ) -> None:
        """``interval_ms`` is how often the cursors are written to ``delayOffset.json``."""
        self._store = store
        self._deliveries = deliveries
        self._cursors = cursors
        self._file: CursorFile[CursorsSnapshot] = CursorFile(
            DELAY_OFFSETS.name,
            persistence,
            deliveries,
            render=_render,
            interval_ms=interval_ms,
        )
        self._levels = cursors.levels
        self._in_turn = deque(self._levels)
        self._steps = ClockSteps()
        # When the first message of a level was stored, by its physical offset.
        self._stored_ms: dict[int, tuple[int, int]] = {}
        self._asked: dict[int, int] = {}
        self._behind = False
        self._refused = False
        self._stuck: dict[int, int] = {}

    # Life.

    def recover(self, delivered: Delivered) -> None:
        """Bring the cursors up to the queues, and past the deliveries that the log names."""
        self._file.begin(delivered.physical_start)
        waited_max = max(delivered.waited, default=-1)
        moved = False
        self._take_up_unconfigured()
        told = self._told_by_records(delivered.waited)
        for level in self._levels:
            before = self._cursors.at(level)
            self._correct(level)
            self._pass_delivered(level, delivered.waited, waited_max)
            if told.get(level, 0) > self._cursors.at(level):
                self._cursors.put(level, told[level])
            moved |= self._cursors.at(level) != before
        if moved:
            self._file.note(self._deliveries.settled_end, self._cursors.snapshot())

    def take_over(self, cursors: Mapping[int, int] | None, delivered: Delivered) -> None:
        """Go on for another leader: from its ``cursors``, past all that was delivered since.

        None stands for the cursors of this folder. Memories of an earlier time as leader are
        dropped: they may speak of deliveries that were cut from the log.
        """
        self.stop()
        if cursors is not None:
            self._cursors.assign(cursors)
        self.recover(delivered)

    def stop(self) -> None:
        """Another member leads: no cursor of deliveries that are not settled is written."""
        self._file.forget()
        self._steps = ClockSteps()
        self._stored_ms.clear()
        self._asked.clear()
        self._stuck.clear()
        self._behind = self._refused = False

    def follow(self, table: DelayOffsetTable, physical_end: int) -> None:
        """Note how far the master had delivered when its log ended at ``physical_end``.

        For a slave, which delivers nothing, and which has the log up to there: cursors that were
        ahead of it would lose messages once it leads.
        """
        if self._cursors.replace(table.queue_offsets, table.data_version):
            self._file.note(physical_end, self._cursors.snapshot())

    def adopt(self, table: DelayOffsetTable) -> None:
        """Go on where another broker has delivered further; before ``recover``.

        Of a level that both delivered, each knows a beginning: the longer one is done.
        """
        for level, queue_offset in table.queue_offsets.items():
            if queue_offset > self._cursors.at(level):
                self._cursors.put(level, queue_offset)

    def run(self, now_ms: int) -> None:
        """Deliver due messages, within a few milliseconds; the levels take turns."""
        deadline_ms = monotonic_ms() + _WORK_MS_MAX
        in_turn, idle_count = self._in_turn, 0
        try:
            while idle_count < len(in_turn) and monotonic_ms() < deadline_ms:
                idle_count = 0 if self._deliver_now(in_turn[0], now_ms) else idle_count + 1
                in_turn.rotate(-1)
            self._behind = idle_count < len(in_turn)
        except StoreError as error:
            self._behind = False
            self._note_refusal(error)

    @property
    def interval_ms(self) -> int:
        """How long ``run`` can wait: not at all while something due is left."""
        return 0 if self._behind else _IDLE_INTERVAL_MS

    # Figures for operators.

    @property
    def durable_end(self) -> int:
        """The log position up to which ``delayOffset.json`` speaks for all deliveries."""
        return self._file.durable_end

    def queue_offsets(self) -> dict[int, int]:
        """The next queue offset of every level that has been used."""
        cursors = self._cursors
        used = [one for one in self._levels if cursors.knows(one) or self._queue_end(one) > 0]
        return {level: cursors.at(level) for level in used}

    def offset_table(self) -> DelayOffsetTable:
        """The same as slaves ask for it."""
        data_version = self._cursors.snapshot().data_version
        return DelayOffsetTable(self.queue_offsets(), data_version)

    def pending_counts(self) -> dict[int, int]:
        """How many messages wait, by level; levels without any are left out."""
        cursors = self._cursors
        counts = {level: self._queue_end(level) - cursors.at(level) for level in self._levels}
        return {level: count for level, count in counts.items() if count > 0}

    # Delivering.

    def _deliver_now(self, level: int, now_ms: int) -> bool:
        try:
            return self._deliver(level, now_ms)
        except DeliveryUnderWay:
            # The same run is asked for again, until another broker has all of it.
            return False

    def _deliver(self, level: int, now_ms: int) -> bool:
        """One run of a level; whether it is worth looking again now."""
        due_count = self._due_count(level, now_ms)
        if due_count == 0:
            return False
        found = self._store.get(
            _TOPIC,
            level - 1,
            self._cursors.at(level),
            count_max=due_count,
            bytes_max=_RUN_BYTES_MAX,
        )
        if found.status is not GetStatus.FOUND:
            return self._pass_unreadable(level, found, now_ms)
        self._append(level, self._pairs(level, found), found.next_queue_offset, now_ms)
        return True

    def _due_count(self, level: int, now_ms: int) -> int:
        queue_offset = self._cursors.at(level)
        if queue_offset == self._queue_end(level):
            return 0
        first = self._store.rows(_TOPIC, level - 1, queue_offset, 1)
        if not first:
            # The next read finds out why.
            return 1
        if not self._is_due(level, first[0], now_ms):
            self._cursors.put(level, queue_offset)
            if first[0].tags_code - now_ms < _ASKED_AHEAD_MS:
                self._ask_for(level, queue_offset)
            return 0
        rows = self._store.rows(_TOPIC, level - 1, queue_offset, _RUN_COUNT_MAX)
        return sum(1 for _ in takewhile(lambda row: self._is_due(level, row, now_ms), rows))

    def _is_due(self, level: int, row: QueueRow, now_ms: int) -> bool:
        deliver_ms, queue_offset = row.tags_code, row.queue_offset
        if deliver_ms <= now_ms:
            return True
        is_near = deliver_ms <= now_ms + self._cursors.delay_ms(level)
        if is_near and not self._steps.concern(level, queue_offset):
            return False
        stored_ms = self._when_stored(level, row)
        if self._steps.is_news(level, queue_offset, stored_ms=stored_ms, now_ms=now_ms):
            self._notice_step(level, queue_offset, now_ms)
        due_ms = self._steps.due_ms(level, queue_offset, stored_ms=stored_ms, deliver_ms=deliver_ms)
        return due_ms <= now_ms

    def _notice_step(self, level: int, queue_offset: int, now_ms: int) -> None:
        """The clock was set back: now, or before the first message that was stored after it."""
        near_ms = now_ms + self._cursors.delay_ms(level)
        for row in self._store.rows(_TOPIC, level - 1, queue_offset, _RECOVERY_ROWS):
            if row.tags_code <= near_ms and (stored_ms := self._when_stored(level, row)) <= now_ms:
                self._steps.notice(level, stored_ms, row.queue_offset)
                return
        self._steps.notice(level, now_ms, self._queue_end(level))

    def _when_stored(self, level: int, row: QueueRow) -> int:
        known = self._stored_ms.get(level)
        if known is None or known[0] != row.physical_offset:
            try:
                stored_ms = self._store.record(row.physical_offset).store_timestamp_ms
            except RecordDamaged:
                # A message that cannot be read is passed over when its level says that it is due.
                stored_ms = row.tags_code - self._cursors.delay_ms(level)
            known = self._stored_ms[level] = (row.physical_offset, stored_ms)
        return known[1]

    def _ask_for(self, level: int, queue_offset: int) -> None:
        """Reading old messages must not wait for the disk: it runs on the loop's thread."""
        if self._asked.get(level) == queue_offset:
            return
        self._asked[level] = queue_offset
        for row in self._store.rows(_TOPIC, level - 1, queue_offset, _RUN_COUNT_MAX):
            self._store.will_need(row.physical_offset, row.byte_count)

    def _pairs(self, level: int, found: GetResult) -> list[_Pair]:
        """Every message that was read, with the draft that is delivered."""
        pairs = []
        for view in found.records:
            record = bytes(view)
            try:
                pairs.append((record, delivery_of(record)))
            except RecordDamaged as damage:
                _log.error("delay level %d: passed over: %s", level, damage)
            except MessageIllegal as illegal:
                _log_illegal(level, _message_in(record), illegal)
        return pairs

    def _append(self, level: int, pairs: list[_Pair], next_queue_offset: int, now_ms: int) -> None:
        physical_end = self._deliveries.settled_end
        try:
            if pairs:
                physical_end = self._deliveries.append([draft for _, draft in pairs]).physical_end
        except MessageIllegal:
            physical_end = self._append_singly(level, pairs, now_ms)
        self._refused = False
        self._moved(level, next_queue_offset, physical_end, now_ms)

    def _append_singly(self, level: int, pairs: list[_Pair], now_ms: int) -> int:
        """Retry one by one, so that only the invalid message is passed over."""
        physical_end = self._deliveries.settled_end
        for record, draft in pairs:
            message = _message_in(record)
            try:
                physical_end = self._deliveries.append([draft]).physical_end
            except MessageIllegal as illegal:
                _log_illegal(level, message, illegal)
            self._moved(level, message.queue_offset + 1, physical_end, now_ms)
        return physical_end

    def _moved(self, level: int, queue_offset: int, physical_end: int, now_ms: int) -> None:
        self._cursors.delivered_to(level, queue_offset, now_ms)
        self._file.note(physical_end, self._cursors.snapshot())

    def _note_refusal(self, error: StoreError) -> None:
        if not self._refused:
            _log.warning("delayed messages wait until the store takes messages again: %s", error)
        self._refused = True

    # Records that cannot be read.

    def _pass_unreadable(self, level: int, found: GetResult, now_ms: int) -> bool:
        """Move a cursor behind messages that are gone; whether the queue has any behind them."""
        queue_offset, behind = self._cursors.at(level), found.next_queue_offset
        if found.status in _NOTHING_THERE:
            return False
        if found.status is GetStatus.QUEUE_ENTRY_DAMAGED or behind == queue_offset:
            self._note_stuck(level, queue_offset, found.status)
            return False
        if self._cursors.knows(level):
            _log.error(
                "delay level %d: queue offsets %d to %d cannot be delivered (%s), at physical "
                "offsets %s; passed over",
                level,
                queue_offset,
                behind - 1,
                found.status.value,
                found.damaged or "that are gone",
            )
        self._moved(level, behind, self._deliveries.settled_end, now_ms)
        return True

    def _note_stuck(self, level: int, queue_offset: int, status: GetStatus) -> None:
        """The row is wrong, not the message: it is derived again by the store's scrubber."""
        if self._stuck.get(level) != queue_offset:
            self._stuck[level] = queue_offset
            _log.error(
                "delay level %d waits at queue offset %d for its row to be derived again (%s)",
                level,
                queue_offset,
                status.value,
            )

    # At the start.

    @property
    def forgotten_from(self) -> int | None:
        """Where messages begin whose deliveries the cursors may have forgotten; None: nowhere.

        A message is delivered behind the place where it waited.
        """
        return None if self._cursors.are_newest else self.waiting_from

    @property
    def waiting_from(self) -> int | None:
        """Where the first message behind a cursor waits; None: no message does.

        Deliveries that the cursors do not speak for stand behind it in the log.
        """
        found = []
        for topic, queue_id in self._store.queues():
            if topic == _TOPIC:
                low = self._store.queue_offset_min(_TOPIC, queue_id)
                queue_offset = max(self._cursors.at(queue_id + 1), low)
                rows = self._store.rows(_TOPIC, queue_id, queue_offset, 1)
                found += [row.physical_offset for row in rows]
        return min(found, default=None)

    def _take_up_unconfigured(self) -> None:
        """A level that was configured once may have messages left: each knows its own time."""
        configured = self._cursors.levels
        queue_ids = [queue_id for topic, queue_id in self._store.queues() if topic == _TOPIC]
        left = sorted(
            queue_id + 1
            for queue_id in queue_ids
            if queue_id + 1 not in configured
            and self._cursors.at(queue_id + 1) < self._queue_end(queue_id + 1)
        )
        self._levels = (*configured, *left)
        self._in_turn = deque(self._levels)
        if left:
            _log.warning(
                "messages wait in delay levels %s, which messageDelayLevel no longer has; they are "
                "delivered at the times they were stored with",
                left,
            )

    def _correct(self, level: int) -> None:
        low, high = self._store.queue_offset_min(_TOPIC, level - 1), self._queue_end(level)
        before = self._cursors.correct(level, queue_offset_min=low, queue_offset_max=high)
        if before is not None:
            _log.warning(
                "delay level %d: delayOffset.json says %d, the queue holds %d to %d; "
                "delivery goes on at %d",
                level,
                before,
                low,
                high,
                self._cursors.at(level),
            )

    def _pass_delivered(self, level: int, waited: set[int], waited_max: int) -> None:
        """A level is delivered in order: its cursor belongs behind the last that was delivered."""
        queue_offset = self._cursors.at(level)
        while rows := self._store.rows(_TOPIC, level - 1, queue_offset, _RECOVERY_ROWS):
            for row in rows:
                if row.physical_offset in waited:
                    self._cursors.put(level, row.queue_offset + 1)
            if rows[-1].physical_offset > waited_max:
                return
            queue_offset += len(rows)

    def _told_by_records(self, waited: set[int]) -> dict[int, int]:
        """By level, the offset behind the last delivery; rows may be damaged, or missing."""
        told: dict[int, int] = {}
        for place in waited:
            try:
                message = self._store.record(place)
            except RecordDamaged:
                # The record is gone, or damaged since it was delivered: its row tells when it was
                # due.
                continue
            if message.topic == SCHEDULE_TOPIC:
                level = message.queue_id + 1
                told[level] = max(told.get(level, 0), message.queue_offset + 1)
        return told

    def _queue_end(self, level: int) -> int:
        return self._store.queue_offset_max(_TOPIC, level - 1)


def _render(snapshot: CursorsSnapshot) -> bytes:
    return DELAY_OFFSETS.render(DelayOffsetTable(*snapshot))


def _message_in(record: bytes) -> StoredMessage:
    # The read has compared the checksum already.
    return decode_record(record, check_body_crc=False)


def _log_illegal(level: int, message: StoredMessage, illegal: MessageIllegal) -> None:
    _log.error(
        "delay level %d: the message at queue offset %d, physical offset %d (%s=%s) can never be "
        "delivered and is passed over: %s",
        level,
        message.queue_offset,
        message.physical_offset,
        UNIQ_KEY,
        read_property(message.raw_properties, UNIQ_KEY),
        illegal,
    )
