"""Hooks around sends and handlers: tracing and telemetry.

A hook must not wait and must not raise: longer work belongs in a task of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import TYPE_CHECKING, Protocol

from contrail.client.message import MessageQueue, ReceivedMessage, SendReceipt

if TYPE_CHECKING:
    from contrail.client.outgoing import Outgoing


class ConsumeOutcome(Enum):
    """The result of handling; the values are the context codes of Apache's consume trace."""

    SUCCESS = 0
    # Handled, but only after ``consume_timeout_minutes``.
    TIMED_OUT = 1
    EXCEPTION = 2
    RETURNED_NOTHING = 3
    FAILED = 4

    @property
    def is_success(self) -> bool:
        return self in (ConsumeOutcome.SUCCESS, ConsumeOutcome.TIMED_OUT)


class SendHook(Protocol):
    """Sees every attempt to send; ``after_send`` follows each ``before_send`` exactly once."""

    def before_send(self, outgoing: Outgoing, queue: MessageQueue) -> None:
        """May add properties: they are encoded after this."""
        ...

    def after_send(
        self,
        outgoing: Outgoing,
        queue: MessageQueue,
        receipt: SendReceipt | None,
        error: BaseException | None,
        cost_ms: int,
    ) -> None:
        """Without a receipt and an error the send was one-way."""
        ...


class ConsumeHook(Protocol):
    """Sees every call of a handler. Both methods are called in the task that runs the handler."""

    def before_consume(self, group: str, messages: Sequence[ReceivedMessage]) -> object:
        """The returned value is handed to ``after_consume``."""
        ...

    def after_consume(
        self,
        token: object,
        outcome: ConsumeOutcome,
        cost_ms: int,
        error: BaseException | None = None,
    ) -> None: ...
