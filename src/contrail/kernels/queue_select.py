"""Choose consume queue rows for a pull, merge their records into ranges, and check what they name.

    place  bytes  consume queue row (20 bytes), all integers big-endian and signed
    0      8      physicalOffset
    8      4      size of the record
    12     8      tagsCode; filters compare its low 32 bits

The record's layout is tabled in ``record_build``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from contrail.kernels import raw_bytes

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

_ROW_BYTES = 20
_SIEVE_BYTES = 1024
_MAGIC_V1 = -626843481
_MAGIC_V2 = -626843477
_HEADER_BYTES = 88
# A stretch that ends early is taken all the same if it is as long as an answer usually is.
_ENOUGH = 32
# How many rows ahead of the one that is compared records are asked for.
_AHEAD_BYTES = 6 * _ROW_BYTES


def select_rows(
    rows: ReadableBuffer,
    start: int,
    end: int,
    count_max: int,
    bytes_max: int,
    tag_codes: frozenset[int] | None,
) -> tuple[list[int], int, int]:
    """Walk the whole rows of ``rows[start:end]`` and take those that match, within the limits.

    Returns [physical_offset, size, row_index, ...] of the rows taken (the row at ``start`` has
    index 0), how many rows were walked, and the bytes of the records taken. The first match is
    always taken. ``tag_codes`` of None takes every row.
    """
    data = memoryview(rows)
    if not 0 <= start <= end <= len(data):
        raise ValueError(f"the range {start}..{end} is outside the {len(data)} bytes of rows")
    if tag_codes is None:
        sieve = bytearray(b"\x01") * _SIEVE_BYTES
    else:
        sieve = bytearray(_SIEVE_BYTES)
        for code in tag_codes:
            sieve[code % _SIEVE_BYTES] = 1
    return _select(data, start, end, count_max, bytes_max, tag_codes, sieve)


def coalesce(selected: list[int], segment_bytes: int) -> list[int]:
    """Merge the selected records that touch and share a segment: [physical_offset, size, ...]."""
    if segment_bytes < 1:
        raise ValueError(f"a segment cannot have {segment_bytes} bytes")
    ranges: list[int] = []
    range_start = 0
    range_bytes = 0
    for at in range(0, len(selected), 3):
        physical_offset = selected[at]
        size = selected[at + 1]
        if (
            range_bytes > 0
            and physical_offset == range_start + range_bytes
            and physical_offset // segment_bytes == range_start // segment_bytes
        ):
            range_bytes += size
            continue
        if at > 0:
            ranges.append(range_start)
            ranges.append(range_bytes)
        range_start = physical_offset
        range_bytes = size
    if selected:
        ranges.append(range_start)
        ranges.append(range_bytes)
    return ranges


def match_records(
    buffer: ReadableBuffer,
    position_and_sizes: list[int],
    base_offset: int,
    queue_id: int,
    topic: bytes,
    queue_offsets: list[int],
) -> int:
    """Return the index of the first record that is not the one its queue row named, or -1.

    ``position_and_sizes`` is [position, size, ...]; byte ``i`` of the buffer is at
    ``base_offset + i``. A row that leads out of the buffer does not match.
    """
    data = memoryview(buffer)
    if len(position_and_sizes) != 2 * len(queue_offsets):
        raise ValueError(
            f"{len(position_and_sizes)} positions and sizes need half as many queue offsets, "
            f"not {len(queue_offsets)}"
        )
    return _match(data, position_and_sizes, base_offset, queue_id, topic, queue_offsets)


def match_run(
    buffer: memoryview,
    rows: bytes,
    first_row_at: int,
    count_max: int,
    bytes_max: int,
    base_offset: int,
    physical_start: int,
    physical_end: int,
    queue_id: int,
    topic: bytes,
    queue_offset: int,
) -> tuple[int, int, int]:
    """The records of the rows from ``first_row_at`` on as one stretch: count, place, bytes.

    Takes rows while they lead to neighbouring records of this buffer, each the one its row names,
    within the limits; the first is taken whatever its size. Nothing outside of ``physical_start``
    and ``physical_end`` is looked at. A count of 0 says that the rows are not of this simple kind:
    a gap, another segment, a record that does not match, and not even as many before it as an
    answer usually has.
    """
    row_view = rows
    end = len(rows)
    at = first_row_at
    count = 0
    total_bytes = 0
    start = 0
    if at < 0 or len(buffer) == 0:
        return (0, 0, 0)
    bare = raw_bytes.begin(buffer)
    topic_at = 0
    ahead = at
    while end - at >= _ROW_BYTES and (count == 0 or count < count_max):
        # Records come from memory one after the other, unless they are asked for ahead of time:
        # the head of each, and its topic where the last one had it.
        while end - ahead >= _ROW_BYTES and ahead - at <= _AHEAD_BYTES:
            position = _row_i64(row_view, ahead) - base_offset
            if 0 <= position < len(buffer):
                raw_bytes.expect(bare, position)
                raw_bytes.expect(bare, position + 64)
                raw_bytes.expect(bare, position + topic_at)
            ahead += _ROW_BYTES
        physical_offset = _row_i64(row_view, at)
        size = _row_i32(row_view, at + 8)
        if count > 0 and total_bytes + size > bytes_max:
            return (count, start, total_bytes)
        if count == 0:
            start = physical_offset
        elif physical_offset != start + total_bytes:
            return _cut(count, start, total_bytes)
        if physical_offset < physical_start or size > physical_end - physical_offset:
            return _cut(count, start, total_bytes)
        position = physical_offset - base_offset
        if not _has_place(buffer, position, size, base_offset):
            return _cut(count, start, total_bytes)
        if _read_i32(buffer, position + 12) != queue_id:
            return _cut(count, start, total_bytes)
        if _read_i64(buffer, position + 20) != queue_offset + count:
            return _cut(count, start, total_bytes)
        if not _has_topic(buffer, position, position + size, topic):
            return _cut(count, start, total_bytes)
        topic_at = _HEADER_BYTES + _read_i32(buffer, position + _HEADER_BYTES - 4)
        total_bytes += size
        count += 1
        at += _ROW_BYTES
    return (count, start, total_bytes)


def gather_run(
    buffer: memoryview,
    rows: bytes,
    first_row_at: int,
    count_max: int,
    bytes_max: int,
    base_offset: int,
    physical_start: int,
    physical_end: int,
    queue_id: int,
    topic: bytes,
    queue_offset: int,
) -> tuple[int, int, bytearray] | None:
    """As ``match_run`` for records with those of other queues between them: a copy of them.

    How many, and where in the log the last one ends. None when one of the rows does not lead
    further on to a record that it names.
    """
    row_view = rows
    end = len(rows)
    at = first_row_at
    count = 0
    total_bytes = 0
    reached = physical_start
    if at < 0 or len(buffer) == 0:
        return None
    bare = raw_bytes.begin(buffer)
    while end - at >= _ROW_BYTES and (count == 0 or count < count_max):
        physical_offset = _row_i64(row_view, at)
        size = _row_i32(row_view, at + 8)
        if count > 0 and total_bytes + size > bytes_max:
            break
        if physical_offset < reached or size > physical_end - physical_offset:
            return None
        position = physical_offset - base_offset
        if not _has_place(buffer, position, size, base_offset):
            return None
        if _read_i32(buffer, position + 12) != queue_id:
            return None
        if _read_i64(buffer, position + 20) != queue_offset + count:
            return None
        if not _has_topic(buffer, position, position + size, topic):
            return None
        reached = physical_offset + size
        total_bytes += size
        count += 1
        at += _ROW_BYTES
    if count == 0:
        return None
    gathered = raw_bytes.blank(total_bytes)
    target = gathered
    to = 0
    at = first_row_at
    for _ in range(count):
        position = _row_i64(row_view, at) - base_offset
        to = raw_bytes.copy(target, to, bare, position, position + _row_i32(row_view, at + 8))
        at += _ROW_BYTES
    return (count, reached, gathered)


def _cut(count: int, start: int, total_bytes: int) -> tuple[int, int, int]:
    """A stretch that ends before its rows do."""
    if count < _ENOUGH:
        return (0, 0, 0)
    return (count, start, total_bytes)


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


def _select(
    rows: memoryview,
    start: int,
    end: int,
    count_max: int,
    bytes_max: int,
    tag_codes: frozenset[int] | None,
    sieve: bytearray,
) -> tuple[list[int], int, int]:
    """The sieve turns most rows away without a Python integer; the set has the last word."""
    selected: list[int] = []
    count = 0
    total_bytes = 0
    row_index = 0
    at = start
    while end - at >= _ROW_BYTES:
        if count > 0 and count >= count_max:
            break
        if sieve[rows[at + 18] % 4 * 256 + rows[at + 19]] and (
            tag_codes is None or _read_i32(rows, at + 16) in tag_codes
        ):
            size = _read_i32(rows, at + 8)
            if count > 0 and total_bytes + size > bytes_max:
                break
            selected.append(_read_i64(rows, at))
            selected.append(size)
            selected.append(row_index)
            total_bytes += size
            count += 1
        row_index += 1
        at += _ROW_BYTES
    return (selected, row_index, total_bytes)


def _match(
    view: memoryview,
    position_and_sizes: list[int],
    base_offset: int,
    queue_id: int,
    topic: bytes,
    queue_offsets: list[int],
) -> int:
    for index in range(len(queue_offsets)):
        position = position_and_sizes[2 * index]
        size = position_and_sizes[2 * index + 1]
        if not _has_place(view, position, size, base_offset):
            return index
        if _read_i32(view, position + 12) != queue_id:
            return index
        if _read_i64(view, position + 20) != queue_offsets[index]:
            return index
        if not _has_topic(view, position, position + size, topic):
            return index
    return -1


def _has_place(view: memoryview, position: int, size: int, base_offset: int) -> bool:
    if position < 0 or size < _HEADER_BYTES + 3 or size > len(view) - position:
        return False
    magic = _read_i32(view, position + 4)
    if magic != _MAGIC_V1 and magic != _MAGIC_V2:
        return False
    if _read_i32(view, position) != size:
        return False
    return _read_i64(view, position + 28) == base_offset + position


def _has_topic(view: memoryview, position: int, limit: int, topic: bytes) -> bool:
    sys_flag = view[position + 39]
    body_at = position + _HEADER_BYTES
    if sys_flag & 0x10:
        body_at += 12
    if sys_flag & 0x20:
        body_at += 12
    if body_at > limit:
        return False
    body_bytes = _read_i32(view, body_at - 4)
    topic_length_bytes = 1 if _read_i32(view, position + 4) == _MAGIC_V1 else 2
    topic_at = body_at + body_bytes + topic_length_bytes
    if body_bytes < 0 or topic_at + len(topic) + 2 > limit:
        return False
    topic_bytes = view[topic_at - 1]
    if topic_length_bytes == 2:
        topic_bytes += view[topic_at - 2] * 256
    if topic_bytes != len(topic):
        return False
    at = topic_at
    for byte in topic:
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
