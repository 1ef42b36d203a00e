"""The open transactions of a failover group, as the committed log has them.

Every member reads the half queue and the op queue as they grow, and the commits beside them. The
leader decides in a table of its own, made from this one when it begins to lead: what it decides
may be cut from the log, and then nobody has to know of it.

A commit counts from its own record on. The op record that names it stands behind it in the same
run; the next leader writes it if the end of the run was lost.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from operator import itemgetter
from typing import NamedTuple

from contrail.broker.services.transaction_recovery import OpRow, TransactionLog, read_sound
from contrail.broker.state.transaction_records import HALF, OP, QUEUE_ID, Fate, read_op
from contrail.broker.state.transactions import OpenTransactions
from contrail.store import QueueRow

_ROWS = 512


class Shown(NamedTuple):
    """A record that shows the fate of a half message by itself."""

    physical_offset: int
    half_place: int
    fate: Fate


class FollowedTransactions:
    """The table, and how far both queues are read."""

    def __init__(self, store: TransactionLog) -> None:
        self._store = store
        self.table = OpenTransactions()
        self.ops: deque[OpRow] = deque()
        self.op_next = 0

    def begin(self, table: OpenTransactions, ops: deque[OpRow], op_next: int) -> None:
        """Go on from what a start has learned."""
        self.table.assign(table)
        self.ops, self.op_next = deque(ops), op_next

    def committed(self, shown: list[Shown]) -> None:
        """More of both queues is derived, and these are the other records of that stretch."""
        events: list[tuple[int, bytes, QueueRow | Shown]] = [
            (one.physical_offset, b"", one) for one in shown
        ]
        for topic, first in ((HALF, self.table.next_queue_offset), (OP, self.op_next)):
            events += [(row.physical_offset, topic, row) for row in self._rows(topic, first)]
        events.sort(key=itemgetter(0))
        for _, topic, event in events:
            if isinstance(event, Shown):
                self._take_shown(event)
            elif topic == HALF:
                self._take_half(event)
            else:
                self._take_op(event)

    def _rows(self, topic: bytes, first: int) -> Iterator[QueueRow]:
        store = self._store
        at = max(first, store.queue_offset_min(topic, QUEUE_ID))
        while rows := store.rows(topic, QUEUE_ID, at, _ROWS):
            yield from rows
            at = rows[-1].queue_offset + 1

    def _take_half(self, row: QueueRow) -> None:
        message = read_sound(self._store, HALF, row)
        if message is not None:
            self.table.take(message)
        self.table.pass_to(row.queue_offset + 1)
        # A leader's copy has all open transactions as fresh ones.
        self.table.take_fresh(1)

    def _take_op(self, row: QueueRow) -> None:
        message = read_sound(self._store, OP, row)
        marks = [] if message is None else read_op(message)
        for queue_offset, fate in marks:
            self.table.op_found(queue_offset, fate)
        self.ops.append((row.queue_offset, max((one for one, _ in marks), default=-1)))
        self.op_next = row.queue_offset + 1
        half_cursor = self.table.half_cursor
        while self.ops and self.ops[0][1] < half_cursor:
            self.ops.popleft()

    def _take_shown(self, shown: Shown) -> None:
        half = self.table.at_place(shown.half_place)
        if half is not None:
            self.table.mark(half.queue_offset, shown.fate)
            self.table.close(half, shown.fate)
