"""Rules of delayed messages: not before their time, and not long after it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tests.history.events import Kind
from tests.history.facts import Facts, Receipt, overdue_ms
from tests.history.rules_delivery import RETRY_PREFIX
from tests.history.violations import Bounds, Rule, Violation

_WAITING = (Kind.DELAY, Kind.TIMER)


class _Cause(NamedTuple):
    """An operation that a copy may come from; one copy can have several."""

    position: int
    due_ms: int
    delay_ms: int


def messages_wait_for_their_time(facts: Facts, bounds: Bounds) -> Iterator[Violation]:
    """EARLY, LATE."""
    for receipt in facts.receipts:
        sends = facts.sends.get(receipt.event.key, [])
        causes = [
            _Cause(send.position, send.asked.not_before_ms, send.asked.delay_ms)
            for send in sends
            if send.asked.kind in _WAITING and send.asked.topic == receipt.event.topic
        ]
        yield from _judged(facts, receipt, causes, bounds, Rule.EARLY)


def retries_wait_for_their_time(facts: Facts, bounds: Bounds) -> Iterator[Violation]:
    """RETRY_EARLY, LATE."""
    for receipt in facts.receipts:
        backs = facts.send_backs.get(receipt.event.key, [])
        causes = [
            _Cause(back.position, asked.now_ms + asked.delay_ms, asked.delay_ms)
            for back, asked in ((back, back.asked) for back in backs)
            if RETRY_PREFIX + asked.group == receipt.event.topic
            and asked.reconsume_times == receipt.event.reconsume_times - 1
            and not asked.is_last
        ]
        yield from _judged(facts, receipt, causes, bounds, Rule.RETRY_EARLY)


def _judged(
    facts: Facts, receipt: Receipt, causes: list[_Cause], bounds: Bounds, early: Rule
) -> Iterator[Violation]:
    if not causes:
        return
    event = receipt.event
    times = f"due {[cause.due_ms for cause in causes]}, stored {event.stored_ms}"
    if all(_is_early(facts, receipt, cause) for cause in causes):
        yield Violation(early, (event.key,), f"{times} at {receipt.place}")
    late_ms = min(
        overdue_ms(facts, cause.due_ms, cause.position, receipt.position, event.stored_ms)
        for cause in causes
    )
    if late_ms > bounds.late_ms_max:
        yield Violation(Rule.LATE, (event.key,), f"{times}, late by {late_ms} ms of work")


def _is_early(facts: Facts, receipt: Receipt, cause: _Cause) -> bool:
    stored_ms = receipt.event.stored_ms
    if stored_ms >= cause.due_ms:
        # A time that the clock has never shown is no store time.
        return facts.highest_ms[receipt.position] < cause.due_ms
    # Behind a clock that was put back the delay of a level passes once more, not longer.
    return cause.delay_ms <= 0 or not facts.waited_again(
        cause.position, receipt.position, delay_ms=cause.delay_ms, until_ms=stored_ms
    )
