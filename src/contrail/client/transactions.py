"""Transactions: a message that consumers see only once a local transaction went through.

The half message is stored first, then the local transaction runs, then the end of the transaction
has the broker deliver the message or drop it. If the end is lost, or was "unknown", the broker
checks.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from contrail.client.message import (
    Message,
    MessageQueue,
    ReceivedMessage,
    SendReceipt,
    SendStatus,
)
from contrail.client.outgoing import TIMER_PROPERTIES, Outgoing
from contrail.client.sides import TransactionCheck
from contrail.client.state.local_transactions import LocalTransactions
from contrail.client.state.local_transactions import TransactionState as TransactionState
from contrail.client.transaction_listener import Checker as Checker
from contrail.client.transaction_listener import HalfMessage as HalfMessage
from contrail.client.transaction_listener import TransactionListener as TransactionListener
from contrail.client.transaction_listener import ask_listener
from contrail.errors import CallFailed, ClientError, ConfigError, MessageInvalid, SendFailed
from contrail.model.message_id import decode_offset_message_id
from contrail.model.properties import DELAY, PGROUP, TRAN_MSG
from contrail.protocol.bodies.trace import TracedState
from contrail.protocol.codes import RequestCode

if TYPE_CHECKING:
    from contrail.client.instance import ClientInstance
    from contrail.client.sender import Sender
    from contrail.client.trace import ProducerTrace

_log = logging.getLogger(__name__)

PREPARED_FLAG = 0x4
_DELAYS = TIMER_PROPERTIES | {DELAY}
# Checks of brokers that are answered at the same time; the others wait.
_CHECK_COUNT_MAX = 16
_END_TIMEOUT_MS = 3_000

# The queue a message must go to, or None for any queue.
ChooseQueue = Callable[[Message], Awaitable[MessageQueue | None]]


@dataclass(frozen=True, slots=True)
class TransactionReceipt:
    """The broker's receipt of the half message, and the decision in the end."""

    receipt: SendReceipt
    state: TransactionState


class _End(NamedTuple):
    """The END_TRANSACTION of a half message: commit, rollback or unknown."""

    topic: str
    properties: Mapping[str, str]
    broker_name: str
    queue_offset: int
    physical_offset: int
    state: TransactionState
    unique_id: str
    transaction_id: str = ""
    was_asked: bool = False


