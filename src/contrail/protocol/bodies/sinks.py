"""Bodies between sinks and brokers: names, layouts, decisions. Requests 30101 to 30105.

A *sink* writes rows in numbered batches; a batch is written by tasks, one for each *partition*,
and a task may be tried several times (*attempts*). Each message names its row and task in its
properties, so that the broker can drop a row that it has stored already.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from contrail.errors import RequestRejected
from contrail.model.fastjson import FastJsonError, Fields, JsonValue
from contrail.protocol.codes import ResponseCode
from contrail.protocol.json_style import body_errors, decode_body

SINK_KEY = "SPARK_SINK_KEY"
"""The property that names the task: ``sinkId/batchId/partition``."""
SINK_SEQ = "SPARK_SINK_SEQ"
"""The property that holds the row's number in its task; numbers grow."""
SINK_ATTEMPT = "SPARK_SINK_ATTEMPT"
"""The property that names the attempt; only prepared messages need it."""

SINK_ID_LENGTH_MAX = 128
ATTEMPT_LENGTH_MAX = 64
BROKER_NAME_LENGTH_MAX = 255
_I32_MAX = (1 << 31) - 1
_I64_MAX = (1 << 63) - 1
_NOTHING: frozenset[str] = frozenset()

Queues = tuple[tuple[str, int], ...]
"""Brokers' names and queue ids, in the order in which rows are spread over them."""
Attempts = Mapping[int, str]
"""Partition -> the attempt whose rows are delivered."""


class SinkKey(NamedTuple):
    """One task of a sink."""

    sink_id: str
    batch_id: int
    partition: int

    def __str__(self) -> str:
        return f"{self.sink_id}/{self.batch_id}/{self.partition}"

    @classmethod
    def parse(cls, text: str) -> SinkKey:
        """Raises ``RequestRejected`` for a text that is no task's name."""
        sink_id, batch, partition = [*text.rsplit("/", 2), "", ""][:3]
        if not (_is_number(batch, _I64_MAX) and _is_number(partition, _I32_MAX)):
            raise _refused(f"{SINK_KEY}={text[:200]!r} must be sinkId/batchId/partition")
        return cls(check_sink_id(sink_id), int(batch), int(partition))


@dataclass(frozen=True, slots=True)
class SinkLayout:
    """The queues that the rows of a batch are spread over, and the broker that decides on it."""

    batch_id: int
    topics: Mapping[str, Queues]
    # Empty in records of older versions: then only the coordinator kept the layout.
    coordinator: str = ""

    def as_json(self) -> dict[str, object]:
        named = {"coordinator": self.coordinator} if self.coordinator else {}
        return {"batchId": self.batch_id, **named, "topics": self.topics}


@dataclass(frozen=True, slots=True)
class SinkDecision:
    """The attempts whose rows make a decided batch, by broker and partition."""

    batch_id: int
    participants: Mapping[str, Attempts]

    def as_json(self) -> dict[str, object]:
        return {"batchId": self.batch_id, "participants": self.participants}


@dataclass(frozen=True, slots=True)
class SinkStatus:
    """A broker's memory of a sink: the layout of a batch that has rows for this broker or is
    coordinated by it, and the broker's decision as the coordinator."""

    layout: SinkLayout | None = None
    decided: SinkDecision | None = None

    @property
    def known(self) -> bool:
        return self.layout is not None or self.decided is not None


def check_sink_id(text: str) -> str:
    """Raises ``RequestRejected`` for an invalid sink id."""
    if not 0 < len(text) <= SINK_ID_LENGTH_MAX or not text.isprintable():
        raise _refused(
            f"sinkId={text[:200]!r} must have 1 to {SINK_ID_LENGTH_MAX} printable characters"
        )
    return text


def check_attempt(text: str) -> str:
    """Raises ``RequestRejected`` for an invalid name of an attempt."""
    if not 0 < len(text) <= ATTEMPT_LENGTH_MAX or not text.isprintable():
        raise _refused(
            f"{SINK_ATTEMPT}={text[:200]!r} must have 1 to {ATTEMPT_LENGTH_MAX} "
            "printable characters"
        )
    return text


# Bodies.


class SinkBegin(NamedTuple):
    """The content of BEGIN: queues by topic, and the coordinator's name."""

    topics: Mapping[str, Queues]
    coordinator: str = ""


def encode_begin(topics: Mapping[str, Queues], coordinator: str = "") -> bytes:
    """The body of BEGIN."""
    return _encode({"topics": topics, "coordinator": coordinator})


