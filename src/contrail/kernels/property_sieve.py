"""Walk the records that queue rows name and keep those whose properties a filter lets pass.

A record that is only looked at is not decoded: its lengths lead to its properties, and of those
only the values of a few names are taken. Each value is what ``model.properties`` would decode: the
last of its name, and none where it is empty. Rows are tabled in ``queue_select``, records in
``record_build``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

# Why a walk ended: no more rows; enough was taken or looked at; a row and its record disagree, or
# the record is not in this buffer.
ENDED_ROWS = 0
ENDED_FULL = 1
ENDED_UNPROVEN = 2

_ROW_BYTES = 20
_MAGIC_V1 = -626843481
_MAGIC_V2 = -626843477
_HEADER_BYTES = 88
_PHYSICAL_OFFSET_MAX = 1 << 62
# A place and a length in one number; no properties are longer than 32,767 bytes.
_LENGTH_SPAN = 65536


def sift_rows(
    buffer: ReadableBuffer,
    rows: bytes,
    count_max: int,
    bytes_max: int,
    scanned_bytes_max: int,
    is_first_free: bool,
    base_offset: int,
    queue_id: int,
    topic: bytes,
    queue_offset: int,
    names: tuple[bytes, ...],
    verdicts: Mapping[bytes, bool],
) -> tuple[list[int], int, int, int]:
    """Look at the records of the rows in turn, and take those that pass.

    Returns [physical_offset, size, row_index, ...] of the records taken, how many rows were walked,
    the bytes of their records, and the ``ENDED_`` why. Every record walked is the one its row
    names, with lengths that add up; no checksum was compared. ``verdicts`` says what passes by the
    values of ``names``, joined by byte 2; a missing one is empty. Whether a record is within the
    limits is asked before it is looked at: ``bytes_max`` is for records taken and
    ``scanned_bytes_max`` for all that are walked, the first of each counting always if
    ``is_first_free``.
    """
    data = memoryview(buffer)
    return _sift(
        data,
        buffer,
        rows,
        count_max,
        bytes_max,
        scanned_bytes_max,
        is_first_free,
        base_offset,
        queue_id,
        topic,
        queue_offset,
        names,
        verdicts,
    )


def row_span(rows: bytes) -> tuple[int, int]:
    """Where in the log the first record of these rows begins and the last one ends.

    (0, 0) when a row leads to no place that a log can have.
    """
    row_view = rows
    end = len(rows)
    start_min = 0
    end_max = 0
    at = 0
    while end - at >= _ROW_BYTES:
        physical_offset = _row_i64(row_view, at)
        if physical_offset < 0 or physical_offset > _PHYSICAL_OFFSET_MAX:
            return (0, 0)
        physical_end = physical_offset + _row_i32(row_view, at + 8)
        if at == 0 or physical_offset < start_min:
            start_min = physical_offset
        if at == 0 or physical_end > end_max:
            end_max = physical_end
        at += _ROW_BYTES
    return (start_min, end_max)


def _sift(
    view: memoryview,
    data: ReadableBuffer,
    rows: bytes,
    count_max: int,
    bytes_max: int,
    scanned_bytes_max: int,
    is_first_free: bool,
    base_offset: int,
    queue_id: int,
    topic: bytes,
    queue_offset: int,
    names: tuple[bytes, ...],
    verdicts: Mapping[bytes, bool],
) -> tuple[list[int], int, int, int]:
    """``view`` and ``data`` are one buffer: C reads the first, values are cut from the second."""
    selected: list[int] = []
    count = 0
    taken_bytes = 0
    walked_bytes = 0
    walked = 0
    row_view = rows
    end = len(rows)
    at = 0
    ended = ENDED_ROWS
    while end - at >= _ROW_BYTES:
        physical_offset = _row_i64(row_view, at)
        size = _row_i32(row_view, at + 8)
        if count >= count_max:
            ended = ENDED_FULL
            break
        if taken_bytes + size > bytes_max and (count > 0 or not is_first_free):
            ended = ENDED_FULL
            break
        if walked_bytes + size > scanned_bytes_max and (walked > 0 or not is_first_free):
            ended = ENDED_FULL
            break
        position = physical_offset - base_offset
        properties_at = -1
        if _is_place(view, position, size, base_offset, queue_id, queue_offset + walked):
            properties_at = _properties_at(view, position, position + size, topic)
        if properties_at < 0:
            ended = ENDED_UNPROVEN
            break
        key = _key(view, data, properties_at, position + size, names)
        if verdicts[key]:
            selected.append(physical_offset)
            selected.append(size)
            selected.append(walked)
            taken_bytes += size
            count += 1
        walked_bytes += size
        walked += 1
        at += _ROW_BYTES
    return (selected, walked, walked_bytes, ended)


def _is_place(
    view: memoryview,
    position: int,
    size: int,
    base_offset: int,
    queue_id: int,
    queue_offset: int,
) -> bool:
    if position < 0 or size < _HEADER_BYTES + 3 or size > len(view) - position:
        return False
    if _read_i32(view, position) != size or _read_i32(view, position + 12) != queue_id:
        return False
    if _read_i64(view, position + 20) != queue_offset:
        return False
    return _read_i64(view, position + 28) == base_offset + position


def _properties_at(view: memoryview, position: int, limit: int, topic: bytes) -> int:
    """Where a record's properties begin, or -1 unless it is of ``topic`` and its lengths add up."""
    magic = _read_i32(view, position + 4)
    if magic != _MAGIC_V1 and magic != _MAGIC_V2:
        return -1
    topic_length_bytes = 1 if magic == _MAGIC_V1 else 2
    sys_flag = view[position + 39]
    body_at = position + _HEADER_BYTES
    if sys_flag & 0x10:
        body_at += 12
    if sys_flag & 0x20:
        body_at += 12
    if body_at > limit:
        return -1
    body_bytes = _read_i32(view, body_at - 4)
    topic_bytes = len(topic)
    topic_at = body_at + body_bytes + topic_length_bytes
    if body_bytes < 0 or topic_at + topic_bytes + 2 > limit:
        return -1
    said_bytes = view[topic_at - 1]
    if topic_length_bytes == 2:
        said_bytes += view[topic_at - 2] * 256
    # The lengths are signed: one byte up to 127, two up to 32,767.
    if said_bytes != topic_bytes or said_bytes > (127 if topic_length_bytes == 1 else 32767):
        return -1
    at = topic_at
    for byte in topic:
        if view[at] != byte:
            return -1
        at += 1
    properties_bytes = view[at] * 256 + view[at + 1]
    if properties_bytes > 32767 or at + 2 + properties_bytes != limit:
        return -1
    return at + 2


