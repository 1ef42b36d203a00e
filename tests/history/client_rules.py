"""Rules that only a client can break: repeated messages, and the order in ordered groups.

The checker knows nothing of members and of the brokers that a queue may be on, so it has to take
any crash as a cause for any message to come again. Here a cause names the queues that it touches
and the time in which messages had to be handled to come again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from tests.history.violations import Rule, Violation

_OFFSETS_NS = 1_000_000_000


class Queue(NamedTuple):
    topic: str
    broker_name: str
    queue_id: int


class Delivery(NamedTuple):
    """A handler got a message."""

    at_ns: int
    group: str
    # A member of the group; a restarted member counts as another.
    member: str
    queue: Queue
    queue_offset: int
    key: str
    body: str
    stored_ms: int
    reconsume_times: int


@dataclass(frozen=True, slots=True)
class Cause:
    """Messages that a group got of these queues from ``begin_ns`` to ``end_ns`` may come again."""

    name: str
    group: str
    queues: frozenset[Queue]
    begin_ns: int
    end_ns: int


def failover_cause(
    group: str, queues: Collection[Queue], lost_ns: int, led_ns: int, *, in_flight_ns: int
) -> Cause:
    """A leader was lost at ``lost_ns``, and another one led at ``led_ns``.

    Offsets go to the other members each second, and messages in flight had no offset yet.
    """
    begin_ns = lost_ns - _OFFSETS_NS - in_flight_ns
    return Cause("failover", group, frozenset(queues), begin_ns, led_ns)


@dataclass(slots=True)
class Repeats:
    """Deliveries that were not the first of their message."""

    allowed: dict[Delivery, str] = field(default_factory=dict)
    violations: list[Violation] = field(default_factory=list)


def judge_repeats(deliveries: Iterable[Delivery], causes: Collection[Cause]) -> Repeats:
    """DUPLICATED: a group got a message again without a cause."""
    repeats = Repeats()
    by_queue: dict[tuple[str, Queue], list[Cause]] = defaultdict(list)
    for cause in causes:
        for queue in cause.queues:
            by_queue[cause.group, queue].append(cause)
    last: dict[tuple[str, Queue, int], Delivery] = {}
    for delivery in deliveries:
        place = (delivery.group, delivery.queue, delivery.queue_offset)
        before = last.get(place)
        last[place] = delivery
        if before is None:
            continue
        name = _explanation(before, by_queue[delivery.group, delivery.queue])
        if name:
            repeats.allowed[delivery] = name
        else:
            repeats.violations.append(_unexplained(before, delivery))
    return repeats


def _explanation(before: Delivery, causes: Iterable[Cause]) -> str:
    for cause in causes:
        if cause.begin_ns <= before.at_ns <= cause.end_ns:
            return cause.name
    return ""


def _unexplained(before: Delivery, delivery: Delivery) -> Violation:
    gap_ms = (delivery.at_ns - before.at_ns) // 1_000_000
    detail = (
        f"{delivery.group}: {before.member} had {delivery.queue} at {delivery.queue_offset}, "
        f"{delivery.member} got it {gap_ms} ms later, at {delivery.at_ns}"
    )
    return Violation(Rule.DUPLICATED, (delivery.key,), detail)


def first_deliveries_keep_order(
    deliveries: Iterable[Delivery], groups: Collection[str]
) -> Iterator[Violation]:
    """OFFSET_GAP: such a group sees a queue's messages one after the other.

    Apart from repeats, each first delivery is the next message of the queue.
    """
    expected: dict[tuple[str, Queue], int] = defaultdict(int)
    for delivery in deliveries:
        if delivery.group not in groups:
            continue
        queue = (delivery.group, delivery.queue)
        if delivery.queue_offset > expected[queue]:
            detail = f"{delivery.member} got {delivery.queue_offset}, not {expected[queue]}"
            rule = Rule.OFFSET_GAP
            yield Violation(
                rule, (delivery.key,), f"{delivery.queue} of {delivery.group}: {detail}"
            )
        expected[queue] = max(expected[queue], delivery.queue_offset + 1)
