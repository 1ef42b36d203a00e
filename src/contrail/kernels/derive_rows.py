"""Turn validated commit log records into consume queue rows and index rows.

Records and rows are tabled in ``record_layout``.

Properties are pairs ``name 0x01 value 0x02``; as RocketMQ's decoder does, pairs with an empty name
or value are skipped, the last 0x02 may be missing, and the last of several pairs of a name wins.
A DELAY, INNER_NUM or INNER_BASE that is no number counts as absent.

A record that replaces a damaged one (``model.replaced_record``) gives the row and the keys that the
lost message had, so that the queue keeps a row at that queue offset.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from contrail.kernels import raw_bytes, record_layout
from contrail.kernels.java_hash import java_hash

if TYPE_CHECKING:
    from typing import Any, TypeAlias

    from _typeshed import ReadableBuffer

    # [first_queue_offset, count, rows, last_physical_end, last_store_timestamp_ms]
    Run: TypeAlias = list[Any]

_ROOM = bytes(64 * record_layout.INDEX_ROW_BYTES)
_U32_MASK = 0xFFFFFFFF
# Far above any queue offset, and ten times this still fits 64 bits.
_QUEUE_OFFSET_MAX = 0x7FFFFFFFFFFFFFFF // 10 - 1
_SCHEDULE_TOPIC = b"SCHEDULE_TOPIC_XXXX"
# The mark of ``model.replaced_record`` in the field for the offset of a prepared message.
_REPLACED_MARK = 0x434F4E544C4F5354
_PLACE_BYTES = 12


def derive_rows(
    buffer: ReadableBuffer,
    start: int,
    end: int,
    base_offset: int,
    delay_table: list[int],
    batch_topics: frozenset[bytes],
    with_times: bool,
    with_index: bool,
) -> tuple[dict[bytes, dict[int, list[Run]]], bytearray, int, int]:
    """Return the rows of the records in ``buffer[start:end]``, which were validated before.

    The result is the queue rows (by topic and queue, as runs of consecutive queue offsets), the
    index rows, the number of records and the last one's store timestamp. ``delay_table[level]``
    is that level's delay in milliseconds; index 0 is unused.

    Raises:
        ValueError: the bytes are not a sequence of whole records.
    """
    data = memoryview(buffer)
    if not 0 <= start <= end <= len(data):
        raise ValueError(f"the range {start}..{end} is outside the buffer's {len(data)} bytes")
    if start == end:
        return ({}, bytearray(), 0, 0)
    record = _Record(data)
    topics: dict[bytes, tuple[int, bytearray, dict[int, _QueueRuns]]] = {}
    index_rows = bytearray()
    plain_row = bytearray(record_layout.QUEUE_ROW_BYTES)
    if with_times:
        plain_row = bytearray(record_layout.TIMED_ROW_BYTES)
    batch_row = bytearray(record_layout.BATCH_ROW_BYTES)
    row = plain_row
    topic: bytes | None = None
    topic_seed = 0
    topic_queues: dict[int, _QueueRuns] = {}
    index_bytes = 0
    record_count = 0
    position = start
    while position < end:
        _read_record(record, position, end)
        if topic is None or not raw_bytes.spells(
            record.data, record.topic_at, record.topic_end, topic
        ):
            topic = bytes(data[record.topic_at : record.topic_end])
            if topic not in topics:
                seed = java_hash(topic + b"#")
                topics[topic] = (seed, batch_row if topic in batch_topics else plain_row, {})
            topic_seed, row, topic_queues = topics[topic]
        if record_layout.takes_queue_offset(record.transaction):
            _fill_row(row, record, base_offset, _tags_code(record, topic, delay_table))
            _add_row(topic_queues, record, base_offset, row)
        if with_index and record.transaction != record_layout.TRANSACTION_ROLLBACK:
            index_bytes = _add_keys(index_rows, index_bytes, record, base_offset, topic, topic_seed)
        record_count += 1
        position = record.limit
    del index_rows[index_bytes:]
    queues = {topic: _runs_of(known[2]) for topic, known in topics.items() if known[2]}
    return (queues, index_rows, record_count, record.store_timestamp_ms)


class _QueueRuns:
    """The rows of one queue: finished runs, and the run that may go on."""

    def __init__(self) -> None:
        self.finished: list[Run] = []
        self.first_queue_offset = 0
        self.count = 0
        self.rows = bytearray()
        self.row_bytes = 0
        self.physical_end = 0
        self.store_timestamp_ms = 0


def _runs_of(topic_queues: dict[int, _QueueRuns]) -> dict[int, list[Run]]:
    runs = {}
    for queue_id, queue in topic_queues.items():
        _finish(queue)
        runs[queue_id] = queue.finished
    return runs


def _finish(queue: _QueueRuns) -> None:
    del queue.rows[queue.row_bytes :]
    queue.finished.append(
        [
            queue.first_queue_offset,
            queue.count,
            queue.rows,
            queue.physical_end,
            queue.store_timestamp_ms,
        ]
    )


class _Record:
    """The buffer, and the fields of the last record read that its rows need.

    One object rather than many arguments: compiled, a view is copied with each call, which costs
    more than most of the functions here. ``data`` is its bytes, in C a bare pointer:
    ``_read_record`` checks every length. An absent property starts and ends at 0.
    """

    def __init__(self, view: memoryview) -> None:
        self.view = view
        self.data = raw_bytes.begin(view)
        self.position = 0
        self.limit = 0
        self.transaction = 0
        self.queue_id = 0
        self.queue_offset = 0
        self.message_count = 0
        self.is_replaced = False
        self.replaced_count = 0
        self.tags_code = 0
        self.store_timestamp_ms = 0
        self.topic_at = 0
        self.topic_end = 0
        self.unique_key_at = 0
        self.unique_key_end = 0
        self.keys_at = 0
        self.keys_end = 0
        self.tags_at = 0
        self.tags_end = 0
        self.delay_at = 0
        self.delay_end = 0
        self.inner_count_at = 0
        self.inner_count_end = 0
        self.inner_base_at = 0
        self.inner_base_end = 0


def _read_record(record: _Record, position: int, end: int) -> None:
    """Read the record at ``position``; every length is checked before it is used."""
    data = record.data
    if record_layout.record_reason(data, position, end) != record_layout.REASON_END:
        raise ValueError(f"no whole record starts at byte {position}; scan the range first")
    record.position = position
    record.limit = position + raw_bytes.i32(data, position + record_layout.SIZE_AT)
    record.transaction = (
        data[position + record_layout.LOW_FLAGS_AT] & record_layout.TRANSACTION_MASK
    )
    record.queue_id = raw_bytes.i32(data, position + record_layout.QUEUE_ID_AT)
    record.queue_offset = raw_bytes.i64(data, position + record_layout.QUEUE_OFFSET_AT)
    record.message_count = 1
    record.is_replaced = False
    record.store_timestamp_ms = record_layout.store_time(data, position)
    properties_at = record_layout.properties_at(data, position, record.limit)
    record.topic_at = record_layout.topic_at(data, position)
    record.topic_end = properties_at - 2
    _find_properties(record, properties_at, record.limit)
    if record.transaction == record_layout.TRANSACTION_ROLLBACK:
        _read_replaced(record, record_layout.body_at(data, position))


def _read_replaced(record: _Record, body_at: int) -> bool:
    """Use the lost message's fields if the record replaces one; returns whether it does."""
    header_at = body_at - record_layout.BODY_AT
    if raw_bytes.i64(record.data, header_at + record_layout.PREPARED_AT) != _REPLACED_MARK:
        return False
    body_bytes = raw_bytes.i32(record.data, header_at + record_layout.BODY_BYTES_AT)
    if body_bytes < _PLACE_BYTES:
        return False
    topic_bytes = raw_bytes.u16(record.data, body_at + 10)
    if topic_bytes == 0 or topic_bytes > body_bytes - _PLACE_BYTES:
        return False
    record.transaction = 0
    record.is_replaced = True
    record.tags_code = raw_bytes.i64(record.data, body_at)
    record.replaced_count = raw_bytes.u16(record.data, body_at + 8)
    record.topic_at = body_at + _PLACE_BYTES
    record.topic_end = record.topic_at + topic_bytes
    return True