class Transactions:
    """The transactions of one producer group."""

    def __init__(
        self,
        instance: ClientInstance,
        sender: Sender,
        group: str,
        prepare: Callable[[Message], Outgoing],
        *,
        choose_queue: ChooseQueue | None = None,
        listener: TransactionListener | None = None,
        checker: Checker | None = None,
        trace: ProducerTrace | None = None,
    ) -> None:
        self._instance = instance
        self._sender = sender
        self._group = group
        self._prepare = prepare
        self._choose_queue = choose_queue
        self._trace = trace
        self._listener = listener
        self._checker = checker or (listener.check if listener is not None else None)
        self._local: LocalTransactions[Checker] = LocalTransactions()
        self._checking = asyncio.Semaphore(_CHECK_COUNT_MAX)
        self._is_known_to_brokers = False

    # Both styles.

    async def send_in_transaction(
        self, message: Message, arg: Any = None, *, timeout_ms: int | None = None
    ) -> TransactionReceipt:
        """Store the half message, run the listener, send the end of the transaction.

        Raises:
            ConfigError: the producer has no listener.
            MessageInvalid: the message breaks a rule; it may not be delayed, among others.
            SendFailed: the half message was not stored; the listener did not run.
        """
        listener = self._listener
        if listener is None:
            raise ConfigError(
                f"producer {self._group!r} has no transaction_listener: give it one, or use "
                "producer.transaction(message) in a `with` block"
            )
        half = self._half(message)
        receipt = await self._store(message, half, timeout_ms)
        if receipt.status is not SendStatus.SEND_OK:
            state = TransactionState.ROLLBACK
        else:
            state = await self._execute(listener, HalfMessage.of(message, half.unique_id), arg)
        await self._finish(half, receipt, state)
        return TransactionReceipt(receipt, state)

    def transaction(
        self, message: Message, *, check: Checker | None = None, timeout_ms: int | None = None
    ) -> Transaction:
        """A block that runs between the half message and its end; see ``Transaction``."""
        return Transaction(self, message, check=check or self._checker, timeout_ms=timeout_ms)

    async def _execute(
        self, listener: TransactionListener, message: HalfMessage, arg: Any
    ) -> TransactionState:
        try:
            return await ask_listener(listener.execute, message, arg)
        except Exception:
            _log.exception(
                "the local transaction %s of topic %r failed; the check will decide",
                message.transaction_id,
                message.topic,
            )
            return TransactionState.UNKNOWN
        except BaseException:
            self._local.end(message.transaction_id, TransactionState.UNKNOWN)
            raise

    # The half message.

    def _half(self, message: Message) -> Outgoing:
        half = self._prepare(message)
        if not _DELAYS.isdisjoint(half.properties):
            raise MessageInvalid(
                f"a message of topic {message.topic!r} is both delayed and part of a transaction: "
                "take delay_level, delay and deliver_at away, or send it without a transaction"
            )
        half.properties[TRAN_MSG] = "true"
        half.properties[PGROUP] = self._group
        half.sys_flag |= PREPARED_FLAG
        return half

    async def _store(self, message: Message, half: Outgoing, timeout_ms: int | None) -> SendReceipt:
        self._local.begin(half.unique_id)
        try:
            queue = await self._choose_queue(message) if self._choose_queue is not None else None
            receipt = await self._sender.send(half, queue=queue, timeout_ms=timeout_ms)
        except BaseException:
            # The half message may be stored anyway, but no local transaction will run for it.
            self._local.end(half.unique_id, TransactionState.ROLLBACK)
            raise
        if not self._is_known_to_brokers:
            # Brokers check with producers whose heartbeat they have; this group may be newer than
            # the last.
            self._is_known_to_brokers = True
            self._instance.beat_soon()
        return receipt

    async def _finish(
        self,
        half: Outgoing,
        receipt: SendReceipt,
        state: TransactionState,
        check: Checker | None = None,
    ) -> None:
        self._local.end(half.unique_id, state, check)
        broker_name = receipt.queue.broker_name
        place = decode_offset_message_id(receipt.offset_message_id).physical_offset
        end = _End(
            half.topic,
            half.properties,
            broker_name,
            receipt.queue_offset,
            place,
            state,
            half.unique_id,
        )
        try:
            await self._tell_master(end)
        except (CallFailed, ClientError) as error:
            _log.warning(
                "broker %s did not get %s for transaction %s of topic %r, it will ask: %s",
                broker_name,
                state.name,
                half.unique_id,
                half.topic,
                error,
            )

    async def _tell_master(self, end: _End) -> None:
        """One-way, as RocketMQ's producers; where the master may change, its answer is waited for.

        A decision that stays unknown is not answered.
        """
        instance, name = self._instance, end.broker_name
        if name not in instance.routes.replicated or end.state is TransactionState.UNKNOWN:
            await self._tell(instance.master_of(name), end)
            return
        instance.require_open()
        await instance.ask_master(
            name,
            end.topic,
            RequestCode.END_TRANSACTION,
            self._end_fields(end, instance.routes.master_of(name) or ""),
            what=f"the {end.state.name} of transaction {end.unique_id}",
            timeout_ms=_END_TIMEOUT_MS,
        )

    async def _tell(self, address: str, end: _End) -> None:
        self._instance.require_open()
        fields = self._end_fields(end, address)
        await self._instance.caller.notify(address, RequestCode.END_TRANSACTION, fields)

    def _end_fields(self, end: _End, address: str) -> dict[str, str]:
        fields = {
            "topic": end.topic,
            "producerGroup": self._group,
            "tranStateTableOffset": str(end.queue_offset),
            "commitLogOffset": str(end.physical_offset),
            "commitOrRollback": str(int(end.state)),
            "fromTransactionCheck": "true" if end.was_asked else "false",
            "msgId": end.unique_id,
            "transactionId": end.transaction_id or end.unique_id,
            "bname": end.broker_name,
        }
        if self._trace is not None:
            self._trace.ended_transaction(
                end.topic,
                end.properties,
                message_id=end.unique_id,
                transaction_id=fields["transactionId"],
                state=TracedState[end.state.name],
                store_host=address,
                from_check=end.was_asked,
            )
        return fields

    # Checks of brokers.

    def check(self, check: TransactionCheck) -> None:
        """A broker checks a transaction; it is answered when the decision is known."""
        self._instance.spawn(self._answer(check), "transaction check")

    async def _answer(self, check: TransactionCheck) -> None:
        unique_id = check.message.message_id
        state = self._local.standing(unique_id)
        if state is None:
            state = await self._find_out(check.message)
        if state is None:
            return
        end = _End(
            check.message.topic,
            check.message.properties,
            check.message.queue.broker_name,
            check.queue_offset,
            check.physical_offset,
            state,
            unique_id,
            transaction_id=check.transaction_id,
            was_asked=True,
        )
        try:
            await self._tell(check.broker_address, end)
        except (CallFailed, ClientError) as error:
            _log.warning("the check of transaction %s was not answered: %s", unique_id, error)

    async def _find_out(self, message: ReceivedMessage) -> TransactionState | None:
        unique_id = message.message_id
        checker = self._local.check_of(unique_id) or self._checker
        if checker is None:
            _log.warning(
                "a broker checks transaction %s of topic %r, which this client does not know: give "
                "producer %r a transaction_listener or a transaction_checker",
                unique_id,
                message.topic,
                self._group,
            )
            return None
        try:
            async with self._checking:
                state = await ask_listener(checker, message)
        except Exception:
            _log.exception("the check of transaction %s failed", unique_id)
            return TransactionState.UNKNOWN
        if state is not TransactionState.UNKNOWN:
            self._local.end(unique_id, state)
        return state


