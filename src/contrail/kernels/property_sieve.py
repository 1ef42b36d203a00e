"""Walk the records of queue rows and select those whose properties pass a filter.

A record is not decoded: its lengths lead to its properties, and only the values of a few names are
read. Each value is the one that ``model.properties`` would decode: the last value of its name, and
none if it is empty. Rows and records are tabled in ``record_layout``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from contrail.kernels import raw_bytes, record_layout

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

# Why a walk ended: no more rows; a limit was reached; a row and its record disagree, or the record
# is not in this buffer.
ENDED_ROWS = 0
ENDED_FULL = 1
ENDED_UNPROVEN = 2

NAMES_MAX = 16
# A memory is slots of 48 bytes: 0 for empty or the verdict, the key's length, the key. The bytes of
# a key give its slot, so a new key may overwrite an older one.
_SLOT_COUNT = 256
_SLOT_BYTES = 48
MEMORY_BYTES = _SLOT_COUNT * _SLOT_BYTES
_KEY_BYTES_MAX = _SLOT_BYTES - 2
_STAYS = 1
_PASSES = 2

_PHYSICAL_OFFSET_MAX = 1 << 62


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
    memory: bytearray,
) -> tuple[list[int], int, int, int]:
    """Walk the records of the rows in turn, and select those that pass.

    Returns [physical_offset, size, row_index, ...] of the selected records, how many rows were
    walked, the bytes of their records, and the ``ENDED_`` reason. Every walked record agrees with
    its row, with lengths that add up; no checksum was compared. ``verdicts`` says which messages
    pass, by the values of ``names``, joined by byte 2; a missing value is empty. The limits are
    checked before a record is read: ``bytes_max`` bounds the selected records and
    ``scanned_bytes_max`` all walked records; if ``is_first_free``, the first record of each may
    exceed its limit.

    ``memory`` holds the last verdicts for short values, so that most need no Python object; it is
    made as ``MEMORY_BYTES`` zeros, and belongs to these names and verdicts.
    """
    data = memoryview(buffer)
    if len(names) > NAMES_MAX:
        raise ValueError(f"{len(names)} names are too many; at most {NAMES_MAX} can be looked for")
    if len(memory) != MEMORY_BYTES:
        raise ValueError(f"the memory has {len(memory)} bytes instead of {MEMORY_BYTES}")
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
        memory,
    )


def row_span(rows: bytes) -> tuple[int, int]:
    """The physical offsets where the first record of these rows begins and the last one ends.

    (0, 0) if a row has a physical offset that no log has.
    """
    row_view = rows
    end = len(rows)
    start_min = 0
    end_max = 0
    at = 0
    while end - at >= record_layout.QUEUE_ROW_BYTES:
        physical_offset = raw_bytes.i64(row_view, at)
        if physical_offset < 0 or physical_offset > _PHYSICAL_OFFSET_MAX:
            return (0, 0)
        physical_end = physical_offset + raw_bytes.i32(row_view, at + record_layout.ROW_SIZE_AT)
        if at == 0 or physical_offset < start_min:
            start_min = physical_offset
        if at == 0 or physical_end > end_max:
            end_max = physical_end
        at += record_layout.QUEUE_ROW_BYTES
    return (start_min, end_max)


def _sift(
    window: memoryview,
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
    memory: bytearray,
) -> tuple[list[int], int, int, int]:
    """``window`` and ``data`` are one buffer: C reads the first, values are cut from the second.

    C reads by a bare pointer: ``is_placed`` and ``_properties_at`` check the record's bounds.
    """
    view = raw_bytes.begin(window)
    view_bytes = len(window)
    selected: list[int] = []
    count = 0
    taken_bytes = 0
    walked_bytes = 0
    walked = 0
    row_view = rows
    end = len(rows)
    at = 0
    name_count = len(names)
    places = [0] * 16
    ended = ENDED_ROWS
    while end - at >= record_layout.QUEUE_ROW_BYTES:
        physical_offset = raw_bytes.i64(row_view, at)
        size = raw_bytes.i32(row_view, at + record_layout.ROW_SIZE_AT)
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
        if record_layout.is_placed(
            view, view_bytes, position, size, physical_offset, queue_id, queue_offset + walked
        ):
            properties_at = _properties_at(view, position, position + size, topic)
        if properties_at < 0:
            ended = ENDED_UNPROVEN
            break
        for index in range(name_count):
            places[index] = _find_value(view, properties_at, position + size, names[index])
        slot = _slot_of(view, places, name_count)
        if _is_remembered(view, places, name_count, memory, slot):
            passes = memory[slot] == _PASSES
        else:
            key = _key(data, places, name_count)
            passes = bool(verdicts[key])
            _remember(memory, slot, key, passes)
        if passes:
            selected.append(physical_offset)
            selected.append(size)
            selected.append(walked)
            taken_bytes += size
            count += 1
        walked_bytes += size
        walked += 1
        at += record_layout.QUEUE_ROW_BYTES
    return (selected, walked, walked_bytes, ended)


def _properties_at(view: memoryview, position: int, limit: int, topic: bytes) -> int:
    """Where a record's properties begin, or -1 unless it is of ``topic`` and its lengths add up."""
    at = record_layout.topic_end(view, position, limit, topic) + 2
    if at < 2:
        return -1
    properties_bytes = limit - at
    if properties_bytes > record_layout.PROPERTIES_BYTES_MAX:
        return -1
    return at if raw_bytes.u16(view, at - 2) == properties_bytes else -1


