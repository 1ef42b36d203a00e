"""Message traces: the bodies of messages in a trace topic.

A body is lines, each ended by byte 2, of fields separated by byte 1; the first names the kind:

    ==============  ===========================================================================
    kind            the fields behind it
    ==============  ===========================================================================
    Pub             time, region, group, topic, message id, tags, keys, store host, body length,
                    cost, message type, offset message id, success [, client host]
    SubBefore       time, region, group, request id, message id, times retried, keys
    SubAfter        request id, message id, cost, success, keys, context code [, time, group]
    EndTransaction  time, region, group, topic, message id, tags, keys, store host,
                    message type, transaction id, transaction state, from a check
    Recall          time, region, group, topic, message id, success
    ==============  ===========================================================================

An absent text is written as ``null``, as Java writes it, and read as empty: Java's reader drops
empty fields at the end of a line and then fails. Times are epoch milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum, IntEnum
from operator import attrgetter
from typing import Any, NamedTuple

from contrail.errors import RemoteProtocolError
from contrail.model.properties import (
    DELAY,
    KEY_SEPARATOR,
    TIMER_DELAY_MS,
    TIMER_DELAY_SEC,
    TIMER_DELIVER_MS,
    TRAN_MSG,
)

FIELD_END = "\x01"
LINE_END = "\x02"
TRACE_GROUP_PREFIX = "_INNER_TRACE_PRODUCER"
_ABSENT = "null"
# Apache's bound of a trace message, and a bound of the keys that leaves room for properties.
_BODY_BYTES_MAX = 128_000
_KEYS_BYTES_MAX = 16_000
_LINES_MAX = 100
_INT_MAX = (1 << 31) - 1
_TIMERS = frozenset({DELAY, TIMER_DELAY_MS, TIMER_DELAY_SEC, TIMER_DELIVER_MS})


class TracedType(IntEnum):
    """The type of a sent message; Apache's order."""

    NORMAL = 0
    HALF = 1
    COMMIT = 2
    DELAYED = 3
    ORDERED = 4

    @classmethod
    def of(cls, properties: Mapping[str, str]) -> TracedType:
        """The type of a message that is sent with these properties."""
        if not _TIMERS.isdisjoint(properties):
            return cls.DELAYED
        return cls.HALF if properties.get(TRAN_MSG) == "true" else cls.NORMAL


class TracedState(Enum):
    """A producer's decision on its transaction, in Apache's spelling."""

    COMMIT = "COMMIT_MESSAGE"
    ROLLBACK = "ROLLBACK_MESSAGE"
    UNKNOWN = "UNKNOW"


@dataclass(frozen=True, slots=True, kw_only=True)
class PubTrace:
    """A message was sent."""

    timestamp_ms: int
    region: str = ""
    group: str = ""
    topic: str = ""
    message_id: str = ""
    tags: str = ""
    keys: str = ""
    store_host: str = ""
    body_length: int = 0
    cost_ms: int = 0
    message_type: TracedType = TracedType.NORMAL
    offset_message_id: str = ""
    success: bool = True
    # Newer clients leave this field out.
    client_host: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SubBeforeTrace:
    """A message is about to be handled; ``request_id`` is shared with the ``SubAfterTrace``."""

    timestamp_ms: int
    region: str = ""
    group: str = ""
    request_id: str = ""
    message_id: str = ""
    retry_times: int = 0
    keys: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SubAfterTrace:
    """A message was handled. Old and cloud clients send neither time nor group."""

    request_id: str = ""
    message_id: str = ""
    cost_ms: int = 0
    success: bool = True
    keys: str = ""
    context_code: int = 0
    timestamp_ms: int = 0
    group: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndTransactionTrace:
    """A producer committed or rolled back a half message."""

    timestamp_ms: int
    region: str = ""
    group: str = ""
    topic: str = ""
    message_id: str = ""
    tags: str = ""
    keys: str = ""
    store_host: str = ""
    message_type: TracedType = TracedType.COMMIT
    transaction_id: str = ""
    state: TracedState = TracedState.UNKNOWN
    from_check: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RecallTrace:
    """A producer called a timed message back."""

    timestamp_ms: int
    region: str = ""
    group: str = ""
    topic: str = ""
    message_id: str = ""
    success: bool = True


class TraceBatch(NamedTuple):
    """The content of one message to the trace topic."""

    body: bytes
    keys: list[str]


Trace = PubTrace | SubBeforeTrace | SubAfterTrace | EndTransactionTrace | RecallTrace


class _Column(NamedTuple):
    write: Callable[[Any], str]
    read: Callable[[str], Any]


def _read_text(field: str) -> str:
    return "" if field == _ABSENT else field


def _read_flag(field: str) -> bool:
    return field.lower() == "true"


_TEXT = _Column(lambda text: text or _ABSENT, _read_text)
_LONG = _Column(str, int)
_INT = _Column(lambda number: str(min(number, _INT_MAX)), int)
_FLAG = _Column(lambda flag: "true" if flag else "false", _read_flag)
_TYPE = _Column(lambda kind: str(int(kind)), lambda field: TracedType(int(field)))
_STATE = _Column(lambda state: state.value, TracedState)

