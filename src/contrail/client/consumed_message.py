"""A message in a handler, which may acknowledge it, retry it or give it up."""

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
    """The result of a handler; None means success."""

    SUCCESS = "SUCCESS"
    LATER = "LATER"


class Reader(Protocol):
    """The reader of a message, which is notified of the handler's decision."""

    queue: MessageQueue
    process_queue: ProcessQueue[ConsumedMessage]
    figures: TopicFigures
    # The state of an ordered queue.
    turn: object

    def acknowledge(self, message: ConsumedMessage) -> None: ...
    async def give_back(
        self, message: ConsumedMessage, delay: int | float | timedelta | None
    ) -> None: ...
    async def bury(self, message: ConsumedMessage) -> None: ...
    async def reply(self, message: ConsumedMessage, body: bytes) -> SendReceipt: ...


class ConsumedMessage(ReceivedMessage):
    """A message for a handler. The first of ``ack``, ``later`` and ``dead_letter`` counts.

    A handler that calls none acknowledges by returning and asks for a retry by raising.
    """

    __slots__ = ("_lease", "origin", "started_ms", "suspend_ms")

    # Takes the decision about this message: None once it is settled.
    _lease: Reader | None
    # The reader that pulled it; missing for a message that an operator handed in.
    origin: Reader
    # When a handler got it, on the monotonic clock; 0 before.
    started_ms: int
    # Ordered queues: the wait before it is handled again.
    suspend_ms: int | None

    def take_lease(self) -> Reader | None:
        """The owner to notify of the decision; None on a settled message."""
        lease, self._lease = self._lease, None
        return lease

    @property
    def is_settled(self) -> bool:
        return self._lease is None

    @property
    def is_out_of_hand(self) -> bool:
        """Whether the handler decided; an ordered queue acts on it after the handler."""
        return self._lease is None or self.suspend_ms is not None

    async def ack(self) -> None:
        """Acknowledge: the message does not come again. Does nothing on a settled message."""
        if not self.is_out_of_hand:
            lease = self.take_lease()
            if lease is not None:
                lease.acknowledge(self)

    async def later(self, delay: int | float | timedelta | None = None) -> None:
        """Let the message come again: an ``int`` is a delay level (1 to 18), a ``float`` seconds.

        Brokers have a few delays only: the next longer one is taken. None leaves the delay to the
        broker. A consumer of an ordered queue waits itself (at most 30 s), and no later message of
        the queue overtakes.

        Raises:
            ConfigError: no such delay.
        """
        lease = self._lease
        if lease is not None and not self.is_out_of_hand:
            await lease.give_back(self, delay)

    async def dead_letter(self) -> None:
        """Give the message up: it goes to the group's dead-letter topic."""
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
    """The same message, for a handler; its decision notifies no reader."""
    consumed = ConsumedMessage.__new__(ConsumedMessage)
    for name in ReceivedMessage.__slots__:
        setattr(consumed, name, getattr(message, name))
    consumed._lease = None
    consumed.started_ms = 0
    consumed.suspend_ms = None
    return consumed
