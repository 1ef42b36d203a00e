"""Tidy batches on their way from the received body to records, without an object per message.

What a batch's body looks like is described in ``batch_split``, what a record looks like in
``record_build``; everything here gives what these two give for the same batch. A batch is *tidy*
when each of its messages may be stored as it is; one that is not is left to them, and to the
errors that they raise.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from contrail.kernels import frame_scan, raw_bytes, record_layout, send_places, stretch_crc
from contrail.kernels.stretch_crc import crc32

if TYPE_CHECKING:
    from typing import TypeAlias

    # contrail.model.message.MessageDraft with a whole batch as its body.
    Draft: TypeAlias = tuple[Any, ...]
    # The first message's queue offset, where each begins in the log, and 1 for each of kind FIFO.
    Place: TypeAlias = tuple[int, list[int], bytearray]
    BuiltBatches: TypeAlias = tuple[bytearray, list[Place], int, dict[tuple[bytes, int], int]]

_FEATURE_NO_UNIQUE_KEY = frame_scan.FEATURE_NO_UNIQUE_KEY
# What may stand in the properties of a message in a batch: nothing, a sharding key, a delay.
_PLAIN, _FIFO, _DELAYED = range(3)
_DELAY_NAME = b"DELAY"
_FIFO_MARK = b"__SHARDINGKEY\x01"


def count_batches(
    items: list[tuple[Any, ...]], first: int, queue_counts: dict[bytes, int], plain_flags: int
) -> int:
    """How many sends from ``first`` on are batches that may be split and stored as they are.

    ``items`` are sends as ``frame_scan`` returns them. Those are meant that go to a topic in
    ``queue_counts``, to a queue that exists, with a body, no feature but a missing unique key,
    and no other bits in their flags than ``plain_flags``.
    """
    index = first
    end = len(items)
    while index < end:
        item = items[index]
        if not item[7]:
            break
        features = item[9]
        draft = item[11]
        queue_count = queue_counts.get(draft[0])
        if queue_count is None or features & ~_FEATURE_NO_UNIQUE_KEY:
            break
        queue_id = draft[1]
        count = queue_count
        flags = draft[5]
        if queue_id < 0 or queue_id >= count or flags & ~plain_flags or not draft[2]:
            break
        index += 1
    return index - first


def build_batches(
    drafts: list[Any],
    next_offsets: dict[tuple[bytes, int], int],
    physical_end: int,
    room_bytes: int,
    store_timestamp_ms: int,
    store_host: bytes,
    body_bytes_max: int,
    count_max: int,
) -> BuiltBatches | None:
    """Check, place and build the records of all batches, one for each message.

    Each message gets the next offset of its queue by ``next_offsets``, which is only read.
    Returns the records, the places of each batch, where the records end and the changed next
    offsets. None when a batch is not tidy, holds more than ``count_max`` messages or more than
    ``body_bytes_max`` of their bodies, goes to a queue that has no next offset yet, or when all
    of them exceed ``room_bytes``.
    """
    sizes: list[int] = []
    kinds: list[bytearray] = []
    total = 0
    for draft in drafts:
        size = _measure(draft, len(store_host), body_bytes_max, count_max, kinds)
        if size < 0:
            return None
        sizes.append(size)
        total += size
    if total > room_bytes:
        return None
    out = raw_bytes.blank(total)
    places: list[Place] = []
    planned: dict[tuple[bytes, int], int] = {}
    position = 0
    index = 0
    for draft in drafts:
        key = (draft[0], draft[1])
        count = len(kinds[index])
        queue_offset = send_places.plan_offsets(planned, next_offsets, key, count, None)
        if queue_offset < 0:
            return None
        physical_offsets: list[int] = []
        _lay_out(
            out,
            position,
            draft,
            queue_offset,
            physical_end,
            store_timestamp_ms,
            store_host,
            physical_offsets,
        )
        places.append((queue_offset, physical_offsets, kinds[index]))
        position += sizes[index]
        index += 1
    return (out, places, physical_end + total, planned)


def _measure(
    draft: Draft,
    store_host_bytes: int,
    body_bytes_max: int,
    count_max: int,
    kinds: list[bytearray],
) -> int:
    """The bytes of a batch's records, -1 if it is not tidy; adds the kinds of its messages."""
    topic, queue_id, body, sys_flag, born_host, times = (
        draft[0],
        draft[1],
        draft[2],
        draft[5],
        draft[7],
        draft[8],
    )
    if not (raw_bytes.is_i32(queue_id) and raw_bytes.is_i32(sys_flag) and raw_bytes.is_i32(times)):
        return -1
    if not 0 < len(topic) <= record_layout.TOPIC_BYTES_MAX:
        return -1
    if not record_layout.is_host(len(born_host)):
        return -1
    without = record_layout.bytes_without(len(born_host), store_host_bytes, len(topic))
    view = body
    end = len(body)
    found = bytearray()
    count = 0
    total = 0
    bodies = 0
    at = 0
    while at < end:
        if count == count_max or end - at < record_layout.UNIT_BYTES_MIN:
            return -1
        size = raw_bytes.i32(view, at)
        body_bytes = raw_bytes.i32(view, at + record_layout.UNIT_BODY_BYTES_AT)
        if size < record_layout.UNIT_BYTES_MIN or size > end - at:
            return -1
        if body_bytes < 0 or body_bytes > size - record_layout.UNIT_BYTES_MIN:
            return -1
        bodies += body_bytes
        text_at = at + record_layout.UNIT_BODY_AT + body_bytes + 2
        text_bytes = raw_bytes.u16(view, text_at - 2)
        if text_bytes > record_layout.PROPERTIES_BYTES_MAX or text_at + text_bytes != at + size:
            return -1
        if record_layout.may_end_with_crc(view, text_at, text_at + text_bytes):
            return -1
        kind = _kind_of(view, text_at, text_at + text_bytes)
        if kind == _DELAYED:
            return -1
        found.append(kind)
        total += without + body_bytes + text_bytes
        count += 1
        at += size
    if count == 0 or bodies > body_bytes_max:
        return -1
    kinds.append(found)
    return total


