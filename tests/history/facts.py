"""Indexes of a history: operations with outcomes, stored messages, causes, uptimes.

One pass over the events; every rule then looks up.
"""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeVar

from tests.history.events import (
    BrokerKilled,
    BrokerStarted,
    Checked,
    ClockMoved,
    ConsumerCrashed,
    Drained,
    Ended,
    EndInvoked,
    Event,
    Invocation,
    LeaderChanged,
    Outcome,
    Partitioned,
    Rebalanced,
    RecallInvoked,
    Received,
    ReplyInvoked,
    ReplyReceived,
    SendBackInvoked,
    SendInvoked,
    StillOpen,
)
from tests.history.violations import FAILOVER_REREAD_MS

T = TypeVar("T", bound=Invocation)

NEVER = 1 << 62


class Place(NamedTuple):
    """Where a message is stored."""

    topic: str
    queue_id: int
    queue_offset: int


@dataclass(slots=True)
class Operation(Generic[T]):
    """An operation and its outcome; positions are indexes into the history."""

    asked: T
    position: int
    ended_position: int = NEVER
    outcome: Outcome = Outcome.UNKNOWN
    queue_id: int = -1
    queue_offset: int = -1

    @property
    def is_ok(self) -> bool:
        return self.outcome is Outcome.OK

    @property
    def may_have_happened(self) -> bool:
        return self.outcome is not Outcome.FAILED

    @property
    def done_by(self) -> int:
        """The event by which the operation had certainly happened."""
        return self.ended_position if self.is_ok else NEVER


class Receipt(NamedTuple):
    position: int
    event: Received

    @property
    def place(self) -> Place:
        return Place(self.event.topic, self.event.queue_id, self.event.queue_offset)


class Failover(NamedTuple):
    """A member came to lead: messages that were read since ``begin_ms`` may come again."""

    position: int
    begin_ms: int


class Stretch(NamedTuple):
    """A time in which the broker was up and the clock was not moved."""

    start_ms: int
    end_ms: int


def _lists() -> defaultdict[str, list[Operation[T]]]:
    return defaultdict(list)


@dataclass
class Facts:
    sends: dict[str, list[Operation[SendInvoked]]] = field(default_factory=_lists)
    ends: dict[str, list[Operation[EndInvoked]]] = field(default_factory=_lists)
    send_backs: dict[str, list[Operation[SendBackInvoked]]] = field(default_factory=_lists)
    recalls: dict[str, list[Operation[RecallInvoked]]] = field(default_factory=_lists)
    replies: dict[str, list[Operation[ReplyInvoked]]] = field(default_factory=_lists)
    replies_received: list[ReplyReceived] = field(default_factory=list)
    checks: list[tuple[int, Checked]] = field(default_factory=list)
    open_keys: set[str] = field(default_factory=set)
    receipts: list[Receipt] = field(default_factory=list)
    drained: list[Drained] = field(default_factory=list)
    # Positions at which a group may begin to read again, by group.
    rereads: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    failovers: list[Failover] = field(default_factory=list)
    leaders: list[LeaderChanged | Partitioned] = field(default_factory=list)
    back_moves: list[int] = field(default_factory=list)
    # The time that each of them put the clock to.
    back_moves_ms: list[int] = field(default_factory=list)
    stretches: list[Stretch] = field(default_factory=list)
    stretch_starts: list[int] = field(default_factory=list)
    # The highest time the clock has shown at each event, and up to it.
    shown_ms: list[int] = field(default_factory=list)
    highest_ms: list[int] = field(default_factory=list)
    # First receipt of each stored message, and the places of each key in each topic.
    stored: dict[Place, Received] = field(default_factory=dict)
    copies: dict[tuple[str, str], list[Place]] = field(default_factory=lambda: defaultdict(list))

    def rereads_between(self, group: str, after: int, before: int) -> bool:
        """Whether the group had a cause to read again between two events."""
        positions = self.rereads.get(group, [])
        if bisect_right(positions, after) < bisect_right(positions, before):
            return True
        first = bisect_right(self.failovers, after, key=_position)
        end = bisect_right(self.failovers, before, key=_position)
        read_ms = self.shown_ms[after]
        return any(failover.begin_ms <= read_ms for failover in self.failovers[first:end])

    def moved_back_between(self, after: int, before: int) -> bool:
        return bisect_right(self.back_moves, after) < bisect_right(self.back_moves, before)

    def waited_again(self, after: int, before: int, *, delay_ms: int, until_ms: int) -> bool:
        """Whether the clock was put back between two events and went on for ``delay_ms`` then.

        It has to have shown ``until_ms`` after that.
        """
        first, end = bisect_right(self.back_moves, after), bisect_right(self.back_moves, before)
        return any(
            put_to_ms + delay_ms <= until_ms
            and max(self.shown_ms[at + 1 : before + 1], default=0) >= until_ms
            for at, put_to_ms in zip(
                self.back_moves[first:end], self.back_moves_ms[first:end], strict=True
            )
        )

    def places(self, topic: str, key: str) -> Sequence[Place]:
        return self.copies.get((topic, key), ())

    def drained_by(self) -> dict[str, dict[str, set[int]]]:
        """The queues that each group has read to their end, by topic and group."""
        found: dict[str, dict[str, set[int]]] = defaultdict(lambda: defaultdict(set))
        for event in self.drained:
            found[event.topic][event.group].add(event.queue_id)
        return found


def _position(failover: Failover) -> int:
    return failover.position


