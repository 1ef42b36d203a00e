"""Turn validated commit log records into consume queue rows and index rows.

The record's layout is tabled in ``record_build``. Rows, all integers big-endian and signed:

    place  bytes  consume queue row (20 bytes)
    0      8      physicalOffset
    8      4      size of the record
    12     8      tagsCode: Java hash of TAGS, 0 without; the deliver time for a delayed message
    20     8      storeTimestamp, only when asked for (28 bytes): what a queue extension needs

    place  bytes  batch consume queue row (46 bytes): the first 28 as above, then
    28     8      baseQueueOffset
    36     2      batchCount
    38     4      compactOffset, always -1
    42     4      reserved, 0

    place  bytes  index row (20 bytes), ours: what ``index_put`` takes
    0      4      keyHash: |Java hash of topic#key|
    4      8      physicalOffset
    12     8      storeTimestamp

Properties are pairs ``name 0x01 value 0x02``; as RocketMQ's decoder does, pairs with an empty name
or value are skipped, the last 0x02 may be missing, and the last of several pairs of a name wins.
A DELAY, INNER_NUM or INNER_BASE that is no number counts as absent.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

from contrail.kernels.java_hash import java_hash

if TYPE_CHECKING:
    from typing import Any, TypeAlias

    from _typeshed import ReadableBuffer

    # [first_queue_offset, count, rows, last_physical_end, last_store_timestamp_ms]
    Run: TypeAlias = list[Any]
    Queues: TypeAlias = dict[bytes, dict[int, list[Run]]]

_MAGIC_V1 = -626843481
_MAGIC_V2 = -626843477
_HEADER_BYTES = 88
_U32_MASK = 0xFFFFFFFF
_I32_MAX = 0x7FFFFFFF
_U32_SPAN = 0x100000000
_I16_MAX = 32767
_I63_TENTH = 0x7FFFFFFFFFFFFFFF // 10 - 1
_SCHEDULE_TOPIC = b"SCHEDULE_TOPIC_XXXX"

# Where each wanted property's value is noted: its start here, its end one further.
_UNIQ_KEY = 0
_KEYS = 2
_TAGS = 4
_DELAY = 6
_INNER_NUM = 8
_INNER_BASE = 10
_PLACES = 12


def derive_rows(
    buffer: ReadableBuffer,
    start: int,
    end: int,
    base_offset: int,
    delay_table: list[int],
    batch_topics: frozenset[bytes],
    with_times: bool,
    with_index: bool,
) -> tuple[Queues, bytearray, int, int]:
    """Return the rows of the records in ``buffer[start:end]``, which were validated before.

    The result is the queue rows (by topic and queue, as runs of consecutive queue offsets), the
    index rows, the number of records and the last one's store timestamp. ``delay_table[level]``
    is that level's delay in milliseconds; place 0 is unused.

    Raises:
        ValueError: the bytes are not a sequence of whole records.
    """
    data = memoryview(buffer)
    if not 0 <= start <= end <= len(data):
        raise ValueError(f"the range {start}..{end} is outside the buffer's {len(data)} bytes")
    return _derive(
        data, data, start, end, base_offset, delay_table, batch_topics, with_times, with_index
    )


def _derive(
    view: memoryview,
    data: memoryview,
    start: int,
    end: int,
    base_offset: int,
    delay_table: list[int],
    batch_topics: frozenset[bytes],
    with_times: bool,
    with_index: bool,
) -> tuple[Queues, bytearray, int, int]:
    """``view`` and ``data`` are one buffer: C reads the first, slices are cut from the second."""
    queues: Queues = {}
    topic_queues: dict[int, list[Run]] = {}
    index_rows = bytearray()
    plain_row = bytearray(28 if with_times else 20)
    plain_view = plain_row
    batch_row = bytearray(46)
    batch_view = batch_row
    places = array("q", bytes(8 * _PLACES))
    topic = b""
    topic_seed = java_hash(b"#")
    is_batch = False
    is_scheduled = False
    record_count = 0
    store_timestamp_ms = 0
    position = start
    while position < end:
        limit = _record_limit(view, position, end)
        topic_at = _topic_position(view, position)
        topic_end = topic_at + _topic_bytes(view, position, topic_at)
        _find_properties(view, topic_end + 2, limit, places)
        transaction = view[position + 39] & 0x0C
        store_timestamp_ms = _store_timestamp(view, position)
        if record_count == 0 or not _equals(view, topic_at, topic_end, topic):
            topic = bytes(data[topic_at:topic_end])
            topic_seed = java_hash(topic + b"#")
            is_batch = topic in batch_topics
            is_scheduled = topic == _SCHEDULE_TOPIC
            topic_queues = queues.get(topic) or {}
        if transaction == 0 or transaction == 8:
            if not topic_queues:
                queues[topic] = topic_queues
            tags_code = _tags_code(view, data, places)
            if is_scheduled:
                tags_code = _deliver_time(view, places, delay_table, store_timestamp_ms, tags_code)
            _add_queue_row(
                topic_queues,
                view,
                position,
                base_offset + position,
                limit - position,
                tags_code,
                store_timestamp_ms,
                batch_row if is_batch else plain_row,
                batch_view if is_batch else plain_view,
                places,
            )
        if with_index and transaction != 12:
            _add_index_rows(
                index_rows,
                view,
                data,
                topic,
                topic_seed,
                base_offset + position,
                store_timestamp_ms,
                places,
            )
        record_count += 1
        position = limit
    return (queues, index_rows, record_count, store_timestamp_ms)


def _record_limit(view: memoryview, position: int, end: int) -> int:
    """Where the record at ``position`` ends; all its lengths lie within."""
    if end - position < _HEADER_BYTES + 3:
        raise ValueError(f"no whole record fits in the {end - position} bytes at {position}")
    limit = position + _read_i32(view, position)
    magic = _read_i32(view, position + 4)
    if magic != _MAGIC_V1 and magic != _MAGIC_V2:
        raise ValueError(f"no record starts at byte {position}; scan the range first")
    body_at = _body_position(view, position)
    topic_length_bytes = 1 if magic == _MAGIC_V1 else 2
    if limit > end or limit - body_at < topic_length_bytes + 2:
        raise ValueError(f"the record at byte {position} has a wrong size; scan the range first")
    body_bytes = _read_i32(view, body_at - 4)
    left = limit - body_at - topic_length_bytes - 2 - body_bytes
    if body_bytes < 0 or left < 0:
        raise ValueError(f"the record at byte {position} has a wrong body length")
    topic_at = body_at + body_bytes + topic_length_bytes
    topic_bytes = _topic_bytes(view, position, topic_at)
    left -= topic_bytes
    if topic_bytes < 0 or left < 0 or left > _I16_MAX:
        raise ValueError(f"the record at byte {position} has a wrong topic length")
    at = topic_at + topic_bytes
    if view[at] * 256 + view[at + 1] != left:
        raise ValueError(f"the record at byte {position} has a wrong properties length")
    return limit


def _body_position(view: memoryview, position: int) -> int:
    sys_flag = view[position + 39]
    body_at = position + _HEADER_BYTES
    if sys_flag & 0x10:
        body_at += 12
    if sys_flag & 0x20:
        body_at += 12
    return body_at


def _topic_position(view: memoryview, position: int) -> int:
    body_at = _body_position(view, position)
    topic_length_bytes = 1 if _read_i32(view, position + 4) == _MAGIC_V1 else 2
    return body_at + _read_i32(view, body_at - 4) + topic_length_bytes


def _topic_bytes(view: memoryview, position: int, topic_at: int) -> int:
    """The topic's length, -1 when it is negative as the signed number it is."""
    length = view[topic_at - 1]
    if _read_i32(view, position + 4) == _MAGIC_V1:
        return length if length <= 127 else -1
    length += view[topic_at - 2] * 256
    return length if length <= _I16_MAX else -1


