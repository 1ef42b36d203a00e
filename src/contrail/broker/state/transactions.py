"""The open transactions: which half messages still wait for their fate.

A half message is one transaction, however many copies of it were put back to the half queue. The
newest copy stands for it; a request that names an older one means the same transaction. It is
*open* until a fate is given to it (``Fate``), and the first fate is the only one.

Queue offsets below ``next_queue_offset`` have been read. An end may arrive for one that has not:
it is taken into the table then, and the reading passes over it later.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import islice

from contrail.broker.state.transaction_ends import TransactionEnds
from contrail.broker.state.transaction_records import (
    Fate,
    Half,
    Identity,
    Mark,
    identity_of,
    is_copy,
    read_half,
)
from contrail.model.message import StoredMessage

# The number of decided half messages that are remembered, to answer a repeated end.
FATES_MAX = 200_000


class OpenTransactions:
    """Open half messages by their newest copy, and the fates of those that were decided lately."""

    def __init__(self, *, fates_max: int = FATES_MAX) -> None:
        self._fates_max = fates_max
        self._open: dict[int, Half] = {}
        self._by_place: dict[int, Half] = {}
        self._by_identity: dict[Identity, list[Half]] = {}
        self._by_sink: dict[str, set[Half]] = {}
        self._fates: dict[int, Fate] = {}
        # Their offsets, those first told of first: to find the first key of a dictionary takes
        # longer with every one that was deleted before it.
        self._told: deque[int] = deque()
        # Offsets at or behind ``next_queue_offset`` that wait no longer.
        self._done_ahead: set[int] = set()
        # Offsets of newest copies, smallest first; those of closed ones are dropped when met.
        self._lowest: list[int] = []
        self._fresh: list[Half] = []
        self._unmarked: list[Mark] = []
        self.next_queue_offset = 0
        self.ends = TransactionEnds()

    def __len__(self) -> int:
        return len(self._open)

    def __contains__(self, half: object) -> bool:
        return isinstance(half, Half) and self._open.get(half.queue_offset) is half

    def __iter__(self) -> Iterator[Half]:
        return iter(self._open.values())

    def page(self, first: int, count: int) -> list[Half]:
        """Some of the open transactions, in the order they were taken in."""
        return list(islice(self._open.values(), first, first + count))

    def with_key(self, key: str) -> Iterator[Half]:
        return (half for half in self._open.values() if half.key == key)

    def of_sink(self, sink_id: str) -> list[Half]:
        """The open transactions of a sink, in no order."""
        return list(self._by_sink.get(sink_id, ()))

    @property
    def lowest(self) -> Half | None:
        """The open transaction whose newest copy is the oldest of all."""
        while self._lowest and self._lowest[0] not in self._open:
            heapq.heappop(self._lowest)
        return self._open[self._lowest[0]] if self._lowest else None

    @property
    def half_cursor(self) -> int:
        """Everything below this queue offset has its fate."""
        lowest = self.lowest
        return self.next_queue_offset if lowest is None else lowest.queue_offset

    def take_fresh(self, count_max: int) -> list[Half]:
        """Some of the transactions that were taken in and not handed out yet."""
        fresh, self._fresh = self._fresh[:count_max], self._fresh[count_max:]
        return [half for half in fresh if half in self]

    @property
    def has_fresh(self) -> bool:
        return bool(self._fresh)

    # Reading the half queue.

    def needs(self, queue_offset: int) -> bool:
        """Whether the record behind a row must be read: not if all is known of it already."""
        return queue_offset not in self._open and queue_offset not in self._done_ahead

    def pass_to(self, queue_offset: int) -> None:
        """The half queue has been read up to here."""
        for passed in range(self.next_queue_offset, queue_offset):
            self._done_ahead.discard(passed)
            if not self._done_ahead:
                break
        self.next_queue_offset = queue_offset

    def pass_known(self, queue_offset_max: int) -> None:
        """Pass over halves that were taken in, or even decided, before the reading came to them."""
        # As ``needs`` and ``pass_to`` for each: nearly all half messages are passed here.
        open_ones, done_ahead = self._open, self._done_ahead
        queue_offset = self.next_queue_offset
        while queue_offset < queue_offset_max:
            if queue_offset in done_ahead:
                done_ahead.remove(queue_offset)
            elif queue_offset not in open_ones:
                break
            queue_offset += 1
        self.next_queue_offset = queue_offset

    def take(self, message: StoredMessage) -> Half:
        """A half message without a fate: a new transaction, or a copy of an open one."""
        half = self.copied(message)
        if half is None:
            half = read_half(message)
            self._by_identity.setdefault(half.identity, []).append(half)
            if half.sink is not None:
                self._by_sink.setdefault(half.sink.key.sink_id, set()).add(half)
        else:
            newer = read_half(message)
            self._unmarked.append((half.queue_offset, Fate.SUPERSEDED))
            self._retire(half)
            half.queue_offset, half.physical_offset = newer.queue_offset, newer.physical_offset
            half.stored_ms, half.checks = newer.stored_ms, newer.checks
        self._enter(half)
        self._fresh.append(half)
        return half

    def _enter(self, half: Half) -> None:
        """The half's newest copy is known now."""
        self._open[half.queue_offset] = half
        self._by_place[half.physical_offset] = half
        heapq.heappush(self._lowest, half.queue_offset)

    def copied(self, message: StoredMessage) -> Half | None:
        """The open transaction that a record is a later copy of."""
        if not is_copy(message):
            return None
        candidates = [
            half
            for half in self._by_identity.get(identity_of(message), ())
            if half.queue_offset < message.queue_offset
        ]
        first = read_half(message).first_queue_offset
        linked = (half for half in candidates if half.first_queue_offset == first)
        return next(linked, candidates[-1] if candidates else None)

    # Ends and copies.

    def find(self, message: StoredMessage) -> Half | None:
        """The open transaction that a record of the half topic belongs to."""
        queue_offset = message.queue_offset
        half = self._open.get(queue_offset)
        if half is not None:
            return half
        if queue_offset >= self.next_queue_offset:
            return None if queue_offset in self._done_ahead else self.take(message)
        if self._fates.get(queue_offset, Fate.SUPERSEDED) is not Fate.SUPERSEDED:
            return None
        return self.owner(message)

    def owner(self, message: StoredMessage) -> Half | None:
        """The open transaction that an earlier copy belongs to."""
        queue_offset = message.queue_offset
        return next(
            (
                half
                for half in self._by_identity.get(identity_of(message), ())
                if half.begins_unseen or half.first_queue_offset <= queue_offset
                if queue_offset < half.queue_offset
            ),
            None,
        )

    def same(self, message: StoredMessage) -> Half | None:
        """An open transaction with a message's identity, of a record in any topic."""
        return next(iter(self._by_identity.get(identity_of(message), ())), None)

    def at_place(self, physical_offset: int) -> Half | None:
        """The open transaction whose newest copy stands there."""
        return self._by_place.get(physical_offset)

    def fate_of(self, queue_offset: int) -> Fate | None:
        """The fate of a half message, if it is still remembered."""
        return self._fates.get(queue_offset)

    def move(
        self,
        half: Half,
        *,
        queue_offset: int,
        physical_offset: int,
        stored_ms: int,
        checks: int,
    ) -> None:
        """A copy was put back and marked: it stands for the transaction now."""
        self._retire(half)
        half.queue_offset, half.physical_offset = queue_offset, physical_offset
        half.stored_ms, half.checks = stored_ms, checks
        self._enter(half)

    def close(self, half: Half, fate: Fate, now_ms: int | None = None) -> None:
        """The transaction has its fate, and that is in the log; ``now_ms`` if it got it now."""
        if now_ms is not None:
            self.ends.note(half, fate, now_ms)
        self._leave(half)
        self._forget_identity(half)
        for queue_offset in half.superseded:
            self._remember(queue_offset, fate)

    def _retire(self, half: Half) -> None:
        """The newest copy is superseded."""
        self._leave(half)
        self._remember(half.queue_offset, Fate.SUPERSEDED)

    def _leave(self, half: Half) -> None:
        """The newest copy has its fate."""
        queue_offset = half.queue_offset
        del self._open[queue_offset]
        del self._by_place[half.physical_offset]
        half.superseded.append(queue_offset)
        if queue_offset >= self.next_queue_offset:
            self._done_ahead.add(queue_offset)

    def _forget_identity(self, half: Half) -> None:
        halves = self._by_identity[half.identity]
        halves.remove(half)
        if not halves:
            del self._by_identity[half.identity]
        if half.sink is not None:
            rows = self._by_sink[half.sink.key.sink_id]
            rows.remove(half)
            if not rows:
                del self._by_sink[half.sink.key.sink_id]

    def _remember(self, queue_offset: int, fate: Fate) -> None:
        if queue_offset not in self._fates:
            self._told.append(queue_offset)
        self._fates[queue_offset] = fate
        while len(self._told) > self._fates_max:
            del self._fates[self._told.popleft()]

    def remember(self, marks: Iterable[Mark]) -> None:
        """Fates that op records tell of, read at the start."""
        for queue_offset, fate in marks:
            self._remember(queue_offset, fate)

    # Decisions that have no op record yet.

    def mark(self, queue_offset: int, fate: Fate) -> None:
        """An op record must be written for this: the log shows the fate in another way."""
        self._unmarked.append((queue_offset, fate))

    @property
    def has_unmarked(self) -> bool:
        return bool(self._unmarked)

    def unmarked(self, count_max: int) -> list[Mark]:
        return self._unmarked[:count_max]

    def op_found(self, queue_offset: int, fate: Fate) -> None:
        """The log has an op record for this half message."""
        if (queue_offset, fate) in self._unmarked:
            self._unmarked.remove((queue_offset, fate))
        half = self._open.get(queue_offset)
        if half is None:
            self._remember(queue_offset, fate)
        else:
            self.close(half, fate)

    def assign(self, other: OpenTransactions) -> None:
        """Be as another table, of which nothing is shared; all transactions are handed out anew."""
        copies = {half: replace(half, superseded=[*half.superseded]) for half in other}
        self._open = {half.queue_offset: half for half in copies.values()}
        self._by_place = {half.physical_offset: half for half in copies.values()}
        self._by_identity = {
            identity: [copies[half] for half in halves]
            for identity, halves in other._by_identity.items()
        }
        self._by_sink = {
            sink_id: {copies[half] for half in halves} for sink_id, halves in other._by_sink.items()
        }
        self._fates, self._told = dict(other._fates), deque(other._told)
        self._done_ahead = set(other._done_ahead)
        self._lowest = sorted(self._open)
        self._fresh = list(copies.values())
        self._unmarked = list(other._unmarked)
        self.next_queue_offset = other.next_queue_offset

    def marked(self, count: int) -> None:
        """The first ``count`` of ``unmarked`` are in the log."""
        del self._unmarked[:count]


