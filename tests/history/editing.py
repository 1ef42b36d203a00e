"""Edits of a history, for planting faults: messages are found, moved, removed, added."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from tests.history.events import (
    Decision,
    Drained,
    Ended,
    Event,
    Invocation,
    Kind,
    Outcome,
    Received,
    SendBackInvoked,
    SendInvoked,
    StillOpen,
)
from tests.history.facts import Facts, Operation, Place, facts_of
from tests.history.good_histories import DEAD_LETTERS, RETRY_TOPIC, TOPIC

T = TypeVar("T", bound=Event)
Asked = TypeVar("Asked", bound=Invocation)

_PLAIN = (Kind.NORMAL, Kind.ORDERED)


class EditedHistory:
    """A good history with a fault being planted. Lookups read it as it was."""

    def __init__(self, events: list[Event]) -> None:
        self.events = list(events)
        self._facts: Facts = facts_of(events)

    # Finding; a missing event raises.

    @property
    def end_ms(self) -> int:
        return self.events[-1].now_ms

    def key_at(self, place: Place) -> str:
        return self._facts.stored[place].key

    def all_of(self, kind: type[T]) -> Iterator[T]:
        return (event for event in self.events if isinstance(event, kind))

    def receipts(self, place: Place) -> list[tuple[int, Received]]:
        return [
            (at, event)
            for at, event in enumerate(self.events)
            if isinstance(event, Received) and _place(event) == place
        ]

    def is_receipt(self, event: Event, place: Place, group: str = "") -> bool:
        return isinstance(event, Received) and _place(event) == place and group in ("", event.group)

    def places_of(self, key: str) -> list[Place]:
        return list(self._facts.places(TOPIC, key))

    def invocation_of(self, key: str) -> tuple[int, SendInvoked]:
        send = self._facts.sends[key][0]
        return send.position, send.asked

    def send_of(self, key: str) -> SendInvoked:
        return self._facts.sends[key][0].asked

    def acknowledged(self, kind: Kind, queue_id: int = -1, *, single: bool = False) -> list[Place]:
        """The places of the acknowledged messages of a kind that were sent once."""
        found = [
            (self._facts.places(TOPIC, send.asked.key), send)
            for send in self._sent_once(kind)
            if queue_id in (-1, send.asked.queue_id)
        ]
        places = [places[0] for places, send in found if places and send.is_ok]
        if single:
            places = [at for at in places if self.key_at(at) not in self._facts.send_backs]
        assert places, f"the history has no {kind} message to harm"
        return places

    def _sent_once(self, kind: Kind) -> list[Operation[SendInvoked]]:
        sends = (sends for sends in self._facts.sends.values() if len(sends) == 1)
        return [send for (send,) in sends if send.asked.kind is kind]

    def refused_send(self) -> SendInvoked:
        kinds = (send for kind in _PLAIN for send in self._sent_once(kind))
        return next(send.asked for send in kinds if send.outcome is Outcome.FAILED)

    def stored_sends(self) -> Iterator[SendInvoked]:
        """Plain sends that were made once, and whose message was received."""
        for kind in _PLAIN:
            for send in self._sent_once(kind):
                if self._facts.places(TOPIC, send.asked.key):
                    yield send.asked

    def neighbours(self, kind: Kind) -> tuple[Place, Place]:
        """Two messages of one queue (and sharding key), the first done before the second began."""
        places = self.acknowledged(kind, 0)
        return self._ordered_pair(places)

    def pair_of_one_level(self) -> tuple[Place, Place]:
        places = self.acknowledged(Kind.DELAY)
        delay_ms = self.send_of(self.key_at(places[0])).delay_ms
        same = [at for at in places if self.send_of(self.key_at(at)).delay_ms == delay_ms]
        return self._ordered_pair(same)

    def _ordered_pair(self, places: list[Place]) -> tuple[Place, Place]:
        ordered = sorted(places, key=lambda place: place.queue_offset)
        return ordered[0], ordered[1]

    def receipts_in_a_row(self, group: str) -> tuple[int, int]:
        """Two receipts of one queue, one right after the other."""
        for at, (event, after) in enumerate(zip(self.events, self.events[1:], strict=False)):
            if (
                isinstance(event, Received)
                and isinstance(after, Received)
                and event.group == after.group == group
                and (event.topic, event.queue_id) == (after.topic, after.queue_id)
            ):
                return at, at + 1
        raise LookupError(group)

    def operation(self, kind: type[Asked], outcome: Outcome) -> Asked:
        ended = {event.op for event in self.all_of(Ended) if event.outcome is outcome}
        return next(event for event in self.all_of(kind) if event.op in ended)

    def ended_key(self, decision: Decision) -> str:
        """A half message that was certainly ended in this way, and in no other."""
        for key, ends in self._facts.ends.items():
            if all(end.asked.decision is decision for end in ends) and ends[0].is_ok:
                return key
        raise LookupError(decision)

    def open_key(self) -> str:
        """An acknowledged half message that is open in the end, and never decided."""
        for event in self.all_of(StillOpen):
            decided = event.key in self._facts.ends
            if self._facts.sends[event.key][0].is_ok and not decided:
                return event.key
        raise LookupError("open half message")

    def first_half(self) -> SendInvoked:
        return next(e for e in self.all_of(SendInvoked) if e.kind is Kind.TRANSACTION)

    def returned(self, *, is_last: bool, steady: bool = False) -> Place:
        """A retry, or a dead letter, that was requested just once, and acknowledged.

        ``steady``: the clock was not put back before it came.
        """
        topic = DEAD_LETTERS if is_last else RETRY_TOPIC
        for key, backs in self._facts.send_backs.items():
            places = self._facts.places(topic, key)
            asked = [back for back in backs if back.asked.is_last is is_last]
            if len(places) == 1 == len(asked) and asked[0].is_ok:
                came_at = self.receipts(places[0])[0][0]
                if steady and self._facts.moved_back_between(asked[0].position, came_at):
                    continue
                return places[0]
        raise LookupError(topic)

    def send_back(self, key: str, times: int) -> SendBackInvoked:
        """The send-back of a message that had been retried ``times`` times."""
        backs = (back.asked for back in self._facts.send_backs[key])
        return next(
            asked for asked in backs if asked.reconsume_times == times and not asked.is_last
        )

    # Changing.

    def append(self, event: Event) -> None:
        self.events.append(event)

    def insert(self, at: int, event: Event) -> None:
        self.events.insert(at, event)

    def change(self, at: int, **changes: Any) -> None:
        self.events[at] = dataclasses.replace(self.events[at], **changes)

    def drop(self, is_meant: Callable[[Event], bool]) -> None:
        kept = [event for event in self.events if not is_meant(event)]
        assert len(kept) < len(self.events), "the fault changed nothing"
        self.events = kept

    def swap_events(self, at: int, after: int) -> None:
        self.events[at], self.events[after] = self.events[after], self.events[at]

    def change_message(self, place: Place, **changes: Any) -> None:
        """Change the message that every reader saw at an offset."""
        for at, _ in self.receipts(place):
            self.change(at, **changes)

    def swap_messages(self, first: Place, second: Place) -> None:
        """Swap two messages, in reads and receipts."""
        fields = ("key", "body", "stored_ms", "reconsume_times", "properties")
        one, other = self._facts.stored[first], self._facts.stored[second]
        self.change_message(first, **{name: getattr(other, name) for name in fields})
        self.change_message(second, **{name: getattr(one, name) for name in fields})
        kind = self.send_of(one.key).kind
        if kind in _PLAIN:
            self._reacknowledge(one.key, second.queue_offset)
            self._reacknowledge(other.key, first.queue_offset)

    def _reacknowledge(self, key: str, queue_offset: int) -> None:
        (send,) = self._facts.sends[key]
        self.change(send.ended_position, queue_offset=queue_offset)

    def change_acknowledgement(self, place: Place, *, queue_offset: int) -> None:
        self._reacknowledge(self.key_at(place), queue_offset)

    def remove_message(self, place: Place) -> str:
        """Remove a stored message; those after it move up."""
        key = self.key_at(place)
        self.drop(lambda event: self.is_receipt(event, place))
        for at, event in enumerate(self.events):
            if isinstance(event, Received) and _is_after(_place(event), place):
                self.change(at, queue_offset=event.queue_offset - 1)
            elif isinstance(event, Drained) and _queue(event) == place[:2]:
                self.change(at, queue_offset_max=event.queue_offset_max - 1)
        self._move_up_acknowledged(place)
        return key

    def _move_up_acknowledged(self, place: Place) -> None:
        plain = {
            send.asked.op
            for sends in self._facts.sends.values()
            for send in sends
            if send.is_ok
            and send.asked.kind in _PLAIN
            and _is_after(Place(send.asked.topic, send.queue_id, send.queue_offset), place)
        }
        for at, event in enumerate(self.events):
            if isinstance(event, Ended) and event.op in plain:
                self.change(at, queue_offset=event.queue_offset - 1)

    def append_message(self, key: str, topic: str, queue_id: int, times: int = 0) -> str:
        """One more stored message at the end of a queue, seen by all groups that drained it."""
        sends = self._facts.sends.get(key)
        body = sends[0].asked.body if sends else "no body"
        properties = {} if topic == TOPIC else {"RETRY_TOPIC": TOPIC}
        drained = [
            (at, event)
            for at, event in enumerate(self.events)
            if isinstance(event, Drained) and _queue(event) == (topic, queue_id)
        ]
        groups = {event.group: event.queue_offset_max for _, event in drained} or {"auditors": 0}
        for at, event in drained:
            self.change(at, queue_offset_max=event.queue_offset_max + 1)
        for group, queue_offset in groups.items():
            reader = "reader-1" if group == "readers" else "auditor-1"
            self.append(
                Received(
                    self.end_ms,
                    group,
                    reader,
                    topic,
                    queue_id,
                    queue_offset,
                    key,
                    body,
                    self.end_ms,
                    times,
                    properties,
                )
            )
        return key

    def let_time_pass(self, key: str, overdue_ms: int) -> None:
        """Shift all events after a send, so that the message is overdue."""
        send = self._facts.sends[key][0]
        event = self.events[send.ended_position]
        pause_ms = send.asked.not_before_ms - event.now_ms + overdue_ms
        for at in range(send.ended_position + 1, len(self.events)):
            self._postpone(at, pause_ms, event.now_ms)

    def _postpone(self, at: int, pause_ms: int, after_ms: int) -> None:
        event = self.events[at]
        changes: dict[str, int] = {"now_ms": event.now_ms + pause_ms}
        for name in ("before_ms", "stored_ms", "not_before_ms"):
            value = getattr(event, name, None)
            if value is not None and (name == "before_ms" or value > after_ms):
                changes[name] = value + pause_ms
        self.change(at, **changes)


def _place(event: Received) -> Place:
    return Place(event.topic, event.queue_id, event.queue_offset)


def _queue(event: Drained) -> tuple[str, int]:
    return event.topic, event.queue_id


def _is_after(place: Place, other: Place) -> bool:
    return place[:2] == other[:2] and place.queue_offset > other.queue_offset