def _store_timestamp(view: memoryview, position: int) -> int:
    return _read_i64(view, position + (68 if view[position + 39] & 0x10 else 56))


def _find_properties(view: memoryview, start: int, end: int, places: array[int]) -> None:
    """Note the value's place of each property that rows depend on; 0, 0 when it is absent."""
    for place in range(_PLACES):
        places[place] = 0
    name_at = start
    while name_at < end:
        separator_at = name_at
        while separator_at < end and view[separator_at] != 1 and view[separator_at] != 2:
            separator_at += 1
        at = separator_at
        while at < end and view[at] != 2:
            at += 1
        if name_at < separator_at < at - 1:
            place = _place_of(view, name_at, separator_at)
            if place >= 0:
                places[place] = separator_at + 1
                places[place + 1] = at
        name_at = at + 1


def _place_of(view: memoryview, start: int, end: int) -> int:
    """Where the value of the property named by ``view[start:end]`` is noted, -1: not wanted."""
    length = end - start
    if length == 4:
        if _equals(view, start, end, b"TAGS"):
            return _TAGS
        if _equals(view, start, end, b"KEYS"):
            return _KEYS
    elif length == 8:
        if _equals(view, start, end, b"UNIQ_KEY"):
            return _UNIQ_KEY
    elif length == 5:
        if _equals(view, start, end, b"DELAY"):
            return _DELAY
    elif length == 9:
        if _equals(view, start, end, b"INNER_NUM"):
            return _INNER_NUM
    elif length == 10 and _equals(view, start, end, b"INNER_BASE"):
        return _INNER_BASE
    return -1


