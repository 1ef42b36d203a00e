"""The mark in a record that names the stored message it was made from.

A delayed or timed message is stored twice: where it waits, and where it is delivered. The second
record names the first in a header field that RocketMQ leaves at 0 for messages without a
transaction, ``preparedTransactionOffset``. After a crash the log itself names the deliveries.

The field holds ``-1 - physical offset``: never 0, and never the value of a committed transaction,
which is the physical offset of its half message.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from contrail.model.message import StoredMessage
from contrail.model.properties import TRANSACTION_ID, read_property
from contrail.model.record import TRANSACTION_COMMIT, TRANSACTION_MASK


def cause_mark(physical_offset: int) -> int:
    """The field of a delivered message: the place of the message that waited."""
    return -1 - physical_offset


@dataclass(slots=True)
class Delivered:
    """The facts of the log's end about messages that waited further up."""

    # Where the log was read from; deliveries further up stand in the written cursors.
    physical_start: int = 0
    # Physical offsets of delayed and timed messages that were delivered or rolled on.
    waited: set[int] = field(default_factory=set)
    # Physical offsets of half messages whose commit is in the log.
    committed: set[int] = field(default_factory=set)
    # Physical offsets of half messages that another broker has now.
    escaped: set[int] = field(default_factory=set)

    @classmethod
    def of(cls, messages: Iterable[StoredMessage], physical_start: int = 0) -> Delivered:
        delivered = cls(physical_start)
        for message in messages:
            delivered.add(message)
        return delivered

    def take_escaped(self, waited: Iterable[int], halves: Iterable[int]) -> None:
        """Messages that a slave, acting as master, handed to other brokers."""
        self.waited.update(waited)
        self.escaped.update(halves)

    def add(self, message: StoredMessage) -> None:
        """Look at the header of one record."""
        prepared = message.prepared_transaction_offset
        if prepared < 0:
            # Looked at first: the retry of a committed message that waited keeps the bits of its
            # commit.
            self.waited.add(-1 - prepared)
        elif (
            message.sys_flag & TRANSACTION_MASK == TRANSACTION_COMMIT
            and not message.reconsume_times
            and _names_half(message)
        ):
            self.committed.add(prepared)


def _names_half(message: StoredMessage) -> bool:
    """Whether a commit wrote the field: in a client's message it is 0, and that is a place, too."""
    named = message.prepared_transaction_offset > 0
    return named or read_property(message.raw_properties, TRANSACTION_ID) is not None
