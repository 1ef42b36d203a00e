"""Records decoded in Python: rare forms always, all records without the compiled kernel.

Rare forms are inner batches, compressed bodies, IPv6 hosts, messages without a unique key, text
that is not UTF-8 and records with very many properties: they are decoded a row at a time.

``measure``, ``copy``, ``find`` and ``list_pairs`` do the compiled kernel's work where it was not
built. Numbers and positions are read by numpy, a whole column at a time; texts and properties a
row at a time. For a wrong length the interpreted kernel names the row and the reason.
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
from contrail.kernels.arrow_columns import SPAN_ROWS, measure_records
from contrail.kernels.record_layout import REASON_END
from contrail.model.batch import expand_inner_batch, inner_batch_count
from contrail.model.host import unpack_host
from contrail.model.message import StoredMessage
from contrail.model.message_id import encode_offset_message_id
from contrail.model.properties import decode_properties
from contrail.model.record import (
    BORN_HOST_POSITION,
    CRC_MASK,
    IPV6_HOST_EXTRA_BYTES,
    MAGIC_V1,
    MAGIC_V2,
    PROPERTIES_BYTES_MAX,
    RECORD_BYTES_MIN,
    SYS_FLAG_BORN_HOST_V6,
    SYS_FLAG_INNER_BATCH,
    SYS_FLAG_NEED_UNWRAP,
    SYS_FLAG_POSITION,
    SYS_FLAG_STORE_HOST_V6,
    decode_record,
)
from contrail.pipeline.bodies import inflated_body

Positions: TypeAlias = npt.NDArray[np.int64]
Offsets: TypeAlias = npt.NDArray[np.int32]
Bytes: TypeAlias = npt.NDArray[np.uint8]

_INT = Struct(">i")
_LONG = Struct(">q")
_SHORT = Struct(">h")
_PHYSICAL_OFFSET_POSITION = 28
_BODY_LENGTH_POSITION = 84
_NO_SPANS = np.empty((0, 0), np.int64)


def measure(
    data: bytes, rows: Positions, fields: bytes, wants_spans: bool
) -> tuple[Positions, Positions, int, int, int]:
    """Positions, spans, bitwise or of sysFlags, first row that is no record (-1), its reason."""
    view = np.frombuffer(data, np.uint8)
    numbers = np.empty((len(fields) // 3, len(rows)), np.int64)
    spans = _spans(view, rows)
    if spans is None:
        nothing = np.empty(0, np.int64).data
        bad_row, reason, _ = measure_records(data, rows.data, b"", nothing, nothing)
        return numbers, _NO_SPANS, 0, bad_row, reason
    low_flags = view[rows + 39].astype(np.int64)
    extras = _host_extras(low_flags)
    for index in range(len(numbers)):
        place, length, hosts_before = fields[3 * index : 3 * index + 3]
        numbers[index] = _integers(view, rows + (place + extras[hosts_before]), length)
    seen = int(np.bitwise_or.reduce(low_flags | view[rows + 38].astype(np.int64) << 8))
    return numbers, spans if wants_spans else _NO_SPANS, seen, -1, REASON_END


def copy(data: bytes, starts: Positions, offsets: Offsets) -> tuple[pa.Buffer, bool]:
    """The bytes of all rows, and whether all of them are ASCII."""
    rows = zip(starts.tolist(), np.diff(offsets).tolist(), strict=True)
    copied = b"".join([data[start : start + size] for start, size in rows if size])
    return pa.py_buffer(copied), copied.isascii()


def find(data: bytes, starts: Positions, sizes: Positions, names: list[bytes]) -> Positions:
    """Start and length of each name's last value: (name, 2, row), -1 and 0 without a value."""
    found = np.zeros((len(names), 2, len(starts)), np.int64)
    found[:, 0] = -1
    numbers = {name: number for number, name in enumerate(names)}
    for row, (start, size) in enumerate(zip(starts.tolist(), sizes.tolist(), strict=True)):
        for pair in data[start : start + size].split(b"\x02"):
            name, _, value = pair.partition(b"\x01")
            if name and value and name in numbers:
                found[numbers[name], :, row] = start + len(name) + 1, len(value)
            start += len(pair) + 1
    return found


def list_pairs(data: bytes, starts: Positions, sizes: Positions) -> None:
    """Returns None: ``property_maps`` makes the maps."""


