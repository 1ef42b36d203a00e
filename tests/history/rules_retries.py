"""Rules of messages that consumers send back: a retry after its delay, then the dead letters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from tests.history.facts import Facts
from tests.history.rules_delivery import DEAD_LETTER_PREFIX, RETRY_PREFIX
from tests.history.violations import Rule, Violation


def returned_messages_come_again(facts: Facts) -> Iterator[Violation]:
    """RETRY_LOST, DEAD_LETTER_MISSING, UNREAD."""
    drained = facts.drained_by()
    for key, backs in facts.send_backs.items():
        for back in (each for each in backs if each.is_ok):
            asked = back.asked
            prefix = DEAD_LETTER_PREFIX if asked.is_last else RETRY_PREFIX
            topic = prefix + asked.group
            if topic not in drained:
                yield Violation(Rule.UNREAD, (key,), f"topic {topic}")
            times = {facts.stored[at].reconsume_times for at in facts.places(topic, key)}
            if asked.is_last and not times:
                yield Violation(Rule.DEAD_LETTER_MISSING, (key,), f"not in {topic}")
            elif not asked.is_last and asked.reconsume_times + 1 not in times:
                detail = f"reconsume {asked.reconsume_times + 1} not in {topic}"
                yield Violation(Rule.RETRY_LOST, (key,), detail)


def copies_were_asked_for(facts: Facts) -> Iterator[Violation]:
    """DUPLICATED, DEAD_LETTER_UNASKED, RETRY_MISLABELLED."""
    found: Counter[tuple[str, str, int]] = Counter()
    for place, event in facts.stored.items():
        if not place.topic.startswith((RETRY_PREFIX, DEAD_LETTER_PREFIX)):
            continue
        is_dead = place.topic.startswith(DEAD_LETTER_PREFIX)
        found[place.topic, event.key, -1 if is_dead else event.reconsume_times] += 1
        origin = event.properties.get("RETRY_TOPIC")
        sends = facts.sends.get(event.key)
        if sends and origin != sends[0].asked.topic:
            yield Violation(Rule.RETRY_MISLABELLED, (event.key,), f"RETRY_TOPIC={origin}")
    for (topic, key, times), count in found.items():
        asked = _asked_for(facts, topic, key, times)
        if times == -1 and not asked:
            yield Violation(Rule.DEAD_LETTER_UNASKED, (key,), f"in {topic}")
        elif count > asked:
            detail = f"{count} in {topic} of {asked} given back"
            yield Violation(Rule.DUPLICATED, (key,), detail)


def _asked_for(facts: Facts, topic: str, key: str, times: int) -> int:
    """How many copies a topic may hold; ``times`` is -1 for dead letters."""
    count = 0
    for back in facts.send_backs.get(key, ()):
        asked = back.asked
        prefix = DEAD_LETTER_PREFIX if asked.is_last else RETRY_PREFIX
        if prefix + asked.group != topic or not back.may_have_happened:
            continue
        count += times in (-1, asked.reconsume_times + 1)
    return count


def recalled_timers_stay_away(facts: Facts) -> Iterator[Violation]:
    """RECALLED_DELIVERED."""
    for key, recalls in facts.recalls.items():
        sends = facts.sends.get(key)
        done = [recall for recall in recalls if recall.is_ok]
        if sends and done and facts.places(sends[0].asked.topic, key):
            yield Violation(
                Rule.RECALLED_DELIVERED, (key,), f"called back at {done[0].asked.now_ms}"
            )
