"""Rules of every kind: no message lost, invented, delivered twice or at a wrong offset."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator

from tests.history.events import Kind, SendInvoked
from tests.history.facts import NEVER, Facts, Operation, Place, Receipt
from tests.history.violations import Rule, Violation

RETRY_PREFIX = "%RETRY%"
DEAD_LETTER_PREFIX = "%DLQ%"
EXHAUSTED_TOPIC = "TRANS_CHECK_MAX_TIME_TOPIC"
_PLAIN = (Kind.NORMAL, Kind.ORDERED)


def acknowledged_messages_arrive(facts: Facts) -> Iterator[Violation]:
    """LOST, MOVED, UNREAD: of every group that read a topic to its end."""
    seen: dict[str, set[Place]] = defaultdict(set)
    for receipt in facts.receipts:
        seen[receipt.event.group].add(receipt.place)
    drained = facts.drained_by()
    for key, sends in facts.sends.items():
        asked = sends[0].asked
        stored = [send for send in sends if send.is_ok]
        if not stored:
            continue
        if asked.topic not in drained:
            yield Violation(Rule.UNREAD, (key,), f"topic {asked.topic}")
        for group in drained.get(asked.topic, ()):
            if asked.kind in _PLAIN:
                yield from _lost_plain(facts, stored, seen[group], group)
            elif asked.kind is not Kind.TRANSACTION:
                yield from _lost_waiting(facts, key, stored, seen[group], group)


def _lost_plain(
    facts: Facts, stored: list[Operation[SendInvoked]], seen: set[Place], group: str
) -> Iterator[Violation]:
    for send in stored:
        key = send.asked.key
        place = Place(send.asked.topic, send.queue_id, send.queue_offset)
        found = facts.stored.get(place)
        if place in seen and found is not None and found.key == key:
            continue
        elsewhere = [at for at in facts.places(place.topic, key) if at in seen]
        rule = Rule.MOVED if elsewhere else Rule.LOST
        where = f"found at {elsewhere[0]}" if elsewhere else f"{group} has not seen it"
        yield Violation(rule, (key,), f"acknowledged at {place}; {where}")


def _lost_waiting(
    facts: Facts, key: str, stored: list[Operation[SendInvoked]], seen: set[Place], group: str
) -> Iterator[Violation]:
    if any(recall.may_have_happened for recall in facts.recalls.get(key, ())):
        return
    topic = stored[0].asked.topic
    # A broker that drops duplicate sends answers all of them with one offset.
    wanted = len({(send.queue_id, send.queue_offset) for send in stored})
    found = sum(place in seen for place in facts.places(topic, key))
    if found < wanted:
        due_ms = stored[0].asked.not_before_ms
        yield Violation(Rule.LOST, (key,), f"due {due_ms}; {group} saw {found} of {wanted}")


def arrived_messages_were_sent(facts: Facts) -> Iterator[Violation]:
    """INVENTED, REFUSED_DELIVERED, WRONG_BODY, MOVED: of every stored message."""
    for place, event in facts.stored.items():
        sends = facts.sends.get(event.key)
        if not sends:
            yield Violation(Rule.INVENTED, (event.key,), f"at {place}")
            continue
        asked = sends[0].asked
        if not _may_be_in(facts, place.topic, event.key, asked.topic):
            yield Violation(Rule.INVENTED, (event.key,), f"at {place}, sent to {asked.topic}")
        if place.topic == asked.topic and not any(send.may_have_happened for send in sends):
            yield Violation(Rule.REFUSED_DELIVERED, (event.key,), f"at {place}")
        if event.body != asked.body:
            yield Violation(Rule.WRONG_BODY, (event.key,), f"{event.body!r} at {place}")
        queues = {send.asked.queue_id for send in sends}
        if place.topic == asked.topic and place.queue_id not in queues:
            yield Violation(Rule.MOVED, (event.key,), f"at {place}, sent to queues {queues}")


def _may_be_in(facts: Facts, topic: str, key: str, sent_to: str) -> bool:
    if topic in (sent_to, EXHAUSTED_TOPIC):
        return True
    groups = {back.asked.group for back in facts.send_backs.get(key, ())}
    return any(topic in (RETRY_PREFIX + group, DEAD_LETTER_PREFIX + group) for group in groups)


def places_hold_one_message(facts: Facts) -> Iterator[Violation]:
    """OFFSET_REUSED, SPLIT_HISTORY: by receipts and by reads."""
    acknowledged: dict[Place, str] = {}
    for key, sends in facts.sends.items():
        for send in sends:
            if not send.is_ok or send.asked.kind not in _PLAIN:
                continue
            place = Place(send.asked.topic, send.queue_id, send.queue_offset)
            other = acknowledged.setdefault(place, key)
            found = facts.stored.get(place)
            if other != key:
                yield Violation(Rule.OFFSET_REUSED, (other, key), f"both acknowledged at {place}")
            elif found is not None and found.key != key:
                yield Violation(Rule.OFFSET_REUSED, (key, found.key), f"acknowledged at {place}")
    for receipt in facts.receipts:
        first, event = facts.stored[receipt.place], receipt.event
        if (first.key, first.body, first.stored_ms) != (event.key, event.body, event.stored_ms):
            same = (first.group, first.reader) == (event.group, event.reader)
            rule = Rule.OFFSET_REUSED if same else Rule.SPLIT_HISTORY
            yield Violation(rule, (first.key, event.key), f"at {receipt.place}")


def queues_are_read_in_order(facts: Facts) -> Iterator[Violation]:
    """REORDERED, DUPLICATED, OFFSET_GAP: in the view of one reader of a queue."""
    last: dict[tuple[str, str, str, int], Receipt] = {}
    for receipt in facts.receipts:
        event = receipt.event
        queue = (event.group, event.reader, event.topic, event.queue_id)
        before = last.get(queue)
        last[queue] = receipt
        if before is None or facts.rereads_between(event.group, before.position, receipt.position):
            continue
        step = event.queue_offset - before.event.queue_offset
        keys = (before.event.key, event.key)
        if step > 1:
            yield Violation(Rule.OFFSET_GAP, keys, f"{before.place} then {receipt.place}")
        elif step < 0:
            yield Violation(Rule.REORDERED, keys, f"{before.place} then {receipt.place}")


def receipts_have_a_cause(facts: Facts) -> Iterator[Violation]:
    """DUPLICATED: one group gets one stored message again only after a crash or a rebalance."""
    before: dict[tuple[str, Place], int] = {}
    for receipt in facts.receipts:
        group = receipt.event.group
        position = before.get((group, receipt.place))
        before[group, receipt.place] = receipt.position
        if position is None or facts.rereads_between(group, position, receipt.position):
            continue
        detail = f"{group} got {receipt.place} twice"
        yield Violation(Rule.DUPLICATED, (receipt.event.key,), detail)


def copies_have_a_cause(facts: Facts) -> Iterator[Violation]:
    """DUPLICATED, COMMITTED_TWICE: a topic holds at most as many copies as sends that may count."""
    for key, sends in facts.sends.items():
        asked = sends[0].asked
        places = facts.places(asked.topic, key)
        sent = sum(send.may_have_happened for send in sends)
        if len(places) <= max(sent, 1):
            continue
        half = asked.kind is Kind.TRANSACTION
        rule = Rule.COMMITTED_TWICE if half else Rule.DUPLICATED
        yield Violation(rule, (key,), f"{list(places)} of {sent} sends")


def offsets_are_dense(facts: Facts) -> Iterator[Violation]:
    """OFFSET_GAP: a queue that was read to its end has been seen whole."""
    seen: dict[tuple[str, str, int], set[int]] = defaultdict(set)
    for receipt in facts.receipts:
        event = receipt.event
        seen[event.group, event.topic, event.queue_id].add(event.queue_offset)
    for end in facts.drained:
        expected = range(end.queue_offset_min, end.queue_offset_max)
        missing = sorted(set(expected) - seen[end.group, end.topic, end.queue_id])
        if missing:
            queue = f"{end.topic} queue {end.queue_id}"
            detail = f"{end.group} read {queue} up to {end.queue_offset_max} without {missing[:5]}"
            yield Violation(Rule.OFFSET_GAP, (), detail)


def queues_keep_the_order_of_sends(facts: Facts) -> Iterator[Violation]:
    """REORDERED: a send that ended before another began comes first in their queue.

    Messages of one delay level keep their order, too; timers have none.
    """
    queues: dict[tuple[str, int, int], list[Place]] = defaultdict(list)
    for place, event in facts.stored.items():
        sends = facts.sends.get(event.key)
        if sends and place.topic == sends[0].asked.topic and _keeps_order(sends[0].asked):
            queues[place.topic, place.queue_id, sends[0].asked.delay_ms].append(place)
    for places in queues.values():
        places.sort(key=lambda place: place.queue_offset)
        spans = (_span(facts, place) for place in places)
        for earlier, later in _reversed_pairs(spans):
            yield Violation(Rule.REORDERED, (later, earlier), f"in {places[0].topic}")


def _keeps_order(asked: SendInvoked) -> bool:
    return asked.kind in (*_PLAIN, Kind.DELAY)


def sharding_keys_keep_their_order(facts: Facts) -> Iterator[Violation]:
    """ORDER_LOST: as a group first sees the messages of one sharding key, over all queues."""
    orders: dict[tuple[str, str, str], list[tuple[str, int, int]]] = defaultdict(list)
    seen: set[tuple[str, str]] = set()
    for receipt in facts.receipts:
        event = receipt.event
        sends = facts.sends.get(event.key)
        if not sends or (event.group, event.key) in seen:
            continue
        asked = sends[0].asked
        if not asked.sharding_key or event.topic != asked.topic:
            continue
        seen.add((event.group, event.key))
        orders[event.group, asked.topic, asked.sharding_key].append(_whole_span(sends))
    for (group, _, sharding_key), spans in orders.items():
        for earlier, later in _reversed_pairs(spans):
            detail = f"sharding key {sharding_key!r} as {group} saw it"
            yield Violation(Rule.ORDER_LOST, (later, earlier), detail)


def _span(facts: Facts, place: Place) -> tuple[str, int, int]:
    """The key of a stored message, its earliest begin and its latest end."""
    key = facts.stored[place].key
    sends = facts.sends[key]
    for send in sends:
        if send.is_ok and (send.queue_id, send.queue_offset) == place[1:]:
            return key, send.position, send.done_by
    if len(sends) == 1 and sends[0].asked.kind is Kind.DELAY:
        return key, sends[0].position, sends[0].done_by
    return key, sends[0].position, NEVER


def _whole_span(sends: list[Operation[SendInvoked]]) -> tuple[str, int, int]:
    return sends[0].asked.key, sends[0].position, min(send.done_by for send in sends)


def _reversed_pairs(spans: Iterable[tuple[str, int, int]]) -> Iterator[tuple[str, str]]:
    """Pairs in which the second was done before the first was begun."""
    latest_key, latest = "", -1
    for key, begun, done in spans:
        if done < latest:
            yield latest_key, key
        if begun > latest:
            latest_key, latest = key, begun


def replies_reach_their_requester(facts: Facts) -> Iterator[Violation]:
    """REPLY_LOST, REPLY_MISDIRECTED, REPLY_DUPLICATED."""
    arrived = Counter(event.key for event in facts.replies_received)
    for event in facts.replies_received:
        sent = {(reply.asked.requester, reply.asked.body) for reply in facts.replies[event.key]}
        if (event.requester, event.body) not in sent:
            yield Violation(Rule.REPLY_MISDIRECTED, (event.key,), f"got by {event.requester}")
    for key, replies in facts.replies.items():
        if arrived[key] > len(replies):
            yield Violation(Rule.REPLY_DUPLICATED, (key,), f"{arrived[key]} of {len(replies)}")
        if not arrived[key] and any(reply.is_ok for reply in replies):
            yield Violation(Rule.REPLY_LOST, (key,), f"for {replies[0].asked.requester}")
