"""The local side of transactions: the application's listener, and how it is called."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, fields
from typing import Any, Protocol

from contrail.client.message import Message, ReceivedMessage
from contrail.client.state.local_transactions import TransactionState
from contrail.errors import ClientError
from contrail.model.shown import shown

Answer = TransactionState | None
Checker = Callable[[ReceivedMessage], Answer | Awaitable[Answer]]


@dataclass(slots=True)
class HalfMessage(Message):
    """A message whose transaction runs; ``transaction_id`` is the id that a later check has."""

    transaction_id: str = ""

    @classmethod
    def of(cls, message: Message, transaction_id: str) -> HalfMessage:
        given = {field.name: getattr(message, field.name) for field in fields(Message)}
        return cls(**given, transaction_id=transaction_id)


class TransactionListener(Protocol):
    """The local side of transactions; both methods may be ``async`` or plain.

    Plain ones run on a thread, so they may block.
    """

    def execute(self, message: HalfMessage, arg: Any) -> Answer | Awaitable[Answer]:
        """Do the local transaction. None, or an exception, leaves the message for the check."""
        ...

    def check(self, message: ReceivedMessage) -> Answer | Awaitable[Answer]:
        """The state of the transaction whose id is ``message.message_id``."""
        ...


async def ask_listener(work: Callable[..., Any], *given: Any) -> TransactionState:
    """The result of a listener's method or a check function; None is "unknown".

    Raises:
        ClientError: it returned no state.
        Exception: as raised by the method or function.
    """
    answer = await _run(work, *given)
    if answer is None:
        return TransactionState.UNKNOWN
    if not isinstance(answer, TransactionState):
        raise ClientError(f"a transaction ended with {shown(answer)}: return a TransactionState")
    return answer


async def _run(work: Callable[..., Any], *given: Any) -> Any:
    call = getattr(work, "__call__", None)  # noqa: B004
    if inspect.iscoroutinefunction(work) or inspect.iscoroutinefunction(call):
        return await work(*given)
    result = await _in_thread(work, *given)
    return await result if inspect.isawaitable(result) else result


async def _in_thread(work: Callable[..., Any], *given: Any) -> Any:
    """Run a function that may block; a cancelled caller waits for its end.

    It cannot be stopped, and while a local transaction runs its result must not be reported.
    """
    thread = asyncio.ensure_future(asyncio.to_thread(work, *given))
    try:
        return await asyncio.shield(thread)
    except asyncio.CancelledError:
        while not thread.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait({thread})
        raise