class Takeover:
    """Rebuilds the table at the start: first from op records, then from the half queue in order.

    A transaction that another broker decided may be known by any of its copies, even one that was
    superseded; then it is decided.
    """

    def __init__(self, table: OpenTransactions) -> None:
        self._table = table
        self._marks: dict[int, Fate] = {}
        self._decided: dict[Identity, Fate] = {}

    def op(self, marks: Iterable[Mark]) -> None:
        """The facts of one op record."""
        self._marks.update(marks)

    def needs(self, queue_offset: int) -> bool:
        """Whether a record must be read. Offsets that we marked ourselves stand for themselves."""
        return self._marks.get(queue_offset, Fate.DECIDED) is Fate.DECIDED

    def decided_before(self, queue_offset: int) -> list[int]:
        """Offsets below that were decided elsewhere: copies of them may lie above."""
        return [
            passed
            for passed, fate in self._marks.items()
            if fate is Fate.DECIDED and passed < queue_offset
        ]

    def half(self, message: StoredMessage) -> None:
        """One record of the half queue, in their order."""
        table, queue_offset = self._table, message.queue_offset
        identity = identity_of(message)
        earlier = self._decided.get(identity) if is_copy(message) else None
        fate = earlier or self._marks.get(queue_offset)
        if fate is None:
            table.take(message)
            return
        self._decided[identity] = fate
        self.settle(table.copied(message), fate)
        table.remember([(queue_offset, fate)])
        if queue_offset not in self._marks:
            table.mark(queue_offset, fate)

    def settle(self, half: Half | None, fate: Fate) -> None:
        """The log shows this fate of a transaction otherwise than by an op record."""
        if half is not None:
            self._table.mark(half.queue_offset, fate)
            self._table.close(half, fate)
