"""A message in the hands of a handler, who may say what becomes of it."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from enum import Enum
from typing import Protocol

from contrail.client.message import MessageQueue, ReceivedMessage, SendReceipt
from contrail.client.state.consume_figures import TopicFigures
from contrail.client.state.process_queue import ProcessQueue
from contrail.errors import ClientError


class ConsumeResult(Enum):
    """What a handler may return; returning nothing means success."""

    SUCCESS = "SUCCESS"
    LATER = "LATER"


class Reader(Protocol):
    """Who read a message, and hears what becomes of it."""

    queue: MessageQueue
    process_queue: ProcessQueue[ConsumedMessage]
    figures: TopicFigures
    # What an ordered queue is doing.
    turn: object

    def acknowledge(self, message: ConsumedMessage) -> None: ...
    async def give_back(
        self, message: ConsumedMessage, delay: int | float | timedelta | None
    ) -> None: ...
    async def bury(self, message: ConsumedMessage) -> None: ...
    async def reply(self, message: ConsumedMessage, body: bytes) -> SendReceipt: ...


class ConsumedMessage(ReceivedMessage):
    """What handlers get. What is said first counts: afterwards the message is out of hand.

    A handler that says nothing acknowledges by returning and asks for a retry by raising.
    """

    __slots__ = ("_lease", "origin", "started_ms", "suspend_ms")

    # Who is to hear what becomes of it: None once it is settled.
    _lease: Reader | None
    # Who read it; not there for a message that was handed in from outside.
    origin: Reader
    # When a handler got it, on the monotonic clock; 0 before.
    started_ms: int
    # Ordered queues: how long to wait before it is handled again.
    suspend_ms: int | None

    def take_lease(self) -> Reader | None:
        """Who is to hear what becomes of it; None when that is settled already."""
        lease, self._lease = self._lease, None
        return lease

    @property
    def is_settled(self) -> bool:
        return self._lease is None

    @property
    def is_out_of_hand(self) -> bool:
        """Whether somebody said what becomes of it; an ordered queue does it afterwards."""
        return self._lease is None or self.suspend_ms is not None

    async def ack(self) -> None:
        """Done: it does not come again. Does nothing when it was settled before."""
        if not self.is_out_of_hand:
            lease = self.take_lease()
            if lease is not None:
                lease.acknowledge(self)

    async def later(self, delay: int | float | timedelta | None = None) -> None:
        """Let it come again: an ``int`` is a delay level (1 to 18), a ``float`` seconds.

        Brokers know a few delays only: the next longer one is taken. None leaves it to the broker.
        An ordered queue waits that long itself (at most 30 s), and nothing of it overtakes.

        Raises:
            ConfigError: no such delay.
        """
        lease = self._lease
        if lease is not None and not self.is_out_of_hand:
            await lease.give_back(self, delay)

    async def dead_letter(self) -> None:
        """Give it up: it goes to the group's dead-letter topic."""
        lease = self._lease
        if lease is not None and not self.is_out_of_hand:
            await lease.bury(self)

    async def reply(self, body: bytes) -> SendReceipt:
        """Answer a request-reply call.

        Raises:
            ClientError: the message is no request, or the answer could not be sent.
        """
        if not hasattr(self, "origin"):
            raise ClientError(f"message {self.message_id} came from an operator: nobody waits")
        return await self.origin.reply(self, body)


def lend(messages: Iterable[ConsumedMessage], reader: Reader) -> None:
    """Hand messages out, or hand them out again; one call for all, since this is a hot path."""
    for message in messages:
        message._lease = message.origin = reader
        message.started_ms = 0
        message.suspend_ms = None


def as_consumed(message: ReceivedMessage) -> ConsumedMessage:
    """The same message, for a handler; nobody hears what becomes of it."""
    consumed = ConsumedMessage.__new__(ConsumedMessage)
    for name in ReceivedMessage.__slots__:
        setattr(consumed, name, getattr(message, name))
    consumed._lease = None
    consumed.started_ms = 0
    consumed.suspend_ms = None
    return consumed
