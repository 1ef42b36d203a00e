"""The record that replaces a damaged one: of the same length, in a system topic.

``contrail store recover --replace-damaged`` writes it, so that every reader of the log gets past
the damaged bytes. Its head holds the queue id and queue offset of the lost message; its body holds
the fields below, filled up with zeros. Integers are big-endian.

    at     bytes  field
    0      8      tagsCode of the lost message's queue row
    8      2      messages that the record held: 1, or those of an inner batch
    10     2      n, bytes of the topic; 0 if the lost message is unknown
    12     n      topic of the lost message

Its transaction type is ROLLBACK, so RocketMQ's brokers derive neither queue row nor key from it.
``REPLACED_MARK`` stands where RocketMQ keeps the offset of a prepared message, a header field that
no client can set. If the record has no room for all of this, first the keys are left out, then the
end of the system topic's name, then the lost message's topic.
"""

from __future__ import annotations

from collections.abc import Mapping
from struct import Struct
from typing import NamedTuple

from contrail.kernels.record_build import build_run
from contrail.kernels.record_layout import (
    CRC_PROPERTY_BYTES,
    PROPERTIES_BYTES_MAX,
    RECORD_BYTES_MIN,
)
from contrail.model.message import LOOPBACK_HOST, MessageDraft, StoredMessage
from contrail.model.properties import KEYS, UNIQ_KEY, encode_properties
from contrail.model.record import TRANSACTION_ROLLBACK
from contrail.model.topic import REPLACED_TOPIC

REPLACED_MARK = int.from_bytes(b"CONTLOST", "big")

_PLACE = Struct(">qHH")
_TOPIC = REPLACED_TOPIC.encode()


class LostPlace(NamedTuple):
    """The message that a replaced record held; ``topic`` is empty if it is unknown."""

    topic: bytes
    queue_id: int
    queue_offset: int
    message_count: int = 1
    tags_code: int = 0

    def __str__(self) -> str:
        name = self.topic.decode("utf-8", "replace")
        return f"message {self.queue_offset} of queue {self.queue_id} of {name}"


NOBODY = LostPlace(b"", 0, 0)


def encode_replacement(
    record_bytes: int,
    *,
    physical_offset: int,
    place: LostPlace = NOBODY,
    store_timestamp_ms: int = 0,
    properties: Mapping[str, str] | None = None,
    with_crc: bool = False,
) -> bytes:
    """A whole record of exactly ``record_bytes``, with the keys of ``properties``.

    Raises:
        ValueError: no record is that small.
    """
    room = record_bytes - RECORD_BYTES_MIN - (CRC_PROPERTY_BYTES if with_crc else 0)
    if room < 0:
        raise ValueError(f"no record fits into {record_bytes} bytes")
    topic, body, kept = _parts(room, place, _kept_keys(properties or {}))
    replacement = MessageDraft(
        topic=topic,
        queue_id=place.queue_id,
        body=body.ljust(room - len(topic) - len(kept), b"\0"),
        properties=kept,
        sys_flag=TRANSACTION_ROLLBACK,
        born_timestamp_ms=store_timestamp_ms,
        born_host=LOOPBACK_HOST,
        prepared_transaction_offset=REPLACED_MARK,
    )
    return b"".join(
        build_run(
            [replacement],
            [place.queue_offset],
            physical_offset,
            store_timestamp_ms,
            LOOPBACK_HOST,
            with_crc,
        )
    )


def read_replacement(message: StoredMessage) -> LostPlace | None:
    """The lost message that a record replaces; None for every other record."""
    if message.prepared_transaction_offset != REPLACED_MARK:
        return None
    if message.sys_flag & TRANSACTION_ROLLBACK != TRANSACTION_ROLLBACK:
        return None
    if len(message.body) < _PLACE.size:
        return NOBODY
    tags_code, message_count, topic_bytes = _PLACE.unpack_from(message.body)
    topic = message.body[_PLACE.size : _PLACE.size + topic_bytes]
    if not topic_bytes or len(topic) < topic_bytes:
        return NOBODY
    return LostPlace(topic, message.queue_id, message.queue_offset, message_count, tags_code)


def _parts(room: int, place: LostPlace, keys: bytes) -> tuple[bytes, bytes, bytes]:
    """System topic, body and properties, as far as they fit into ``room`` bytes."""
    named = b""
    if place.topic:
        named = _PLACE.pack(place.tags_code, place.message_count, len(place.topic)) + place.topic
    if len(named) > room:
        named = b""
    if len(_TOPIC) + len(named) + len(keys) > room:
        keys = b""
    return _TOPIC[: room - len(named)], named, keys


def _kept_keys(properties: Mapping[str, str]) -> bytes:
    kept = {name: properties[name] for name in (UNIQ_KEY, KEYS) if properties.get(name)}
    encoded = encode_properties(kept) if kept else b""
    return encoded if len(encoded) <= PROPERTIES_BYTES_MAX - CRC_PROPERTY_BYTES else b""
