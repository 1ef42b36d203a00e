"""Choose consume queue rows for a pull, merge their records into ranges, and check what they name.

Rows and records are tabled in ``record_layout``; filters compare the low 32 bits of a tagsCode.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from contrail.kernels import raw_bytes, record_layout

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

_SIEVE_BYTES = 1024
# A stretch that ends early is taken all the same if it holds this many messages.
_ENOUGH = 32
# How many rows ahead of the one that is compared records are asked for.
_AHEAD_BYTES = 6 * record_layout.QUEUE_ROW_BYTES


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
    a gap, another segment, a record that does not match, and fewer messages before it than fill an
    answer.
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
    buffer_bytes = len(buffer)
    topic_at = 0
    ahead = at
    while end - at >= record_layout.QUEUE_ROW_BYTES and (count == 0 or count < count_max):
        # Records come from memory one after the other, unless they are asked for ahead of time:
        # the head of each, and its topic where the last one had it.
        while end - ahead >= record_layout.QUEUE_ROW_BYTES and ahead - at <= _AHEAD_BYTES:
            position = raw_bytes.i64(row_view, ahead) - base_offset
            if 0 <= position < buffer_bytes:
                raw_bytes.expect(bare, position)
                raw_bytes.expect(bare, position + 64)
                raw_bytes.expect(bare, position + topic_at)
            ahead += record_layout.QUEUE_ROW_BYTES
        physical_offset = raw_bytes.i64(row_view, at)
        size = raw_bytes.i32(row_view, at + record_layout.ROW_SIZE_AT)
        if count > 0 and total_bytes + size > bytes_max:
            return (count, start, total_bytes)
        if count == 0:
            start = physical_offset
        elif physical_offset != start + total_bytes:
            return _cut(count, start, total_bytes)
        if physical_offset < physical_start or size > physical_end - physical_offset:
            return _cut(count, start, total_bytes)
        position = physical_offset - base_offset
        if not record_layout.is_placed(
            bare, buffer_bytes, position, size, physical_offset, queue_id, queue_offset + count
        ):
            return _cut(count, start, total_bytes)
        topic_end = record_layout.topic_end(bare, position, position + size, topic)
        if topic_end < 0:
            return _cut(count, start, total_bytes)
        topic_at = topic_end - len(topic) - position
        total_bytes += size
        count += 1
        at += record_layout.QUEUE_ROW_BYTES
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
    buffer_bytes = len(buffer)
    while end - at >= record_layout.QUEUE_ROW_BYTES and (count == 0 or count < count_max):
        physical_offset = raw_bytes.i64(row_view, at)
        size = raw_bytes.i32(row_view, at + record_layout.ROW_SIZE_AT)
        if count > 0 and total_bytes + size > bytes_max:
            break
        if physical_offset < reached or size > physical_end - physical_offset:
            return None
        position = physical_offset - base_offset
        if not record_layout.is_placed(
            bare, buffer_bytes, position, size, physical_offset, queue_id, queue_offset + count
        ):
            return None
        if record_layout.topic_end(bare, position, position + size, topic) < 0:
            return None
        reached = physical_offset + size
        total_bytes += size
        count += 1
        at += record_layout.QUEUE_ROW_BYTES
    if count == 0:
        return None
    gathered = raw_bytes.blank(total_bytes)
    target = gathered
    to = 0
    at = first_row_at
    for _ in range(count):
        position = raw_bytes.i64(row_view, at) - base_offset
        size = raw_bytes.i32(row_view, at + record_layout.ROW_SIZE_AT)
        to = raw_bytes.copy(target, to, bare, position, position + size)
        at += record_layout.QUEUE_ROW_BYTES
    return (count, reached, gathered)


def _cut(count: int, start: int, total_bytes: int) -> tuple[int, int, int]:
    """A stretch that ends before its rows do."""
    if count < _ENOUGH:
        return (0, 0, 0)
    return (count, start, total_bytes)


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
    view = raw_bytes.begin(rows)
    selected: list[int] = []
    count = 0
    total_bytes = 0
    row_index = 0
    at = start
    while end - at >= record_layout.QUEUE_ROW_BYTES:
        if count > 0 and count >= count_max:
            break
        tag_code = raw_bytes.i32(view, at + record_layout.ROW_TAGS_AT + 4)
        if sieve[tag_code & (_SIEVE_BYTES - 1)] and (tag_codes is None or tag_code in tag_codes):
            size = raw_bytes.i32(view, at + record_layout.ROW_SIZE_AT)
            if count > 0 and total_bytes + size > bytes_max:
                break
            selected.append(raw_bytes.i64(view, at))
            selected.append(size)
            selected.append(row_index)
            total_bytes += size
            count += 1
        row_index += 1
        at += record_layout.QUEUE_ROW_BYTES
    return (selected, row_index, total_bytes)


def _match(
    buffer: memoryview,
    position_and_sizes: list[int],
    base_offset: int,
    queue_id: int,
    topic: bytes,
    queue_offsets: list[int],
) -> int:
    view = raw_bytes.begin(buffer)
    view_bytes = len(buffer)
    for index in range(len(queue_offsets)):
        position = position_and_sizes[2 * index]
        size = position_and_sizes[2 * index + 1]
        if not record_layout.is_placed(
            view,
            view_bytes,
            position,
            size,
            base_offset + position,
            queue_id,
            queue_offsets[index],
        ):
            return index
        if record_layout.topic_end(view, position, position + size, topic) < 0:
            return index
    return -1
