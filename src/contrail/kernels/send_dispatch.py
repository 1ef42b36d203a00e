"""Puts messages stored as rows of ``send_rows`` into their queues and lists their index keys.

The result is that of ``derive_rows`` for the same records, and of putting its runs into the queues
one by one. Each message of a run may go to another queue; it still costs no object, but a look at
its queue's place and twenty bytes at the end of the queue.

The rows are tabled in ``record_layout``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from contrail.kernels import raw_bytes, record_layout, send_rows
from contrail.kernels.java_hash import java_hash

if TYPE_CHECKING:
    from contrail.kernels.send_places import QueuePlace
    from contrail.kernels.send_records import Chunk

_ROOM_BYTES = 64 * record_layout.INDEX_ROW_BYTES
_U32_MASK = 0xFFFFFFFF
_NOTED_BYTES = 1 << 20


class RowTail:
    """The fields of a queue's end that the next row needs. Queues descend from it."""

    def __init__(self) -> None:
        self.queue_offset_max = 0
        self.physical_end = 0
        # Rows at the end of the queue; the last ones may be in memory only.
        self.tail = bytearray()
        # From this length on the owner wants to look after the tail.
        self.tail_bytes_max = 0
        # Whether rows of 20 bytes go in as they are; never again once its topic was deleted.
        self.takes_fast_rows = False
        # Whether the owner knows already that there are rows to be written.
        self.is_dirty = False


def put_sends(
    stored: list[tuple[list[Chunk], int]],
    queues: dict[bytes, dict[int, Any]],
    tombstones: dict[bytes, int],
    watched: dict[tuple[bytes, int], Any] | None,
    dirty: dict[Any, tuple[bytes, int]],
    grown: dict[tuple[bytes, int], int],
    full: list[Any],
    with_index: bool,
) -> bytearray | None:
    """Append a row for each stored message to its queue; the index rows of all, or None.

    ``stored`` are admitted chunks with the time when they were stored, as they follow in the log.
    ``queues`` are ``RowTail`` by topic and queue id; the one that was found for a queue's place is
    kept there for as long as it takes fast rows. Each that grew is added to ``dirty``, and to
    ``grown`` with the offset it had before, there only if its key is ``watched`` (None: all are).
    One whose tail has become long is noted in ``full``.

    None says that a message is for ``derive_rows``: its queue is not there or of another kind, its
    topic was deleted once, or its row does not follow the last one. The rows of the messages before
    it are in their queues then; ``derive_rows`` makes them again, and the queues pass over rows
    that they have.
    """
    index_rows = bytearray()
    index_bytes = 0
    for run in stored:
        for chunk in run[0]:
            index_bytes = _put_chunk(
                chunk,
                run[1],
                queues,
                tombstones,
                watched,
                dirty,
                grown,
                full,
                index_rows,
                index_bytes if with_index else -1,
            )
            if index_bytes == -2:
                return None
    if index_bytes >= 0:
        del index_rows[index_bytes:]
    return index_rows


