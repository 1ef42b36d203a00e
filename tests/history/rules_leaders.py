"""Rules of failover groups: terms grow, and a leader is elected by a majority."""

from __future__ import annotations

from collections.abc import Iterator

from tests.history.events import LeaderChanged, Partitioned
from tests.history.facts import Facts
from tests.history.violations import Rule, Violation


def terms_have_one_leader(facts: Facts) -> Iterator[Violation]:
    """TERM_USED_TWICE: each member that comes to lead has a higher term than the one before."""
    term, leader = 0, ""
    for event in facts.leaders:
        if not isinstance(event, LeaderChanged) or not event.leader:
            continue
        if event.term < term or (event.term == term and event.leader != leader):
            detail = f"{leader} led in term {term}, then {event.leader} in term {event.term}"
            yield Violation(Rule.TERM_USED_TWICE, (event.leader,), detail)
        term, leader = event.term, event.leader


def leaders_reach_a_majority(facts: Facts) -> Iterator[Violation]:
    """LED_WITHOUT_MAJORITY: a leader stays in its own side; no other can be elected there."""
    sides: tuple[tuple[str, ...], ...] = ()
    leader = ""
    for event in facts.leaders:
        if isinstance(event, Partitioned):
            sides = event.sides
            continue
        if event.leader and event.leader != leader:
            reached = next((len(side) for side in sides if event.leader in side), None)
            count = sum(map(len, sides))
            if reached is not None and 2 * reached <= count:
                detail = f"{event.leader} reached {reached} of {count} in term {event.term}"
                yield Violation(Rule.LED_WITHOUT_MAJORITY, (event.leader,), detail)
        leader = event.leader or leader
