"""The ledger of sinks' rows, which keeps a row from being stored twice.

For each queue and task (sink and partition) the ledger has the last row that was stored, as (batch,
number). A task sends its rows to a queue in order, so a row at or before that one is a repeat.

The messages themselves are the entries. One that came through the sink's own request carries
``SINK_MARK`` where RocketMQ keeps the offset of a prepared message, a header field that no client
can write; so the ledger can be read back from the log, with any properties of clients. A row that
was prepared and committed holds its half message's place there, and the half message has the mark.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from contrail.errors import RequestRejected
from contrail.model.message import StoredMessage
from contrail.model.properties import REAL_QID, REAL_TOPIC, read_property
from contrail.model.topic import SCHEDULE_TOPIC, TIMER_TOPIC
from contrail.protocol.bodies.sinks import (
    SINK_ATTEMPT,
    SINK_KEY,
    SINK_SEQ,
    Queues,
    SinkDecision,
    SinkKey,
    SinkLayout,
    SinkStatus,
    encode_status,
)
from contrail.protocol.codes import ResponseCode

SINK_MARK = int.from_bytes(b"CONTSINK", "big")
"""No log is that long: it is never the place of a half message."""

SINK_COUNT_MAX = 10_000
ENTRY_COUNT_MAX = 1_000_000
STATUS_BYTES_MAX = 64 << 20
"""The bytes that layouts and decisions of all sinks may take, as they are written."""
_I64_MAX = (1 << 63) - 1
_WAITING_TOPICS = frozenset({SCHEDULE_TOPIC, TIMER_TOPIC})

_SEQ_START = SINK_SEQ.encode() + b"\x01"
_KEY_START = SINK_KEY.encode() + b"\x01"

Target = tuple[str, int, int]
"""Topic, queue and partition."""
Reached = tuple[int, int]
"""Batch, and the number of the last row of it."""
NOTHING_YET: Reached = (-1, -1)


class SinkRow(NamedTuple):
    """The task and the number of a sink's row, of which a message was made."""

    key: SinkKey
    seq: int
    attempt: str = ""


@dataclass(slots=True)
class SinkMemory:
    """All that a broker knows of one sink."""

    heard_ms: int
    status: SinkStatus = field(default_factory=SinkStatus)
    reached: dict[Target, Reached] = field(default_factory=dict)
    # How far the log must be durable for all of this to hold.
    appended_end: int = 0
    # The bytes of its status.
    byte_count: int = 0


