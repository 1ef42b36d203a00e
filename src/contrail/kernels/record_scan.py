"""Walk commit log records and find the first byte that is not one.

The record's layout is tabled in ``record_build``. Besides records a log has two other things:

    place  bytes   blank record: the rest of a segment, when the next record did not fit
    0      4       bytes left in the segment, this field included
    4      4       magic 0xCBD43194

    0      8       zeros: nothing was written here yet

Nothing read from the buffer is trusted: each length is checked against what is left before it is
used, so arbitrary bytes give a reason and never an exception.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from contrail.kernels.record_build import crc32

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

REASON_END = 0
REASON_BLANK = 1
REASON_EMPTY = 2
REASON_BAD_MAGIC = 3
REASON_BAD_SIZE = 4
REASON_BAD_PHYSICAL_OFFSET = 5
REASON_BAD_BODY_CRC = 6
REASON_BAD_RECORD_CRC = 7
REASON_CUT_SHORT = 8

_MAGIC_V1 = -626843481
_MAGIC_V2 = -626843477
_MAGIC_BLANK = -875286124
_HEADER_BYTES = 88
_CRC_MASK = 0x7FFFFFFF
_CRC_PROPERTY_BYTES = 20
_CRC_NAME = b"__CRC32#\x01"


def scan_records(
    buffer: ReadableBuffer,
    start: int,
    end: int,
    base_offset: int,
    check_crc: bool,
    record_crc: int,
) -> tuple[int, int, int, int, int]:
    """Walk the records in ``buffer[start:end]``, whose byte ``i`` is at ``base_offset + i``.

    Returns where the walk ended, the ``REASON_`` it ended for, how many records it passed, where
    the last of them starts (-1: none) and its store timestamp (0: none). ``record_crc`` is 0 to
    ignore the record CRC, 1 to verify it where there is one, 2 to also refuse records without.
    A client can send a property of that name: 1 is safe only where such properties are removed.
    """
    data = memoryview(buffer)
    if not 0 <= start <= end <= len(data):
        raise ValueError(f"the range {start}..{end} is outside the buffer's {len(data)} bytes")
    return _scan(data, data, start, end, base_offset, check_crc, record_crc)


def check_record(
    buffer: ReadableBuffer,
    position: int,
    end: int,
    base_offset: int,
    check_crc: bool,
    record_crc: int,
) -> tuple[int, int]:
    """Check the one record at ``position``: its ``REASON_`` (0 = good) and its size field.

    The size is 0 when fewer than eight bytes are left; it means something for a good, a blank
    and a cut record only.
    """
    data = memoryview(buffer)
    if not 0 <= position <= end <= len(data):
        raise ValueError(f"the range {position}..{end} is outside the buffer's {len(data)} bytes")
    return _check_one(data, data, position, end, base_offset, check_crc, record_crc)


def count_whole(
    buffer: ReadableBuffer,
    position_and_sizes: list[int],
    base_offset: int,
    record_crc: int,
) -> int:
    """How many of the records at [position, size, ...] are whole, up to the first that is not."""
    data = memoryview(buffer)
    return _count_whole(data, data, position_and_sizes, base_offset, record_crc)


def _count_whole(
    view: memoryview,
    data: memoryview,
    position_and_sizes: list[int],
    base_offset: int,
    record_crc: int,
) -> int:
    end = len(data)
    index = 0
    while index < len(position_and_sizes) - 1:
        position = position_and_sizes[index]
        if not 0 <= position <= end:
            break
        if _check(view, data, position, end, base_offset, True, record_crc) != 0:
            break
        if _read_i32(view, position) != position_and_sizes[index + 1]:
            break
        index += 2
    return index // 2


def _scan(
    view: memoryview,
    data: memoryview,
    start: int,
    end: int,
    base_offset: int,
    check_crc: bool,
    record_crc: int,
) -> tuple[int, int, int, int, int]:
    """``view`` and ``data`` are one buffer: C reads the first, the CRC function the second."""
    position = start
    last_position = -1
    record_count = 0
    store_timestamp_ms = 0
    reason = REASON_END
    while position < end:
        reason = _check(view, data, position, end, base_offset, check_crc, record_crc)
        if reason != 0:
            break
        born_host_extra = 12 if view[position + 39] & 0x10 else 0
        store_timestamp_ms = _read_i64(view, position + 56 + born_host_extra)
        record_count += 1
        last_position = position
        position += _read_i32(view, position)
    return (position, reason, record_count, last_position, store_timestamp_ms)


def _check_one(
    view: memoryview,
    data: memoryview,
    position: int,
    end: int,
    base_offset: int,
    check_crc: bool,
    record_crc: int,
) -> tuple[int, int]:
    reason = _check(view, data, position, end, base_offset, check_crc, record_crc)
    return (reason, _read_i32(view, position) if end - position >= 8 else 0)


def _check(
    view: memoryview,
    data: memoryview,
    position: int,
    end: int,
    base_offset: int,
    check_crc: bool,
    record_crc: int,
) -> int:
    if end - position < 8:
        return REASON_CUT_SHORT
    size = _read_i32(view, position)
    magic = _read_i32(view, position + 4)
    if magic != _MAGIC_V1 and magic != _MAGIC_V2:
        return _reason_without_magic(size, magic)
    topic_length_bytes = 1 if magic == _MAGIC_V1 else 2
    if size < _HEADER_BYTES + topic_length_bytes + 2:
        return REASON_BAD_SIZE
    if size > end - position:
        return REASON_CUT_SHORT
    properties_bytes = _properties_bytes(view, position, position + size, topic_length_bytes)
    if properties_bytes < 0:
        return REASON_BAD_SIZE
    if _read_i64(view, position + 28) != base_offset + position:
        return REASON_BAD_PHYSICAL_OFFSET
    if check_crc and not _is_body_whole(view, data, position):
        return REASON_BAD_BODY_CRC
    if record_crc and not _is_record_whole(
        view, data, position, position + size, properties_bytes, record_crc
    ):
        return REASON_BAD_RECORD_CRC
    return REASON_END


def _reason_without_magic(size: int, magic: int) -> int:
    if magic == _MAGIC_BLANK:
        return REASON_BLANK if size >= 8 else REASON_BAD_SIZE
    if magic == 0 and size == 0:
        return REASON_EMPTY
    return REASON_BAD_MAGIC


def _properties_bytes(view: memoryview, position: int, limit: int, topic_length_bytes: int) -> int:
    """The properties' length, or -1 unless all lengths add up to a record ending at ``limit``."""
    body_at = _body_position(view, position)
    left = limit - body_at - topic_length_bytes - 2
    if left < 0:
        return -1
    body_bytes = _read_i32(view, body_at - 4)
    if body_bytes < 0 or body_bytes > left:
        return -1
    topic_at = body_at + body_bytes + topic_length_bytes
    left -= body_bytes
    topic_bytes = view[topic_at - 1]
    if topic_length_bytes == 2:
        topic_bytes = view[topic_at - 2] * 256 + topic_bytes
    # The lengths are signed: one byte up to 127, two up to 32,767.
    if topic_bytes > (127 if topic_length_bytes == 1 else 32767):
        return -1
    left -= topic_bytes
    if left < 0 or left > 32767:
        return -1
    properties_at = topic_at + topic_bytes + 2
    properties_bytes = view[properties_at - 2] * 256 + view[properties_at - 1]
    return properties_bytes if properties_bytes == left else -1


