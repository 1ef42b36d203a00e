"""The fates of transactions: decided once, written with their effects, never twice.

A commit is one run of the log: the message in its own topic, and the op record that names it. The
log keeps a prefix of a run that a crash cuts off; then the commit alone is there and counts. Ends
of one tick go into one run. Everything is done on the loop's thread.

The cursors of RocketMQ's own group stand in ``consumerOffset.json``: in the half queue at the
lowest offset that is open, in the op queue at the first record that names an offset from there on.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from contrail.broker.services.followed_transactions import FollowedTransactions
from contrail.broker.services.stored_records import record_at
from contrail.broker.services.transaction_recovery import (
    OpRow,
    TransactionLog,
    read_row,
    rebuild,
)
from contrail.broker.state.causes import Delivered
from contrail.broker.state.consumer_offsets import ConsumerOffsets
from contrail.broker.state.durable_marks import DurableMarks
from contrail.broker.state.recent_halves import RecentHalves
from contrail.broker.state.transaction_records import (
    FATE_WORDS,
    HALF,
    OP,
    QUEUE_ID,
    Fate,
    Half,
    Mark,
    commit_draft,
    op_drafts,
)
from contrail.broker.state.transactions import OpenTransactions
from contrail.clock import Clock, monotonic_ms
from contrail.errors import (
    MessageIllegal,
    RecordDamaged,
    RequestRejected,
    StoreError,
    StoreReadOnly,
)
from contrail.model.message import MessageDraft, StoredMessage
from contrail.model.topic import HALF_TOPIC, OP_HALF_TOPIC
from contrail.protocol.codes import ResponseCode
from contrail.store import AppendedRun, NotInMemory

_log = logging.getLogger(__name__)

GROUP = "CID_RMQ_SYS_TRANS"
_READ_COUNT_MAX = 128
_WORK_MS_MAX = 5
_IDLE_INTERVAL_MS = 100
_RUN_BYTES_MAX = 1 << 20
_MARKS_PER_RUN = 4000

_T = TypeVar("_T")
Told = Callable[[int, StoreError | None], None]
"""Learns how far the log must be durable for a decision to hold, or why there is none."""


class Attempt(Protocol):
    """Carries out work that reads old messages, unless records have to be brought in first."""

    def __call__(self, work: Callable[[], _T], /) -> _T:
        """Raises ``NotInMemory``: try again a little later."""
        ...


def at_once(work: Callable[[], _T], /) -> _T:
    """Read without regard to waits for the disk."""
    return work()


class Appending(Protocol):
    """The way into the log."""

    def append(self, drafts: Sequence[MessageDraft]) -> AppendedRun: ...
    @property
    def settled_end(self) -> int: ...


@dataclass(slots=True)
class _Decision:
    half: Half
    fate: Fate
    draft: MessageDraft | None
    told: list[Told] = field(default_factory=list)

    def tell(self, physical_end: int, error: StoreError | None) -> None:
        for told in self.told:
            told(physical_end, error)


class Transactions:
    """Decides transactions and keeps the cursors of the half and the op queue."""

    def __init__(
        self,
        store: TransactionLog,
        deliveries: Appending,
        offsets: ConsumerOffsets,
        table: OpenTransactions,
        clock: Clock,
        *,
        store_host: bytes,
        attempt: Attempt = at_once,
        work_ms_max: int = _WORK_MS_MAX,
    ) -> None:
        self._attempt = attempt
        self._work_ms_max = work_ms_max
        self._store = store
        self._deliveries = deliveries
        self._offsets = offsets
        self._table = table
        self._clock = clock
        self._store_host = store_host
        self.recent = RecentHalves(store_host=store_host)
        # Decisions that are written at the end of the tick.
        self.waiting: dict[Half, _Decision] = {}
        self._waiting_bytes = 0
        self._ops: deque[OpRow] = deque()
        self._op_next = 0
        self._marks: DurableMarks[tuple[int, int]] = DurableMarks()
        self._noted: tuple[int, int] | None = None
        self._held_back: int | None = None
        self._held_back_until = 0
        self.appended_end = 0
        self._behind = False

    # Life.

    def recover(self, delivered: Delivered) -> None:
        """Learn the open transactions; ``run`` marks ends that the log has without op records."""
        op_cursor = self._cursor(OP)
        self._ops, self._held_back = rebuild(
            self._store,
            self._table,
            delivered,
            half_cursor=self._cursor(HALF),
            op_cursor=op_cursor,
        )
        self._op_next = max(op_cursor, self._store.queue_offset_max(OP, QUEUE_ID))
        _log.info("%d transactions are open", len(self._table))

    # As a member of a failover group.

    def begin_following(self, followed: FollowedTransactions) -> None:
        """Have the followed table begin where ``recover`` has ended; none is open here."""
        followed.begin(self._table, self._ops, self._op_next)
        self._table.assign(OpenTransactions())

    def take_over(self, followed: FollowedTransactions) -> None:
        """Go on for another leader, from what is committed."""
        self.stop()
        self._table.assign(followed.table)
        self._ops, self._op_next = deque(followed.ops), followed.op_next

    def stop(self) -> None:
        """Another member leads: decisions that wait come to nothing, and no cursor is written."""
        waiting, self.waiting = self.waiting, {}
        self._waiting_bytes = 0
        for decision in waiting.values():
            decision.tell(0, StoreReadOnly("this member of the failover group leads no more"))
        self._table.assign(OpenTransactions())
        self.recent.clear()
        self._marks = DurableMarks()
        self._noted = self._held_back = None
        self._behind = False

    @property
    def cursors(self) -> tuple[int, int] | None:
        """The half and the op queue's cursors as all is appended; None while op records lack."""
        return None if self._table.has_unmarked else self._cursors()

    def take_cursors(self, half_cursor: int, op_cursor: int) -> None:
        """Begin there; before ``recover``."""
        self._offsets.keep_own(GROUP, HALF_TOPIC, QUEUE_ID, half_cursor)
        self._offsets.keep_own(GROUP, OP_HALF_TOPIC, QUEUE_ID, op_cursor)

    def run(self, now_ms: int) -> None:
        """Take in stored half messages, and write down how far all are decided."""
        self.append_run()
        if self._table.has_unmarked:
            self._mark_missing()
        try:
            self._behind = self._attempt(lambda: self.read_new(work_ms_max=self._work_ms_max))
        except NotInMemory:
            # The record is being brought in: the next run reads on from there.
            self._behind = False
        self.keep_cursors()

    @property
    def interval_ms(self) -> int:
        """How long ``run`` can wait: not at all while half messages are left to be taken in."""
        return 0 if self._behind else _IDLE_INTERVAL_MS

    @property
    def durable_end(self) -> int:
        """The log position from which on a start may look for commits without op records."""
        settled_end = self._deliveries.settled_end
        if self._held_back is not None:
            if self._table.has_unmarked or settled_end < self._held_back_until:
                return self._held_back
            self._held_back = None
        return settled_end

    def read_new(self, *, work_ms_max: int) -> bool:
        """Take in half messages that were stored since the last time, as far as the time goes.

        True if there may be more.
        """
        deadline_ms = monotonic_ms() + work_ms_max
        while self._read_rows():
            if monotonic_ms() >= deadline_ms:
                return True
        return False

    def _read_rows(self) -> bool:
        table, store = self._table, self._store
        if store.queue_offset_max(HALF, QUEUE_ID) <= table.next_queue_offset:
            return False
        # Ends came for most of them already: their rows need no reading.
        table.pass_known(store.queue_offset_max(HALF, QUEUE_ID))
        first = max(table.next_queue_offset, store.queue_offset_min(HALF, QUEUE_ID))
        rows = store.rows(HALF, QUEUE_ID, first, _READ_COUNT_MAX)
        for row in rows:
            message = read_row(store, HALF, row) if table.needs(row.queue_offset) else None
            if message is not None:
                table.take(message)
            elif table.needs(row.queue_offset) and store.row_is_damaged(
                HALF, QUEUE_ID, row.queue_offset
            ):
                # The row is wrong, not the message: it is waited for until it is derived again.
                return False
            table.pass_to(row.queue_offset + 1)
        return bool(rows)

    # Deciding.

    def look_up(self, physical_offset: int) -> tuple[StoredMessage, Half | None]:
        """A record of the half queue, and the open transaction that it belongs to.

        The place comes from a client, and could lie in the body of somebody's message.

        Raises:
            RequestRejected: no half message is there.
        """
        recent = self.recent.take(physical_offset)
        if recent is not None:
            return recent, self._table.find(recent)
        try:
            message = record_at(self._store, physical_offset)
        except RecordDamaged as damage:
            raise _no_half(physical_offset) from damage
        if message.topic != HALF_TOPIC:
            raise _no_half(physical_offset)
        return message, self._table.find(message)

    def decide(self, half: Half, message: StoredMessage, fate: Fate, told: Told) -> None:
        """Give an open transaction its fate at the end of this tick.

        Raises:
            RequestRejected: the same tick gave it the other one, it can never be committed, or it
                is a row of a sink.
        """
        if half.sink is not None:
            raise RequestRejected(
                ResponseCode.ILLEGAL_OPERATION,
                f"transaction {half.key!r} is a row of sink {half.sink.key.sink_id!r}, "
                "which commits its rows together",
            )
        waiting = self.waiting.get(half)
        if waiting is None:
            waiting = _Decision(half, fate, _committed(message, half, fate))
            self.waiting[half] = waiting
            self._waiting_bytes += len(message.body)
        elif waiting.fate is not fate:
            raise decided_otherwise(half.key, waiting.fate)
        waiting.told.append(told)
        if self._waiting_bytes > _RUN_BYTES_MAX:
            self.append_run()

    def append_run(self) -> None:
        """Write the decisions that wait, and answer the producers that wait for them."""
        if not self.waiting:
            return
        decisions = list(self.waiting.values())
        self.waiting, self._waiting_bytes = {}, 0
        try:
            self._append_decisions(decisions)
        except MessageIllegal:
            # One of them breaks a limit: retry one by one, so that only that one is refused.
            for decision in decisions:
                self._append_alone(decision)
        except StoreError as error:
            for decision in decisions:
                decision.tell(0, error)

    def _append_alone(self, decision: _Decision) -> None:
        try:
            self._append_decisions([decision])
        except StoreError as error:
            decision.tell(0, error)

    def _append_decisions(self, decisions: list[_Decision]) -> None:
        drafts = [
            # A copy may have been put back since: the log's end is read by the newest one.
            draft
            if draft.prepared_transaction_offset == decision.half.physical_offset
            else draft._replace(prepared_transaction_offset=decision.half.physical_offset)
            for decision in decisions
            if (draft := decision.draft) is not None
        ]
        marks = [(decision.half.queue_offset, decision.fate) for decision in decisions]
        run = self.append(drafts, marks)
        now_ms = self._clock.now_ms()
        for decision in decisions:
            self._table.close(decision.half, decision.fate, now_ms)
        for decision in decisions:
            decision.tell(run.physical_end, None)

    def append(self, drafts: Sequence[MessageDraft], marks: Sequence[Mark]) -> AppendedRun:
        """Append messages together with the op records that belong to them, in one run.

        Raises:
            MessageIllegal: one of them breaks a limit; nothing was stored.
            StoreError: the store takes nothing now; nothing was stored.
        """
        missing = self._table.unmarked(_MARKS_PER_RUN)
        ops = op_drafts(
            [*missing, *marks], now_ms=self._clock.now_ms(), store_host=self._store_host
        )
        run = self._deliveries.append([*drafts, *ops])
        self.appended_end = run.physical_end
        self._note_ops(ops, run.queue_offsets[len(drafts) :])
        if missing:
            self._table.marked(len(missing))
            self._held_back_until = run.physical_end
        return run

    def _note_ops(self, ops: list[MessageDraft], queue_offsets: list[int]) -> None:
        for draft, queue_offset in zip(ops, queue_offsets, strict=True):
            numbers = draft.body.split(b",")[:-1]
            self._ops.append((queue_offset, max(map(int, numbers))))
            self._op_next = queue_offset + 1

    def _mark_missing(self) -> None:
        try:
            self.append([], [])
        except StoreError as error:
            _log.warning("op records cannot be written now and are tried again: %s", error)

    # Cursors.

    def _cursor(self, topic: bytes) -> int:
        """Where to begin: the cursor, brought within the queue."""
        name = topic.decode()
        low = self._store.queue_offset_min(topic, QUEUE_ID)
        high = self._store.queue_offset_max(topic, QUEUE_ID)
        cursor = self._offsets.query(GROUP, name, QUEUE_ID)
        if cursor > high:
            _log.warning("%s ends at %d, its cursor was at %d", name, high, cursor)
            self._offsets.keep_own(GROUP, name, QUEUE_ID, high)
        return min(max(cursor, low), high)

    def keep_cursors(self) -> None:
        """Note down how far all is decided, as far as the log is durable."""
        cursors = self._cursors()
        if cursors != self._noted and not self._table.has_unmarked:
            self._noted = cursors
            # Even records that were only read must be durable: else offsets are given out again.
            self._marks.note(self._store.physical_end, cursors)
        newest = self._marks.take(self._deliveries.settled_end)
        if newest is not None:
            self._offsets.keep_own(GROUP, HALF_TOPIC, QUEUE_ID, newest[1][0])
            self._offsets.keep_own(GROUP, OP_HALF_TOPIC, QUEUE_ID, newest[1][1])

    def _cursors(self) -> tuple[int, int]:
        half_cursor = self._table.half_cursor
        while self._ops and self._ops[0][1] < half_cursor:
            self._ops.popleft()
        return half_cursor, self._ops[0][0] if self._ops else self._op_next


def _committed(message: StoredMessage, half: Half, fate: Fate) -> MessageDraft | None:
    if fate is not Fate.COMMITTED:
        return None
    try:
        return commit_draft(message, half)
    except ValueError as error:
        raise RequestRejected(ResponseCode.MESSAGE_ILLEGAL, str(error)) from error


def _no_half(physical_offset: int) -> RequestRejected:
    return RequestRejected(
        ResponseCode.SYSTEM_ERROR, f"no half message is stored at {physical_offset}"
    )


def decided_otherwise(key: str, fate: Fate) -> RequestRejected:
    """The refusal of a second fate."""
    return RequestRejected(
        ResponseCode.ILLEGAL_OPERATION,
        f"transaction {key!r} was {FATE_WORDS[fate]} already, and stays so",
    )
