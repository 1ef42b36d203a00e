"""The history checker: events in, broken promises out.

It knows nothing of sockets, files or brokers, and its time grows with the length of the history
(sorting apart), so histories of millions of events can be judged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from tests.history import (
    rules_delivery,
    rules_leaders,
    rules_retries,
    rules_time,
    rules_transactions,
)
from tests.history.events import Event
from tests.history.facts import Facts, facts_of
from tests.history.violations import Bounds, Violation

_RULES: tuple[Callable[[Facts], Iterator[Violation]], ...] = (
    rules_delivery.acknowledged_messages_arrive,
    rules_delivery.arrived_messages_were_sent,
    rules_delivery.places_hold_one_message,
    rules_delivery.queues_are_read_in_order,
    rules_delivery.receipts_have_a_cause,
    rules_delivery.copies_have_a_cause,
    rules_delivery.offsets_are_dense,
    rules_delivery.queues_keep_the_order_of_sends,
    rules_delivery.sharding_keys_keep_their_order,
    rules_delivery.replies_reach_their_requester,
    rules_leaders.terms_have_one_leader,
    rules_leaders.leaders_reach_a_majority,
    rules_transactions.half_messages_have_one_fate,
    rules_retries.returned_messages_come_again,
    rules_retries.copies_were_asked_for,
    rules_retries.recalled_timers_stay_away,
)
_BOUNDED_RULES: tuple[Callable[[Facts, Bounds], Iterator[Violation]], ...] = (
    rules_time.messages_wait_for_their_time,
    rules_time.retries_wait_for_their_time,
    rules_transactions.checks_keep_their_bounds,
)


def check_history(events: Iterable[Event], bounds: Bounds | None = None) -> list[Violation]:
    """Every broken promise in a history that has come to its end.

    Raises:
        ValueError: it is no history: an operation ended that was not under way.
    """
    facts = facts_of(events)
    found = [violation for rule in _RULES for violation in rule(facts)]
    for bounded_rule in _BOUNDED_RULES:
        found += bounded_rule(facts, bounds or Bounds())
    return found
