"""What is rare in a log and therefore decoded row by row in Python.

Inner batches, compressed bodies, IPv6 hosts, messages without a unique key, text that is not
UTF-8 and records with very many properties. Each gives the same values as the client does.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import TypeAlias
from zlib import crc32

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from contrail.errors import BatchIllegal, ClientError, RecordUndecodable
from contrail.model.batch import expand_inner_batch, inner_batch_count
from contrail.model.host import unpack_host
from contrail.model.message import StoredMessage
from contrail.model.message_id import encode_offset_message_id
from contrail.model.properties import decode_properties
from contrail.model.record import (
    BORN_HOST_POSITION,
    CRC_MASK,
    IPV6_HOST_EXTRA_BYTES,
    SYS_FLAG_BORN_HOST_V6,
    SYS_FLAG_INNER_BATCH,
    SYS_FLAG_NEED_UNWRAP,
    SYS_FLAG_POSITION,
    SYS_FLAG_STORE_HOST_V6,
    decode_record,
)
from contrail.pipeline.bodies import inflated_body

Positions: TypeAlias = npt.NDArray[np.int64]

_INT = Struct(">i")
_LONG = Struct(">q")
_SHORT = Struct(">h")
_PHYSICAL_OFFSET_POSITION = 28
_BODY_LENGTH_POSITION = 84


def expanded(data: bytes, rows: Positions) -> tuple[bytes, Positions]:
    """The records with each inner batch replaced by a record for each message in it.

    Such a record says what the client says about the message; its flags are those of a message
    that is no batch, and its size is its own. A record that says it holds a batch and does not
    stays as it is, and ``batch_error`` says why.
    """
    parts, places, end = [data], [], len(data)
    for position in rows.tolist():
        if not _sys_flag(data, position) & SYS_FLAG_NEED_UNWRAP:
            places.append(position)
            continue
        try:
            units = _units(data, position)
        except RecordUndecodable:
            units = None
        if units is None:
            places.append(position)
        for unit in units or ():
            parts.append(unit)
            places.append(end)
            end += len(unit)
    return b"".join(parts), np.array(places, dtype=np.int64)


def inflated(data: bytes, position: int) -> bytes:
    """The body of one record as it was sent.

    Raises:
        RecordUndecodable: it cannot be decompressed.
    """
    message = decode_record(data, position, check_body_crc=False)
    try:
        return inflated_body(message.body, message.sys_flag)
    except ClientError as error:
        raise _undecodable(message, str(error)) from error


def batch_error(data: bytes, position: int) -> RecordUndecodable | None:
    """Why the batch of a record cannot be opened; None when it can, or the record holds none."""
    if _sys_flag(data, position) & SYS_FLAG_NEED_UNWRAP:
        try:
            _units(data, position)
        except RecordUndecodable as error:
            return error
    return None


def offsets_of_closed_batches(data: bytes, rows: Positions) -> Positions:
    """The queue offsets that are taken by batches which cannot be opened."""
    ranges = [np.empty(0, np.int64)]
    for position in rows.tolist():
        if batch_error(data, position) is not None:
            message = decode_record(data, position, check_body_crc=False)
            try:
                count = inner_batch_count(message.raw_properties)
            except BatchIllegal:
                count = 1
            ranges.append(np.arange(message.queue_offset, message.queue_offset + count))
    return np.concatenate(ranges)


def host_texts(data: bytes, rows: Positions, *, is_store_host: bool) -> pa.Array:
    """Hosts of both families as text."""
    known: dict[bytes, str] = {}
    texts = []
    for position in rows.tolist():
        packed = _packed_host(data, position, is_store_host)
        if packed not in known:
            known[packed] = str(unpack_host(packed))
        texts.append(known[packed])
    return pa.array(texts, pa.string())


def offset_ids(data: bytes, rows: Positions) -> list[str]:
    """The ids of messages whose sender gave them none: where they are stored."""
    ids = []
    for position in rows.tolist():
        (physical_offset,) = _LONG.unpack_from(data, position + _PHYSICAL_OFFSET_POSITION)
        ids.append(encode_offset_message_id(_packed_host(data, position, True), physical_offset))
    return ids


def replaced(texts: pa.Array) -> pa.Array:
    """Binary values as text, with U+FFFD for whatever is no UTF-8."""
    values = texts.to_pylist()
    decoded = [None if value is None else value.decode("utf-8", "replace") for value in values]
    return pa.array(decoded, pa.string())


def property_maps(
    data: bytes, starts: Positions, sizes: Positions, map_type: pa.DataType
) -> pa.Array:
    """A map column; of a name that occurs twice the last pair is kept, at its place."""
    maps = []
    for start, size in zip(starts.tolist(), sizes.tolist(), strict=True):
        properties: dict[str, str] = {}
        for pair in data[start : start + size].split(b"\x02"):
            for name, value in decode_properties(pair).items():
                properties.pop(name, None)
                properties[name] = value
        maps.append(list(properties.items()))
    return pa.array(maps, map_type)


def _units(data: bytes, position: int) -> list[bytes] | None:
    """The records of a batch's messages; None when the record is a message after all."""
    message = decode_record(data, position, check_body_crc=False)
    try:
        # The flag alone does not make a batch: the client looks at the count as well.
        if inner_batch_count(message.raw_properties) <= 1:
            return None
        return list(_unit_records(data, position, message))
    except BatchIllegal as error:
        raise _undecodable(message, str(error)) from error


