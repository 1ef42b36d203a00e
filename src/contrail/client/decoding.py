"""Records of a pull as the messages an application sees.

Nearly every record has two IPv4 hosts and is whole: such records are read here with one unpacking.
All others go through ``model.record``, which names the problem of a damaged one.

One message that cannot be decoded keeps none of the others from arriving: it is returned with its
raw bytes and its ``decode_error``.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import Generic, NamedTuple, TypeVar
from zlib import crc32

from contrail.client.compression import COMPRESSED_FLAG, readable
from contrail.client.message import MessageQueue, ReceivedMessage
from contrail.errors import BatchIllegal, MessageUnreadable, RecordDamaged
from contrail.model.batch import expand_inner_batch, inner_batch_count
from contrail.model.message import StoredMessage
from contrail.model.record import (
    CRC_MASK,
    MAGIC_V1,
    MAGIC_V2,
    RECORD_BYTES_MIN,
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


class DecodedRun(NamedTuple, Generic[M]):
    """The messages of a pull body. A message that cannot be decoded is there with its error."""

    messages: list[M]
    # Where the next record starts: the end, unless ``damage`` names that record's problem.
    end: int
    damage: RecordDamaged | None


def received_messages(
    body: bytes, broker_name: str, queue: MessageQueue | None = None
) -> list[ReceivedMessage]:
    """The messages of a pull body, in order; ``queue`` is where all of them come from, if known.

    Never raises: a message that cannot be decoded comes with its ``decode_error``.
    """
    return decode_messages(body, broker_name, ReceivedMessage, queue)


def decode_messages(
    body: bytes, broker_name: str, kind: type[M], queue: MessageQueue | None = None
) -> list[M]:
    """``received_messages`` as objects of ``kind``, which adds nothing to the constructor.

    From a record on whose size is damaged, the rest of the body is one message that cannot be
    decoded. Callers that can pull the rest again use ``decode_run``.
    """
    messages: list[M] = []
    while True:
        run = decode_run(body, broker_name, kind, queue)
        messages += run.messages
        if run.damage is None:
            return messages
        size = _framed_bytes(body, run.end)
        record = body[run.end : run.end + size]
        messages.append(undecoded(record, broker_name, kind, queue, run.damage))
        body = body[run.end + size :]


def decode_run(
    body: bytes, broker_name: str, kind: type[M], queue: MessageQueue | None = None
) -> DecodedRun[M]:
    """The messages of a pull body up to the first record whose parts are not where they belong.

    The size of such a record is not believed: it may lead into the body of a message, where a
    producer can have put bytes that look like a record.
    """
    messages: list[M] = []
    position = 0
    end = len(body)
    while position < end:
        message = _usual_message(body, position, broker_name, kind, queue)
        if message is not None:
            messages.append(message)
            position += message.record_bytes
            continue
        try:
            stored = decode_record(body, position, check_body_crc=False)
        except RecordDamaged as damage:
            return DecodedRun(messages, position, damage)
        source = queue or MessageQueue(stored.topic, broker_name, stored.queue_id)
        messages += _of_record(stored, kind, source)
        position += stored.record_bytes
    return DecodedRun(messages, end, None)


def undecoded(
    record: bytes,
    broker_name: str,
    kind: type[M],
    queue: MessageQueue | None,
    damage: RecordDamaged,
) -> M:
    """A damaged record as a message: all its bytes are the body, its fields are not certain."""
    head = _HEAD.unpack(record[:_BODY_START].ljust(_BODY_START, b"\0"))
    source = queue or MessageQueue("", broker_name, head[3])
    return kind(
        topic=source.topic,
        body=record,
        queue=source,
        queue_offset=head[5],
        message_id="",
        offset_message_id="",
        properties=b"",
        reconsume_times=0,
        born_timestamp_ms=head[8],
        store_timestamp_ms=head[10],
        flag=head[4],
        sys_flag=0,
        physical_offset=head[6],
        packed_born_host=head[9],
        packed_store_host=head[11],
        body_crc=head[2],
        record_bytes=len(record),
        decode_error=MessageUnreadable(
            f"a message of {_place(source)} cannot be decoded: {damage}",
            is_record_damaged=True,
        ),
    )


def received_message(stored: StoredMessage, broker_name: str) -> ReceivedMessage:
    queue = MessageQueue(stored.topic, broker_name, stored.queue_id)
    return _of_stored(stored, ReceivedMessage, queue)


def _framed_bytes(body: bytes, position: int) -> int:
    """The size of a damaged record if a whole record, or the end, follows it; else all the rest."""
    rest = len(body) - position
    size = int.from_bytes(body[position : position + 4], "big", signed=True)
    if not RECORD_BYTES_MIN <= size < rest:
        return rest
    try:
        decode_record(body, position + size, check_body_crc=False)
    except RecordDamaged:
        return rest
    return size


def _of_record(stored: StoredMessage, kind: type[M], queue: MessageQueue) -> list[M]:
    """The messages of a record whose parts are where they belong."""
    if crc32(stored.body) & CRC_MASK != stored.body_crc:
        problem = "the body does not match its CRC"
    else:
        try:
            return [_of_stored(one, kind, queue) for one in _unwrapped(stored)]
        except BatchIllegal as error:
            problem = str(error)
    damage = _unreadable(queue, stored.queue_offset, problem, is_record_damaged=True)
    return [_with_body(stored, stored.body, damage, kind, queue)]


def _unwrapped(stored: StoredMessage) -> Iterator[StoredMessage]:
    if stored.sys_flag & SYS_FLAG_NEED_UNWRAP and inner_batch_count(stored.raw_properties) > 1:
        yield from expand_inner_batch(stored)
    else:
        yield stored


def _usual_message(
    body: bytes, start: int, broker_name: str, kind: type[M], queue: MessageQueue | None
) -> M | None:
    """The record at ``start``, or None when it needs ``model.record``."""
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
    problem = None
    if sys_flag & COMPRESSED_FLAG:
        payload, problem = readable(payload, sys_flag)
    message = kind(
        topic,
        payload,
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
    if problem is not None:
        message.decode_error = _unreadable(message.queue, queue_offset, str(problem))
    return message


def _of_stored(stored: StoredMessage, kind: type[M], queue: MessageQueue) -> M:
    body, problem = readable(stored.body, stored.sys_flag)
    error = None if problem is None else _unreadable(queue, stored.queue_offset, str(problem))
    return _with_body(stored, body, error, kind, queue)


def _with_body(
    stored: StoredMessage,
    body: bytes,
    decode_error: MessageUnreadable | None,
    kind: type[M],
    queue: MessageQueue,
) -> M:
    return kind(
        topic=stored.topic,
        body=body,
        queue=queue,
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
        decode_error=decode_error,
    )


def _unreadable(
    queue: MessageQueue, queue_offset: int, problem: str, *, is_record_damaged: bool = False
) -> MessageUnreadable:
    return MessageUnreadable(
        f"the message at offset {queue_offset} of {_place(queue)} cannot be decoded: {problem}",
        is_record_damaged=is_record_damaged,
    )


def _place(queue: MessageQueue) -> str:
    return f"queue {queue.queue_id} of topic {queue.topic!r} on broker {queue.broker_name!r}"