def _slot_of(view: memoryview, places: list[int], name_count: int) -> int:
    """The slot where the verdict for these values may be: a hash of all their bytes."""
    # Masks and shifts: a division for every byte would cost more than the rest of the function.
    code = 0
    for index in range(name_count):
        at = places[index] >> 16
        end = at + (places[index] & 0xFFFF)
        while at < end:
            code = (code * 403 + view[at]) & 0xFFFFFF
            at += 1
        code = (code * 403 + 2) & 0xFFFFFF
    return (code * 40503 >> 12 & 0xFF) * _SLOT_BYTES


def _is_remembered(
    view: memoryview, places: list[int], name_count: int, memory: bytearray, slot: int
) -> bool:
    if memory[slot] == 0:
        return False
    key_at = slot + 2
    key_end = key_at + memory[slot + 1]
    for index in range(name_count):
        if index > 0:
            if key_at >= key_end or memory[key_at] != 2:
                return False
            key_at += 1
        at = places[index] >> 16
        end = at + (places[index] & 0xFFFF)
        if end - at > key_end - key_at:
            return False
        while at < end:
            if memory[key_at] != view[at]:
                return False
            key_at += 1
            at += 1
    return key_at == key_end


def _remember(memory: bytearray, slot: int, key: bytes, passes: bool) -> None:
    """Overwrite the slot with a verdict."""
    if len(key) > _KEY_BYTES_MAX:
        return
    memory[slot] = _PASSES if passes else _STAYS
    memory[slot + 1] = len(key)
    at = slot + 2
    for byte in key:
        memory[at] = byte
        at += 1


def _key(data: ReadableBuffer, places: list[int], name_count: int) -> bytes:
    if name_count == 1:
        return _cut(data, places[0] >> 16, places[0] & 0xFFFF)
    values: list[bytes] = []
    for index in range(name_count):
        values.append(_cut(data, places[index] >> 16, places[index] & 0xFFFF))
    return b"\x02".join(values)


def _cut(data: ReadableBuffer, start: int, byte_count: int) -> bytes:
    # A slice of a map or of bytes is bytes already, and bytes() of that is the same object.
    return bytes(data[start : start + byte_count]) if byte_count else b""  # type: ignore[index]


def _find_value(view: memoryview, at: int, limit: int, name: bytes) -> int:
    """The start of the value that counts, times 65,536, plus its length; 0 if there is none."""
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
            found = value_at << 16 | (at - value_at)
        at += 1
    return found