def _put_chunk(
    chunk: Chunk,
    store_timestamp_ms: int,
    queues: dict[bytes, dict[int, Any]],
    tombstones: dict[bytes, int],
    watched: dict[tuple[bytes, int], Any] | None,
    dirty: dict[Any, tuple[bytes, int]],
    grown: dict[tuple[bytes, int], int],
    full: list[Any],
    index_rows: bytearray,
    index_bytes: int,
) -> int:
    """How many bytes of index rows there are now, -1 if none are wanted, -2 to leave them."""
    count, texts, places = chunk[1], chunk[3], chunk[5]
    table = raw_bytes.numbers(chunk[2], send_rows.ROW_NUMBERS * count)
    view = texts
    place: QueuePlace | None = None
    topic = b""
    seed = 0
    queue: RowTail | None = None
    at = 0
    for index in range(count):
        queue_offset = table[at + send_rows.QUEUE_OFFSET]
        physical_offset = table[at + send_rows.PHYSICAL_OFFSET]
        if places[index] is not place or place is None or queue is None:
            place = places[index]
            topic = place.topic
            if tombstones and physical_offset < tombstones.get(topic, 0):
                return -2
            queue = place.tail
            if queue is None or not queue.takes_fast_rows:
                queue = _queue_at(queues, topic, place.queue_id)
                if queue is None or not queue.takes_fast_rows:
                    return -2
                place.tail = queue
            if place.key_seed < 0:
                place.key_seed = _seed_of(topic)
            seed = place.key_seed
            if not queue.is_dirty:
                queue.is_dirty = True
                dirty[queue] = place.key
            if watched is None or watched:
                _note_growth(grown, watched, place.key, queue_offset)
        if queue_offset != queue.queue_offset_max or physical_offset < queue.physical_end:
            return -2
        tags_code = _tags_code(
            view, texts, table[at + send_rows.TAGS_AT], table[at + send_rows.TAGS_END]
        )
        record_bytes = table[at + send_rows.RECORD_BYTES]
        row_at = raw_bytes.grow(queue.tail, record_layout.QUEUE_ROW_BYTES)
        tail = queue.tail
        record_layout.put_queue_row(tail, row_at, physical_offset, record_bytes, tags_code)
        queue.queue_offset_max = queue_offset + 1
        queue.physical_end = physical_offset + record_bytes
        if len(queue.tail) >= queue.tail_bytes_max:
            full.append(queue)
            # Noted once for many rows: the owner looks after the tail and sets the bound again.
            queue.tail_bytes_max += _NOTED_BYTES
        if index_bytes >= 0:
            # A message of a batch may have none.
            if table[at + send_rows.KEY_END]:
                key_hash = _key_hash(
                    view,
                    texts,
                    table[at + send_rows.KEY_AT],
                    table[at + send_rows.KEY_END],
                    topic,
                    seed,
                )
                index_bytes = _add_index_row(
                    index_rows, index_bytes, key_hash, physical_offset, store_timestamp_ms
                )
            if table[at + send_rows.KEYS_END]:
                index_bytes = _add_keys(
                    index_rows,
                    index_bytes,
                    physical_offset,
                    store_timestamp_ms,
                    view,
                    texts,
                    table[at + send_rows.KEYS_AT],
                    table[at + send_rows.KEYS_END],
                    topic,
                    seed,
                )
        at += send_rows.ROW_NUMBERS
    return index_bytes


def _queue_at(queues: dict[bytes, dict[int, Any]], topic: bytes, queue_id: int) -> Any:
    by_queue = queues.get(topic)
    return None if by_queue is None else by_queue.get(queue_id)


def _note_growth(
    grown: dict[tuple[bytes, int], int],
    watched: dict[tuple[bytes, int], Any] | None,
    key: tuple[bytes, int],
    queue_offset: int,
) -> None:
    if (watched is None or key in watched) and key not in grown:
        grown[key] = queue_offset


def _add_keys(
    index_rows: bytearray,
    index_bytes: int,
    physical_offset: int,
    store_timestamp_ms: int,
    view: bytearray,
    texts: bytearray,
    at: int,
    end: int,
    topic: bytes,
    seed: int,
) -> int:
    while at < end:
        key_at = at
        while at < end and view[at] != 32:
            at += 1
        if at > key_at:
            key_hash = _key_hash(view, texts, key_at, at, topic, seed)
            index_bytes = _add_index_row(
                index_rows, index_bytes, key_hash, physical_offset, store_timestamp_ms
            )
        at += 1
    return index_bytes


def _add_index_row(
    index_rows: bytearray, at: int, key_hash: int, physical_offset: int, store_timestamp_ms: int
) -> int:
    if at == len(index_rows):
        raw_bytes.grow(index_rows, _ROOM_BYTES)
    target = index_rows
    record_layout.put_index_row(target, at, key_hash, physical_offset, store_timestamp_ms)
    return at + record_layout.INDEX_ROW_BYTES


def _seed_of(topic: bytes) -> int:
    """The hash of a topic and the sign behind it, which all its keys go on from."""
    value = raw_bytes.ascii_hash(topic, 0, len(topic), 0)
    if value < 0:
        return java_hash(topic + b"#") & _U32_MASK
    return (value * 31 + 35) & _U32_MASK


def _key_hash(
    view: bytearray, texts: bytearray, start: int, end: int, topic: bytes, seed: int
) -> int:
    """The index's hash of ``topic#key``: never negative."""
    value = raw_bytes.ascii_hash(view, start, end, seed)
    if value < 0:
        value = java_hash(topic + b"#" + bytes(texts[start:end])) & _U32_MASK
    return record_layout.key_hash(value)


def _tags_code(view: bytearray, texts: bytearray, start: int, end: int) -> int:
    value = raw_bytes.ascii_hash(view, start, end, 0)
    if value < 0:
        return java_hash(bytes(texts[start:end]))
    return record_layout.tags_code(value)
