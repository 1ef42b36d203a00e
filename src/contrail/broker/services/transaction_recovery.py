"""At the start: which transactions are open, by the half queue, the op queue and the log's end.

Ends that an op record of ours names need no further look. Records of RocketMQ's broker need more:
a copy that it put back leaves no op record for the copy before, op records follow a commit by
some seconds, and one may name a copy that was superseded. Copies are therefore matched by the
message's identity, and commits at the log's end count although no op record names them.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator
from typing import NamedTuple, Protocol

from contrail.broker.services.stored_records import RecordStore
from contrail.broker.state.causes import Delivered
from contrail.broker.state.transaction_records import (
    FATES,
    HALF,
    OP,
    QUEUE_ID,
    Fate,
    Half,
    read_op,
)
from contrail.broker.state.transactions import OpenTransactions, Takeover
from contrail.errors import RecordDamaged
from contrail.model.message import StoredMessage
from contrail.store import QueueRow

_log = logging.getLogger(__name__)

_ROWS = 4096
# The row of a message that the log never had, or has no more.
_BLANK_ROW_BYTES = 0x7FFFFFFF
# Op records before the cursor are read only to remember some fates.
_OPS_REMEMBERED = 2000
# RocketMQ writes an op record at most three seconds after the commit it tells of.
_OP_LATE_MS = 10_000
_OPS_LOOKED_BACK = 64
_TAIL_BYTES_MAX = 1 << 30
# A run of ours that was cut off by a crash is the last thing in the log, and not that long.
_OWN_TAIL_BYTES_MAX = 16 << 20

OpRow = tuple[int, int]
"""The queue offset of an op record, and the highest half queue offset that it names."""


class Rebuilt(NamedTuple):
    """The findings beside the open transactions."""

    # The op records from the cursor on.
    ops: deque[OpRow]
    # Behind this place the log shows fates that have no op record; None if it shows none.
    shown_from: int | None


class TransactionLog(RecordStore, Protocol):
    """The store as this reads it."""

    def messages_between(
        self, physical_start: int, physical_end: int
    ) -> Iterator[StoredMessage]: ...
    def queue_offset_min(self, topic: bytes, queue_id: int) -> int: ...
    def queue_offset_max(self, topic: bytes, queue_id: int) -> int: ...
    def row_is_damaged(self, topic: bytes, queue_id: int, queue_offset: int) -> bool: ...
    def repair_row(self, topic: bytes, queue_id: int, queue_offset: int) -> bool: ...
    @property
    def physical_min(self) -> int: ...
    @property
    def physical_end(self) -> int: ...
    @property
    def visible_end(self) -> int: ...


def rebuild(
    store: TransactionLog,
    table: OpenTransactions,
    delivered: Delivered,
    *,
    half_cursor: int,
    op_cursor: int,
) -> Rebuilt:
    """Fill the table."""
    takeover = Takeover(table)
    ops = _read_ops(store, table, takeover, op_cursor)
    queue_offset_max = store.queue_offset_max(HALF, QUEUE_ID)
    for row in _rows(store, HALF, half_cursor, queue_offset_max):
        message = read_sound(store, HALF, row) if takeover.needs(row.queue_offset) else None
        if message is not None:
            takeover.half(message)
    table.next_queue_offset = max(half_cursor, queue_offset_max)
    for queue_offset in takeover.decided_before(half_cursor):
        _settle_passed(store, table, takeover, queue_offset)
    return Rebuilt(ops, _settle_delivered(store, table, takeover, delivered))


def read_row(store: TransactionLog, topic: bytes, row: QueueRow) -> StoredMessage | None:
    """The record behind a row; None, and a line in the log, if there is none."""
    if row.byte_count == _BLANK_ROW_BYTES:
        return None
    message, problem = _behind(store, topic, row)
    if problem is not None:
        _log.error("%s offset %d is passed over: %s", topic.decode(), row.queue_offset, problem)
    return message


def read_sound(store: TransactionLog, topic: bytes, row: QueueRow) -> StoredMessage | None:
    """As ``read_row``, at the start: a row that is wrong is derived again from the log first."""
    message, problem = _behind(store, topic, row)
    if problem is None:
        return message
    if store.row_is_damaged(topic, QUEUE_ID, row.queue_offset):
        store.repair_row(topic, QUEUE_ID, row.queue_offset)
    # Rows are derived again in runs: this row may be right by now.
    for repaired in store.rows(topic, QUEUE_ID, row.queue_offset, 1):
        row = repaired
    return read_row(store, topic, row)


def _behind(
    store: TransactionLog, topic: bytes, row: QueueRow
) -> tuple[StoredMessage | None, str | None]:
    """The record that a row leads to, or the damage found there."""
    try:
        message = store.record(row.physical_offset)
    except RecordDamaged as damage:
        return None, str(damage)
    if (message.topic.encode(), message.queue_offset) != (topic, row.queue_offset):
        return None, "its row leads to another record"
    return message, None


def _rows(store: TransactionLog, topic: bytes, first: int, last: int) -> Iterator[QueueRow]:
    while first < last:
        rows = store.rows(topic, QUEUE_ID, first, min(_ROWS, last - first))
        if not rows:
            return
        yield from rows
        first = rows[-1].queue_offset + 1


def _read_ops(
    store: TransactionLog, table: OpenTransactions, takeover: Takeover, op_cursor: int
) -> deque[OpRow]:
    ops: deque[OpRow] = deque()
    op_max = store.queue_offset_max(OP, QUEUE_ID)
    first = min(op_cursor, max(store.queue_offset_min(OP, QUEUE_ID), op_max - _OPS_REMEMBERED))
    for row in _rows(store, OP, first, op_max):
        message = read_sound(store, OP, row)
        marks = [] if message is None else read_op(message)
        table.remember(marks)
        if row.queue_offset >= op_cursor:
            takeover.op(marks)
            highest = max((queue_offset for queue_offset, _ in marks), default=-1)
            ops.append((row.queue_offset, highest))
    return ops


def _settle_passed(
    store: TransactionLog, table: OpenTransactions, takeover: Takeover, queue_offset: int
) -> None:
    """A half message before the cursor was decided: does a copy of it stand behind the cursor?"""
    for row in store.rows(HALF, QUEUE_ID, queue_offset, 1):
        message = read_sound(store, HALF, row)
        if message is not None:
            takeover.settle(table.owner(message), Fate.DECIDED)


def _settle_delivered(
    store: TransactionLog, table: OpenTransactions, takeover: Takeover, delivered: Delivered
) -> int | None:
    """Commits, and messages given up, that stand in the log without an op record."""
    by_place = {half.physical_offset: half for half in table}
    places: list[int] = []
    at_the_end = _delivered_at_the_end(store, table) if table else Delivered()
    for place in (delivered.waited | at_the_end.waited) & by_place.keys():
        takeover.settle(by_place.pop(place), Fate.GIVEN_UP)
        places.append(place)
    for place in delivered.escaped:
        half = by_place.pop(place, None) or _owner_at(store, table, place)
        if half is not None and half in table:
            takeover.settle(half, Fate.ESCAPED)
            places.append(place)
    for place in delivered.committed | at_the_end.committed if table else set():
        half = by_place.get(place) or _owner_at(store, table, place)
        if half is not None and half in table:
            takeover.settle(half, Fate.COMMITTED)
            places.append(place)
    # A record made from a half message stands behind it.
    return min(places, default=None)


def _owner_at(store: TransactionLog, table: OpenTransactions, physical_offset: int) -> Half | None:
    try:
        message = store.record(physical_offset)
    except RecordDamaged:
        # Retention took it: its original is gone, too, or was copied since.
        return None
    return table.owner(message) if message.topic.encode() == HALF else None


def _delivered_at_the_end(store: TransactionLog, table: OpenTransactions) -> Delivered:
    start = _end_start(store, table)
    return Delivered() if start is None else Delivered.of(_sound_messages(store, start))


def _sound_messages(store: TransactionLog, physical_start: int) -> Iterator[StoredMessage]:
    try:
        yield from store.messages_between(physical_start, store.visible_end)
    except RecordDamaged as damage:
        _log.warning("%s: commits behind it may be asked for again", damage)


def _end_start(store: TransactionLog, table: OpenTransactions) -> int | None:
    """Where the part of the log begins in which a commit may stand without its op record."""
    op_place, bytes_max = _op_place(store)
    start = max(op_place, min(_earliest_commit(store, half) for half in table))
    earliest = store.visible_end - bytes_max
    return start if start >= earliest else _boundary(store, earliest)


def _earliest_commit(store: TransactionLog, half: Half) -> int:
    """Behind this place a commit may stand: of a copy, one before the newest may be named."""
    is_first = half.first_queue_offset == half.queue_offset and not half.begins_unseen
    return half.physical_offset if is_first else store.physical_min


def _boundary(store: TransactionLog, earliest: int) -> int | None:
    """The first half message that lies there or behind: somewhere the reading can begin."""
    found: int | None = None
    last = store.queue_offset_max(HALF, QUEUE_ID)
    lowest = store.queue_offset_min(HALF, QUEUE_ID)
    while last > lowest:
        first = max(lowest, last - _ROWS)
        rows = store.rows(HALF, QUEUE_ID, first, last - first)
        places = [row.physical_offset for row in rows if row.physical_offset >= earliest]
        found = min(places, default=found)
        if len(places) < len(rows):
            break
        last = first
    return found


def _op_place(store: TransactionLog) -> tuple[int, int]:
    """The op record to start at, and how far from the end that may be."""
    messages = _ops_backwards(store)
    last = next(messages, None)
    if last is None:
        return 0, _TAIL_BYTES_MAX
    if FATES in last.properties:
        return last.physical_offset, _OWN_TAIL_BYTES_MAX
    for count, message in enumerate(messages, 1):
        is_early = last.store_timestamp_ms - message.store_timestamp_ms >= _OP_LATE_MS
        if is_early or count == _OPS_LOOKED_BACK:
            return message.physical_offset, _TAIL_BYTES_MAX
    return 0, _TAIL_BYTES_MAX


def _ops_backwards(store: TransactionLog) -> Iterator[StoredMessage]:
    first, last = store.queue_offset_min(OP, QUEUE_ID), store.queue_offset_max(OP, QUEUE_ID)
    for queue_offset in range(last - 1, first - 1, -1):
        for row in store.rows(OP, QUEUE_ID, queue_offset, 1):
            message = read_sound(store, OP, row)
            if message is not None:
                yield message
