"""Bodies as RocketMQ's serialiser writes them, and the functions that read them.

Two styles exist. The default style writes map keys that are not text as raw values: numbers without
quotes, message queues as objects. The strict style, which route queries may ask for, quotes every
key and escapes characters outside ASCII. Both sort keys and leave nulls out of objects.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

from contrail.errors import RequestRejected
from contrail.model.fastjson import DEPTH_MAX, FastJsonError, Fields, loads
from contrail.protocol.codes import ResponseCode

# Bounds of a request's body. A heartbeat of a thousand subscriptions has 200 KiB.
BODY_BYTES_MAX = 512 << 10
BODY_TOKENS_MAX = 50_000

CLIENT_ID_CHARACTERS_MAX = 1024

_V = TypeVar("_V")

_quote = json.encoder.encode_basestring
_quote_ascii = json.encoder.encode_basestring_ascii


class MessageQueue(NamedTuple):
    """One queue of one broker; bodies use it as a value and as a map's key."""

    topic: str
    broker_name: str
    queue_id: int

    @classmethod
    def from_fields(cls, fields: Fields) -> MessageQueue:
        """Read RocketMQ's field names; raises ``FastJsonError`` for a field of another type."""
        return cls(
            fields.text("topic", ""), fields.text("brokerName", ""), fields.integer("queueId", 0)
        )

    def to_fields(self) -> dict[str, object]:
        return {"brokerName": self.broker_name, "queueId": self.queue_id, "topic": self.topic}


def encode_body(value: object, *, strict: bool = False) -> bytes:
    """``value`` as a compact body; sets are written as sorted arrays.

    Raises:
        FastJsonError: a part of ``value`` has no JSON form, or is nested too deeply.
    """
    # An unpaired surrogate cannot be UTF-8; this error handler turns it into its \\uXXXX escape.
    return _render(value, strict, 0).encode("utf-8", "backslashreplace")


def decode_body(
    body: bytes, what: str, *, is_table: bool = False, has_raw_keys: bool = False
) -> Fields:
    """The object in a request's body; ``what`` names it in the refusal.

    ``is_table`` is for bodies of brokers, NameServers and administrators: a table of all topics
    may fill a frame. ``has_raw_keys`` is for maps by message queue, which are not standard JSON
    and take thirty times as long: never for a client's request while other requests wait.

    Raises:
        RequestRejected: the body is absent, malformed or no object.
    """
    if not body:
        raise RequestRejected(ResponseCode.SYSTEM_ERROR, f"the body is empty; send {what} in it")
    with body_errors(what):
        if is_table:
            return Fields(loads(body), what)
        document = loads(
            body,
            bytes_max=BODY_BYTES_MAX,
            tokens_max=BODY_TOKENS_MAX,
            dialect_is_short=not has_raw_keys,
        )
        return Fields(document, what)


@contextmanager
def body_errors(what: str) -> Iterator[None]:
    """Turn the error of a body's field into the refusal of its request."""
    try:
        yield
    except FastJsonError as error:
        remark = f"the body is not {what}: {error}"
        raise RequestRejected(ResponseCode.SYSTEM_ERROR, remark) from error


def client_id_of(fields: Fields, name: str) -> str:
    """A client's id, which a broker keeps for as long as it knows the client.

    Raises:
        FastJsonError: it is no text, or longer than any client writes it.
    """
    client_id = fields.text(name, "")
    if len(client_id) > CLIENT_ID_CHARACTERS_MAX:
        raise FastJsonError(
            f"{name} has {len(client_id)} characters, at most {CLIENT_ID_CHARACTERS_MAX} are taken"
        )
    return client_id


def decode_message_queue(key: str) -> MessageQueue:
    """The message queue in a map's key, raw or quoted.

    Raises:
        RequestRejected: the key is not a message queue.
    """
    with body_errors("a map by message queue"):
        document = loads(key, bytes_max=BODY_BYTES_MAX, tokens_max=BODY_TOKENS_MAX)
        return MessageQueue.from_fields(Fields(document, "the key"))


