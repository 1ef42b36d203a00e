"""Commits and rolls back the rows that sinks prepared: many at a time, each of them once.

A commit is carried out in small steps between other work, in the order of the rows, and may be
broken off anywhere: rows left open are met by the next one. A row that was prepared twice, since
a task repeated a request, is committed once; the ledger knows.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from contrail.broker.services.sink_ledger import SinkLedgerFile
from contrail.broker.services.transactions import Attempt, Transactions, at_once
from contrail.broker.state.sink_ledger import NOTHING_YET, Reached, SinkRow, Target
from contrail.broker.state.transaction_records import Fate, Half, Mark, commit_draft
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
from contrail.protocol.codes import ResponseCode
from contrail.store import NotInMemory

_log = logging.getLogger(__name__)

JOB_COUNT_MAX = 1000
_WORK_MS_MAX = 5
_STEP_COUNT_MAX = 256
_STEP_BYTES_MAX = 1 << 20
_RETRY_INTERVAL_MS = 20
_IDLE_INTERVAL_MS = 1000
"""How often ``run`` is to be called, for work that waits for the log or the disk."""


@dataclass(frozen=True, slots=True)
class Ended:
    """The outcome of a request, and how far the log must be durable for it to hold."""

    committed: int
    rolled_back: int
    physical_end: int


Told = Callable[[Ended | StoreError], None]
Choice = Callable[[SinkRow], Fate | None]
"""The fate of an open row; None if it stays open."""


class RowLog(Protocol):
    """The store as these transactions read it."""

    def record(self, physical_offset: int) -> StoredMessage: ...
    @property
    def dispatched_end(self) -> int: ...


@dataclass(slots=True)
class _Job:
    """One COMMIT or ABORT that is being carried out."""

    name: object
    sink_id: str
    choice: Choice
    # The rows to end, with their fates; None until all prepared rows are known.
    rows: deque[tuple[Half, Fate]] | None = None
    told: list[Told] = field(default_factory=list)
    committed: int = 0
    rolled_back: int = 0


@dataclass(slots=True)
class _Step:
    """The effects of one run of the log."""

    drafts: list[MessageDraft] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)
    ended: list[tuple[Half, Fate]] = field(default_factory=list)
    reached: dict[tuple[str, Target], Reached] = field(default_factory=dict)
    byte_count: int = 0

    @property
    def is_full(self) -> bool:
        return len(self.ended) >= _STEP_COUNT_MAX or self.byte_count >= _STEP_BYTES_MAX


class SinkTransactions:
    """Ends prepared rows when their sink says so."""

    def __init__(
        self,
        file: SinkLedgerFile,
        transactions: Transactions,
        table: OpenTransactions,
        store: RowLog,
        clock: Clock,
        *,
        wake: Callable[[], object],
        attempt: Attempt = at_once,
        work_ms_max: int = _WORK_MS_MAX,
    ) -> None:
        """``wake`` has ``carry_on`` called soon, after all other work."""
        self._wake = wake
        self._file = file
        self._ledger = file.ledger
        self._transactions = transactions
        self._table = table
        self._store = store
        self._clock = clock
        self._attempt = attempt
        self._work_ms_max = work_ms_max
        self._jobs: deque[_Job] = deque()
        # Whether time ran out before the work did.
        self.is_behind = False

    def commit(self, sink_id: str, batch_id: int, attempts: Mapping[int, str], told: Told) -> None:
        """Make messages of the rows of these attempts; older and other ones are rolled back."""

        def choice(row: SinkRow) -> Fate | None:
            if row.key.batch_id > batch_id:
                return None
            is_named = attempts.get(row.key.partition) == row.attempt
            is_chosen = is_named and row.key.batch_id == batch_id
            return Fate.COMMITTED if is_chosen else Fate.ROLLED_BACK

        name = ("commit", sink_id, batch_id, tuple(sorted(attempts.items())))
        self._add(name, sink_id, choice, told)

    def abort(self, sink_id: str, batch_id: int, attempts: frozenset[str], told: Told) -> None:
        """Roll back the rows of these attempts."""

        def choice(row: SinkRow) -> Fate | None:
            is_meant = row.key.batch_id == batch_id and row.attempt in attempts
            return Fate.ROLLED_BACK if is_meant else None

        self._add(("abort", sink_id, batch_id, attempts), sink_id, choice, told)

    def _add(self, name: object, sink_id: str, choice: Choice, told: Told) -> None:
        for job in self._jobs:
            # A driver that got no answer in time asks again.
            if job.name == name:
                job.told.append(told)
                return
        if len(self._jobs) >= JOB_COUNT_MAX:
            raise RequestRejected(
                ResponseCode.SYSTEM_BUSY, f"{JOB_COUNT_MAX} commits of sinks are under way already"
            )
        self._jobs.append(_Job(name, sink_id, choice, told=[told]))
        self.run(self._clock.now_ms())

    # Working.

    def run(self, now_ms: int) -> None:
        """Carry on with the work that is under way, within a few milliseconds."""
        deadline_ms = monotonic_ms() + self._work_ms_max
        stuck_count = 0
        while stuck_count < len(self._jobs) and monotonic_ms() < deadline_ms:
            stuck_count = 0 if self._advance(now_ms) else stuck_count + 1
        self.is_behind = stuck_count < len(self._jobs)
        if self.is_behind:
            self._wake()

    def stop(self) -> None:
        """Another member of the group leads: rows stay open until their sink asks there."""
        jobs, self._jobs = self._jobs, deque()
        self.is_behind = False
        for job in jobs:
            for told in job.told:
                told(StoreReadOnly("this member of the failover group leads no more"))

    @property
    def interval_ms(self) -> int:
        """How long ``run`` can wait."""
        return _RETRY_INTERVAL_MS if self._jobs else _IDLE_INTERVAL_MS

    def carry_on(self) -> None:
        """Go on with work that time ran out for, if there is any."""
        self.run(self._clock.now_ms())

    def _advance(self, now_ms: int) -> bool:
        """One step of the job that is next; False if it has to wait for something."""
        job = self._jobs[0]
        try:
            goes_on = self._work(job, now_ms)
        except NotInMemory:
            goes_on = False
        except StoreError as error:
            self._finish(job, error)
            return True
        if job.rows is not None and not job.rows:
            self._finish(job, None)
        else:
            self._jobs.rotate(-1)
        return goes_on

    def _finish(self, job: _Job, error: StoreError | None) -> None:
        self._jobs.popleft()
        end = max(self._ledger.appended_end(job.sink_id), self._transactions.appended_end)
        ended = Ended(job.committed, job.rolled_back, end)
        if error is not None:
            _log.warning("rows of sink %r stay open: %s", job.sink_id, error)
        for told in job.told:
            told(error or ended)

    def _work(self, job: _Job, now_ms: int) -> bool:
        """One step of a job; False if it cannot go on yet."""
        if job.rows is None:
            if self._store.dispatched_end < self._ledger.appended_end(job.sink_id):
                return False
            if self._attempt(self._read_some):
                return True
            job.rows = self._chosen(job)
        step = self._attempt(lambda: self._plan(job.rows or deque()))
        if step.ended:
            self._carry_out(job, step, now_ms)
        return True

    def _read_some(self) -> bool:
        """Take in prepared rows; True if there may be more."""
        return self._transactions.read_new(work_ms_max=self._work_ms_max)

    def _chosen(self, job: _Job) -> deque[tuple[Half, Fate]]:
        """In the order of the rows: half messages that were put back have changed theirs."""
        chosen: list[tuple[Half, Fate]] = []
        for half in self._table.of_sink(job.sink_id):
            fate = None if half.sink is None else job.choice(half.sink)
            if fate is not None:
                chosen.append((half, fate))
        chosen.sort(key=_row_order)
        return deque(chosen)

    def _plan(self, rows: deque[tuple[Half, Fate]]) -> _Step:
        """As many rows as one run takes; nothing is changed before all of them were read."""
        step = _Step()
        for half, fate in rows:
            if step.is_full:
                break
            try:
                self._plan_row(step, half, fate)
            except NotInMemory:
                if not step.ended:
                    raise
                # The rows that were read are worth a run; the next one begins with this row.
                break
        return step

    def _plan_row(self, step: _Step, half: Half, fate: Fate) -> None:
        if half not in self._table:
            # The job was given up in the meantime.
            step.ended.append((half, Fate.SUPERSEDED))
            return
        if fate is Fate.COMMITTED and not self._plan_commit(step, half):
            fate = Fate.ROLLED_BACK
        step.marks.append((half.queue_offset, fate))
        step.ended.append((half, fate))

    def _plan_commit(self, step: _Step, half: Half) -> bool:
        """Add the message to the step; False if its queue has the row already."""
        row = half.sink
        assert row is not None, "only rows of sinks are ended here"
        draft = _message(self._store, half)
        topic = draft.topic.decode("utf-8", "replace")
        place = row.key.sink_id, (topic, draft.queue_id, row.key.partition)
        known = step.reached.get(place, NOTHING_YET)
        known = max(known, self._ledger.reached(row.key, topic, draft.queue_id))
        if (row.key.batch_id, row.seq) <= known:
            return False
        step.reached[place] = (row.key.batch_id, row.seq)
        step.drafts.append(draft)
        step.byte_count += len(draft.body)
        return True

    def _carry_out(self, job: _Job, step: _Step, now_ms: int) -> None:
        assert job.rows is not None, "rows were planned"
        if step.marks:
            self._file.changing()
            run = self._transactions.append(step.drafts, step.marks)
            self._ledger.heard(job.sink_id, now_ms).appended_end = run.physical_end
            drafts = iter(step.drafts)
            for half, fate in step.ended:
                self._end(job, half, fate, next(drafts) if fate is Fate.COMMITTED else None, now_ms)
        for _ in step.ended:
            job.rows.popleft()

    def _end(
        self, job: _Job, half: Half, fate: Fate, draft: MessageDraft | None, now_ms: int
    ) -> None:
        if fate is Fate.SUPERSEDED:
            return
        self._table.close(half, fate, now_ms)
        if draft is None:
            job.rolled_back += 1
            return
        assert half.sink is not None, "only rows of sinks are ended here"
        job.committed += 1
        self._ledger.stored(half.sink, draft.topic.decode(), draft.queue_id, now_ms)


def _row_order(chosen: tuple[Half, Fate]) -> tuple[int, int, int, int]:
    half = chosen[0]
    assert half.sink is not None, "only rows of sinks are ended here"
    key = half.sink.key
    return key.batch_id, key.partition, half.sink.seq, half.queue_offset


def _message(store: RowLog, half: Half) -> MessageDraft:
    """Raises ``StoreError`` if the row cannot be made a message."""
    try:
        return commit_draft(store.record(half.physical_offset), half)
    except RecordDamaged:
        raise
    except ValueError as error:
        raise MessageIllegal(str(error)) from error
