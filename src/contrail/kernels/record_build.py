"""Lay out a run of messages as commit log records (see ``record_layout``)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from contrail.errors import (
    BodyTooLarge,
    HostIllegal,
    MessageIllegal,
    PropertiesTooLarge,
    TopicMissing,
    TopicTooLong,
)
from contrail.kernels import raw_bytes, record_layout, send_places
from contrail.kernels.record_layout import CRC_NAME
from contrail.kernels.stretch_crc import crc32

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import TypeAlias

    # contrail.model.message.MessageDraft, which kernels may not import.
    Draft: TypeAlias = tuple[bytes, int, bytes, bytes, int, int, int, bytes, int, int]
    BuiltRun: TypeAlias = tuple[
        list[bytes],
        list[int],
        list[int],
        int,
        dict[tuple[bytes, int], int],
        list[tuple[bytes, int]],
    ]

_CRC_TEMPLATE = CRC_NAME + b"0000000000\x02"
_I64_MAX = 0x7FFFFFFFFFFFFFFF


def measure_run(
    drafts: Sequence[Draft], body_bytes_max: int, record_crc: bool, store_host_bytes: int
) -> list[int]:
    """Check every draft against the record's limits and return each record's size.

    Raises:
        MessageIllegal: the first draft that cannot be stored; its subclass says which limit.
    """
    _check_host(store_host_bytes)
    sizes = []
    for draft in drafts:
        # A slice of a named tuple is a plain tuple, which C takes apart without an iterator.
        fields = draft[:]
        topic, queue_id, body, properties, flag, sys_flag, born, born_host, times, prepared = fields
        _check_numbers(queue_id, flag, sys_flag, times, born, prepared)
        properties_bytes = len(_kept(properties, record_crc)) + _crc_bytes(record_crc)
        sizes.append(
            _size_of(
                topic,
                len(body),
                properties_bytes,
                len(born_host),
                store_host_bytes,
                body_bytes_max,
            )
        )
    return sizes


def build_run(
    drafts: Sequence[Draft],
    queue_offsets: list[int],
    physical_offset: int,
    store_timestamp_ms: int,
    store_host: bytes,
    record_crc: bool,
) -> list[bytes]:
    """Return the run's bytes as parts to join.

    The drafts were measured before; the first record goes to ``physical_offset``.
    """
    if len(queue_offsets) != len(drafts):
        raise ValueError(f"{len(drafts)} drafts need as many queue offsets, {len(queue_offsets)}")
    _check_host(len(store_host))
    parts: list[bytes] = []
    header = bytearray(record_layout.HEADER_BYTES_MAX)
    index = 0
    for draft in drafts:
        # A slice of a named tuple is a plain tuple, which C takes apart without an iterator.
        fields = draft[:]
        topic, queue_id, body, properties, flag, sys_flag, born, born_host, times, prepared = fields
        _check_host(len(born_host))
        properties = _kept(properties, record_crc)
        physical_offset += _lay_out(
            parts,
            header,
            _topic_text(topic, len(properties) + _crc_bytes(record_crc)),
            queue_id,
            body,
            properties,
            flag,
            sys_flag,
            born,
            born_host,
            times,
            prepared,
            queue_offsets[index],
            physical_offset,
            store_timestamp_ms,
            store_host,
            record_crc,
        )
        index += 1
    return parts


def build_fitting_run(
    drafts: Sequence[Draft],
    next_offsets: dict[tuple[bytes, int], int],
    physical_end: int,
    room_bytes: int,
    weight: int,
    store_timestamp_ms: int,
    store_host: bytes,
    body_bytes_max: int,
    record_crc: bool,
) -> BuiltRun | None:
    """Check, place and build a run in one pass; None when it exceeds ``room_bytes``.

    Every message gets the next offset of its queue by ``next_offsets``, which is only read, and
    takes ``weight`` of them; prepared (half) and rolled-back messages take none. Returns parts to
    join, queue offsets, physical offsets, the end, changed next offsets and new queues.

    Raises:
        MessageIllegal: the first draft that cannot be stored; its subclass says which limit.
    """
    _check_host(len(store_host))
    parts: list[bytes] = []
    queue_offsets: list[int] = []
    physical_offsets: list[int] = []
    planned: dict[tuple[bytes, int], int] = {}
    new_queues: list[tuple[bytes, int]] = []
    header = bytearray(record_layout.HEADER_BYTES_MAX)
    topic_before: bytes | None = None
    topic_text = b""
    properties_bytes_before = -1
    position = physical_end
    for draft in drafts:
        # A slice of a named tuple is a plain tuple, which C takes apart without an iterator.
        fields = draft[:]
        topic, queue_id, body, properties, flag, sys_flag, born, born_host, times, prepared = fields
        _check_numbers(queue_id, flag, sys_flag, times, born, prepared)
        properties = _kept(properties, record_crc)
        properties_bytes = len(properties) + _crc_bytes(record_crc)
        size = _size_of(
            topic, len(body), properties_bytes, len(born_host), len(store_host), body_bytes_max
        )
        if position + size > physical_end + room_bytes:
            return None
        queue_offset = 0
        if record_layout.takes_queue_offset(sys_flag):
            queue_offset = send_places.plan_offsets(
                planned, next_offsets, (topic, queue_id), weight, new_queues
            )
        if properties_bytes != properties_bytes_before or topic != topic_before:
            topic_text = _topic_text(topic, properties_bytes)
            topic_before = topic
            properties_bytes_before = properties_bytes
        _lay_out(
            parts,
            header,
            topic_text,
            queue_id,
            body,
            properties,
            flag,
            sys_flag,
            born,
            born_host,
            times,
            prepared,
            queue_offset,
            position,
            store_timestamp_ms,
            store_host,
            record_crc,
        )
        queue_offsets.append(queue_offset)
        physical_offsets.append(position)
        position += size
    return (parts, queue_offsets, physical_offsets, position, planned, new_queues)


def _lay_out(
    parts: list[bytes],
    header: bytearray,
    topic_text: bytes,
    queue_id: int,
    body: bytes,
    properties: bytes,
    flag: int,
    sys_flag: int,
    born: int,
    born_host: bytes,
    times: int,
    prepared: int,
    queue_offset: int,
    physical_offset: int,
    store_timestamp_ms: int,
    store_host: bytes,
    record_crc: bool,
) -> int:
    """Add one record's parts and return its size. ``topic_text`` is field 16 and a length.

    C writes to the header through a bare pointer: it is always ``HEADER_BYTES_MAX`` long, and the
    hosts, the only variable parts, were checked.
    """
    view = header
    body_bytes = len(body)
    size = record_layout.BODY_AT - 2 * record_layout.IPV4_HOST_BYTES
    size += len(born_host) + len(store_host) + body_bytes + len(topic_text)
    size += len(properties) + _crc_bytes(record_crc)
    # One byte of length and at most 127 of topic; anything longer has two bytes of length.
    is_long = len(topic_text) - 2 > record_layout.TOPIC_BYTES_MAX + 1
    body_crc = crc32(body)
    header_bytes = record_layout.put_header(
        view,
        0,
        size,
        record_layout.MAGIC_V2 if is_long else record_layout.MAGIC_V1,
        body_crc,
        queue_id,
        flag,
        queue_offset,
        physical_offset,
        sys_flag,
        born,
        born_host,
        store_timestamp_ms,
        store_host,
        times,
        prepared,
        body_bytes,
    )
    head = view[:header_bytes]
    # In C a slice of the pointer is bytes; interpreted it is a bytearray, which joins as well.
    parts.append(head)  # type: ignore[arg-type]
    parts.append(body)
    parts.append(topic_text)
    parts.append(properties)
    if record_crc:
        record_crc32 = crc32(properties, crc32(topic_text, crc32(body, crc32(head))))
        parts.append(_crc_property(record_crc32 & record_layout.CRC_MASK))
    return size


def _size_of(
    topic: bytes,
    body_bytes: int,
    properties_bytes: int,
    born_host_bytes: int,
    store_host_bytes: int,
    body_bytes_max: int,
) -> int:
    """The record's size, or the error that names the limit it breaks."""
    topic_bytes = len(topic)
    if topic_bytes > record_layout.TOPIC_BYTES_MAX or topic_bytes == 0:
        _check_topic(topic)
    if body_bytes > body_bytes_max:
        raise BodyTooLarge(
            f"the body has {body_bytes} bytes; send at most maxMessageSize = {body_bytes_max}"
        )
    if properties_bytes > record_layout.PROPERTIES_BYTES_MAX:
        raise PropertiesTooLarge(
            f"the encoded properties need {properties_bytes} bytes; "
            f"send at most {record_layout.PROPERTIES_BYTES_MAX}"
        )
    _check_host(born_host_bytes)
    without = record_layout.bytes_without(born_host_bytes, store_host_bytes, topic_bytes)
    return without + body_bytes + properties_bytes