class Rendered(str):
    """A part of a body that was rendered before."""

    __slots__ = ()


def rendered_object(
    entries: Mapping[Any, _V], to_value: Callable[[_V], object] | None = None, depth: int = 1
) -> Generator[None, None, Rendered]:
    """An object, with a step for each entry; ``to_value`` makes the values if it is given."""
    pieces = []
    for key, entry in sorted(entries.items(), key=_order):
        value = entry if to_value is None else to_value(entry)
        if value is not None:
            shown = _render(value, False, depth + 1)
            pieces.append(f"{_render_key(key, False, depth)}:{shown}")
        yield
    return Rendered("{" + ",".join(pieces) + "}")


def rendered_array(
    entries: Iterable[_V], to_value: Callable[[_V], object] | None = None, depth: int = 1
) -> Generator[None, None, Rendered]:
    """An array, with a step for each entry; ``to_value`` makes the entries if it is given."""
    pieces = []
    for entry in entries:
        value = entry if to_value is None else to_value(entry)
        pieces.append(_render(value, False, depth + 1))
        yield
    return Rendered("[" + ",".join(pieces) + "]")


def at_once(steps: Generator[None, None, _V]) -> _V:
    """The result of all steps in one go, for callers that need no turns."""
    while True:
        try:
            next(steps)
        except StopIteration as done:
            return done.value  # type: ignore[no-any-return]


def rendered(value: object, depth: int = 1) -> Rendered:
    """A part of a body, to be inserted later."""
    return Rendered(_render(value, False, depth))


def _render(value: object, strict: bool, depth: int) -> str:
    if isinstance(value, str):
        if isinstance(value, Rendered):
            return value
        return _quote_ascii(value) if strict else _quote(value)
    if value is None or isinstance(value, bool | int | float):
        return _render_scalar(value)
    if depth >= DEPTH_MAX:
        raise FastJsonError(f"the value is nested deeper than {DEPTH_MAX} levels")
    if isinstance(value, MessageQueue):
        return _render_object(value.to_fields(), strict, depth)
    if isinstance(value, Mapping):
        return _render_object(value, strict, depth)
    if isinstance(value, list | tuple):
        return "[" + ",".join([_render(item, strict, depth + 1) for item in value]) + "]"
    if isinstance(value, AbstractSet):
        return "[" + ",".join(sorted(_render(item, strict, depth + 1) for item in value)) + "]"
    raise FastJsonError(f"{type(value).__name__} has no JSON form")


def _render_scalar(value: bool | int | float | None) -> str:
    # Tables have mostly texts and numbers, and a broker writes its tables often.
    if value is True or value is False:
        return "true" if value else "false"
    if type(value) is int:
        return repr(value)
    if isinstance(value, float) and not math.isfinite(value):
        raise FastJsonError("a number is not finite")
    return json.dumps(value)


def _render_object(
    fields: Mapping[object, object] | dict[str, object], strict: bool, depth: int
) -> str:
    items = [
        f"{_render_key(key, strict, depth)}:{_render(item, strict, depth + 1)}"
        for key, item in sorted(fields.items(), key=_order)
        if item is not None
    ]
    return "{" + ",".join(items) + "}"


def _order(item: tuple[object, object]) -> tuple[int, int, str]:
    """Numbers first and by size, then text, then message queues."""
    key = item[0]
    if isinstance(key, str):
        return (1, 0, key)
    if isinstance(key, int) and not isinstance(key, bool):
        return (0, key, "")
    if isinstance(key, MessageQueue):
        return (2, key.queue_id, f"{key.topic} {key.broker_name}")
    raise FastJsonError(f"a key must be text, a number or a queue, not {type(key).__name__}")


def _render_key(key: object, strict: bool, depth: int) -> str:
    if isinstance(key, int):
        return f'"{int(key)}"' if strict else str(int(key))
    return _render(key, strict, depth + 1)