def decode_begin(body: bytes) -> SinkBegin:
    """Raises ``RequestRejected`` for a body that is none."""
    what = 'a layout {"topics":{topic:[[broker,queueId]]},"coordinator":broker}'
    fields = decode_body(body, what)
    with body_errors(what):
        return SinkBegin(_topics(fields), _coordinator(fields))


def encode_participants(participants: Mapping[str, Attempts]) -> bytes:
    """The body of COMMIT."""
    return _encode({"participants": participants})


def decode_participants(body: bytes) -> dict[str, dict[int, str]]:
    """Raises ``RequestRejected`` for a body that is none."""
    what = 'a decision {"participants":{broker:{partition:attempt}}}'
    fields = decode_body(body, what)
    with body_errors(what):
        return _participants(fields)


def encode_attempts(attempts: list[str]) -> bytes:
    """The body of ABORT."""
    return _encode({"attempts": attempts})


def decode_attempts(body: bytes) -> frozenset[str]:
    """Raises ``RequestRejected`` for a body that is none."""
    what = 'a list {"attempts":[attempt]}'
    fields = decode_body(body, what)
    with body_errors(what):
        return frozenset(check_attempt(_text(one, "attempts")) for one in fields.array("attempts"))


def encode_status(status: SinkStatus) -> bytes:
    """The answer to BEGIN and STATUS."""
    return _encode({"known": status.known, **status_as_json(status)})


def decode_status(body: bytes) -> SinkStatus:
    """Raises ``RequestRejected`` for a body that is none."""
    return read_status(decode_body(body, "the status of a sink", is_table=True))


def status_as_json(status: SinkStatus) -> dict[str, object]:
    """The parts of a status, null for a missing part."""
    layout, decided = status.layout, status.decided
    return {
        "layout": None if layout is None else layout.as_json(),
        "decided": None if decided is None else decided.as_json(),
    }


def read_status(fields: Fields) -> SinkStatus:
    """The inverse of ``status_as_json``; raises ``RequestRejected``."""
    with body_errors("the status of a sink"):
        layout, decided = fields.child("layout"), fields.child("decided")
        return SinkStatus(
            None
            if layout is None
            else SinkLayout(layout.integer("batchId", 0), _topics(layout), _coordinator(layout)),
            None
            if decided is None
            else SinkDecision(decided.integer("batchId", 0), _participants(decided)),
        )


def encode_counts(committed: int, rolled_back: int) -> bytes:
    """The answer to COMMIT and ABORT: the counts of this request; a repeat may count less."""
    return _encode({"committed": committed, "rolledBack": rolled_back})


def _encode(document: Mapping[str, object]) -> bytes:
    return json.dumps(document, separators=(",", ":"), default=dict).encode()


def _topics(fields: Fields) -> dict[str, Queues]:
    table = fields.child("topics")
    if table is None:
        raise FastJsonError("topics is missing")
    return {
        topic: tuple(_queue(pair, topic) for pair in table.array(topic))
        for topic in table.unknown(_NOTHING)
    }


def _coordinator(fields: Fields) -> str:
    name = fields.text("coordinator", "")
    if len(name) > BROKER_NAME_LENGTH_MAX or not name.isprintable():
        raise FastJsonError(
            f"coordinator must have at most {BROKER_NAME_LENGTH_MAX} printable characters"
        )
    return name


def _queue(pair: JsonValue, topic: str) -> tuple[str, int]:
    if isinstance(pair, list) and len(pair) == 2:
        broker, queue_id = pair
        if isinstance(broker, str) and type(queue_id) is int and 0 <= queue_id <= _I32_MAX:
            return broker, queue_id
    raise FastJsonError(f"topics.{topic} must hold pairs of a broker's name and a queue id")


def _participants(fields: Fields) -> dict[str, dict[int, str]]:
    table = fields.child("participants")
    if table is None:
        raise FastJsonError("participants is missing")
    return {broker: _attempts(broker, table.texts(broker)) for broker in table.unknown(_NOTHING)}


def _attempts(broker: str, table: Mapping[str, str]) -> dict[int, str]:
    for partition in table:
        if not _is_number(partition, _I32_MAX):
            raise FastJsonError(f"participants.{broker}: {partition[:40]!r} is no partition")
    return {int(partition): check_attempt(attempt) for partition, attempt in table.items()}


def _text(value: JsonValue, name: str) -> str:
    if not isinstance(value, str):
        raise FastJsonError(f"{name} must hold texts")
    return value


def _is_number(text: str, maximum: int) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= 19 and int(text) <= maximum


def _refused(remark: str) -> RequestRejected:
    return RequestRejected(ResponseCode.INVALID_PARAMETER, remark)