def _check_numbers(
    queue_id: int, flag: int, sys_flag: int, times: int, born: int, prepared: int
) -> None:
    try:
        numbers_fit = _numbers_fit(queue_id, flag, sys_flag, times, born, prepared)
    except OverflowError:  # The compiled twin cannot even pass these numbers on.
        numbers_fit = False
    if not numbers_fit:
        raise MessageIllegal(
            f"a number is too large for its field: queue_id {queue_id}, flag {flag}, "
            f"sys_flag {sys_flag}, reconsume_times {times} take 32 bits, "
            f"born_timestamp_ms {born}, prepared_transaction_offset {prepared} take 64"
        )


def _kept(properties: bytes, record_crc: bool) -> bytes:
    """The properties as they are stored: without a sender's record CRC, closed if one follows."""
    if record_crc:
        return _closed(_without_crc(properties))
    # Without a record CRC of ours only a forged one at the very end could be taken for one.
    if record_layout.may_end_with_crc(properties, 0, len(properties)):
        return _without_crc(properties)
    return properties


def _crc_bytes(record_crc: bool) -> int:
    return record_layout.CRC_PROPERTY_BYTES if record_crc else 0


def _topic_text(topic: bytes, properties_bytes: int) -> bytes:
    """The topic between its length and that of the properties."""
    return _length_prefix(len(topic)) + topic + _i16(properties_bytes)


