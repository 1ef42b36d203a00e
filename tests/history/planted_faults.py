"""Faults planted into good histories: each breaks one promise to one message.

A fault is a function: it edits a history and returns the key of the message it harmed. Its
decorator names the rule that must find it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

from tests.history.editing import EditedHistory
from tests.history.events import (
    Checked,
    ClockMoved,
    ConsumerCrashed,
    Decision,
    Drained,
    Ended,
    EndInvoked,
    Kind,
    Outcome,
    RecallInvoked,
    Received,
    ReplyInvoked,
    ReplyReceived,
    SendBackInvoked,
    StillOpen,
)
from tests.history.good_histories import DEAD_LETTERS, RETRY_TOPIC, TOPIC
from tests.history.violations import Rule

Plant = Callable[[EditedHistory], str]


class Fault(NamedTuple):
    name: str
    rule: Rule
    plant: Plant


FAULTS: list[Fault] = []


def _caught_as(rule: Rule) -> Callable[[Plant], Plant]:
    def register(plant: Plant) -> Plant:
        FAULTS.append(Fault(plant.__name__, rule, plant))
        return plant

    return register


# Lost.


@_caught_as(Rule.LOST)
def the_last_message_of_a_queue_is_cut_off(history: EditedHistory) -> str:
    place = history.acknowledged(Kind.NORMAL, single=True)[-1]
    return history.remove_message(place)


@_caught_as(Rule.LOST)
def a_delayed_message_is_never_delivered(history: EditedHistory) -> str:
    return history.remove_message(history.acknowledged(Kind.DELAY)[0])


@_caught_as(Rule.LOST)
def a_timer_is_never_delivered(history: EditedHistory) -> str:
    return history.remove_message(history.acknowledged(Kind.TIMER)[0])


@_caught_as(Rule.LOST)
def one_group_never_sees_a_message(history: EditedHistory) -> str:
    place = history.acknowledged(Kind.NORMAL, single=True)[0]
    history.drop(lambda event: history.is_receipt(event, place, group="auditors"))
    return history.key_at(place)


@_caught_as(Rule.LOST)
def a_committed_message_is_never_delivered(history: EditedHistory) -> str:
    key = history.ended_key(Decision.COMMIT)
    return history.remove_message(history.places_of(key)[0])


@_caught_as(Rule.UNREAD)
def nobody_reads_the_topic(history: EditedHistory) -> str:
    history.drop(lambda event: isinstance(event, Drained) and event.topic == TOPIC)
    return history.key_at(history.acknowledged(Kind.NORMAL)[0])


# Invented.


@_caught_as(Rule.INVENTED)
def a_message_comes_from_nowhere(history: EditedHistory) -> str:
    return history.append_message("nobody-sent-me", TOPIC, 0)


@_caught_as(Rule.INVENTED)
def a_message_arrives_in_another_topic(history: EditedHistory) -> str:
    key = history.key_at(history.acknowledged(Kind.NORMAL)[0])
    return history.append_message(key, "invoices", 0)


@_caught_as(Rule.INVENTED)
def a_half_message_is_checked_that_nobody_sent(history: EditedHistory) -> str:
    history.append(Checked(history.end_ms, "nobody-sent-me", 1))
    return "nobody-sent-me"


@_caught_as(Rule.REFUSED_DELIVERED)
def a_refused_send_is_delivered(history: EditedHistory) -> str:
    send = history.refused_send()
    return history.append_message(send.key, TOPIC, send.queue_id)


@_caught_as(Rule.WRONG_BODY)
def a_body_is_changed(history: EditedHistory) -> str:
    place = history.acknowledged(Kind.ORDERED)[0]
    history.change_message(place, body="something else")
    return history.key_at(place)


# Places and order.


@_caught_as(Rule.MOVED)
def a_message_lands_in_another_queue(history: EditedHistory) -> str:
    key = history.remove_message(history.acknowledged(Kind.NORMAL, queue_id=0, single=True)[0])
    return history.append_message(key, TOPIC, 2)


@_caught_as(Rule.OFFSET_GAP)
def an_offset_is_left_out(history: EditedHistory) -> str:
    place = next(at for at in history.acknowledged(Kind.NORMAL) if at.queue_offset > 0)
    before = history.key_at(place._replace(queue_offset=place.queue_offset - 1))
    history.drop(lambda event: history.is_receipt(event, place))
    return before


@_caught_as(Rule.OFFSET_REUSED)
def two_sends_are_acknowledged_with_one_offset(history: EditedHistory) -> str:
    first, second = history.acknowledged(Kind.NORMAL, queue_id=2)[:2]
    history.change_acknowledgement(second, queue_offset=first.queue_offset)
    return history.key_at(first)


@_caught_as(Rule.OFFSET_REUSED)
def a_message_is_replaced_after_a_crash(history: EditedHistory) -> str:
    place = history.acknowledged(Kind.NORMAL)[0]
    _, event = history.receipts(place)[-1]
    history.append(ConsumerCrashed(history.end_ms, event.group))
    history.append(dataclasses.replace(event, body="another message"))
    for each, _ in history.receipts(place)[:-2]:
        history.change(each, group=event.group, reader=event.reader)
    return event.key


@_caught_as(Rule.SPLIT_HISTORY)
def two_groups_see_different_messages(history: EditedHistory) -> str:
    place = history.acknowledged(Kind.NORMAL)[0]
    for at, event in history.receipts(place):
        if event.group == "auditors":
            history.change(at, body="as the auditors saw it")
    return history.key_at(place)


@_caught_as(Rule.REORDERED)
def two_messages_change_places(history: EditedHistory) -> str:
    first, second = history.neighbours(Kind.NORMAL)
    history.swap_messages(first, second)
    return history.key_at(first)


@_caught_as(Rule.REORDERED)
def a_delay_level_is_delivered_out_of_order(history: EditedHistory) -> str:
    first, second = history.pair_of_one_level()
    history.swap_messages(first, second)
    return history.key_at(first)


@_caught_as(Rule.REORDERED)
def a_reader_gets_two_messages_in_the_wrong_order(history: EditedHistory) -> str:
    at, after = history.receipts_in_a_row("auditors")
    history.swap_events(at, after)
    event = history.events[at]
    assert isinstance(event, Received)
    return event.key


@_caught_as(Rule.ORDER_LOST)
def a_sharding_key_is_delivered_out_of_order(history: EditedHistory) -> str:
    first, second = history.neighbours(Kind.ORDERED)
    history.swap_messages(first, second)
    return history.key_at(first)


# Twice.


@_caught_as(Rule.DUPLICATED)
def a_message_is_read_again_without_a_crash(history: EditedHistory) -> str:
    place = history.acknowledged(Kind.NORMAL)[0]
    at, event = history.receipts(place)[-1]
    history.insert(at + 1, event)
    return event.key


@_caught_as(Rule.DUPLICATED)
def a_message_sent_once_is_stored_twice(history: EditedHistory) -> str:
    key = history.key_at(history.acknowledged(Kind.NORMAL, queue_id=2, single=True)[0])
    return history.append_message(key, TOPIC, 2)


@_caught_as(Rule.DUPLICATED)
def a_delayed_message_is_delivered_again_after_a_restart(history: EditedHistory) -> str:
    key = history.key_at(history.acknowledged(Kind.DELAY)[0])
    return history.append_message(key, TOPIC, 0)


@_caught_as(Rule.DUPLICATED)
def a_timer_is_delivered_again_after_a_restart(history: EditedHistory) -> str:
    key = history.key_at(history.acknowledged(Kind.TIMER)[0])
    return history.append_message(key, TOPIC, 1)


@_caught_as(Rule.DUPLICATED)
def a_retry_is_delivered_twice(history: EditedHistory) -> str:
    place = history.returned(is_last=False)
    times = history.receipts(place)[0][1].reconsume_times
    return history.append_message(history.key_at(place), RETRY_TOPIC, 0, times)


# Time.


@_caught_as(Rule.EARLY)
def a_timer_fires_a_millisecond_early(history: EditedHistory) -> str:
    place = history.acknowledged(Kind.TIMER)[0]
    key = history.key_at(place)
    history.change_message(place, stored_ms=history.send_of(key).not_before_ms - 1)
    return key


@_caught_as(Rule.EARLY)
def a_delayed_message_does_not_wait(history: EditedHistory) -> str:
    place = history.acknowledged(Kind.DELAY)[0]
    key = history.key_at(place)
    send = history.send_of(key)
    history.change_message(place, stored_ms=send.not_before_ms - send.delay_ms)
    return key


@_caught_as(Rule.EARLY)
def a_clock_put_back_a_second_ends_a_delay(history: EditedHistory) -> str:
    place = history.acknowledged(Kind.DELAY)[0]
    at, send = history.invocation_of(history.key_at(place))
    now_ms = send.now_ms - 1000
    history.insert(at + 1, ClockMoved(now_ms, send.now_ms))
    history.change_message(place, stored_ms=now_ms + send.delay_ms - 1)
    return send.key


@_caught_as(Rule.EARLY)
def a_broker_claims_a_time_that_has_not_come(history: EditedHistory) -> str:
    place = history.acknowledged(Kind.TIMER)[0]
    at, send = history.invocation_of(history.key_at(place))
    receipt = history.receipts(place)[0][1]
    history.insert(at + 1, dataclasses.replace(receipt, now_ms=send.now_ms, group="spies"))
    return send.key


@_caught_as(Rule.LATE)
def a_timer_that_is_due_is_forgotten_for_an_hour(history: EditedHistory) -> str:
    place = history.acknowledged(Kind.TIMER)[0]
    key = history.key_at(place)
    history.let_time_pass(key, 3_600_000)
    return key


@_caught_as(Rule.RECALLED_DELIVERED)
def a_timer_is_delivered_though_it_was_called_back(history: EditedHistory) -> str:
    asked = history.operation(RecallInvoked, Outcome.OK)
    return history.append_message(asked.key, TOPIC, 1)


# Transactions.


@_caught_as(Rule.HALF_FORGOTTEN)
def an_open_half_message_is_forgotten(history: EditedHistory) -> str:
    key = history.open_key()
    history.drop(lambda event: isinstance(event, StillOpen) and event.key == key)
    return key


@_caught_as(Rule.ROLLED_BACK_DELIVERED)
def a_message_is_delivered_though_it_was_rolled_back(history: EditedHistory) -> str:
    return history.append_message(history.ended_key(Decision.ROLLBACK), TOPIC, 2)


@_caught_as(Rule.COMMITTED_UNASKED)
def an_open_half_message_is_delivered(history: EditedHistory) -> str:
    return history.append_message(history.open_key(), TOPIC, 2)


@_caught_as(Rule.COMMITTED_AFTER_ROLLBACK)
def a_commit_undoes_a_rollback(history: EditedHistory) -> str:
    key = history.ended_key(Decision.ROLLBACK)
    history.append(EndInvoked(history.end_ms, 1 << 40, key, Decision.COMMIT))
    history.append(Ended(history.end_ms, 1 << 40, Outcome.OK))
    return history.append_message(key, TOPIC, 2)


@_caught_as(Rule.COMMITTED_TWICE)
def a_half_message_is_committed_twice(history: EditedHistory) -> str:
    return history.append_message(history.ended_key(Decision.COMMIT), TOPIC, 2)


@_caught_as(Rule.CHECKED_EARLY)
def a_half_message_is_checked_at_once(history: EditedHistory) -> str:
    send = history.first_half()
    at, _ = history.invocation_of(send.key)
    history.insert(at + 2, Checked(send.now_ms, send.key, 1))
    return send.key


@_caught_as(Rule.CHECKED_TOO_OFTEN)
def a_half_message_is_checked_for_ever(history: EditedHistory) -> str:
    key = history.open_key()
    for _ in range(16):
        history.append(Checked(history.end_ms, key, 1))
    return key


# Retries.


@_caught_as(Rule.RETRY_LOST)
def a_retry_is_lost(history: EditedHistory) -> str:
    return history.remove_message(history.returned(is_last=False))


@_caught_as(Rule.RETRY_EARLY)
def a_retry_does_not_wait(history: EditedHistory) -> str:
    place = history.returned(is_last=False, steady=True)
    key = history.key_at(place)
    times = history.receipts(place)[0][1].reconsume_times
    asked = history.send_back(key, times - 1)
    history.change_message(place, stored_ms=asked.now_ms + asked.delay_ms - 1)
    return key


@_caught_as(Rule.RETRY_MISLABELLED)
def a_retry_forgets_its_topic(history: EditedHistory) -> str:
    place = history.returned(is_last=False)
    history.change_message(place, properties={})
    return history.key_at(place)


@_caught_as(Rule.DEAD_LETTER_MISSING)
def a_dead_letter_is_lost(history: EditedHistory) -> str:
    return history.remove_message(history.returned(is_last=True))


@_caught_as(Rule.DEAD_LETTER_UNASKED)
def a_message_with_retries_left_dies(history: EditedHistory) -> str:
    keys = {event.key for event in history.all_of(SendBackInvoked) if event.is_last}
    asked = next(e for e in history.all_of(SendBackInvoked) if e.key not in keys)
    return history.append_message(asked.key, DEAD_LETTERS, 0, 1)


# Replies.


@_caught_as(Rule.REPLY_LOST)
def a_reply_is_lost(history: EditedHistory) -> str:
    key = history.operation(ReplyInvoked, Outcome.OK).key
    history.drop(lambda event: isinstance(event, ReplyReceived) and event.key == key)
    return key


@_caught_as(Rule.REPLY_MISDIRECTED)
def a_reply_goes_to_somebody_else(history: EditedHistory) -> str:
    asked = history.operation(ReplyInvoked, Outcome.OK)
    for at, event in enumerate(history.events):
        if isinstance(event, ReplyReceived) and event.key == asked.key:
            history.change(at, requester="somebody else")
    return asked.key


@_caught_as(Rule.REPLY_DUPLICATED)
def a_reply_arrives_twice(history: EditedHistory) -> str:
    asked = history.operation(ReplyInvoked, Outcome.OK)
    history.append(ReplyReceived(history.end_ms, asked.key, asked.requester, asked.body))
    return asked.key