def facts_of(events: Iterable[Event]) -> Facts:
    """Index a history.

    Raises:
        ValueError: it is no history: an operation ended that was not under way.
    """
    reader = _Reader()
    for position, event in enumerate(events):
        reader.take(position, event)
    reader.end()
    return reader.facts


class _Reader:
    def __init__(self) -> None:
        self.facts = Facts()
        self._operations: dict[int, Operation[Any]] = {}
        self._up_since: tuple[int, int] | None = None
        self._last_ms = 0
        # Since then nobody has led.
        self._lost_ms: int | None = None

    def take(self, position: int, event: Event) -> None:
        self._note_time(position, event)
        facts = self.facts
        self._take(position, event, facts)
        if isinstance(event, LeaderChanged):
            self._lost_ms = None if event.leader else event.now_ms

    def _take(self, position: int, event: Event, facts: Facts) -> None:
        match event:
            case SendInvoked():
                self._invoke(position, event, facts.sends)
            case EndInvoked():
                self._invoke(position, event, facts.ends)
            case SendBackInvoked():
                self._invoke(position, event, facts.send_backs)
            case RecallInvoked():
                self._invoke(position, event, facts.recalls)
            case ReplyInvoked():
                self._invoke(position, event, facts.replies)
            case Ended():
                self._end(position, event)
            case Received():
                self._receive(Receipt(position, event))
            case _:
                self._note(position, event)

    def end(self) -> None:
        self._close_stretch(self._last_ms)

    def _note(self, position: int, event: Event) -> None:
        facts = self.facts
        match event:
            case ConsumerCrashed() | Rebalanced():
                facts.rereads[event.group].append(position)
            case LeaderChanged() | Partitioned():
                facts.leaders.append(event)
                if isinstance(event, LeaderChanged) and event.leader:
                    began_ms = event.now_ms if self._lost_ms is None else self._lost_ms
                    failover = Failover(position, began_ms - FAILOVER_REREAD_MS)
                    facts.failovers.append(failover)
            case Checked():
                facts.checks.append((position, event))
            case StillOpen():
                facts.open_keys.add(event.key)
            case ReplyReceived():
                facts.replies_received.append(event)
            case Drained():
                facts.drained.append(event)

    def _invoke(self, position: int, event: T, table: dict[str, list[Operation[T]]]) -> None:
        if event.op in self._operations:
            raise ValueError(f"operation {event.op} was invoked twice")
        operation = Operation(event, position)
        self._operations[event.op] = operation
        table[event.key].append(operation)

    def _end(self, position: int, event: Ended) -> None:
        operation = self._operations.get(event.op)
        if operation is None or operation.ended_position != NEVER:
            raise ValueError(f"operation {event.op} ended without being under way")
        operation.ended_position = position
        operation.outcome = event.outcome
        operation.queue_id = event.queue_id
        operation.queue_offset = event.queue_offset

    def _receive(self, receipt: Receipt) -> None:
        self.facts.receipts.append(receipt)
        if receipt.place not in self.facts.stored:
            self.facts.stored[receipt.place] = receipt.event
            self.facts.copies[receipt.event.topic, receipt.event.key].append(receipt.place)

    # Time.

    def _note_time(self, position: int, event: Event) -> None:
        highest = self.facts.highest_ms
        shown_ms = event.now_ms
        if isinstance(event, ClockMoved):
            shown_ms = max(shown_ms, event.before_ms)
            if event.now_ms < event.before_ms:
                self.facts.back_moves.append(position)
                self.facts.back_moves_ms.append(event.now_ms)
            if self._up_since is not None:
                self._close_stretch(event.before_ms)
                self._up_since = (event.now_ms, position)
        elif isinstance(event, LeaderChanged):
            if not event.leader:
                self._close_stretch(event.now_ms)
            elif self._up_since is None:
                self._up_since = (event.now_ms, position)
        elif isinstance(event, BrokerStarted):
            self._up_since = (event.now_ms, position)
        elif isinstance(event, BrokerKilled):
            self._close_stretch(event.now_ms)
        self._last_ms = event.now_ms
        self.facts.shown_ms.append(shown_ms)
        highest.append(max(shown_ms, highest[-1] if highest else 0))

    def _close_stretch(self, end_ms: int) -> None:
        if self._up_since is not None:
            start_ms, position = self._up_since
            self.facts.stretches.append(Stretch(start_ms, max(start_ms, end_ms)))
            self.facts.stretch_starts.append(position)
            self._up_since = None


def overdue_ms(facts: Facts, due_ms: int, sent: int, received: int, stored_ms: int) -> int:
    """How long a message that was due waited while the broker was up.

    Time that a move of the clock skipped does not count, nor does the downtime of the broker.
    ``stored_ms`` is taken to lie in the interval that makes the wait the shortest.
    """
    first = max(bisect_right(facts.stretch_starts, sent) - 1, 0)
    last = bisect_right(facts.stretch_starts, received)
    waited_ms, shortest_ms = 0, NEVER
    for stretch in itertools.islice(facts.stretches, first, last):
        if stored_ms <= stretch.end_ms:
            wait_ms = waited_ms + max(0, stored_ms - max(stretch.start_ms, due_ms))
            shortest_ms = min(shortest_ms, wait_ms)
        waited_ms += max(0, stretch.end_ms - max(stretch.start_ms, due_ms))
    return waited_ms if shortest_ms == NEVER else shortest_ms
