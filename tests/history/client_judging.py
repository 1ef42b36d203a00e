"""Merges the notes of all processes of a client campaign, and judges them."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from tests.history.checker import check_history
from tests.history.client_rules import (
    Cause,
    Delivery,
    Queue,
    Repeats,
    first_deliveries_keep_order,
    judge_repeats,
)
from tests.history.events import Drained, Event, Rebalanced, Received
from tests.history.violations import Bounds, Violation

_MS = 1_000_000
NumberOf = Callable[[Queue], int]


@dataclass(frozen=True, slots=True)
class Seen:
    """All events and deliveries at the end."""

    # Events of producers and of the cluster, with their times in nanoseconds.
    events: list[tuple[int, Event]]
    # In the order of time.
    deliveries: list[Delivery]
    causes: list[Cause]
    # How far each queue reaches.
    ends: Mapping[Queue, int]
    # The queues of each group, and the groups that read a queue from its start to its end.
    queues: Mapping[str, Iterable[Queue]]
    groups_in_order: frozenset[str]
    number_of: NumberOf


@dataclass(frozen=True, slots=True)
class Verdict:
    history: list[Event]
    violations: list[Violation]
    # How many messages came again, by the cause that allows it.
    repeats: Counter[str]


def judge(seen: Seen, bounds: Bounds | None = None) -> Verdict:
    repeats = judge_repeats(seen.deliveries, seen.causes)
    history = build_history(seen, repeats)
    violations = [
        *repeats.violations,
        *first_deliveries_keep_order(seen.deliveries, seen.groups_in_order),
        *check_history(history, bounds),
    ]
    return Verdict(history, violations, Counter(repeats.allowed.values()))


def build_history(seen: Seen, repeats: Repeats) -> list[Event]:
    """One list of events for the checker.

    It holds a cause right before each message that may come again, so that the checker allows that
    message alone.
    """
    events = [*seen.events, *_received(seen, repeats)]
    events.sort(key=lambda entry: entry[0])
    last_ms = events[-1][0] // _MS
    drained = (
        Drained(last_ms, group, queue.topic, seen.number_of(queue), 0, seen.ends[queue])
        for group, queues in seen.queues.items()
        for queue in queues
    )
    return [*(event for _, event in events), *drained]


def _received(seen: Seen, repeats: Repeats) -> Iterator[tuple[int, Event]]:
    readers = _Readers(seen.groups_in_order)
    for delivery in seen.deliveries:
        now_ms = delivery.at_ns // _MS
        if delivery in repeats.allowed:
            yield delivery.at_ns, Rebalanced(now_ms, delivery.group)
        event = Received(
            now_ms,
            delivery.group,
            readers.name(delivery),
            delivery.queue.topic,
            seen.number_of(delivery.queue),
            delivery.queue_offset,
            delivery.key,
            delivery.body,
            delivery.stored_ms,
            delivery.reconsume_times,
        )
        yield delivery.at_ns, event


class _Readers:
    """The reader of a queue in order: a member, until another member of its group reads it.

    Where no order is promised every delivery has a reader of its own.
    """

    def __init__(self, groups_in_order: frozenset[str]) -> None:
        self._groups_in_order = groups_in_order
        self._numbers = itertools.count(1)
        self._current: dict[tuple[str, Queue], tuple[str, str]] = {}

    def name(self, delivery: Delivery) -> str:
        if delivery.group not in self._groups_in_order:
            return f"{delivery.member}#{next(self._numbers)}"
        queue = (delivery.group, delivery.queue)
        member, name = self._current.get(queue, ("", ""))
        if member != delivery.member:
            name = f"{delivery.member}#{next(self._numbers)}"
            self._current[queue] = (delivery.member, name)
        return name