def _find_properties(record: _Record, start: int, end: int) -> None:
    record.unique_key_at = record.unique_key_end = 0
    record.keys_at = record.keys_end = 0
    record.tags_at = record.tags_end = 0
    record.delay_at = record.delay_end = 0
    record.inner_count_at = record.inner_count_end = 0
    record.inner_base_at = record.inner_base_end = 0
    data = record.data
    name_at = start
    while name_at < end:
        name_end = name_at
        while name_end < end and data[name_end] != 1 and data[name_end] != 2:
            name_end += 1
        value_end = raw_bytes.place_of(data, name_end, end, 2)
        if name_at < name_end < value_end - 1:
            _note_property(record, name_at, name_end, value_end)
        name_at = value_end + 1


def _note_property(record: _Record, name_at: int, name_end: int, value_end: int) -> None:
    length = name_end - name_at
    if length == 4:
        if raw_bytes.spells(record.data, name_at, name_end, b"TAGS"):
            record.tags_at = name_end + 1
            record.tags_end = value_end
        elif raw_bytes.spells(record.data, name_at, name_end, b"KEYS"):
            record.keys_at = name_end + 1
            record.keys_end = value_end
    elif length == 8:
        if raw_bytes.spells(record.data, name_at, name_end, b"UNIQ_KEY"):
            record.unique_key_at = name_end + 1
            record.unique_key_end = value_end
    elif length == 5:
        if raw_bytes.spells(record.data, name_at, name_end, b"DELAY"):
            record.delay_at = name_end + 1
            record.delay_end = value_end
    elif length == 9:
        if raw_bytes.spells(record.data, name_at, name_end, b"INNER_NUM"):
            record.inner_count_at = name_end + 1
            record.inner_count_end = value_end
    elif length == 10 and raw_bytes.spells(record.data, name_at, name_end, b"INNER_BASE"):
        record.inner_base_at = name_end + 1
        record.inner_base_end = value_end