def _key(
    view: memoryview, data: ReadableBuffer, at: int, limit: int, names: tuple[bytes, ...]
) -> bytes:
    if len(names) == 1:
        found = _find_value(view, at, limit, names[0])
        return _cut(data, found // _LENGTH_SPAN, found % _LENGTH_SPAN)
    values: list[bytes] = []
    for name in names:
        found = _find_value(view, at, limit, name)
        values.append(_cut(data, found // _LENGTH_SPAN, found % _LENGTH_SPAN))
    return b"\x02".join(values)


def _cut(data: ReadableBuffer, start: int, byte_count: int) -> bytes:
    # A slice of a map or of bytes is bytes already, and bytes() of that is the same object.
    return bytes(data[start : start + byte_count]) if byte_count else b""  # type: ignore[index]


def _find_value(view: memoryview, at: int, limit: int, name: bytes) -> int:
    """Place times ``_LENGTH_SPAN`` plus length of the value that counts; 0 when there is none."""
    found = 0
    name_bytes = len(name)
    letters = name
    while at < limit:
        index = 0
        while index < name_bytes and at < limit and view[at] == letters[index]:
            index += 1
            at += 1
        is_named = index == name_bytes and at < limit and view[at] == 1
        value_at = at + 1
        while at < limit and view[at] != 2:
            at += 1
        if is_named and at > value_at:
            found = value_at * _LENGTH_SPAN + (at - value_at)
        at += 1
    return found


def _row_i32(rows: bytes, at: int) -> int:
    value = rows[at]
    if value > 127:
        value -= 256
    value = value * 256 + rows[at + 1]
    value = value * 256 + rows[at + 2]
    return value * 256 + rows[at + 3]


def _row_i64(rows: bytes, at: int) -> int:
    value = _row_i32(rows, at)
    value = value * 256 + rows[at + 4]
    value = value * 256 + rows[at + 5]
    value = value * 256 + rows[at + 6]
    return value * 256 + rows[at + 7]


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