def _check_topic(topic: bytes) -> None:
    if not topic:
        raise TopicMissing("the message names no topic; give it one")
    is_long_allowed = topic.startswith((b"%RETRY%", b"%DLQ%"))
    bytes_max = record_layout.TOPIC_BYTES_MAX
    if is_long_allowed:
        bytes_max = record_layout.LONG_TOPIC_BYTES_MAX
    if len(topic) > bytes_max:
        raise TopicTooLong(
            f"topic {topic[:40]!r}... has {len(topic)} bytes; name it with at most {bytes_max}"
        )


def _numbers_fit(
    queue_id: int, flag: int, sys_flag: int, times: int, born: int, prepared: int
) -> bool:
    return (
        raw_bytes.is_i32(queue_id)
        and raw_bytes.is_i32(flag)
        and raw_bytes.is_i32(sys_flag)
        and raw_bytes.is_i32(times)
        and -_I64_MAX - 1 <= born <= _I64_MAX
        and -_I64_MAX - 1 <= prepared <= _I64_MAX
    )


def _check_host(host_bytes: int) -> None:
    if not record_layout.is_host(host_bytes):
        raise HostIllegal(
            f"a packed host has {host_bytes} bytes; use 8 (IPv4 and port) or 20 (IPv6 and port)"
        )


def _without_crc(properties: bytes) -> bytes:
    """Nobody but the store vouches for a record: a sender's own record CRC is dropped."""
    if CRC_NAME not in properties:
        return properties
    pairs = properties.split(b"\x02")
    return b"\x02".join([pair for pair in pairs if not pair.startswith(CRC_NAME)])


def _closed(properties: bytes) -> bytes:
    """The properties with the byte that ends the last pair, so that one more can follow."""
    if properties and properties[len(properties) - 1] != 2:
        return properties + b"\x02"
    return properties


def _crc_property(crc: int) -> bytes:
    text = bytearray(_CRC_TEMPLATE)
    for at in range(len(_CRC_TEMPLATE) - 11, len(_CRC_TEMPLATE) - 1):
        text[at] = 48 + crc % 10
        crc //= 10
    return bytes(text)


def _length_prefix(topic_bytes: int) -> bytes:
    if topic_bytes > record_layout.TOPIC_BYTES_MAX:
        return _i16(topic_bytes)
    return _BYTES[topic_bytes]


def _i16(value: int) -> bytes:
    return _BYTES[value >> 8] + _BYTES[value & 0xFF]


_BYTES = [bytes((value,)) for value in range(256)]
