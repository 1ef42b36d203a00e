"""The body of LIST_IN_FLIGHT: messages that were popped and are neither acknowledged nor due."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from contrail.model.fastjson import FastJsonError, Fields, loads
from contrail.protocol.json_style import body_errors, encode_body
from contrail.protocol.pop_info import PopTextInvalid, Receipt, real_topic

_SEPARATOR = "/"


@dataclass(frozen=True, slots=True)
class InFlight:
    """One popped message. ``holder`` is the address of its consumer, empty after a restart."""

    topic: str
    # The topic that it waits in when it is a retry; else the topic itself.
    real_topic: str
    queue_id: int
    queue_offset: int
    message_id: str
    pop_time_ms: int
    visible_ms: int
    # How often it was handed out.
    attempts: int
    holder: str
    client_id: str
    in_order: bool
    handle: str


def encode_handle(topic: str, receipt: Receipt) -> str:
    """The name of a popped message for operators: its topic and its receipt, without spaces."""
    return _SEPARATOR.join((topic, *map(str, receipt)))


def decode_handle(handle: str, group: str) -> tuple[str, Receipt]:
    """The queue's own topic, and the receipt. Raises ``PopTextInvalid``."""
    topic, separator, rest = handle.partition(_SEPARATOR)
    if not separator:
        raise PopTextInvalid(f"{handle[:80]!r} is no handle of a popped message")
    receipt = Receipt.decode(rest.replace(_SEPARATOR, " "))
    if receipt.queue_offset < 0:
        raise PopTextInvalid(f"{handle[:80]!r} names no message: its offset is missing")
    return real_topic(topic, group, receipt.retry_flag), receipt


def encode_in_flight(listed: Iterable[InFlight]) -> bytes:
    """A JSON array, one object for each."""
    return encode_body([_fields(one) for one in listed])


def decode_in_flight(body: bytes) -> list[InFlight]:
    """Raises ``RequestRejected`` for a body that is no such array."""
    with body_errors("a list of messages in flight"):
        document = loads(body)
        if not isinstance(document, list):
            raise FastJsonError("it is no array")
        return [_in_flight(Fields(entry, "a message in flight")) for entry in document]


def _in_flight(fields: Fields) -> InFlight:
    return InFlight(
        topic=fields.text("topic", ""),
        real_topic=fields.text("realTopic", ""),
        queue_id=fields.integer("queueId", 0),
        queue_offset=fields.integer("queueOffset", 0),
        message_id=fields.text("msgId", ""),
        pop_time_ms=fields.integer("popTime", 0),
        visible_ms=fields.integer("visibleTime", 0),
        attempts=fields.integer("attempts", 0),
        holder=fields.text("holder", ""),
        client_id=fields.text("clientId", ""),
        in_order=fields.boolean("order", False),
        handle=fields.text("handle", ""),
    )


def _fields(one: InFlight) -> dict[str, object]:
    return {
        "topic": one.topic,
        "realTopic": one.real_topic,
        "queueId": one.queue_id,
        "queueOffset": one.queue_offset,
        "msgId": one.message_id,
        "popTime": one.pop_time_ms,
        "visibleTime": one.visible_ms,
        "attempts": one.attempts,
        "holder": one.holder,
        "clientId": one.client_id,
        "order": one.in_order,
        "handle": one.handle,
    }