def _unit_records(data: bytes, position: int, message: StoredMessage) -> Iterator[bytes]:
    body_at = position + _BODY_LENGTH_POSITION + 4 + _hosts_extra(message.sys_flag)
    topic_at = body_at + len(message.body)
    topic_end = position + message.record_bytes - 2 - len(message.raw_properties)
    topic = data[topic_at:topic_end]
    head = bytearray(data[position : body_at - 4])
    for unit in expand_inner_batch(message):
        size = len(head) + 4 + len(unit.body) + len(topic) + 2 + len(unit.raw_properties)
        _INT.pack_into(head, 0, size)
        _INT.pack_into(head, 8, crc32(unit.body) & CRC_MASK)
        _INT.pack_into(head, 16, unit.flag)
        _LONG.pack_into(head, 20, unit.queue_offset)
        plain_flag = message.sys_flag & ~(SYS_FLAG_NEED_UNWRAP | SYS_FLAG_INNER_BATCH)
        _INT.pack_into(head, SYS_FLAG_POSITION, plain_flag)
        properties = unit.raw_properties
        lengths = _INT.pack(len(unit.body)), _SHORT.pack(len(properties))
        yield b"".join((head, lengths[0], unit.body, topic, lengths[1], properties))


def _undecodable(message: StoredMessage, problem: str) -> RecordUndecodable:
    return RecordUndecodable(
        f"record at physical offset {message.physical_offset} cannot be decoded: {problem}",
        physical_offset=message.physical_offset,
    )


def _sys_flag(data: bytes, position: int) -> int:
    (sys_flag,) = _INT.unpack_from(data, position + SYS_FLAG_POSITION)
    return int(sys_flag)


def _hosts_extra(sys_flag: int) -> int:
    v6_count = bool(sys_flag & SYS_FLAG_BORN_HOST_V6) + bool(sys_flag & SYS_FLAG_STORE_HOST_V6)
    return v6_count * IPV6_HOST_EXTRA_BYTES


def _packed_host(data: bytes, position: int, is_store_host: bool) -> bytes:
    sys_flag = _sys_flag(data, position)
    at, family = position + BORN_HOST_POSITION, SYS_FLAG_BORN_HOST_V6
    if is_store_host:
        # The born host and the store timestamp are before it.
        at += 16 + (IPV6_HOST_EXTRA_BYTES if sys_flag & SYS_FLAG_BORN_HOST_V6 else 0)
        family = SYS_FLAG_STORE_HOST_V6
    return data[at : at + (20 if sys_flag & family else 8)]
