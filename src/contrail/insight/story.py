"""The way of one message as steps, put together from traces and from its stored copies. No I/O.

===============  ============================================================================
step             told by
===============  ============================================================================
``send``         the trace of the producer, or of the broker for producers that write none
``store``        the message in its topic
``wait``         a copy that waits for its time, or for its next try
``transaction``  the trace of a producer that committed or rolled back
``recall``       the trace of a producer that took it back
``deliver``      the trace of a consumer: one for each try
``retry``        a copy in the retry topic of a group
``dead-letter``  a copy in the dead letter topic of a group
``in-flight``    a consumer that popped it and has not acknowledged it
``progress``     the offset of a group on the message's queue
===============  ============================================================================
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import NamedTuple

from contrail.client.message import ReceivedMessage
from contrail.insight.words import time_text
from contrail.model.properties import ORIGIN_GROUP, REAL_TOPIC, TIMER_OUT_MS
from contrail.model.topic import DLQ_PREFIX, RETRY_PREFIX
from contrail.protocol.bodies.in_flight import InFlight
from contrail.protocol.bodies.trace import (
    EndTransactionTrace,
    PubTrace,
    RecallTrace,
    SubAfterTrace,
    SubBeforeTrace,
    Trace,
)

CLIENT_TRACE = "client trace"
BROKER_TRACE = "broker trace"
STORED = "stored copy"
OFFSETS = "group offset"
IN_FLIGHT = "broker's table"

# Steps of one moment and one try in the order in which they happen.
_ORDER = ("send", "transaction", "deliver", "wait", "recall", "store", "retry", "dead-letter")


class Traced(NamedTuple):
    """A trace, and its writer: client or broker."""

    trace: Trace
    source: str


@dataclass(frozen=True, slots=True)
class GroupProgress:
    """How far a group is on the queue of a stored message."""

    group: str
    message: ReceivedMessage
    consumer_offset: int | None


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a message; ``group`` is a consumer group's."""

    kind: str
    timestamp_ms: int | None
    source: str
    text: str
    group: str | None = None
    broker_name: str | None = None
    queue_id: int | None = None
    queue_offset: int | None = None
    attempt: int | None = None
    success: bool | None = None
    cost_ms: int | None = None
    # Of a send, when its message was stored; it is a step of its own.
    stored_ms: int | None = None

    def fields(self) -> dict[str, object]:
        fields = asdict(self)
        del fields["stored_ms"]
        return fields


@dataclass(frozen=True, slots=True)
class Story:
    """All facts of one message."""

    message_id: str
    topic: str | None
    tags: str | None = None
    keys: Sequence[str] = ()
    steps: Sequence[Step] = field(default_factory=list)

    def fields(self) -> dict[str, object]:
        return {
            "message_id": self.message_id,
            "topic": self.topic,
            "tags": self.tags,
            "keys": list(self.keys),
            "steps": [step.fields() for step in self.steps],
        }


def tell(
    message_id: str,
    topic: str | None,
    *,
    traces: Iterable[Traced],
    copies: Iterable[ReceivedMessage],
    progress: Iterable[GroupProgress],
    popped: Iterable[tuple[str, InFlight]] = (),
) -> Story:
    """The story of a message; ``copies`` are those of its topic and of all others."""
    traced, stored = list(traces), list(copies)
    steps = [*_sends(traced, stored), *_traced_steps(traced), *map(_copy_step, stored)]
    steps.sort(key=_moment)
    steps += [_in_flight_step(group, one) for group, one in popped]
    steps += _progress_steps(progress, steps)
    labels = stored[0].properties if stored else _labels(traced)
    return Story(
        message_id,
        topic,
        labels.get("TAGS"),
        labels.get("KEYS", "").split(),
        steps,
    )


def _moment(step: Step) -> tuple[int, int, int]:
    at_ms = step.timestamp_ms or 0
    if step.stored_ms is not None:
        # A send begins before its message is stored, whatever the clocks of other machines show.
        at_ms = min(at_ms, step.stored_ms)
    return at_ms, step.attempt or 0, _ORDER.index(step.kind)


def _labels(traced: Sequence[Traced]) -> Mapping[str, str]:
    for trace, _ in traced:
        if isinstance(trace, PubTrace):
            return {"TAGS": trace.tags, "KEYS": trace.keys}
    return {}


# From traces.


def _traced_steps(traced: Sequence[Traced]) -> Iterator[Step]:
    before = {trace.request_id: trace for trace, _ in traced if isinstance(trace, SubBeforeTrace)}
    after = {trace.request_id: trace for trace, _ in traced if isinstance(trace, SubAfterTrace)}
    for trace, source in traced:
        if isinstance(trace, EndTransactionTrace):
            by = "after a check" if trace.from_check else "by itself"
            text = f"producer group {trace.group} said {trace.state.value}, {by}"
            yield Step("transaction", trace.timestamp_ms, source, text)
        elif isinstance(trace, RecallTrace):
            text = f"producer group {trace.group} took it back: {_outcome(trace.success)}"
            yield Step("recall", trace.timestamp_ms, source, text, success=trace.success)
    for request_id in before | after:
        yield _delivery(before.get(request_id), after.get(request_id))