def _body_position(view: memoryview, position: int) -> int:
    sys_flag = view[position + 39]
    body_at = position + _HEADER_BYTES
    if sys_flag & 0x10:
        body_at += 12
    if sys_flag & 0x20:
        body_at += 12
    return body_at


def _is_body_whole(view: memoryview, data: memoryview, position: int) -> bool:
    body_at = _body_position(view, position)
    body_end = body_at + _read_i32(view, body_at - 4)
    crc = crc32(data[body_at:body_end]) & _CRC_MASK
    return crc == _read_i32(view, position + 8)


def _is_record_whole(
    view: memoryview,
    data: memoryview,
    position: int,
    limit: int,
    properties_bytes: int,
    record_crc: int,
) -> bool:
    crc_at = limit - _CRC_PROPERTY_BYTES
    if not _has_crc(view, limit - properties_bytes, crc_at, limit):
        return record_crc != 2
    stored = 0
    for at in range(limit - 2, limit - 12, -1):
        digit = view[at] - 48
        if digit < 0 or digit > 9:
            return False
        stored = stored * 10 + digit
    crc = crc32(data[position:crc_at]) & _CRC_MASK
    return crc == stored


def _has_crc(view: memoryview, properties_at: int, crc_at: int, limit: int) -> bool:
    if crc_at < properties_at or view[limit - 1] != 2:
        return False
    if crc_at > properties_at and view[crc_at - 1] != 2:
        return False
    at = crc_at
    for byte in _CRC_NAME:
        if view[at] != byte:
            return False
        at += 1
    return True


def _read_i32(view: memoryview, at: int) -> int:
    value = view[at]
    if value > 127:
        value -= 256
    value = value * 256 + view[at + 1]
    value = value * 256 + view[at + 2]
    return value * 256 + view[at + 3]


def _read_i64(view: memoryview, at: int) -> int:
    value = _read_i32(view, at)
    value = value * 256 + view[at + 4]
    value = value * 256 + view[at + 5]
    value = value * 256 + view[at + 6]
    return value * 256 + view[at + 7]
