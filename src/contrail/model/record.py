"""Decodes records of the commit log.

The record's layout and constants are in ``contrail.kernels.record_layout``.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from struct import Struct
from typing import NamedTuple

from contrail.errors import RecordDamaged
from contrail.kernels import record_layout
from contrail.model.message import StoredMessage

Buffer = bytes | bytearray | memoryview

# The magic numbers as they are read here: unsigned.
MAGIC_V1 = record_layout.MAGIC_V1 & 0xFFFFFFFF
MAGIC_V2 = record_layout.MAGIC_V2 & 0xFFFFFFFF
BLANK_MAGIC = record_layout.MAGIC_BLANK & 0xFFFFFFFF
BLANK_RECORD_BYTES = record_layout.BLANK_RECORD_BYTES
RECORD_BYTES_MIN = record_layout.RECORD_BYTES_MIN
IPV6_HOST_EXTRA_BYTES = record_layout.IPV6_EXTRA_BYTES
PROPERTIES_BYTES_MAX = record_layout.PROPERTIES_BYTES_MAX
CRC_MASK = record_layout.CRC_MASK

MAGIC_POSITION = record_layout.MAGIC_AT
QUEUE_ID_POSITION = record_layout.QUEUE_ID_AT
QUEUE_OFFSET_POSITION = record_layout.QUEUE_OFFSET_AT
SYS_FLAG_POSITION = record_layout.SYS_FLAG_AT
BORN_HOST_POSITION = record_layout.BORN_HOST_AT

TRANSACTION_MASK = record_layout.TRANSACTION_MASK
TRANSACTION_NONE = record_layout.TRANSACTION_NONE
TRANSACTION_PREPARED = record_layout.TRANSACTION_PREPARED
TRANSACTION_COMMIT = record_layout.TRANSACTION_COMMIT
TRANSACTION_ROLLBACK = record_layout.TRANSACTION_ROLLBACK

SYS_FLAG_BORN_HOST_V6 = record_layout.BORN_HOST_V6
SYS_FLAG_STORE_HOST_V6 = record_layout.STORE_HOST_V6
SYS_FLAG_COMPRESSED = 0x1
SYS_FLAG_MULTI_TAGS = 0x2
SYS_FLAG_NEED_UNWRAP = 0x40
SYS_FLAG_INNER_BATCH = 0x80

COMPRESSION_MASK = 0x700
COMPRESSION_LZ4 = 0x100
COMPRESSION_ZSTD = 0x200
COMPRESSION_ZLIB = 0x300

TOPIC_BYTES_MAX_V1 = 127

_HEAD = Struct(">iIiiiqqiq")  # fields 1 to 9
_INT = Struct(">i")
_LONG = Struct(">q")
_SHORT = Struct(">h")
_BYTE = Struct(">b")
_RETRIES_AND_BODY_LENGTH = Struct(">iqi")  # fields 13, 14 and the first half of 15
_BLANK = Struct(">iI")


def decode_record(
    buffer: Buffer,
    position: int = 0,
    *,
    physical_offset: int | None = None,
    check_body_crc: bool = True,
) -> StoredMessage:
    """Decode the record that starts at ``position``.

    ``physical_offset``, when given, must be the physical offset in the record.

    Raises:
        RecordDamaged: the bytes are no whole record, or a record of another physical offset.
    """
    try:
        message = _decode(buffer, position, check_body_crc)
        if physical_offset not in (None, message.physical_offset):
            raise _Damage(f"it says it starts at {message.physical_offset}")
    except _Damage as damage:
        place = position if physical_offset is None else physical_offset
        raise RecordDamaged(
            f"record at physical offset {place} is damaged: {damage}", physical_offset=place
        ) from None
    return message


def split_record_run(buffer: Buffer) -> Iterator[StoredMessage]:
    """The records of a pull's body, which are adjacent.

    Raises:
        RecordDamaged: the next bytes are no whole record; the records before were yielded.
    """
    position = 0
    while position < len(buffer):
        message = decode_record(buffer, position)
        yield message
        position += message.record_bytes


def readdressed(message: StoredMessage, record: Buffer, topic: bytes, properties: bytes) -> bytes:
    """The bytes of ``record``, which ``message`` is, with another topic and other properties."""
    is_long = len(topic) > TOPIC_BYTES_MAX_V1
    topic_length = (_SHORT if is_long else _BYTE).pack(len(topic))
    rest = topic_length + topic + _SHORT.pack(len(properties)) + properties
    hosts = len(message.born_host) + len(message.store_host)
    head_end = _HEAD.size + hosts + _LONG.size + _RETRIES_AND_BODY_LENGTH.size + len(message.body)
    head = bytearray(record[:head_end])
    magic = MAGIC_V2 if is_long else MAGIC_V1
    _BLANK.pack_into(head, 0, head_end + len(rest), magic)
    return bytes(head) + rest


def encode_blank(bytes_left: int) -> bytes:
    """The blank record that closes a segment with ``bytes_left`` bytes to its end."""
    assert bytes_left >= BLANK_RECORD_BYTES, "every record leaves room for the blank one"
    return _BLANK.pack(bytes_left, BLANK_MAGIC)


def transaction_type(sys_flag: int) -> int:
    """One of the ``TRANSACTION_`` constants."""
    return sys_flag & TRANSACTION_MASK


class _Head(NamedTuple):
    """Fields 1 to 9."""

    total_bytes: int
    magic: int
    body_crc: int
    queue_id: int
    flag: int
    queue_offset: int
    physical_offset: int
    sys_flag: int
    born_timestamp_ms: int


class _Damage(Exception):
    """The damage of a record; the caller adds its physical offset."""


def _decode(buffer: Buffer, start: int, check_body_crc: bool) -> StoredMessage:
    cursor = _Cursor(buffer, start, len(buffer))
    head = _Head(*cursor.unpack(_HEAD))
    total_bytes, sys_flag = head.total_bytes, head.sys_flag
    _check_head(head, len(buffer) - start)
    cursor.end = start + total_bytes
    born_host = cursor.take(_host_bytes(sys_flag, SYS_FLAG_BORN_HOST_V6), "born host")
    (store_timestamp_ms,) = cursor.unpack(_LONG)
    store_host = cursor.take(_host_bytes(sys_flag, SYS_FLAG_STORE_HOST_V6), "store host")
    reconsume_times, prepared_transaction_offset, body_length = cursor.unpack(
        _RETRIES_AND_BODY_LENGTH
    )
    body = cursor.take(body_length, "body")
    (topic_length,) = cursor.unpack(_SHORT if head.magic == MAGIC_V2 else _BYTE)
    topic = cursor.take(topic_length, "topic")
    (properties_length,) = cursor.unpack(_SHORT)
    properties = cursor.take(properties_length, "properties")
    if cursor.position != cursor.end:
        raise _Damage(f"its parts take {cursor.position - start} bytes of its {total_bytes}")
    if check_body_crc and zlib.crc32(body) & CRC_MASK != head.body_crc:
        raise _Damage("the body does not match its CRC")
    return StoredMessage(
        topic=topic.decode("utf-8", "replace"),
        queue_id=head.queue_id,
        queue_offset=head.queue_offset,
        physical_offset=head.physical_offset,
        record_bytes=total_bytes,
        body=body,
        raw_properties=properties,
        flag=head.flag,
        sys_flag=sys_flag,
        body_crc=head.body_crc,
        born_timestamp_ms=head.born_timestamp_ms,
        born_host=born_host,
        store_timestamp_ms=store_timestamp_ms,
        store_host=store_host,
        reconsume_times=reconsume_times,
        prepared_transaction_offset=prepared_transaction_offset,
    )


def _host_bytes(sys_flag: int, family: int) -> int:
    is_v6 = sys_flag & family
    return record_layout.IPV6_HOST_BYTES if is_v6 else record_layout.IPV4_HOST_BYTES


def _check_head(head: _Head, bytes_available: int) -> None:
    total_bytes, magic = head.total_bytes, head.magic
    if magic == BLANK_MAGIC:
        raise _Damage("this is the blank record that ends a segment")
    if magic not in (MAGIC_V1, MAGIC_V2):
        raise _Damage(f"unknown magic {magic:08X}")
    if total_bytes < RECORD_BYTES_MIN:
        raise _Damage(f"its size {total_bytes} is below the smallest record, {RECORD_BYTES_MIN}")
    if total_bytes > bytes_available:
        raise _Damage(f"it takes {total_bytes} bytes, only {bytes_available} are there")


class _Cursor:
    """Reads forward through a buffer and never past ``end``."""

    def __init__(self, buffer: Buffer, position: int, end: int) -> None:
        self._buffer = buffer
        self.position = position
        self.end = end

    def unpack(self, struct: Struct) -> tuple[int, ...]:
        start = self._advance(struct.size, "fixed fields")
        return struct.unpack_from(self._buffer, start)

    def take(self, byte_count: int, what: str) -> bytes:
        start = self._advance(byte_count, what)
        return bytes(self._buffer[start : self.position])

    def _advance(self, byte_count: int, what: str) -> int:
        start = self.position
        if byte_count < 0:
            raise _Damage(f"its {what} has the negative length {byte_count}")
        if start + byte_count > self.end:
            raise _Damage(f"its {what} reaches {start + byte_count - self.end} bytes past the end")
        self.position = start + byte_count
        return start
