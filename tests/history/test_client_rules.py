"""The rules of the client campaigns find planted faults, and none in good deliveries."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.history.client_judging import Seen, judge
from tests.history.client_rules import Cause, Delivery, Queue
from tests.history.client_senders import SendNotes, Timeline
from tests.history.events import Ended, Event, Kind, Outcome, SendInvoked
from tests.history.violations import Rule

_KEEPERS, _SHARERS = "keepers", "sharers"
_QUEUES = (Queue("t", "broker-a", 0), Queue("t", "broker-b", 0))
_COUNT = 6
_MS = 1_000_000
_KILLED_NS = 500 * _MS

Plant = Callable[[list[Delivery]], list[Delivery]]


def _number_of(queue: Queue) -> int:
    return ("broker-a", "broker-b").index(queue.broker_name)


def _key(queue: Queue, queue_offset: int) -> str:
    return f"{queue.broker_name}-{queue_offset}"


def _sends() -> list[tuple[int, Event]]:
    events: list[tuple[int, Event]] = []
    for number, queue in enumerate(_QUEUES):
        for place in range(_COUNT):
            op, key = number * _COUNT + place, _key(queue, place)
            kind = Kind.NORMAL
            events.append((op, SendInvoked(0, op, key, kind, "t", number, f"body of {key}")))
            events.append((op, Ended(0, op, Outcome.OK, number, place)))
    return events


def _delivery(group: str, queue: Queue, queue_offset: int, at_ms: int) -> Delivery:
    key = _key(queue, queue_offset)
    body = f"body of {key}"
    return Delivery(at_ms * _MS, group, f"{group}-1", queue, queue_offset, key, body, 1, 0)


def _deliveries() -> list[Delivery]:
    """Each group gets each message, one every hundred milliseconds."""
    return [
        _delivery(group, queue, place, 100 * (place + 1))
        for place in range(_COUNT)
        for group in (_KEEPERS, _SHARERS)
        for queue in _QUEUES
    ]


def _seen(deliveries: list[Delivery]) -> Seen:
    """Causes: a member of each group that had the first queue was killed after 500 ms."""
    return Seen(
        events=_sends(),
        deliveries=sorted(deliveries, key=lambda delivery: delivery.at_ns),
        causes=[
            Cause("killed", group, frozenset(_QUEUES[:1]), _KILLED_NS - 150 * _MS, _KILLED_NS)
            for group in (_KEEPERS, _SHARERS)
        ],
        ends=dict.fromkeys(_QUEUES, _COUNT),
        queues=dict.fromkeys((_KEEPERS, _SHARERS), _QUEUES),
        groups_in_order=frozenset({_KEEPERS}),
        number_of=_number_of,
    )


def _again(group: str, queue: Queue, queue_offset: int) -> Delivery:
    late = _delivery(group, queue, queue_offset, 550)
    return late._replace(member=f"{group}-2")


def test_deliveries_in_order_are_good() -> None:
    verdict = judge(_seen(_deliveries()))
    assert not verdict.violations and not verdict.repeats


def test_messages_handled_shortly_before_a_kill_may_come_again() -> None:
    again = [_again(group, _QUEUES[0], 3) for group in (_KEEPERS, _SHARERS)]
    verdict = judge(_seen([*_deliveries(), *again]))
    assert not verdict.violations
    assert verdict.repeats == {"killed": 2}


def _skipped(deliveries: list[Delivery]) -> list[Delivery]:
    """An ordered group skips a message, which comes at the end."""
    harmed = _delivery(_KEEPERS, _QUEUES[1], 2, 300)
    return [*(one for one in deliveries if one != harmed), harmed._replace(at_ns=900 * _MS)]


def _inverted(deliveries: list[Delivery]) -> list[Delivery]:
    """Two messages come in the wrong order for the first time."""
    first, second = (_delivery(_KEEPERS, _QUEUES[1], place, 100 * (place + 1)) for place in (2, 3))
    others = [one for one in deliveries if one not in (first, second)]
    return [*others, first._replace(at_ns=second.at_ns), second._replace(at_ns=first.at_ns)]


def _lost(deliveries: list[Delivery]) -> list[Delivery]:
    return [one for one in deliveries if one != _delivery(_SHARERS, _QUEUES[1], 2, 300)]


def _twice_without_a_cause(deliveries: list[Delivery]) -> list[Delivery]:
    return [*deliveries, _delivery(_SHARERS, _QUEUES[1], 2, 310)]


def _twice_on_a_queue_of_others(deliveries: list[Delivery]) -> list[Delivery]:
    return [*deliveries, _again(_SHARERS, _QUEUES[1], 2)]


def _twice_after_too_long(deliveries: list[Delivery]) -> list[Delivery]:
    return [*deliveries, _again(_SHARERS, _QUEUES[0], 2)]


def _twice_after_the_kill(deliveries: list[Delivery]) -> list[Delivery]:
    return [*deliveries, _delivery(_KEEPERS, _QUEUES[0], 5, 700)]


def _invented(deliveries: list[Delivery]) -> list[Delivery]:
    return [*deliveries, _delivery(_SHARERS, _QUEUES[0], _COUNT, 700)]


def _changed(deliveries: list[Delivery]) -> list[Delivery]:
    return [
        one._replace(body="other") if one.key == _key(_QUEUES[0], 1) else one for one in deliveries
    ]


@pytest.mark.parametrize(
    ("plant", "rule"),
    [
        (_skipped, Rule.OFFSET_GAP),
        (_inverted, Rule.OFFSET_GAP),
        (_lost, Rule.LOST),
        (_twice_without_a_cause, Rule.DUPLICATED),
        (_twice_on_a_queue_of_others, Rule.DUPLICATED),
        (_twice_after_too_long, Rule.DUPLICATED),
        (_twice_after_the_kill, Rule.DUPLICATED),
        (_invented, Rule.INVENTED),
        (_changed, Rule.WRONG_BODY),
    ],
)
def test_a_planted_fault_is_found(plant: Plant, rule: Rule) -> None:
    found = judge(_seen(plant(_deliveries()))).violations
    assert rule in {violation.rule for violation in found}, found


def test_groups_without_order_may_get_messages_in_any_order() -> None:
    swapped = [
        one._replace(at_ns=(1000 - one.queue_offset) * _MS) if one.group == _SHARERS else one
        for one in _deliveries()
    ]
    seen = replace(_seen(swapped), causes=[])
    assert not judge(seen).violations


def test_a_wrong_receipt_or_error_of_the_application_is_found() -> None:
    notes = SendNotes(Timeline(), _number_of, seed=1)
    notes.told["moved"].append((_QUEUES[0], 1))
    notes.places["moved"].add((_QUEUES[0], 2))
    notes.told["right"].append((_QUEUES[0], 3))
    notes.places["right"].add((_QUEUES[0], 3))
    denied = _delivery(_SHARERS, _QUEUES[0], 4, 100)
    notes.denied.update({denied.key, "not stored"})
    found = {violation.rule: violation.keys for violation in notes.misled([denied])}
    assert found == {Rule.MOVED: ("moved",), Rule.REFUSED_DELIVERED: (denied.key,)}