def expanded(data: bytes, rows: Positions) -> tuple[bytes, Positions]:
    """The records with each inner batch replaced by a record for each message in it.

    Such a record has the values that the client reads from the batch, the flags of a single
    message, and its own size. A record that is flagged as a batch and holds none stays unchanged;
    ``batch_error`` gives the reason.
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
    """Why the batch of a record cannot be opened; None if it can be, or the record holds none."""
    if _sys_flag(data, position) & SYS_FLAG_NEED_UNWRAP:
        try:
            _units(data, position)
        except RecordUndecodable as error:
            return error
    return None


def offsets_of_closed_batches(data: bytes, rows: Positions) -> Positions:
    """The queue offsets of the messages in batches that cannot be opened."""
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
    """The ids of messages without a unique key: host and physical offset."""
    ids = []
    for position in rows.tolist():
        (physical_offset,) = _LONG.unpack_from(data, position + _PHYSICAL_OFFSET_POSITION)
        ids.append(encode_offset_message_id(_packed_host(data, position, True), physical_offset))
    return ids


def replaced(texts: pa.Array) -> pa.Array:
    """Binary values as text, with U+FFFD for bytes that are no UTF-8."""
    values = texts.to_pylist()
    decoded = [None if value is None else value.decode("utf-8", "replace") for value in values]
    return pa.array(decoded, pa.string())


def property_maps(
    data: bytes, starts: Positions, sizes: Positions, map_type: pa.DataType
) -> pa.Array:
    """A map column; for a name that occurs twice the last pair is kept, in its position."""
    maps = []
    for start, size in zip(starts.tolist(), sizes.tolist(), strict=True):
        properties: dict[str, str] = {}
        for pair in data[start : start + size].split(b"\x02"):
            for name, value in decode_properties(pair).items():
                properties.pop(name, None)
                properties[name] = value
        maps.append(list(properties.items()))
    return pa.array(maps, map_type)


def _spans(view: Bytes, rows: Positions) -> Positions | None:
    """Start and length of body, topic and properties; None if a part is outside the buffer."""
    if not len(rows):
        return np.empty((SPAN_ROWS, 0), np.int64)
    end = len(view)
    if rows.min() < 0 or rows.max() > end - RECORD_BYTES_MIN:
        return None
    magic = _integers(view, rows + 4, 4) & 0xFFFFFFFF
    is_long = (magic == MAGIC_V2).astype(np.int64)
    limits = rows + _integers(view, rows, 4)
    extras = _host_extras(view[rows + 39].astype(np.int64))
    body_starts = rows + _BODY_LENGTH_POSITION + 4 + extras[2]
    room = limits - body_starts - is_long - 3
    if not ((is_long == 1) | (magic == MAGIC_V1)).all() or (limits > end).any() or room.min() < 0:
        return None
    body_sizes = _integers(view, body_starts - 4, 4)
    if body_sizes.min() < 0 or (body_sizes > room).any():
        return None
    topic_starts = body_starts + body_sizes + 1 + is_long
    low, high = view[topic_starts - 1].astype(np.int64), view[topic_starts - 2].astype(np.int64)
    topic_sizes = np.where(is_long == 1, high << 8 | low, low)
    properties_starts = topic_starts + topic_sizes + 2
    properties_sizes = limits - properties_starts
    if (topic_sizes > np.where(is_long == 1, 32_767, 127)).any() or properties_sizes.min() < 0:
        return None
    if properties_sizes.max() > PROPERTIES_BYTES_MAX:
        return None
    if (_integers(view, properties_starts - 2, 2) != properties_sizes).any():
        return None
    parts = (body_starts, body_sizes, topic_starts, topic_sizes)
    return np.stack((*parts, properties_starts, properties_sizes))


def _host_extras(low_flags: Positions) -> tuple[Positions, Positions, Positions]:
    """Extra bytes of IPv6 hosts before a field: behind no host, one host and both."""
    born = np.where(low_flags & SYS_FLAG_BORN_HOST_V6, IPV6_HOST_EXTRA_BYTES, 0)
    store = np.where(low_flags & SYS_FLAG_STORE_HOST_V6, IPV6_HOST_EXTRA_BYTES, 0)
    return np.zeros_like(born), born, born + store


def _integers(view: Bytes, places: Positions, length: int) -> Positions:
    gathered = view[places[:, None] + np.arange(length)]
    numbers: Positions = gathered.view(f">i{length}")[:, 0].astype(np.int64)
    return numbers


def _units(data: bytes, position: int) -> list[bytes] | None:
    """The records of a batch's messages; None if the record is a single message."""
    message = decode_record(data, position, check_body_crc=False)
    try:
        # The flag alone does not make a batch: the client checks the count as well.
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
