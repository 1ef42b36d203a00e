"""Operators' work on transactions: look at the open ones, decide one by hand, resume one."""

from __future__ import annotations

import logging
from typing import Protocol

from contrail.broker.services.stored_records import RecordStore, record_at
from contrail.broker.services.transaction_checks import TransactionChecks
from contrail.broker.services.transactions import Told, Transactions, decided_otherwise
from contrail.broker.state.transaction_records import (
    EXHAUSTED,
    FATE_WORDS,
    HALF,
    Fate,
    Half,
    copy_draft,
    resumed_draft,
)
from contrail.broker.state.transactions import OpenTransactions
from contrail.clock import Clock
from contrail.errors import MessageIllegal, RecordDamaged, RequestRejected
from contrail.model.message import StoredMessage
from contrail.model.message_id import decode_offset_message_id, encode_offset_message_id
from contrail.model.properties import REAL_TOPIC, UNIQ_KEY
from contrail.model.record import TRANSACTION_COMMIT, TRANSACTION_MASK
from contrail.model.topic import HALF_TOPIC, TRANSACTION_EXHAUSTED_TOPIC
from contrail.protocol.bodies.transactions import ListedTransaction
from contrail.protocol.codes import ResponseCode

_log = logging.getLogger(__name__)

# Messages stored a moment ago are taken in before the list is made, within this time.
_READ_MS_MAX = 20
_RESUMABLE = frozenset({HALF_TOPIC, TRANSACTION_EXHAUSTED_TOPIC})


class MessageLookup(RecordStore, Protocol):
    """Records by place, by queue and by key."""

    def query(self, topic: bytes, key: bytes) -> list[StoredMessage]: ...


