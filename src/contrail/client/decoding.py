"""Records of a pull as the messages an application sees.

Nearly every record has two IPv4 hosts and is whole: those are read here with one unpacking. All
others go through ``model.record``, which says what is wrong with a damaged one.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import TypeVar
from zlib import crc32

from contrail.client.compression import COMPRESSED_FLAG, decompress
from contrail.client.message import MessageQueue, ReceivedMessage
from contrail.model.batch import expand_inner_batch, inner_batch_count
from contrail.model.message import StoredMessage
from contrail.model.record import (
    CRC_MASK,
    MAGIC_V1,
    MAGIC_V2,
    SYS_FLAG_BORN_HOST_V6,
    SYS_FLAG_NEED_UNWRAP,
    SYS_FLAG_STORE_HOST_V6,
    decode_record,
)

M = TypeVar("M", bound=ReceivedMessage)

# Fields 1 to 14 and the body's length, for two IPv4 hosts.
_HEAD = Struct(">iIiiiqqiq8sq8siqi")
_BODY_START = _HEAD.size
_UNUSUAL_FLAGS = SYS_FLAG_BORN_HOST_V6 | SYS_FLAG_STORE_HOST_V6 | SYS_FLAG_NEED_UNWRAP


def received_messages(
    body: bytes, broker_name: str, queue: MessageQueue | None = None
) -> list[ReceivedMessage]:
    """The messages of a pull body, in order; ``queue`` is where all of them come from, if known.

    Raises:
        RecordDamaged: from here on the bytes are no record.
        ClientError: a body cannot be decompressed.
    """
    return decode_messages(body, broker_name, ReceivedMessage, queue)


def decode_messages(
    body: bytes, broker_name: str, kind: type[M], queue: MessageQueue | None = None
) -> list[M]:
    """``received_messages`` as objects of ``kind``, which adds nothing to the constructor."""
    messages: list[M] = []
    position = 0
    end = len(body)
    while position < end:
        message = _usual_message(body, position, broker_name, kind, queue)
        if message is not None:
            messages.append(message)
            position += message.record_bytes
            continue
        stored = decode_record(body, position)
        position += stored.record_bytes
        messages += (_of_stored(one, broker_name, kind) for one in _unwrapped(stored))
    return messages


def received_message(stored: StoredMessage, broker_name: str) -> ReceivedMessage:
    return _of_stored(stored, broker_name, ReceivedMessage)


def _unwrapped(stored: StoredMessage) -> Iterator[StoredMessage]:
    if stored.sys_flag & SYS_FLAG_NEED_UNWRAP and inner_batch_count(stored.raw_properties) > 1:
        yield from expand_inner_batch(stored)
    else:
        yield stored


def _usual_message(
    body: bytes, start: int, broker_name: str, kind: type[M], queue: MessageQueue | None
) -> M | None:
    """The record at ``start``, or None when it takes the long way."""
    body_start = start + _BODY_START
    if body_start > len(body):
        return None
    (
        record_bytes,
        magic,
        body_crc,
        queue_id,
        flag,
        queue_offset,
        physical_offset,
        sys_flag,
        born_timestamp_ms,
        born_host,
        store_timestamp_ms,
        store_host,
        reconsume_times,
        prepared_transaction_offset,
        body_length,
    ) = _HEAD.unpack_from(body, start)
    end = start + record_bytes
    topic_length_bytes = 1 if magic == MAGIC_V1 else 2
    topic_start = body_start + body_length + topic_length_bytes
    if (
        sys_flag & _UNUSUAL_FLAGS
        or (magic != MAGIC_V1 and magic != MAGIC_V2)
        or body_length < 0
        or not topic_start + 2 <= end <= len(body)
    ):
        return None
    topic_length = body[topic_start - 1]
    if topic_length_bytes == 2:
        topic_length |= body[topic_start - 2] << 8
    properties_start = topic_start + topic_length + 2
    if (
        # Both lengths are signed in the layout.
        topic_length > (0x7F if topic_length_bytes == 1 else 0x7FFF)
        or not 0 <= end - properties_start <= 0x7FFF
        or (body[properties_start - 2] << 8 | body[properties_start - 1]) != end - properties_start
    ):
        return None
    payload = body[body_start : body_start + body_length]
    if crc32(payload) & CRC_MASK != body_crc:
        return None
    topic = body[topic_start : topic_start + topic_length].decode("utf-8", "replace")
    return kind(
        topic,
        payload if not sys_flag & COMPRESSED_FLAG else decompress(payload, sys_flag),
        queue or MessageQueue(topic, broker_name, queue_id),
        queue_offset,
        "",
        "",
        body[properties_start:end],
        reconsume_times,
        born_timestamp_ms,
        store_timestamp_ms,
        flag,
        sys_flag,
        physical_offset,
        born_host,
        store_host,
        body_crc,
        record_bytes,
        prepared_transaction_offset,
    )


def _of_stored(stored: StoredMessage, broker_name: str, kind: type[M]) -> M:
    return kind(
        topic=stored.topic,
        body=decompress(stored.body, stored.sys_flag),
        queue=MessageQueue(stored.topic, broker_name, stored.queue_id),
        queue_offset=stored.queue_offset,
        message_id="",
        offset_message_id="",
        properties=stored.raw_properties,
        reconsume_times=stored.reconsume_times,
        born_timestamp_ms=stored.born_timestamp_ms,
        store_timestamp_ms=stored.store_timestamp_ms,
        flag=stored.flag,
        sys_flag=stored.sys_flag,
        physical_offset=stored.physical_offset,
        packed_born_host=stored.born_host,
        packed_store_host=stored.store_host,
        body_crc=stored.body_crc,
        record_bytes=stored.record_bytes,
        prepared_transaction_offset=stored.prepared_transaction_offset,
    )
