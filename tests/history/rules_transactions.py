"""Rules of transactions: one decision for each half message, and none forgotten."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from tests.history.events import Decision, EndInvoked, Kind, SendInvoked
from tests.history.facts import NEVER, Facts, Operation
from tests.history.rules_delivery import EXHAUSTED_TOPIC
from tests.history.violations import Bounds, Rule, Violation


def half_messages_have_one_fate(facts: Facts) -> Iterator[Violation]:
    for key, sends in facts.sends.items():
        if sends[0].asked.kind is not Kind.TRANSACTION:
            continue
        commits = _ends(facts, key, Decision.COMMIT)
        rollbacks = _ends(facts, key, Decision.ROLLBACK)
        if facts.places(sends[0].asked.topic, key):
            yield from _wrongly_delivered(key, commits, rollbacks)
        else:
            yield from _wrongly_missing(facts, key, sends, commits, rollbacks)


def _ends(facts: Facts, key: str, decision: Decision) -> list[Operation[EndInvoked]]:
    ends = facts.ends.get(key, ())
    return [end for end in ends if end.asked.decision is decision and end.may_have_happened]


def _wrongly_delivered(
    key: str, commits: list[Operation[EndInvoked]], rollbacks: list[Operation[EndInvoked]]
) -> Iterator[Violation]:
    """ROLLED_BACK_DELIVERED, COMMITTED_UNASKED, COMMITTED_AFTER_ROLLBACK."""
    if not commits:
        rule = Rule.ROLLED_BACK_DELIVERED if rollbacks else Rule.COMMITTED_UNASKED
        yield Violation(rule, (key,), f"{len(rollbacks)} rollbacks and no commit")
        return
    rolled_back = min((end.done_by for end in rollbacks), default=NEVER)
    if rolled_back < min(commit.position for commit in commits):
        detail = f"rolled back by event {rolled_back}, committed at {commits[0].position}"
        yield Violation(Rule.COMMITTED_AFTER_ROLLBACK, (key,), detail)


def _wrongly_missing(
    facts: Facts,
    key: str,
    sends: list[Operation[SendInvoked]],
    commits: list[Operation[EndInvoked]],
    rollbacks: list[Operation[EndInvoked]],
) -> Iterator[Violation]:
    """LOST, HALF_FORGOTTEN."""
    committed = min((end.done_by for end in commits), default=NEVER)
    if committed < min((end.position for end in rollbacks), default=NEVER):
        yield Violation(Rule.LOST, (key,), f"committed by event {committed}")
        return
    is_open = key in facts.open_keys or bool(facts.places(EXHAUSTED_TOPIC, key))
    if any(send.is_ok for send in sends) and not rollbacks and not is_open:
        checks = sum(check.key == key for _, check in facts.checks)
        yield Violation(Rule.HALF_FORGOTTEN, (key,), f"checked {checks} times")


def checks_keep_their_bounds(facts: Facts, bounds: Bounds) -> Iterator[Violation]:
    """INVENTED, CHECKED_EARLY, CHECKED_TOO_OFTEN."""
    counts: Counter[str] = Counter()
    for position, check in facts.checks:
        sends = facts.sends.get(check.key)
        if not sends:
            yield Violation(Rule.INVENTED, (check.key,), "a check of a half message never sent")
            continue
        counts[check.key] += 1
        due_ms = sends[0].asked.now_ms + bounds.transaction_timeout_ms
        # Time that was counted before a clock was put back still counts.
        put_back = facts.moved_back_between(sends[0].position, position)
        if facts.highest_ms[position] < due_ms and not put_back:
            yield Violation(Rule.CHECKED_EARLY, (check.key,), f"at {check.now_ms}, not {due_ms}")
        if max(check.times, counts[check.key] - len(sends) + 1) > bounds.check_count_max:
            yield Violation(Rule.CHECKED_TOO_OFTEN, (check.key,), f"{counts[check.key]} times")