class TransactionOperators:
    """Serves operators; their decisions are as final as a producer's."""

    def __init__(
        self,
        transactions: Transactions,
        checks: TransactionChecks,
        table: OpenTransactions,
        store: MessageLookup,
        clock: Clock,
        *,
        store_host: bytes,
    ) -> None:
        self._transactions = transactions
        self._checks = checks
        self._table = table
        self._store = store
        self._clock = clock
        self._store_host = store_host

    def open_count(self) -> int:
        self._transactions.read_new(work_ms_max=_READ_MS_MAX)
        return len(self._table)

    def page(self, first: int, count: int) -> list[ListedTransaction]:
        """Some of the open transactions, in the order they were taken in."""
        now_ms = self._clock.now_ms()
        return [self._row(half, now_ms) for half in self._table.page(first, count)]

    def _row(self, half: Half, now_ms: int) -> ListedTransaction:
        return ListedTransaction(
            transaction_id=half.key,
            topic=half.topic,
            producer_group=half.group,
            message_id=encode_offset_message_id(self._store_host, half.physical_offset),
            queue_offset=half.queue_offset,
            physical_offset=half.physical_offset,
            born_ms=half.born_ms,
            age_ms=now_ms - half.since_ms,
            checks=half.checks,
            next_check_ms=self._checks.next_check_ms(half),
        )

    def decide(self, transaction_id: str, message_id: str, fate: Fate, told: Told) -> str:
        """Commit or roll back by hand; returns the transaction's id.

        Raises:
            RequestRejected: it is not open, or several are meant; the remark says which.
        """
        if message_id:
            message, half = self._transactions.look_up(self._place(message_id))
            key = message.properties.get(UNIQ_KEY, "")
            if half is None:
                self.require_fate(message, fate)
                told(self._transactions.appended_end, None)
                return key
        else:
            half = self._one_with(transaction_id)
            message = self._store.record(half.physical_offset)
        _log.warning("transaction %s is %s by an operator", half.key, FATE_WORDS[fate])
        self._transactions.decide(half, message, fate, told)
        self._transactions.append_run()
        return half.key

    def require_fate(self, message: StoredMessage, fate: Fate) -> None:
        """A transaction that is not open: only the fate it has is no refusal.

        Raises:
            RequestRejected: it has another one, or nobody remembers which.
        """
        key = message.properties.get(UNIQ_KEY, "")
        found = self._table.fate_of(message.queue_offset)
        if found is None or found is Fate.SUPERSEDED:
            raise RequestRejected(
                ResponseCode.ILLEGAL_OPERATION, f"transaction {key!r} is not open any more"
            )
        if found is not fate:
            raise decided_otherwise(key, found)

    def _one_with(self, transaction_id: str) -> Half:
        self._transactions.read_new(work_ms_max=_READ_MS_MAX)
        found = list(self._table.with_key(transaction_id))
        if len(found) != 1:
            problem = f"{len(found)} transactions" if found else "no transaction"
            advice = "; name one by its msgId" if found else ""
            raise RequestRejected(
                ResponseCode.QUERY_NOT_FOUND,
                f"{problem} with the id {transaction_id!r} is open{advice}",
            )
        return found[0]

    def _place(self, message_id: str) -> int:
        try:
            return decode_offset_message_id(message_id).physical_offset
        except MessageIllegal as error:
            raise RequestRejected(ResponseCode.SYSTEM_ERROR, str(error)) from error

    # Resuming.

    def resume(self, message_id: str) -> int:
        """Have a message asked about again as if it were new; returns how far it must be durable.

        Raises:
            RequestRejected: there is no half message there, or its transaction was decided.
        """
        message = self._resumable(message_id)
        half = self._table.same(message)
        if half is not None:
            return self._start_over(half)
        self._require_undecided(message)
        run = self._transactions.append([resumed_draft(message)], [])
        return run.physical_end

    def _resumable(self, message_id: str) -> StoredMessage:
        place = self._place(message_id)
        try:
            message = record_at(self._store, place)
        except RecordDamaged as damage:
            raise RequestRejected(ResponseCode.SYSTEM_ERROR, str(damage)) from damage
        if message.topic not in _RESUMABLE:
            raise RequestRejected(
                ResponseCode.SYSTEM_ERROR,
                f"{message_id} is no half message: it is in {message.topic}",
            )
        return message

    def _start_over(self, half: Half) -> int:
        message = self._store.record(half.physical_offset)
        draft = copy_draft(message, half, checks=0)
        run = self._transactions.append([draft], [(half.queue_offset, Fate.SUPERSEDED)])
        self._table.move(
            half,
            queue_offset=run.queue_offsets[0],
            physical_offset=run.physical_offsets[0],
            stored_ms=run.store_timestamp_ms,
            checks=0,
        )
        return run.physical_end

    def _require_undecided(self, message: StoredMessage) -> None:
        key = message.properties.get(UNIQ_KEY, "")
        fates = {self._table.fate_of(copy.queue_offset) for copy in self._alike(HALF, message)}
        decided = fates - {None, Fate.SUPERSEDED, Fate.GIVEN_UP}
        if self._was_committed(message):
            decided = {Fate.COMMITTED}
        if decided:
            raise decided_otherwise(key, next(fate for fate in decided if fate is not None))
        if message.topic == HALF_TOPIC and Fate.GIVEN_UP not in fates:
            raise RequestRejected(
                ResponseCode.ILLEGAL_OPERATION,
                f"transaction {key!r} is not open any more; one that was given up is resumed by "
                f"its message in {EXHAUSTED.decode()}",
            )

    def _was_committed(self, message: StoredMessage) -> bool:
        topic = message.properties.get(REAL_TOPIC, "").encode()
        return any(
            found.sys_flag & TRANSACTION_MASK == TRANSACTION_COMMIT
            for found in self._alike(topic, message)
        )

    def _alike(self, topic: bytes, message: StoredMessage) -> list[StoredMessage]:
        """The stored messages of a topic that have a message's key and birth."""
        key = message.properties.get(UNIQ_KEY, "").encode()
        if not key or not topic:
            return []
        birth = message.born_timestamp_ms, message.born_host
        found = self._store.query(topic, key)
        return [other for other in found if (other.born_timestamp_ms, other.born_host) == birth]