class Transaction:
    """``async with producer.transaction(message) as tx:`` the body is the local transaction.

    The half message is stored before the body runs. Leaving the body commits; an exception rolls
    back and goes on. ``commit()``, ``rollback()`` and ``unknown()`` decide instead, the last one
    counts, however the body is left. A body that is cancelled or interrupted may have done any part
    of its work: its message is left for the check, or rolled back when there is none.
    """

    def __init__(
        self,
        transactions: Transactions,
        message: Message,
        *,
        check: Checker | None,
        timeout_ms: int | None,
    ) -> None:
        self._transactions = transactions
        self._check = check
        self._timeout_ms = timeout_ms
        self._half = transactions._half(message)
        self._receipt: SendReceipt | None = None
        self._decision: TransactionState | None = None
        self.message = HalfMessage.of(message, self._half.unique_id)

    @property
    def transaction_id(self) -> str:
        """The ``message_id`` that the listener's check and consumers see."""
        return self.message.transaction_id

    @property
    def receipt(self) -> SendReceipt:
        """The broker's receipt of the half message."""
        if self._receipt is None:
            raise ClientError("the half message is stored on entering the `with` block")
        return self._receipt

    @property
    def state(self) -> TransactionState | None:
        """The decision, or None while it depends on how the body is left."""
        return self._decision

    def commit(self) -> None:
        """Deliver the message, even if the body raises from here on."""
        self._decision = TransactionState.COMMIT

    def rollback(self) -> None:
        """Drop the message when the body is left."""
        self._decision = TransactionState.ROLLBACK

    def unknown(self) -> None:
        """Leave the decision to the check."""
        self._decision = TransactionState.UNKNOWN

    async def __aenter__(self) -> Self:
        transactions, half = self._transactions, self._half
        if self._receipt is not None:
            raise ClientError(f"transaction {self.transaction_id} was begun before: make another")
        receipt = await transactions._store(self.message, half, self._timeout_ms)
        self._receipt = receipt
        if receipt.status is not SendStatus.SEND_OK:
            await transactions._finish(half, receipt, TransactionState.ROLLBACK)
            raise SendFailed(
                f"the half message of topic {half.topic!r} was stored by broker "
                f"{receipt.queue.broker_name!r} with {receipt.status.name} only, and rolled back",
                topic=half.topic,
            )
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._decision is None:
            self._decision = self._outcome(error)
        await self._transactions._finish(self._half, self.receipt, self._decision, self._check)

    def _outcome(self, error: BaseException | None) -> TransactionState:
        if error is None:
            return TransactionState.COMMIT
        if isinstance(error, Exception) or self._check is None:
            return TransactionState.ROLLBACK
        return TransactionState.UNKNOWN
