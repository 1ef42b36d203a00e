"""Faults of a change of leaders, planted into good histories."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from tests.history.editing import EditedHistory
from tests.history.events import (
    ConsumerCrashed,
    Ended,
    Kind,
    LeaderChanged,
    Outcome,
    Partitioned,
    Rebalanced,
    Received,
)
from tests.history.facts import Place
from tests.history.good_histories import GROUP, MEMBERS, TOPIC
from tests.history.planted_faults import Fault, Plant
from tests.history.violations import FAILOVER_REREAD_MS, Rule

FAILOVER_FAULTS: list[Fault] = []


def _caught_as(rule: Rule) -> Callable[[Plant], Plant]:
    def register(plant: Plant) -> Plant:
        FAILOVER_FAULTS.append(Fault(plant.__name__, rule, plant))
        return plant

    return register


@_caught_as(Rule.LOST)
def a_message_that_the_former_leader_acknowledged_is_lost(history: EditedHistory) -> str:
    lost_at = _changes(history)[-1]
    return history.remove_message(_acknowledged(history, before=lost_at)[-1])


@_caught_as(Rule.OFFSET_REUSED)
def the_next_leader_gives_a_place_away_again(history: EditedHistory) -> str:
    changed_at = _middle_change(history)
    first = _acknowledged(history, before=changed_at)[-1]
    second = next(
        place
        for place in _acknowledged(history, after=changed_at)
        if place.queue_id == first.queue_id
    )
    history.change_acknowledgement(second, queue_offset=first.queue_offset)
    return history.key_at(first)


@_caught_as(Rule.REFUSED_DELIVERED)
def a_send_in_doubt_is_told_as_a_refusal(history: EditedHistory) -> str:
    unknown = {
        event.op: at
        for at, event in enumerate(history.events)
        if isinstance(event, Ended) and event.outcome is Outcome.UNKNOWN
    }
    send = next(send for send in history.stored_sends() if send.op in unknown)
    history.change(unknown[send.op], outcome=Outcome.FAILED)
    return send.key


@_caught_as(Rule.DUPLICATED)
def a_group_reads_again_far_behind_a_failover(history: EditedHistory) -> str:
    old: list[Received] = []
    lost_ms = 0
    for at, event in enumerate(history.events):
        match event:
            case ConsumerCrashed() | Rebalanced():
                # Everything may come again, for another cause.
                old = []
            case Received() if event.group == GROUP:
                old.append(event)
            case LeaderChanged(leader=""):
                lost_ms = event.now_ms
            case LeaderChanged():
                far = [one for one in old if one.now_ms < lost_ms - FAILOVER_REREAD_MS]
                if far:
                    history.insert(at + 1, far[-1])
                    return far[-1].key
                old = []
    raise LookupError("no failover has an old message before it")


@_caught_as(Rule.TERM_USED_TWICE)
def two_members_lead_in_one_term(history: EditedHistory) -> str:
    at = _changes(history)[0]
    event = history.events[at]
    assert isinstance(event, LeaderChanged)
    other = next(name for name in MEMBERS if name != event.leader)
    history.insert(at + 1, dataclasses.replace(event, leader=other))
    return other


@_caught_as(Rule.LED_WITHOUT_MAJORITY)
def a_member_that_is_cut_off_comes_to_lead(history: EditedHistory) -> str:
    at = _changes(history)[0]
    event = history.events[at]
    assert isinstance(event, LeaderChanged)
    others = tuple(name for name in MEMBERS if name != event.leader)
    history.insert(at, Partitioned(event.now_ms, ((event.leader,), others)))
    return event.leader


def _changes(history: EditedHistory) -> list[int]:
    """Where a member comes to lead."""
    return [
        at
        for at, event in enumerate(history.events)
        if isinstance(event, LeaderChanged) and event.leader
    ]


def _middle_change(history: EditedHistory) -> int:
    changes = _changes(history)
    return changes[len(changes) // 2]


def _acknowledged(history: EditedHistory, *, before: int = 1 << 62, after: int = 0) -> list[Place]:
    """The places of messages whose only send ended there."""
    ended = {event.op: at for at, event in enumerate(history.events) if isinstance(event, Ended)}
    return [
        place
        for place in history.acknowledged(Kind.NORMAL, single=True)
        if place.topic == TOPIC
        and after <= ended[history.send_of(history.key_at(place)).op] < before
    ]