def _tags_code(view: memoryview, data: memoryview, places: array[int]) -> int:
    start = places[_TAGS]
    end = places[_TAGS + 1]
    value = _hash_on(view, start, end, 0)
    if value < 0:
        return java_hash(bytes(data[start:end]))
    return value - _U32_SPAN if value > _I32_MAX else value


def _deliver_time(
    view: memoryview,
    places: array[int],
    delay_table: list[int],
    store_timestamp_ms: int,
    tags_code: int,
) -> int:
    level = _number(view, places[_DELAY], places[_DELAY + 1])
    if level > _I32_MAX:
        return tags_code
    level = min(level, len(delay_table) - 1)
    return store_timestamp_ms + delay_table[level] if level > 0 else tags_code


def _add_queue_row(
    topic_queues: dict[int, list[Run]],
    view: memoryview,
    position: int,
    physical_offset: int,
    size: int,
    tags_code: int,
    store_timestamp_ms: int,
    row: bytearray,
    row_view: bytearray,
    places: array[int],
) -> None:
    queue_offset = _read_i64(view, position + 20)
    count = 1
    _put_i64(row_view, 0, physical_offset)
    _put_i32(row_view, 8, size)
    _put_i64(row_view, 12, tags_code)
    if len(row) > 20:
        _put_i64(row_view, 20, store_timestamp_ms)
    if len(row) > 28:
        base = _number(view, places[_INNER_BASE], places[_INNER_BASE + 1])
        inner_count = _number(view, places[_INNER_NUM], places[_INNER_NUM + 1])
        # RocketMQ believes the two together or not at all.
        if base >= 0 and 0 < inner_count <= _I16_MAX:
            queue_offset = base
            count = inner_count
        _put_i64(row_view, 28, queue_offset)
        _put_i32(row_view, 36, count * 65536 + 0xFFFF)
        _put_i32(row_view, 40, -65536)
        row_view[44] = 0
        row_view[45] = 0
    queue_id = _read_i32(view, position + 12)
    runs = topic_queues.get(queue_id)
    if runs is None:
        runs = []
        topic_queues[queue_id] = runs
    run = runs[-1] if runs else None
    if run is not None and _follows(queue_offset, run[0], run[1]):
        run[1] += count
        run[2] += row
        run[3] = physical_offset + size
        run[4] = store_timestamp_ms
    else:
        physical_end = physical_offset + size
        runs.append([queue_offset, count, bytearray(row), physical_end, store_timestamp_ms])