def _tags_code(record: _Record, topic: bytes, delay_table: list[int]) -> int:
    if record.is_replaced:
        return record.tags_code
    if record.delay_at and topic == _SCHEDULE_TOPIC:
        level = _number(record, record.delay_at, record.delay_end, record_layout.I32_MAX)
        if level >= len(delay_table):
            level = len(delay_table) - 1
        if level > 0:
            return record.store_timestamp_ms + delay_table[level]
    value = raw_bytes.ascii_hash(record.data, record.tags_at, record.tags_end, 0)
    if value < 0:
        return java_hash(_cut(record, record.tags_at, record.tags_end))
    return record_layout.tags_code(value)


def _fill_row(row: bytearray, record: _Record, base_offset: int, tags_code: int) -> None:
    target = row
    record_bytes = record.limit - record.position
    record_layout.put_queue_row(target, 0, base_offset + record.position, record_bytes, tags_code)
    if len(row) > record_layout.QUEUE_ROW_BYTES:
        raw_bytes.put_i64(target, record_layout.ROW_TIME_AT, record.store_timestamp_ms)
    if len(row) == record_layout.BATCH_ROW_BYTES:
        if record.is_replaced and 0 < record.replaced_count <= record_layout.I16_MAX:
            record.message_count = record.replaced_count
        elif not record.is_replaced:
            _take_inner_batch(record)
        raw_bytes.put_i64(target, record_layout.ROW_BASE_AT, record.queue_offset)
        raw_bytes.put_i16(target, record_layout.ROW_COUNT_AT, record.message_count)
        raw_bytes.put_i32(target, record_layout.ROW_COMPACT_AT, -1)
        raw_bytes.put_i32(target, record_layout.ROW_RESERVED_AT, 0)