def _kind_of(view: bytes, at: int, end: int) -> int:
    """What encoded properties ask for, wherever in them it stands."""
    # Looked for by a letter that is rare in properties: keys are full of D, E, A and of _.
    if raw_bytes.holds(view, at, end, _DELAY_NAME, 2):
        return _DELAYED
    return _FIFO if raw_bytes.holds(view, at, end, _FIFO_MARK, 3) else _PLAIN


def _lay_out(
    out: bytearray,
    position: int,
    draft: Draft,
    queue_offset: int,
    physical_base: int,
    store_timestamp_ms: int,
    store_host: bytes,
    physical_offsets: list[int],
) -> None:
    """Write the records of one batch from ``position`` on; ``out[0]`` is at ``physical_base``.

    C copies to and from bare pointers: ``out`` was made as large as ``_measure`` says, which also
    found every length within the body.
    """
    topic, queue_id, body, sys_flag, born, born_host, times = (
        draft[0],
        draft[1],
        draft[2],
        draft[5],
        draft[6],
        draft[7],
        draft[8],
    )
    view = body
    target = out
    without = record_layout.bytes_without(len(born_host), len(store_host), len(topic))
    end = len(body)
    at = 0
    while at < end:
        start = position
        body_at = at + record_layout.UNIT_BODY_AT
        body_end = body_at + raw_bytes.i32(view, at + record_layout.UNIT_BODY_BYTES_AT)
        unit_end = at + raw_bytes.i32(view, at)
        position = record_layout.put_header(
            target,
            start,
            # The length of the properties stands in front of them in a unit as in a record.
            without - 2 + body_end - body_at + unit_end - body_end,
            record_layout.MAGIC_V1,
            stretch_crc.crc_of(crc32, view, body_at, body_end),
            queue_id,
            raw_bytes.i32(view, at + record_layout.UNIT_FLAG_AT),
            queue_offset,
            physical_base + start,
            sys_flag,
            born,
            born_host,
            store_timestamp_ms,
            store_host,
            times,
            # The place of a half message: what comes in a batch is none.
            0,
            body_end - body_at,
        )
        position = raw_bytes.copy(target, position, view, body_at, body_end)
        target[position] = len(topic)
        position = raw_bytes.put_text(target, position + 1, topic)
        position = raw_bytes.copy(target, position, view, body_end, unit_end)
        physical_offsets.append(physical_base + start)
        queue_offset += 1
        at = unit_end
