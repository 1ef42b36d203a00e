"""Fast sends on their way from received bytes to records and answers, as rows of numbers.

A chunk holds the sends of one read of a connection, or one send of each of several connections:
``(buffer, count, rows, texts, born_hosts, topics)``; the rows are described in ``send_rows``. Once
they are admitted their queues' places (``send_places``) stand where their topics stood.
The records are those that ``record_build`` makes of the same messages on the general way, without
an object per message.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from contrail.kernels import raw_bytes, record_layout, send_places, send_rows, stretch_crc
from contrail.kernels.send_places import QueuePlace
from contrail.kernels.stretch_crc import crc32

if TYPE_CHECKING:
    from array import array
    from typing import Any, TypeAlias

    # The last is a list of topics, and of places of queues once the chunk is admitted.
    Chunk: TypeAlias = tuple[bytes, int, array[int], bytearray, list[bytes], list[Any]]
    BuiltRun: TypeAlias = tuple[bytearray, int, int]
    Places: TypeAlias = dict[bytes, list[QueuePlace | None]]

# A topic of more queues is for the general way: a list of them all would take too much memory.
_PLACES_MAX = 65_536


def are_admitted(
    chunk: Chunk,
    queue_counts: dict[bytes, int],
    places: Places,
    fast_flags: int,
    body_bytes_max: int,
) -> bool:
    """Whether all sends of a chunk may be stored as they are.

    Each must go to a topic of ``queue_counts`` and a queue that exists, with a body that is not
    too large, and no other bits in its flags than ``fast_flags``.

    If True, each send has the place of its queue where its topic stood; if False, nothing has
    changed, and the caller may ask again. ``places`` holds the places made so far, by topic and
    queue id; it must be emptied whenever a topic's queues may have changed.
    """
    count, topics = chunk[1], chunk[5]
    table = raw_bytes.numbers(chunk[2], send_rows.ROW_NUMBERS * count)
    found: list[QueuePlace] = []
    topic = b""
    by_queue: list[QueuePlace | None] | None = None
    at = 0
    for index in range(count):
        if topics[index] is not topic:
            topic = topics[index]
            by_queue = places.get(topic)
            if by_queue is None:
                by_queue = _new_places(topic, queue_counts, places)
        queue_id = table[at + send_rows.QUEUE_ID]
        body_bytes = table[at + send_rows.BODY_END] - table[at + send_rows.BODY_AT]
        if by_queue is None or queue_id < 0 or queue_id >= len(by_queue):
            return False
        if (
            body_bytes <= 0
            or body_bytes > body_bytes_max
            or table[at + send_rows.SYS_FLAG] & ~fast_flags
        ):
            return False
        place = by_queue[queue_id]
        if place is None:
            place = QueuePlace(topic, queue_id)
            by_queue[queue_id] = place
        found.append(place)
        at += send_rows.ROW_NUMBERS
    topics[:] = found
    return True


def _new_places(
    topic: bytes, queue_counts: dict[bytes, int], places: Places
) -> list[QueuePlace | None] | None:
    queue_count = queue_counts.get(topic)
    if queue_count is None or queue_count > _PLACES_MAX:
        return None
    by_queue: list[QueuePlace | None] = [None] * queue_count
    places[topic] = by_queue
    return by_queue


def two_way_count(chunk: Chunk) -> int:
    """How many sends of a chunk wait for an answer."""
    count = chunk[1]
    table = raw_bytes.numbers(chunk[2], send_rows.ROW_NUMBERS * count)
    found = 0
    for index in range(count):
        if not table[index * send_rows.ROW_NUMBERS + send_rows.ONE_WAY]:
            found += 1
    return found


def build_sends(
    chunks: list[Chunk],
    next_offsets: dict[tuple[bytes, int], int],
    lent: list[QueuePlace],
    physical_end: int,
    room_bytes: int,
    store_timestamp_ms: int,
    store_host: bytes,
) -> BuiltRun | None:
    """Place and build the records of all admitted chunks; None when they exceed ``room_bytes``.

    Each message gets the next offset of its queue; its places are noted in its row. A next offset
    that is in ``next_offsets`` is lent from there to the queue's place, which is added to ``lent``:
    it is in one of both, never in two. The plan takes effect in ``commit_places``.

    Returns the records, where they end and where the last one begins. Also None when a queue has
    no next offset: a new queue is for the general way, which checks its name.
    """
    total = 0
    for chunk in chunks:
        if not send_places.borrow_offsets(chunk, next_offsets, lent):
            return None
        total += _measure(chunk, len(store_host))
    if total > room_bytes:
        return None
    out = raw_bytes.blank(total)
    position = 0
    last = 0
    for chunk in chunks:
        last = send_places.place_chunk(chunk, physical_end + position)
        position = _lay_out(out, position, chunk, store_timestamp_ms, store_host)
    return (out, physical_end + total, last)


def _measure(chunk: Chunk, store_host_bytes: int) -> int:
    """Note the size of each record; the sum."""
    count, born_hosts = chunk[1], chunk[4]
    table = raw_bytes.numbers(chunk[2], send_rows.ROW_NUMBERS * count)
    total = 0
    at = 0
    for index in range(count):
        born_host = born_hosts[index]
        size = record_layout.bytes_without(
            len(born_host), store_host_bytes, table[at + send_rows.TOPIC_BYTES]
        )
        size += table[at + send_rows.BODY_END] - table[at + send_rows.BODY_AT]
        size += table[at + send_rows.PROPERTIES_END] - table[at + send_rows.PROPERTIES_AT]
        table[at + send_rows.RECORD_BYTES] = size
        total += size
        at += send_rows.ROW_NUMBERS
    return total


def _lay_out(
    out: bytearray, position: int, chunk: Chunk, store_timestamp_ms: int, store_host: bytes
) -> int:
    """Write a chunk's records; where they end.

    C copies to and from bare pointers: ``out`` was made as large as all records, and the places in
    the rows come from the scan, which found them within the buffers.
    """
    buffer, count, texts = chunk[0], chunk[1], chunk[3]
    table = raw_bytes.numbers(chunk[2], send_rows.ROW_NUMBERS * count)
    born_hosts, places = chunk[4], chunk[5]
    view = buffer
    properties = texts
    target = out
    at = 0
    for index in range(count):
        body_at = table[at + send_rows.BODY_AT]
        body_end = table[at + send_rows.BODY_END]
        text_at = table[at + send_rows.PROPERTIES_AT]
        text_end = table[at + send_rows.PROPERTIES_END]
        place = places[index]
        topic = place.topic
        position = record_layout.put_header(
            target,
            position,
            table[at + send_rows.RECORD_BYTES],
            record_layout.MAGIC_V1,
            stretch_crc.crc_of(crc32, view, body_at, body_end),
            table[at + send_rows.QUEUE_ID],
            table[at + send_rows.FLAG],
            table[at + send_rows.QUEUE_OFFSET],
            table[at + send_rows.PHYSICAL_OFFSET],
            table[at + send_rows.SYS_FLAG],
            table[at + send_rows.BORN_MS],
            born_hosts[index],
            store_timestamp_ms,
            store_host,
            table[at + send_rows.TIMES],
            # The place of a half message: a fast send has none.
            0,
            body_end - body_at,
        )
        position = raw_bytes.copy(target, position, view, body_at, body_end)
        target[position] = len(topic)
        position = raw_bytes.put_text(target, position + 1, topic)
        raw_bytes.put_i16(target, position, text_end - text_at)
        position = raw_bytes.copy(target, position + 2, properties, text_at, text_end)
        at += send_rows.ROW_NUMBERS
    return position