def _take_inner_batch(record: _Record) -> None:
    """Use a batch's base and count if both are sound; otherwise neither, as RocketMQ does."""
    base = _number(record, record.inner_base_at, record.inner_base_end, _QUEUE_OFFSET_MAX)
    count = _number(record, record.inner_count_at, record.inner_count_end, record_layout.I16_MAX)
    if base >= 0 and count > 0:
        record.queue_offset = base
        record.message_count = count


def _add_row(
    topic_queues: dict[int, _QueueRuns], record: _Record, base_offset: int, row: bytearray
) -> None:
    queue = topic_queues.get(record.queue_id)
    if queue is None:
        queue = _QueueRuns()
        topic_queues[record.queue_id] = queue
        queue.first_queue_offset = record.queue_offset
    elif not _follows(record.queue_offset, queue.first_queue_offset, queue.count):
        _finish(queue)
        queue.first_queue_offset = record.queue_offset
        queue.count = 0
        queue.rows = bytearray()
        queue.row_bytes = 0
    if queue.row_bytes + len(row) > len(queue.rows):
        queue.rows += _ROOM
    # C copies between bare pointers; there is always room for one more row.
    target = queue.rows
    raw_bytes.copy(target, queue.row_bytes, row, 0, len(row))
    queue.row_bytes += len(row)
    queue.count += record.message_count
    queue.physical_end = base_offset + record.limit
    queue.store_timestamp_ms = record.store_timestamp_ms


def _follows(queue_offset: int, first_queue_offset: int, count: int) -> bool:
    # Compare before subtracting, so that nothing can wrap in C.
    return queue_offset >= count and queue_offset - count == first_queue_offset


def _add_keys(
    index_rows: bytearray,
    index_bytes: int,
    record: _Record,
    base_offset: int,
    topic: bytes,
    topic_seed: int,
) -> int:
    """Write an index row for each key behind the first ``index_bytes``; return the new length."""
    physical_offset = base_offset + record.position
    if record.unique_key_at:
        key_hash = _key_hash(record, record.unique_key_at, record.unique_key_end, topic, topic_seed)
        index_bytes = _add_index_row(index_rows, index_bytes, record, key_hash, physical_offset)
    at = record.keys_at
    while at < record.keys_end:
        key_at = at
        while at < record.keys_end and record.data[at] != 32:
            at += 1
        if at > key_at:
            key_hash = _key_hash(record, key_at, at, topic, topic_seed)
            index_bytes = _add_index_row(index_rows, index_bytes, record, key_hash, physical_offset)
        at += 1
    return index_bytes


def _add_index_row(
    index_rows: bytearray, at: int, record: _Record, key_hash: int, physical_offset: int
) -> int:
    if at == len(index_rows):
        index_rows += _ROOM
    target = index_rows
    record_layout.put_index_row(target, at, key_hash, physical_offset, record.store_timestamp_ms)
    return at + record_layout.INDEX_ROW_BYTES


def _key_hash(record: _Record, start: int, end: int, topic: bytes, topic_seed: int) -> int:
    """The index's hash of ``topic#key``: never negative."""
    value = raw_bytes.ascii_hash(record.data, start, end, topic_seed)
    if value < 0:
        value = java_hash(topic + b"#" + _cut(record, start, end)) & _U32_MASK
    return record_layout.key_hash(value)


def _number(record: _Record, start: int, end: int, number_max: int) -> int:
    """The decimal number in the text; -1 if it is no number, negative or above ``number_max``."""
    at = start
    if at < end and record.data[at] == 43:
        at += 1
    value = 0 if at < end else -1
    while at < end:
        digit = record.data[at] - 48
        if digit < 0 or digit > 9:
            return -1
        value = value * 10 + digit
        if value > number_max:
            return -1
        at += 1
    return value


def _cut(record: _Record, start: int, end: int) -> bytes:
    return bytes(record.view[start:end])
