"""Asks producers about transactions that they left open.

A transaction is first asked about when it is older than ``transactionTimeOut`` (or the time that
the message itself asks for), then every ``transactionCheckInterval``. Each question goes to one
connected producer of the group, in turn; only a question that goes out counts. Before it the half
message is put back to the end of its queue with the new count, so that the count is durable and
the message never grows older than the log keeps it. After ``transactionCheckMax`` questions, or
when it is older than ``fileReservedTime``, the message goes to the exhausted topic.

Without a connected producer nothing is asked and nothing counted; a producer that does not read
its questions does not count as connected until it has. Retention must not take an unanswered
message either: a copy is put back when the newest one is a sixth of ``fileReservedTime`` old (12
hours by default; never under one hour), when its segment is among those that a full disk may cost
next, or when a start would take long to read the log behind it.

Rows that a sink prepared are not asked about: their sink commits or aborts them. They are put back
like the others, and given up at the same age.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from contrail.broker.services.transaction_recovery import TransactionLog
from contrail.broker.services.transactions import Attempt, Transactions, at_once
from contrail.broker.state.check_schedule import CheckSchedule
from contrail.broker.state.client_channels import ClientChannel
from contrail.broker.state.producers import ProducerTable
from contrail.broker.state.runtime_settings import RuntimeSettings
from contrail.broker.state.transaction_records import (
    HALF,
    QUEUE_ID,
    Fate,
    Half,
    copy_draft,
    exhausted_draft,
    question_draft,
)
from contrail.broker.state.transactions import OpenTransactions
from contrail.clock import monotonic_ms
from contrail.errors import MessageIllegal, RecordDamaged, StoreError
from contrail.kernels.record_build import build_run
from contrail.model.message import MessageDraft, StoredMessage
from contrail.model.message_id import encode_offset_message_id
from contrail.model.topic import HALF_TOPIC
from contrail.protocol.codes import RequestCode
from contrail.store import NotInMemory

_log = logging.getLogger(__name__)

_WORK_MS_MAX = 5
_IDLE_INTERVAL_MS = 100
_BUSY_INTERVAL_MS = 20
_RUN_COUNT_MAX = 32
_RUN_BYTES_MAX = 1 << 20
_LOOKED_AT_MAX = 1024
_RETRY_MS = 1000
# How soon a half message that had left memory is looked for there again.
_BROUGHT_IN_MS = 100
_HOUR_MS = 3_600_000
# How many half messages may stand behind the lowest open one, beside four for each that is open.
_WINDOW_ROWS = 200_000
_SEGMENTS_REMOVED_MAX = 12


@dataclass(frozen=True, slots=True)
class HalfRetention:
    """How long the log keeps records."""

    reserved_ms: int
    segment_bytes: int

    @property
    def renewed_after_ms(self) -> int:
        return max(self.reserved_ms // 6, _HOUR_MS)

    def threatened_end(self, physical_min: int, physical_end: int) -> int:
        """Records before this may be removed in one go when the disk runs full."""
        oldest_end = physical_min - physical_min % self.segment_bytes + self.segment_bytes
        if physical_end < oldest_end:
            return physical_min
        reach = min(_SEGMENTS_REMOVED_MAX * self.segment_bytes, (physical_end - physical_min) // 2)
        return max(oldest_end, physical_min + reach)


@dataclass(slots=True)
class _Step:
    """A half message that is to be asked about, in the run that puts it back."""

    half: Half
    message: StoredMessage
    draft: MessageDraft
    checks: int
    fate: Fate = Fate.SUPERSEDED


class TransactionChecks:
    """Puts half messages back and sends the questions."""

    def __init__(
        self,
        transactions: Transactions,
        table: OpenTransactions,
        store: TransactionLog,
        producers: ProducerTable,
        settings: RuntimeSettings,
        retention: HalfRetention,
        *,
        store_host: bytes,
        ensure_exhausted_topic: Callable[[int], object],
        attempt: Attempt = at_once,
        may_check: Callable[[ClientChannel, str], bool] = lambda channel, topic: True,
        work_ms_max: int = _WORK_MS_MAX,
    ) -> None:
        """``ensure_exhausted_topic(now_ms)`` makes the topic of messages that were given up.

        ``may_check`` says whether a producer may see half messages of a topic: its group is only a
        name that it gave itself.
        """
        self._may_check = may_check
        self._attempt = attempt
        self._transactions = transactions
        self._table = table
        self._store = store
        self._producers = producers
        self._settings = settings
        self._retention = retention
        self._store_host = store_host
        self._ensure_exhausted_topic = ensure_exhausted_topic
        self._work_ms_max = work_ms_max
        self._schedule = CheckSchedule(table.__contains__)
        # Questions whose copies are appended, but under SYNC_FLUSH perhaps not readable yet.
        self._questions: deque[tuple[int, Half]] = deque()
        self._turn = 0
        self._behind = False

    def run(self, now_ms: int) -> None:
        """Ask the questions that are due, within a few milliseconds."""
        self._transactions.append_run()
        self._schedule.observe(now_ms)
        for half in self._table.take_fresh(_LOOKED_AT_MAX):
            if half.sink is None:
                self._schedule.put(half, in_ms=self._first_wait_ms(half, now_ms))
        self._release()
        deadline_ms = monotonic_ms() + self._work_ms_max
        self._behind = True
        while self._behind and monotonic_ms() < deadline_ms:
            self._behind = self._work(now_ms)
        self._behind = self._behind or self._table.has_fresh
        self._renew(now_ms)
        self._ask()

    @property
    def interval_ms(self) -> int:
        """How long ``run`` can wait: less while something due is left."""
        return _BUSY_INTERVAL_MS if self._behind else _IDLE_INTERVAL_MS

    def _release(self) -> None:
        """A producer of a group came: questions that waited for one are due, some at a time."""
        room = _LOOKED_AT_MAX
        for group in self._schedule.parked_among(self._producers.groups):
            if room > 0 and any(map(_listens, self._producers.channels(group))):
                room -= self._schedule.release(group, room)

    def stop(self) -> None:
        """Another member of the group leads, and asks."""
        self._schedule = CheckSchedule(self._table.__contains__)
        self._questions.clear()
        self._behind = False

    def next_check_ms(self, half: Half) -> int:
        """The clock's time of the next check; -1 while nobody can be asked."""
        return self._schedule.next_check_ms(half)

    def _first_wait_ms(self, half: Half, now_ms: int) -> int:
        config = self._settings.config
        if half.checks:
            wait_ms, since_ms = config.transaction_check_interval_ms, half.stored_ms
        else:
            wait_ms = max(config.transaction_timeout_ms, half.immunity_ms or 0)
            since_ms = half.since_ms
        # A clock that was set back must not keep a message from being asked about.
        return max(0, min(wait_ms, since_ms + wait_ms - now_ms))

    # Questions that are due.

    def _work(self, now_ms: int) -> bool:
        """Handle some that are due; False when there are no more."""
        due = self._schedule.take_due(_RUN_COUNT_MAX)
        wanted = [half for half in due if half.sink is None and not self._parked(half, now_ms)]
        steps, rest, absent = self._steps(wanted, now_ms, self._step_of)
        for half in rest:
            self._schedule.put(half, in_ms=0)
        for half in absent:
            self._schedule.put(half, in_ms=_BROUGHT_IN_MS)
        self._carry_out(steps, now_ms)
        return len(due) == _RUN_COUNT_MAX or bool(rest)

    def _parked(self, half: Half, now_ms: int) -> bool:
        """Nobody can be asked, and it is too early to give up."""
        if self._is_exhausted(half, now_ms) or self._live_channels(half):
            return False
        self._schedule.park(half)
        return True

    def _is_exhausted(self, half: Half, now_ms: int) -> bool:
        return (
            half.checks >= self._settings.config.transaction_check_count_max
            or now_ms - half.since_ms > self._retention.reserved_ms
        )

    def _step_of(self, half: Half, message: StoredMessage, now_ms: int) -> _Step:
        if self._is_exhausted(half, now_ms):
            return _Step(half, message, exhausted_draft(message), half.checks, Fate.GIVEN_UP)
        checks = half.checks + 1
        return _Step(half, message, copy_draft(message, half, checks=checks), checks)

    def _steps(
        self,
        halves: Iterable[Half],
        now_ms: int,
        step_of: Callable[[Half, StoredMessage, int], _Step],
    ) -> tuple[list[_Step], list[Half], list[Half]]:
        """As many as one run takes, those that are left, and those that are not in memory yet."""
        steps: list[_Step] = []
        rest: list[Half] = []
        absent: list[Half] = []
        byte_count = 0
        for half in halves:
            if byte_count >= _RUN_BYTES_MAX:
                rest.append(half)
                continue
            try:
                message = self._read(half, now_ms)
                if message is not None:
                    steps.append(step_of(half, message, now_ms))
                    byte_count += message.record_bytes
            except NotInMemory:
                absent.append(half)
            except Exception:
                # One message must not keep the others from being asked about.
                _log.exception("transaction %s is looked at again later", half.key)
                self._schedule.put(half, in_ms=self._settings.config.transaction_check_interval_ms)
        return steps, rest, absent

    def _read(self, half: Half, now_ms: int) -> StoredMessage | None:
        """The newest copy; one that cannot be read is tried again for as long as it may live."""
        try:
            return self._attempt(lambda: self._store.record(half.physical_offset))
        except RecordDamaged as damage:
            _log.error("transaction %s cannot be asked about: %s", half.key, damage)
            half.copyable = False
        gone = half.physical_offset < self._store.physical_min
        if gone or now_ms - half.since_ms > self._retention.reserved_ms:
            self._drop(half)
        else:
            self._schedule.put(half, in_ms=self._settings.config.transaction_check_interval_ms)
        return None

    def _drop(self, half: Half) -> None:
        """There is nothing left to commit: write this to the op queue."""
        try:
            self._transactions.append([], [(half.queue_offset, Fate.GIVEN_UP)])
        except StoreError as error:
            _log.warning("transaction %s: %s", half.key, error)
            self._schedule.put(half, in_ms=_RETRY_MS)
        else:
            self._table.close(half, Fate.GIVEN_UP)

    # Putting back, giving up.

    def _carry_out(self, steps: list[_Step], now_ms: int) -> None:
        if not steps:
            return
        try:
            self._append(steps, now_ms)
        except MessageIllegal:
            for step in steps:
                self._carry_out_alone(step, now_ms)
        except StoreError as error:
            _log.warning("%d transactions are asked about later: %s", len(steps), error)
            for step in steps:
                self._schedule.put(step.half, in_ms=_RETRY_MS)

    def _carry_out_alone(self, step: _Step, now_ms: int) -> None:
        try:
            self._append([step], now_ms)
        except MessageIllegal as error:
            self._go_without_copy(step, error)
        except StoreError as error:
            _log.warning("transaction %s is asked about later: %s", step.half.key, error)
            self._schedule.put(step.half, in_ms=_RETRY_MS)

    def _go_without_copy(self, step: _Step, error: MessageIllegal) -> None:
        """By today's limits it is too large to be stored again: it stays where it is."""
        half = step.half
        _log.error("no copy of transaction %s can be stored: %s", half.key, error)
        half.copyable = False
        if step.fate is Fate.GIVEN_UP:
            self._drop(half)
        elif step.checks > half.checks:
            half.checks = step.checks
            self._questions.append((self._transactions.appended_end, half))

    def _append(self, steps: list[_Step], now_ms: int) -> None:
        if any(step.fate is Fate.GIVEN_UP for step in steps):
            self._ensure_exhausted_topic(now_ms)
        marks = [(step.half.queue_offset, step.fate) for step in steps]
        run = self._transactions.append([step.draft for step in steps], marks)
        for index, step in enumerate(steps):
            if step.fate is Fate.GIVEN_UP:
                self._note_given_up(step.half, now_ms)
                continue
            is_question = step.checks > step.half.checks
            step.half.copyable = True
            self._table.move(
                step.half,
                queue_offset=run.queue_offsets[index],
                physical_offset=run.physical_offsets[index],
                stored_ms=run.store_timestamp_ms,
                checks=step.checks,
            )
            if is_question:
                self._questions.append((run.physical_end, step.half))

    def _note_given_up(self, half: Half, now_ms: int) -> None:
        _log.warning(
            "transaction %s of group %s for %s was asked about %d times in %d s and is given up",
            half.key,
            half.group,
            half.topic,
            half.checks,
            (now_ms - half.since_ms) // 1000,
        )
        self._table.close(half, Fate.GIVEN_UP)

    # Questions.

    def _ask(self) -> None:
        """Send the questions whose copies producers may name in their answers."""
        while self._questions and self._questions[0][0] <= self._store.visible_end:
            _, half = self._questions.popleft()
            if half in self._table:
                self._ask_about(half)

    def _ask_about(self, half: Half) -> None:
        channels = self._live_channels(half)
        if not channels:
            # The last producer left in between: a question that was not sent does not count.
            half.checks -= 1
            self._schedule.park(half)
            return
        self._schedule.put(half, in_ms=self._settings.config.transaction_check_interval_ms)
        self._turn += 1
        peer = channels[self._turn % len(channels)].peer
        try:
            message = self._attempt(lambda: self._store.record(half.physical_offset))
            body = _question(message)
            peer.notify(RequestCode.CHECK_TRANSACTION_STATE, self._fields(half), body)
        except NotInMemory:
            # Read a moment ago, and gone again: not asked yet.
            half.checks -= 1
            self._schedule.put(half, in_ms=_BROUGHT_IN_MS)
        except Exception:
            # One message must not keep the others from being asked about.
            _log.exception("transaction %s could not be asked about; it will be again", half.key)

    def _fields(self, half: Half) -> dict[str, str]:
        return {
            "topic": HALF_TOPIC,
            "tranStateTableOffset": str(half.queue_offset),
            "commitLogOffset": str(half.physical_offset),
            "msgId": half.key,
            "transactionId": half.key,
            "offsetMsgId": encode_offset_message_id(self._store_host, half.physical_offset),
            "bname": self._settings.config.broker_name,
        }

    def _live_channels(self, half: Half) -> list[ClientChannel]:
        """The producers of its group that would read a question and may see its message."""
        return [
            channel
            for channel in self._producers.channels(half.group)
            if _listens(channel) and self._may_check(channel, half.topic)
        ]

    # Keeping old ones from being forgotten.

    def _renew(self, now_ms: int) -> None:
        """Put the oldest ones back uncounted if they are in danger."""
        lowest = self._table.lowest
        if lowest is None or not self._in_danger(lowest, now_ms):
            return
        # The lowest offset is mostly among the first transactions that were taken in, but need not
        # be.
        halves = dict.fromkeys([lowest, *self._table.page(0, _LOOKED_AT_MAX)])
        wanted = [half for half in halves if half.copyable and self._in_danger(half, now_ms)]
        # A copy that is not in memory yet is met again by the next run.
        steps, _, _ = self._steps(wanted[:_RUN_COUNT_MAX], now_ms, self._renewal_of)
        self._carry_out(steps, now_ms)

    def _renewal_of(self, half: Half, message: StoredMessage, now_ms: int) -> _Step:
        if now_ms - half.since_ms > self._retention.reserved_ms:
            return _Step(half, message, exhausted_draft(message), half.checks, Fate.GIVEN_UP)
        return _Step(half, message, copy_draft(message, half, checks=half.checks), half.checks)

    def _in_danger(self, half: Half, now_ms: int) -> bool:
        if now_ms - half.stored_ms >= self._retention.renewed_after_ms:
            return True
        store = self._store
        if half.physical_offset < self._retention.threatened_end(
            store.physical_min, store.physical_end
        ):
            return True
        window = store.queue_offset_max(HALF, QUEUE_ID) - half.queue_offset
        return window > _WINDOW_ROWS + 4 * len(self._table)


def _listens(channel: ClientChannel) -> bool:
    """Whether a question would be read; unread ones would pile up at this broker."""
    peer = channel.peer
    return not peer.is_closed and not peer.is_choked


def _question(message: StoredMessage) -> bytes:
    """The record as a producer is shown it."""
    return b"".join(
        build_run(
            [question_draft(message)],
            [message.queue_offset],
            message.physical_offset,
            message.store_timestamp_ms,
            message.store_host,
            False,
        )
    )