def _follows(queue_offset: int, first_queue_offset: int, count: int) -> bool:
    # Compare before subtracting, so that nothing can wrap in C.
    return queue_offset >= count and queue_offset - count == first_queue_offset


def _add_index_rows(
    index_rows: bytearray,
    view: memoryview,
    data: memoryview,
    topic: bytes,
    topic_seed: int,
    physical_offset: int,
    store_timestamp_ms: int,
    places: array[int],
) -> None:
    at = places[_UNIQ_KEY]
    if at:
        key_hash = _key_hash(view, data, at, places[_UNIQ_KEY + 1], topic, topic_seed)
        _add_index_row(index_rows, key_hash, physical_offset, store_timestamp_ms)
    at = places[_KEYS]
    end = places[_KEYS + 1]
    while at < end:
        key_at = at
        while at < end and view[at] != 32:
            at += 1
        if at > key_at:
            key_hash = _key_hash(view, data, key_at, at, topic, topic_seed)
            _add_index_row(index_rows, key_hash, physical_offset, store_timestamp_ms)
        at += 1


def _add_index_row(
    index_rows: bytearray, key_hash: int, physical_offset: int, store_timestamp_ms: int
) -> None:
    for shift in range(24, -8, -8):
        index_rows.append(key_hash >> shift & 0xFF)
    for shift in range(56, -8, -8):
        index_rows.append(physical_offset >> shift & 0xFF)
    for shift in range(56, -8, -8):
        index_rows.append(store_timestamp_ms >> shift & 0xFF)


def _key_hash(
    view: memoryview, data: memoryview, start: int, end: int, topic: bytes, topic_seed: int
) -> int:
    """The index's hash of ``topic#key``: never negative."""
    value = _hash_on(view, start, end, topic_seed & _U32_MASK)
    if value < 0:
        value = java_hash(topic + b"#" + bytes(data[start:end]))
        value = -value if value < 0 else value
    elif value > _I32_MAX:
        value = _U32_SPAN - value
    # Java's Math.abs leaves the smallest integer negative; RocketMQ then takes 0.
    return value if value <= _I32_MAX else 0


def _hash_on(view: memoryview, start: int, end: int, seed: int) -> int:
    """Go on hashing from ``seed``: the unsigned hash, or -1 when the text is not ASCII."""
    value = seed
    for at in range(start, end):
        byte = view[at]
        if byte > 127:
            return -1
        value = (value * 31 + byte) & _U32_MASK
    return value


def _number(view: memoryview, start: int, end: int) -> int:
    """The decimal number in the text, or -1 when there is none or it is negative or huge."""
    at = start
    if at < end and view[at] == 43:
        at += 1
    if at >= end:
        return -1
    value = 0
    while at < end:
        digit = view[at] - 48
        if digit < 0 or digit > 9 or value > _I63_TENTH:
            return -1
        value = value * 10 + digit
        at += 1
    return value


def _equals(view: memoryview, start: int, end: int, text: bytes) -> bool:
    if end - start != len(text):
        return False
    at = start
    for byte in text:
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


def _put_i32(view: bytearray, at: int, value: int) -> None:
    view[at] = value >> 24 & 0xFF
    view[at + 1] = value >> 16 & 0xFF
    view[at + 2] = value >> 8 & 0xFF
    view[at + 3] = value & 0xFF


def _put_i64(view: bytearray, at: int, value: int) -> None:
    _put_i32(view, at, value >> 32)
    _put_i32(view, at + 4, value)