class SinkLedger:
    """The sinks of a broker. ``changed`` is true once it differs from the last copy."""

    def __init__(self) -> None:
        self.sinks: dict[str, SinkMemory] = {}
        self.entry_count = 0
        self.byte_count = 0
        self.changed = False

    # Asking.

    def status(self, sink_id: str) -> SinkStatus:
        sink = self.sinks.get(sink_id)
        return SinkStatus() if sink is None else sink.status

    def appended_end(self, sink_id: str) -> int:
        sink = self.sinks.get(sink_id)
        return 0 if sink is None else sink.appended_end

    def reached(self, key: SinkKey, topic: str, queue_id: int) -> Reached:
        """The last row of a task's sink and partition that a queue has."""
        sink = self.sinks.get(key.sink_id)
        if sink is None:
            return NOTHING_YET
        return sink.reached.get((topic, queue_id, key.partition), NOTHING_YET)

    def require_room(self, sink_id: str, target: Target | None = None) -> None:
        """Raises ``RequestRejected`` if a new sink or queue would be one too many."""
        sink = self.sinks.get(sink_id)
        if sink is None and len(self.sinks) >= SINK_COUNT_MAX:
            raise _full(f"{SINK_COUNT_MAX} sinks")
        is_new = sink is None or target not in sink.reached
        if target is not None and is_new and self.entry_count >= ENTRY_COUNT_MAX:
            raise _full(f"{ENTRY_COUNT_MAX} queues and partitions of sinks")

    def require_bytes(self, sink_id: str, status: SinkStatus) -> None:
        """Raises ``RequestRejected`` if a sink's new layout or decision would take too much."""
        sink = self.sinks.get(sink_id)
        known = 0 if sink is None else sink.byte_count
        if self.byte_count - known + len(encode_status(status)) > STATUS_BYTES_MAX:
            raise _full(f"layouts and decisions of sinks in {self.byte_count} bytes")

    # Planning.

    def plan_layout(
        self, sink_id: str, batch_id: int, topics: Mapping[str, Queues], coordinator: str = ""
    ) -> SinkStatus | None:
        """The status after a BEGIN; None if it changes nothing.

        The first beginning of a batch counts: its queues of a topic, and its coordinator.
        """
        status = self.status(sink_id)
        layout, decided = status.layout, status.decided
        if decided is not None and batch_id <= decided.batch_id:
            return None
        if layout is None or batch_id > layout.batch_id:
            return SinkStatus(SinkLayout(batch_id, dict(topics), coordinator), decided)
        if batch_id < layout.batch_id:
            return None
        merged = SinkLayout(
            batch_id, {**topics, **layout.topics}, layout.coordinator or coordinator
        )
        return None if merged == layout else SinkStatus(merged, decided)

    def plan_decision(
        self, sink_id: str, batch_id: int, participants: Mapping[str, Mapping[int, str]]
    ) -> SinkStatus | None:
        """The status after a decision; None if the batch, or a later one, is decided already.

        Raises:
            RequestRejected: this batch is decided, and otherwise.
        """
        status = self.status(sink_id)
        self.require_agreement(sink_id, batch_id, participants)
        if status.decided is not None and batch_id <= status.decided.batch_id:
            return None
        copy = {broker: dict(attempts) for broker, attempts in participants.items()}
        return SinkStatus(status.layout, SinkDecision(batch_id, copy))

    def require_agreement(
        self, sink_id: str, batch_id: int, participants: Mapping[str, Mapping[int, str]]
    ) -> None:
        """Raises ``RequestRejected`` if the batch was decided for other attempts."""
        decided = self.status(sink_id).decided
        if (
            decided is not None
            and decided.batch_id == batch_id
            and decided.participants != participants
        ):
            raise RequestRejected(
                ResponseCode.ILLEGAL_OPERATION,
                f"batch {batch_id} of sink {sink_id!r} was decided for other attempts; "
                "ask for its status and go on with those",
            )

    # Believing.

    def heard(self, sink_id: str, now_ms: int) -> SinkMemory:
        """The sink's memory, made if there is none."""
        sink = self.sinks.get(sink_id)
        if sink is None:
            sink = self.sinks[sink_id] = SinkMemory(now_ms)
            self.changed = True
        sink.heard_ms = max(sink.heard_ms, now_ms)
        return sink

    def stored(self, row: SinkRow, topic: str, queue_id: int, now_ms: int) -> None:
        """The queue has this row."""
        self.reach(row.key, topic, queue_id, row.seq, now_ms)

    def reach(self, key: SinkKey, topic: str, queue_id: int, seq: int, now_ms: int) -> None:
        """The queue has the task's rows up to ``seq``."""
        sink = self.heard(key.sink_id, now_ms)
        target = (topic, queue_id, key.partition)
        known = sink.reached.get(target)
        if known is None:
            self.entry_count += 1
        elif known >= (key.batch_id, seq):
            return
        sink.reached[target] = (key.batch_id, seq)
        self.changed = True

    def told(self, sink_id: str, status: SinkStatus, now_ms: int) -> None:
        """The sink has this layout and decision."""
        sink = self.heard(sink_id, now_ms)
        self.byte_count -= sink.byte_count
        sink.status, sink.byte_count = status, len(encode_status(status))
        self.byte_count += sink.byte_count
        self.changed = True

    # Forgetting.

    def overdue(self, heard_ms_min: int) -> list[str]:
        """The sinks whose last request came before ``heard_ms_min``."""
        return [one for one, sink in self.sinks.items() if sink.heard_ms < heard_ms_min]

    def forget(self, sink_ids: Iterable[str]) -> None:
        for sink_id in sink_ids:
            sink = self.sinks.pop(sink_id)
            self.entry_count -= len(sink.reached)
            self.byte_count -= sink.byte_count
            self.changed = True

    def assign(self, other: SinkLedger) -> None:
        """Be as another ledger, of which nothing is shared."""
        self.sinks = {
            sink_id: SinkMemory(
                sink.heard_ms,
                sink.status,
                dict(sink.reached),
                sink.appended_end,
                sink.byte_count,
            )
            for sink_id, sink in other.sinks.items()
        }
        self.entry_count, self.byte_count = other.entry_count, other.byte_count
        self.changed = True

    def forget_topic(self, topic: str) -> None:
        """No queue of the topic has any row."""
        for sink in self.sinks.values():
            for target in [target for target in sink.reached if target[0] == topic]:
                del sink.reached[target]
                self.entry_count -= 1
                self.changed = True