def _sends(traced: Sequence[Traced], stored: Sequence[ReceivedMessage]) -> Iterator[Step]:
    sends = [(trace, source) for trace, source in traced if isinstance(trace, PubTrace)]
    # A broker that waits in vain for a producer's trace writes one too.
    told = {trace.offset_message_id for trace, source in sends if source == CLIENT_TRACE}
    stored_ms = {copy.offset_message_id: copy.store_timestamp_ms for copy in stored}
    for trace, source in sends:
        if source == CLIENT_TRACE or trace.offset_message_id not in told:
            yield _send(trace, source, stored_ms.get(trace.offset_message_id))


def _send(trace: PubTrace, source: str, stored_ms: int | None) -> Step:
    cost_ms = trace.cost_ms if source == CLIENT_TRACE else None
    took = "" if cost_ms is None else f", {cost_ms} ms"
    client = f" from {trace.client_host}" if trace.client_host else ""
    text = (
        f"producer group {trace.group}{client} to {trace.store_host}, {trace.body_length} bytes, "
        f"{trace.message_type.name.lower()}{took}: {_outcome(trace.success)}"
    )
    return Step(
        "send",
        trace.timestamp_ms,
        source,
        text,
        success=trace.success,
        cost_ms=cost_ms,
        stored_ms=stored_ms,
    )


def _delivery(before: SubBeforeTrace | None, after: SubAfterTrace | None) -> Step:
    attempt = None if before is None else before.retry_times + 1
    began_ms = before.timestamp_ms if before is not None else after.timestamp_ms if after else 0
    group = (before.group if before else "") or (after.group if after else "")
    what = "handled" if attempt is None else f"try {attempt}"
    how = "under way, or its end was not traced"
    if after is not None:
        how = f"{_outcome(after.success)} after {after.cost_ms} ms"
    return Step(
        "deliver",
        began_ms or None,
        CLIENT_TRACE,
        f"{what}: {how}",
        group=group or None,
        attempt=attempt,
        success=None if after is None else after.success,
        cost_ms=None if after is None else after.cost_ms,
    )


def _outcome(success: bool) -> str:
    return "ok" if success else "failed"


# From stored copies.


def _copy_step(copy: ReceivedMessage) -> Step:
    kind, group, text = _kind_of(copy)
    return Step(
        kind,
        copy.store_timestamp_ms,
        STORED,
        text,
        group=group,
        broker_name=copy.queue.broker_name,
        queue_id=copy.queue.queue_id,
        queue_offset=copy.queue_offset,
        attempt=copy.reconsume_times or None,
    )


def _kind_of(copy: ReceivedMessage) -> tuple[str, str | None, str]:
    topic = copy.queue.topic
    real = copy.properties.get(REAL_TOPIC, "")
    place = f"{topic} {copy.queue.broker_name}:{copy.queue.queue_id}@{copy.queue_offset}"
    if topic.startswith(DLQ_PREFIX):
        text = f"given up after {copy.reconsume_times} tries, in {place}"
        return "dead-letter", topic.removeprefix(DLQ_PREFIX), text
    if topic.startswith(RETRY_PREFIX):
        origin = copy.properties.get(ORIGIN_GROUP) or topic.removeprefix(RETRY_PREFIX)
        return "retry", origin, f"{copy.reconsume_times}, in {place}"
    if not real:
        return "store", None, f"{place}, {len(copy.body)} bytes"
    due = copy.properties.get(TIMER_OUT_MS, "")
    until = f" until {time_text(int(due))}" if due.isdecimal() else ""
    group = real.removeprefix(RETRY_PREFIX) if real.startswith(RETRY_PREFIX) else None
    return "wait", group, f"for {real}{until}, in {place}"


# From brokers' tables.


def _in_flight_step(group: str, one: InFlight) -> Step:
    holder = one.client_id or one.holder or "a consumer of before a restart"
    text = (
        f"popped for the {one.attempts}. time, held by {holder} until {time_text(one.visible_ms)}: "
        f"{one.handle}"
    )
    return Step(
        "in-flight",
        one.pop_time_ms,
        IN_FLIGHT,
        text,
        group=group,
        queue_id=one.queue_id,
        queue_offset=one.queue_offset,
        attempt=one.attempts,
    )


# From offsets.


def _progress_steps(progress: Iterable[GroupProgress], steps: Sequence[Step]) -> Iterator[Step]:
    """Offsets of groups without a trace, and of groups that have not reached the message."""
    told = {step.group for step in steps if step.kind in ("deliver", "retry", "dead-letter")}
    for one in progress:
        place = one.message.queue_offset
        queue = one.message.queue
        is_past = one.consumer_offset is not None and one.consumer_offset > place
        if is_past and one.group in told:
            continue
        at = "nowhere yet" if one.consumer_offset is None else f"at {one.consumer_offset:,}"
        text = f"{'past it' if is_past else 'not there yet'}: the group is {at}, it is at {place:,}"
        yield Step(
            "progress",
            None,
            OFFSETS,
            text,
            group=one.group,
            broker_name=queue.broker_name,
            queue_id=queue.queue_id,
            queue_offset=one.consumer_offset,
            success=is_past,
        )