_PUB = {
    "timestamp_ms": _LONG,
    "region": _TEXT,
    "group": _TEXT,
    "topic": _TEXT,
    "message_id": _TEXT,
    "tags": _TEXT,
    "keys": _TEXT,
    "store_host": _TEXT,
    "body_length": _INT,
    "cost_ms": _INT,
    "message_type": _TYPE,
    "offset_message_id": _TEXT,
    "success": _FLAG,
    "client_host": _TEXT,
}
_SUB_BEFORE = {
    "timestamp_ms": _LONG,
    "region": _TEXT,
    "group": _TEXT,
    "request_id": _TEXT,
    "message_id": _TEXT,
    "retry_times": _INT,
    "keys": _TEXT,
}
_SUB_AFTER = {
    "request_id": _TEXT,
    "message_id": _TEXT,
    "cost_ms": _INT,
    "success": _FLAG,
    "keys": _TEXT,
    "context_code": _INT,
    "timestamp_ms": _LONG,
    "group": _TEXT,
}
_END_TRANSACTION = {
    "timestamp_ms": _LONG,
    "region": _TEXT,
    "group": _TEXT,
    "topic": _TEXT,
    "message_id": _TEXT,
    "tags": _TEXT,
    "keys": _TEXT,
    "store_host": _TEXT,
    "message_type": _TYPE,
    "transaction_id": _TEXT,
    "state": _STATE,
    "from_check": _FLAG,
}
_RECALL = {
    "timestamp_ms": _LONG,
    "region": _TEXT,
    "group": _TEXT,
    "topic": _TEXT,
    "message_id": _TEXT,
    "success": _FLAG,
}


class _Layout(NamedTuple):
    kind: str
    trace: type[Any]
    columns: Mapping[str, _Column]
    # A line of this kind has at least this many fields behind its kind.
    field_count_min: int


_LAYOUTS = (
    _Layout("Pub", PubTrace, _PUB, 12),
    _Layout("SubBefore", SubBeforeTrace, _SUB_BEFORE, 7),
    _Layout("SubAfter", SubAfterTrace, _SUB_AFTER, 5),
    _Layout("EndTransaction", EndTransactionTrace, _END_TRANSACTION, 12),
    _Layout("Recall", RecallTrace, _RECALL, 6),
)
_BY_KIND = {layout.kind: layout for layout in _LAYOUTS}
# A broker that traces writes thousands of lines a second.
_WRITERS = {
    layout.trace: (
        layout.kind,
        [column.write for column in layout.columns.values()],
        attrgetter(*layout.columns),
    )
    for layout in _LAYOUTS
}
# The line of the oldest clients: no offset message id.
_OLD_PUB = [name for name in _PUB if name not in ("offset_message_id", "client_host")]


def encode_trace(trace: Trace) -> str:
    """One line; a message of a trace topic holds any number of lines."""
    kind, writers, values_of = _WRITERS[type(trace)]
    fields = [write(value) for write, value in zip(writers, values_of(trace), strict=True)]
    if isinstance(trace, PubTrace) and not trace.client_host:
        fields.pop()
    return FIELD_END.join([kind, *fields]) + LINE_END


def encode_traces(traces: Iterable[Trace]) -> bytes:
    return "".join(encode_trace(trace) for trace in traces).encode("utf-8", "replace")


def decode_traces(body: bytes) -> list[Trace]:
    """The traces in a message's body; lines of an unknown kind are skipped.

    Raises:
        RemoteProtocolError: a line has too few fields, or a field of another type.
    """
    lines = body.decode("utf-8", "replace").split(LINE_END)
    found = [_decode_line(line) for line in lines if line]
    return [trace for trace in found if trace is not None]


def trace_keys(trace: Trace) -> list[str]:
    """The keys that find a trace: the message's id and its own keys."""
    keys = getattr(trace, "keys", "").split(KEY_SEPARATOR)
    return [key for key in (trace.message_id, *keys) if key]


def batch_traces(traces: Iterable[Trace]) -> Iterator[TraceBatch]:
    """Messages for the trace topic, each within the bounds of body and keys."""
    lines: list[bytes] = []
    keys: dict[str, None] = {}
    body_bytes = key_bytes = 0
    for trace in traces:
        line = encode_trace(trace).encode("utf-8", "replace")
        own = trace_keys(trace)
        own_bytes = len(KEY_SEPARATOR.join(own).encode("utf-8", "replace")) + 1
        body_bytes += len(line)
        key_bytes += own_bytes
        if lines and (
            body_bytes > _BODY_BYTES_MAX or key_bytes > _KEYS_BYTES_MAX or len(lines) >= _LINES_MAX
        ):
            yield TraceBatch(b"".join(lines), list(keys))
            lines, keys = [], {}
            body_bytes, key_bytes = len(line), own_bytes
        lines.append(line)
        keys |= dict.fromkeys(own)
    if lines:
        yield TraceBatch(b"".join(lines), list(keys))


def _decode_line(line: str) -> Trace | None:
    kind, *fields = line.split(FIELD_END)
    layout = _BY_KIND.get(kind)
    if layout is None:
        return None
    if len(fields) < layout.field_count_min:
        raise _malformed(line, f"{len(fields)} fields, {layout.field_count_min} are the fewest")
    names = list(layout.columns)
    if kind == "Pub" and len(fields) == len(_OLD_PUB):
        names = _OLD_PUB
    elif kind == "SubAfter" and len(fields) < len(names):
        # Lines of cloud clients end with an empty field.
        names = names[: min(len(fields), len(names) - 2)]
    try:
        given = {
            name: layout.columns[name].read(field)
            for name, field in zip(names, fields, strict=False)
        }
    except ValueError as error:
        raise _malformed(line, str(error)) from error
    trace: Trace = layout.trace(**given)
    return trace


def _malformed(line: str, reason: str) -> RemoteProtocolError:
    return RemoteProtocolError("trace", f"the trace line {line[:200]!r} cannot be read: {reason}")
