"""The blocking producer."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import Future
from types import TracebackType
from typing import Self, Unpack

from contrail.client.blocking.producer_calls import ProducerCalls
from contrail.client.hooks import SendHook
from contrail.client.message import Message, MessageQueue, SendReceipt
from contrail.client.options import ProducerOptions
from contrail.client.producer import Producer as AsyncProducer
from contrail.client.selectors import Selector
from contrail.client.state.local_transactions import TransactionState
from contrail.client.transactions import Checker, HalfMessage, TransactionListener
from contrail.client.transactions import Transaction as AsyncTransaction
from contrail.model.topic import TRACE_TOPIC


class Producer(ProducerCalls):
    """Sends messages on behalf of a group. Use it in ``with``, or ``start`` and ``close``.

    Safe to share between threads. All producers and consumers of a process and a cluster share
    their connections.
    """

    def __init__(
        self,
        group: str,
        namesrv: str | Sequence[str] | None = None,
        *,
        transaction_listener: TransactionListener | None = None,
        transaction_checker: Checker | None = None,
        trace: bool = False,
        trace_topic: str = TRACE_TOPIC,
        telemetry: bool | None = None,
        hooks: Sequence[SendHook] = (),
        **options: Unpack[ProducerOptions],
    ) -> None:
        super().__init__(
            AsyncProducer(
                group,
                namesrv,
                transaction_listener=transaction_listener,
                transaction_checker=transaction_checker,
                trace=trace,
                trace_topic=trace_topic,
                telemetry=telemetry,
                hooks=hooks,
                **options,
            )
        )

    @property
    def group(self) -> str:
        return self._twin.group

    @property
    def client_id(self) -> str:
        """The client id that brokers know; set by ``start``."""
        return self._twin.client_id

    def send_async(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        selector: Selector | None = None,
        selector_arg: object = None,
        timeout_ms: int | None = None,
    ) -> Future[SendReceipt]:
        """Begin to send a message; the future returns or raises as ``send`` does.

        The send is retried on the same broker, and only when the broker does not answer.
        """

        async def begin() -> SendReceipt:
            return await self._twin.send_async(
                message,
                queue=queue,
                selector=selector,
                selector_arg=selector_arg,
                timeout_ms=timeout_ms,
            )

        self._background.require_usable()
        return asyncio.run_coroutine_threadsafe(begin(), self._background.loop)

    def transaction(
        self, message: Message, *, check: Checker | None = None, timeout_ms: int | None = None
    ) -> Transaction:
        """``with producer.transaction(message):`` the body is the local transaction.

        Raises:
            MessageInvalid: the message breaks a rule; it may not be delayed, among others.
        """

        async def begin() -> AsyncTransaction:
            return self._twin.transaction(message, check=check, timeout_ms=timeout_ms)

        return Transaction(self, self._run(begin))


class Transaction:
    """A transaction whose body is a ``with`` block; see ``contrail.aio`` for how it is decided."""

    def __init__(self, producer: Producer, twin: AsyncTransaction) -> None:
        self._producer = producer
        self._twin = twin

    @property
    def message(self) -> HalfMessage:
        return self._twin.message

    @property
    def transaction_id(self) -> str:
        """The ``message_id`` that the listener's check and consumers see."""
        return self._twin.transaction_id

    @property
    def receipt(self) -> SendReceipt:
        """The broker's receipt of the half message."""
        return self._twin.receipt

    @property
    def state(self) -> TransactionState | None:
        """The decision, or None while it depends on how the body is left."""
        return self._twin.state

    def commit(self) -> None:
        """Deliver the message, even if the body raises from here on."""
        self._twin.commit()

    def rollback(self) -> None:
        """Drop the message when the body is left."""
        self._twin.rollback()

    def unknown(self) -> None:
        """Leave the decision to the check."""
        self._twin.unknown()

    def __enter__(self) -> Self:
        self._producer._run(self._twin.__aenter__)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._producer._run(self._twin.__aexit__, kind, error, traceback)