def same_task(rows: Iterable[bytes]) -> tuple[SinkKey, list[int]]:
    """The task that messages with these properties are of, and their numbers, which must grow.

    Raises:
        RequestRejected: one says nothing, or another task, or its number is not behind the last.
    """
    first_key = b""
    key: SinkKey | None = None
    seqs: list[int] = []
    last = -1
    for number, properties in enumerate(rows, 1):
        text = _value(properties, _KEY_START, SINK_KEY)
        if text != first_key or key is None:
            if key is not None:
                raise _illegal(number, f"is of another task than the first ({SINK_KEY})")
            key, first_key = SinkKey.parse(text.decode("utf-8", "replace")), text
        seq = _seq_of(properties)
        if seq <= last:
            raise _illegal(number, f"has the {SINK_SEQ} {seq}: it must be a number above {last}")
        seqs.append(seq)
        last = seq
    assert key is not None, "a batch has at least one message"
    return key, seqs


def read_row(properties: bytes) -> SinkRow | None:
    """The row that a stored message is; None for properties that no sink wrote."""
    try:
        key = SinkKey.parse(read_property(properties, SINK_KEY) or "")
    except RequestRejected:
        return None
    seq = _seq_of(properties)
    attempt = read_property(properties, SINK_ATTEMPT) or ""
    return SinkRow(key, seq, attempt) if seq >= 0 else None


def target_of(message: StoredMessage) -> tuple[str, int] | None:
    """The topic and queue a message is for, also while it waits; None if it does not say."""
    if message.topic not in _WAITING_TOPICS:
        return message.topic, message.queue_id
    topic, queue_id = message.properties.get(REAL_TOPIC), message.properties.get(REAL_QID, "")
    return (topic, int(queue_id)) if topic and queue_id.isdecimal() else None


def _seq_of(properties: bytes) -> int:
    """The row's number; -1 if there is none."""
    text = _value(properties, _SEQ_START, SINK_SEQ)
    if not text.isdigit() or len(text) > 19:
        return -1
    seq = int(text)
    return seq if seq <= _I64_MAX else -1


def _value(properties: bytes, start: bytes, name: str) -> bytes:
    """A property's value, searched for first where sinks write it; empty if there is none."""
    at = properties.rfind(start)
    if (at > 0 and properties[at - 1] == 2) or at == 0:
        at += len(start)
        end = properties.find(b"\x02", at)
        if end > at:
            return properties[at:end]
    return (read_property(properties, name) or "").encode()


def _illegal(number: int, problem: str) -> RequestRejected:
    return RequestRejected(ResponseCode.MESSAGE_ILLEGAL, f"message {number} of the batch {problem}")


def _full(what: str) -> RequestRejected:
    return RequestRejected(
        ResponseCode.SYSTEM_BUSY, f"this broker remembers {what} already and takes no more"
    )
