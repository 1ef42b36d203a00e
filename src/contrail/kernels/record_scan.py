"""Walk commit log records and find the first byte that is no record.

The record's layout, and the ``REASON_`` numbers, are in ``record_layout``. No length in the buffer
is trusted: each is checked against the bytes left before it is used, so arbitrary bytes give a
reason and never an exception.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from contrail.kernels import raw_bytes, record_layout, stretch_crc
from contrail.kernels.record_layout import CRC_NAME
from contrail.kernels.stretch_crc import crc32

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


def scan_records(
    buffer: ReadableBuffer,
    start: int,
    end: int,
    base_offset: int,
    check_crc: bool,
    record_crc: int,
) -> tuple[int, int, int, int, int]:
    """Walk the records in ``buffer[start:end]``, whose byte ``i`` is at ``base_offset + i``.

    Returns where the walk ended, its ``REASON_``, how many records it passed, where the last record
    starts (-1: none) and its store timestamp (0: none). ``record_crc`` is 0 to ignore the record
    CRC, 1 to verify it where present, 2 to also refuse records without it. A client can send a
    property of that name: 1 is safe only if the broker removes such properties.
    """
    data = memoryview(buffer)
    if not 0 <= start <= end <= len(data):
        raise ValueError(f"the range {start}..{end} is outside the buffer's {len(data)} bytes")
    return _scan(data, start, end, base_offset, check_crc, record_crc)


def marked_records(
    buffer: ReadableBuffer,
    start: int,
    end: int,
    base_offset: int,
    topics: list[bytes],
    text: bytes,
) -> tuple[int, int, list[int]]:
    """Walk as ``scan_records`` does without checksums, and pick what a message kind may know by.

    Picked are the records whose preparedTransactionOffset is not 0, those of committed messages,
    those of ``topics``, and those with ``text`` in their properties unless it is empty. Returns
    where the walk ended, its ``REASON_``, and where the picked records begin.
    """
    data = memoryview(buffer)
    if not 0 <= start <= end <= len(data):
        raise ValueError(f"the range {start}..{end} is outside the buffer's {len(data)} bytes")
    return _pick(data, start, end, base_offset, topics, text)


def check_record(
    buffer: ReadableBuffer,
    position: int,
    end: int,
    base_offset: int,
    check_crc: bool,
    record_crc: int,
) -> tuple[int, int]:
    """Check the one record at ``position``: its ``REASON_`` (0 = good) and its size field.

    The size is 0 when fewer than eight bytes are left; it is valid for a good, a blank and a cut
    record only.
    """
    data = memoryview(buffer)
    if not 0 <= position <= end <= len(data):
        raise ValueError(f"the range {position}..{end} is outside the buffer's {len(data)} bytes")
    return _check_one(data, position, end, base_offset, check_crc, record_crc)


def count_whole(
    buffer: ReadableBuffer,
    position_and_sizes: list[int],
    base_offset: int,
    record_crc: int,
) -> int:
    """How many records at [position, size, ...] are whole, up to the first that is not."""
    data = memoryview(buffer)
    return _count_whole(data, position_and_sizes, base_offset, record_crc)


def _count_whole(
    data: memoryview, position_and_sizes: list[int], base_offset: int, record_crc: int
) -> int:
    view = raw_bytes.begin(data)
    end = len(data)
    index = 0
    while index < len(position_and_sizes) - 1:
        position = position_and_sizes[index]
        if not 0 <= position <= end:
            break
        if _check(view, position, end, base_offset, True, record_crc) != record_layout.REASON_END:
            break
        if raw_bytes.i32(view, position) != position_and_sizes[index + 1]:
            break
        index += 2
    return index // 2


def _scan(
    data: memoryview, start: int, end: int, base_offset: int, check_crc: bool, record_crc: int
) -> tuple[int, int, int, int, int]:
    view = raw_bytes.begin(data)
    position = start
    last_position = -1
    record_count = 0
    store_timestamp_ms = 0
    reason = record_layout.REASON_END
    while position < end:
        reason = _check(view, position, end, base_offset, check_crc, record_crc)
        if reason != record_layout.REASON_END:
            break
        store_timestamp_ms = record_layout.store_time(view, position)
        record_count += 1
        last_position = position
        position += raw_bytes.i32(view, position)
    return (position, reason, record_count, last_position, store_timestamp_ms)


def _pick(
    data: memoryview, start: int, end: int, base_offset: int, topics: list[bytes], text: bytes
) -> tuple[int, int, list[int]]:
    view = raw_bytes.begin(data)
    picked: list[int] = []
    position = start
    reason = record_layout.REASON_END
    while position < end:
        reason = _check(view, position, end, base_offset, False, 0)
        if reason != record_layout.REASON_END:
            break
        if _is_marked(view, position, topics, text):
            picked.append(position)
        position += raw_bytes.i32(view, position)
    return (position, reason, picked)


def _is_marked(view: memoryview, position: int, topics: list[bytes], text: bytes) -> bool:
    flags = view[position + record_layout.LOW_FLAGS_AT]
    if flags & record_layout.TRANSACTION_MASK == record_layout.TRANSACTION_COMMIT:
        return True
    body_at = record_layout.body_at(view, position)
    # The field before the body's length.
    if raw_bytes.i64(view, body_at - 12) != 0:
        return True
    limit = position + raw_bytes.i32(view, position)
    topic_at = record_layout.topic_at(view, position)
    properties_at = record_layout.properties_at(view, position, limit)
    for topic in topics:
        if raw_bytes.spells(view, topic_at, properties_at - 2, topic):
            return True
    return len(text) > 0 and text in bytes(view[properties_at:limit])


def _check_one(
    data: memoryview, position: int, end: int, base_offset: int, check_crc: bool, record_crc: int
) -> tuple[int, int]:
    view = raw_bytes.begin(data)
    reason = _check(view, position, end, base_offset, check_crc, record_crc)
    return (reason, raw_bytes.i32(view, position) if end - position >= 8 else 0)


def _check(
    view: memoryview, position: int, end: int, base_offset: int, check_crc: bool, record_crc: int
) -> int:
    """C reads by a bare pointer: ``record_reason`` found all lengths within the record."""
    reason = record_layout.record_reason(view, position, end)
    if reason != record_layout.REASON_END:
        return reason
    physical_offset = raw_bytes.i64(view, position + record_layout.PHYSICAL_OFFSET_AT)
    if physical_offset != base_offset + position:
        return record_layout.REASON_BAD_PHYSICAL_OFFSET
    if check_crc and not _is_body_whole(view, position):
        return record_layout.REASON_BAD_BODY_CRC
    if record_crc and not _is_record_whole(view, position, record_crc):
        return record_layout.REASON_BAD_RECORD_CRC
    return record_layout.REASON_END


def _is_body_whole(view: memoryview, position: int) -> bool:
    body_at = record_layout.body_at(view, position)
    body_end = record_layout.body_end(view, position)
    crc = stretch_crc.crc_of(crc32, view, body_at, body_end)
    stored = raw_bytes.i32(view, position + record_layout.BODY_CRC_AT)
    return crc & record_layout.CRC_MASK == stored


def _is_record_whole(view: memoryview, position: int, record_crc: int) -> bool:
    limit = position + raw_bytes.i32(view, position)
    crc_at = limit - record_layout.CRC_PROPERTY_BYTES
    if not _has_crc(view, record_layout.properties_at(view, position, limit), crc_at, limit):
        return record_crc != 2
    stored = 0
    for at in range(limit - 2, limit - 12, -1):
        digit = view[at] - 48
        if digit < 0 or digit > 9:
            return False
        stored = stored * 10 + digit
    crc = stretch_crc.crc_of(crc32, view, position, crc_at)
    return crc & record_layout.CRC_MASK == stored


def _has_crc(view: memoryview, properties_at: int, crc_at: int, limit: int) -> bool:
    if crc_at < properties_at or view[limit - 1] != 2:
        return False
    if crc_at > properties_at and view[crc_at - 1] != 2:
        return False
    return raw_bytes.stands(view, crc_at, CRC_NAME)
