"""Turn commit log records into the buffers of Arrow columns.

The record's layout is tabled in ``record_layout``. A batch is made in two passes. The first,
``measure_records``, checks every record and notes numbers and the positions of its parts. Then the
caller makes buffers of the right length, and ``copy_spans`` fills them. Properties are read in
between, only when a column needs them. Positions and numbers are 64 bits in native order, one row
for each kind, with one number for each record; Arrow's offsets are 32 bits.

No length in the buffer is trusted: each is checked against the bytes left before it is used. C
reads and writes through bare pointers, so the public functions first compare all positions with the
lengths of the buffers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from contrail.kernels import raw_bytes, record_layout, stretch_crc
from contrail.kernels.stretch_crc import crc32

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer, WriteableBuffer

SPAN_ROWS = 6

_PAIR_COUNT_MAX = 64
# Four numbers a pair, then three numbers about their row.
_SCRATCH_NUMBERS = 4 * 64 + 3
_SIZE_AT = 4 * 64
_COUNT_AT = 4 * 64 + 1
_MARKS_AT = 4 * 64 + 2
# A byte can count this many.
_MARK_BLOCK_BYTES = 240


def walk_records(
    buffer: bytes, start: int, end: int, base_offset: int, positions: WriteableBuffer
) -> tuple[int, int, int]:
    """Note where each record of ``buffer[start:end]`` starts.

    Byte ``i`` of the buffer is at physical offset ``base_offset + i``; with a negative base the
    physical offsets in the records are not compared. Returns how many records there are, where the
    walk ended and its ``REASON_``; it also ends, with ``REASON_END``, when ``positions`` is full.
    """
    if not 0 <= start <= end <= len(buffer):
        raise ValueError(f"the range {start}..{end} is outside the buffer's {len(buffer)} bytes")
    return _walk(buffer, start, end, base_offset, memoryview(positions))


def measure_records(
    buffer: bytes,
    positions: ReadableBuffer,
    fields: bytes,
    numbers: WriteableBuffer,
    spans: WriteableBuffer,
) -> tuple[int, int, int]:
    """Check the records at ``positions`` and note numbers and positions of their parts.

    A field is three bytes: its position in a record with two IPv4 hosts, its length (4 or 8), and
    how many hosts are before it. ``numbers`` gets a row for each field; ``spans``, unless it is
    empty, six rows: start and length of body, topic and properties. Returns the first row that is
    no record (-1: none) and its ``REASON_``, and the bitwise or of all sysFlags.
    """
    places = memoryview(positions)
    found = memoryview(numbers)
    parts = memoryview(spans)
    count = len(places)
    if len(fields) % 3 or len(found) != count * (len(fields) // 3):
        raise ValueError(f"{len(fields)} bytes of fields do not fit {len(found)} numbers")
    if len(parts) not in (0, SPAN_ROWS * count):
        raise ValueError(f"{count} records need {SPAN_ROWS * count} places, not {len(parts)}")
    for at in range(0, len(fields), 3):
        if (
            fields[at] > record_layout.BODY_BYTES_AT
            or fields[at + 1] not in (4, 8)
            or fields[at + 2] > 2
        ):
            raise ValueError(f"no field of a record is at {list(fields[at : at + 3])}")
    return _measure(buffer, places, fields, found, parts)


def copy_spans(
    buffer: bytes, starts: ReadableBuffer, offsets: ReadableBuffer, target: bytearray
) -> int:
    """Copy each row's bytes to its offset in ``target``.

    ``offsets`` are Arrow's: 32 bits, one more than there are rows. A row that starts below zero is
    left out. Returns the bitwise or of all copied bytes: below 128 the text is ASCII.
    """
    places = memoryview(starts)
    ends = memoryview(offsets)
    if len(ends) != len(places) + 1:
        raise ValueError(f"{len(places)} rows do not fit {len(ends)} offsets")
    return _copy_all(buffer, len(buffer), places, ends, target, len(target))


def find_properties(
    buffer: bytes,
    starts: ReadableBuffer,
    sizes: ReadableBuffer,
    names: bytes,
    values: WriteableBuffer,
) -> None:
    """Note start and length of each named property's value in each row; -1 and 0 if absent.

    ``names`` holds each name after two bytes of length; ``values`` gets two rows for each. Of a
    name that occurs twice the last value counts; an empty value counts as absent.
    """
    places = memoryview(starts)
    lengths = memoryview(sizes)
    found = memoryview(values)
    name_count = _name_count(names, len(names))
    if len(places) != len(lengths) or len(found) != 2 * name_count * len(places):
        raise ValueError(f"{len(places)} rows of {name_count} names do not fit {len(found)} places")
    _check_spans(len(buffer), places, lengths)
    scratch = memoryview(bytearray(8 * _SCRATCH_NUMBERS)).cast("q")
    _find(buffer, places, lengths, names, name_count, found, scratch)


def list_properties(
    buffer: bytes,
    starts: ReadableBuffer,
    sizes: ReadableBuffer,
    row_offsets: WriteableBuffer,
    name_offsets: WriteableBuffer,
    names: bytearray,
    value_offsets: WriteableBuffer,
    values: bytearray,
) -> tuple[int, int, int, int]:
    """Fill the buffers of a map column with every row's properties.

    The caller gives the buffers the longest length they can need: ``names`` and ``values`` as all
    properties together, their offsets a quarter of that and three for each row. Of a name that
    occurs twice the last pair is kept. Returns how many pairs there are, how many bytes of names
    and of values, and the bitwise or of these bytes; the first is -1 if a row has over 64 pairs,
    which the caller must decode.
    """
    places = memoryview(starts)
    lengths = memoryview(sizes)
    rows = memoryview(row_offsets)
    name_ends = memoryview(name_offsets)
    value_ends = memoryview(value_offsets)
    if len(places) != len(lengths) or len(rows) != len(places) + 1:
        raise ValueError(f"{len(places)} rows do not fit {len(rows)} offsets")
    room = _check_spans(len(buffer), places, lengths)
    pairs_max = min(len(name_ends), len(value_ends))
    if min(len(names), len(values)) < room or pairs_max < room // 4 + len(places) + 1:
        raise ValueError(f"{room} bytes of properties do not fit {pairs_max} pairs")
    scratch = memoryview(bytearray(8 * _SCRATCH_NUMBERS)).cast("q")
    return _list(buffer, places, lengths, rows, name_ends, names, value_ends, values, scratch)


def check_bodies(buffer: bytes, positions: ReadableBuffer) -> int:
    """The first row whose body does not match its CRC, -1 when all do.

    The records were measured before.
    """
    places = memoryview(positions)
    return _check_bodies(buffer, places, len(buffer))


def _walk(
    view: bytes, start: int, end: int, base_offset: int, positions: memoryview
) -> tuple[int, int, int]:
    position = start
    count = 0
    count_max = len(positions)
    reason = record_layout.REASON_END
    while position < end and count < count_max:
        reason = record_layout.record_reason(view, position, end)
        if reason == record_layout.REASON_END and base_offset >= 0:
            physical_offset = raw_bytes.i64(view, position + record_layout.PHYSICAL_OFFSET_AT)
            if physical_offset != base_offset + position:
                reason = record_layout.REASON_BAD_PHYSICAL_OFFSET
        if reason != record_layout.REASON_END:
            break
        positions[count] = position
        count += 1
        position += raw_bytes.i32(view, position)
    return (count, position, reason)


def _measure(
    buffer: bytes, positions: memoryview, fields: bytes, numbers: memoryview, spans: memoryview
) -> tuple[int, int, int]:
    view = buffer
    end = len(buffer)
    wanted = fields
    field_bytes = len(fields)
    count = len(positions)
    wants_spans = len(spans) > 0
    flags = 0
    for row in range(count):
        position = positions[row]
        reason = record_layout.record_reason(view, position, end)
        if reason != record_layout.REASON_END:
            return (row, reason, flags)
        # The last two bytes hold the compression type and the known flags; the others are unused.
        flags |= raw_bytes.u16(view, position + record_layout.SYS_FLAG_AT + 2)
        low_flags = view[position + record_layout.LOW_FLAGS_AT]
        born_extra = record_layout.hosts_extra(low_flags & record_layout.BORN_HOST_V6)
        both_extra = record_layout.hosts_extra(low_flags)
        target = row
        for at in range(0, field_bytes, 3):
            place = position + wanted[at]
            if wanted[at + 2] == 1:
                place += born_extra
            elif wanted[at + 2] == 2:
                place += both_extra
            if wanted[at + 1] == 8:
                numbers[target] = raw_bytes.i64(view, place)
            else:
                numbers[target] = raw_bytes.i32(view, place)
            target += count
        if wants_spans:
            limit = position + raw_bytes.i32(view, position)
            body_at = record_layout.body_at(view, position)
            topic_at = record_layout.topic_at(view, position)
            properties_at = record_layout.properties_at(view, position, limit)
            spans[row] = body_at
            spans[row + count] = record_layout.body_end(view, position) - body_at
            spans[row + 2 * count] = topic_at
            spans[row + 3 * count] = properties_at - 2 - topic_at
            spans[row + 4 * count] = properties_at
            spans[row + 5 * count] = limit - properties_at
    return (-1, record_layout.REASON_END, flags)


def _copy_all(
    view: bytes,
    limit: int,
    starts: memoryview,
    offsets: memoryview,
    target: bytearray,
    target_bytes: int,
) -> int:
    seen = 0
    for row in range(len(starts)):
        start = starts[row]
        if start < 0:
            continue
        at = offsets[row]
        length = offsets[row + 1] - at
        if at < 0 or length < 0 or length > target_bytes - at or length > limit - start:
            raise ValueError(f"row {row} reaches past the end of a buffer")
        seen |= _copy(view, start, length, target, at)
    return seen


def _copy(view: bytes, start: int, length: int, target: bytearray, at: int) -> int:
    seen = 0
    for index in range(length):
        byte = view[start + index]
        target[at + index] = byte
        seen |= byte
    return seen


def _find(
    buffer: bytes,
    starts: memoryview,
    sizes: memoryview,
    names: bytes,
    name_count: int,
    values: memoryview,
    scratch: memoryview,
) -> None:
    view = buffer
    wanted = names
    count = len(starts)
    for row in range(count):
        for number in range(name_count):
            values[row + 2 * number * count] = -1
            values[row + (2 * number + 1) * count] = 0
        start = starts[row]
        found = _pairs_of(view, start, sizes[row], scratch)
        if found >= 0:
            for at in range(0, 4 * found, 4):
                number = _number_of(view, start + scratch[at], scratch[at + 1], wanted, name_count)
                if number >= 0:
                    values[row + 2 * number * count] = start + scratch[at + 2]
                    values[row + (2 * number + 1) * count] = scratch[at + 3]
            continue
        at = start
        end = start + sizes[row]
        while at < end:
            start = at
            separator = _name_end(view, at, end)
            at = _pair_end(view, separator, end)
            if separator > start and at > separator + 1:
                number = _number_of(view, start, separator - start, wanted, name_count)
                if number >= 0:
                    values[row + 2 * number * count] = separator + 1
                    values[row + (2 * number + 1) * count] = at - separator - 1
            at += 1


def _list(
    buffer: bytes,
    starts: memoryview,
    sizes: memoryview,
    row_offsets: memoryview,
    name_offsets: memoryview,
    names: bytearray,
    value_offsets: memoryview,
    values: bytearray,
    scratch: memoryview,
) -> tuple[int, int, int, int]:
    view = buffer
    name_bytes = 0
    value_bytes = 0
    seen = 0
    pair_count = 0
    row_offsets[0] = 0
    name_offsets[0] = 0
    value_offsets[0] = 0
    for row in range(len(starts)):
        start = starts[row]
        found = _pairs_of(view, start, sizes[row], scratch)
        if found < 0:
            return (-1, 0, 0, 0)
        for index in range(found):
            if _is_repeated(view, start, scratch, index, found):
                continue
            at = 4 * index
            seen |= _copy(view, start + scratch[at], scratch[at + 1], names, name_bytes)
            seen |= _copy(view, start + scratch[at + 2], scratch[at + 3], values, value_bytes)
            name_bytes += scratch[at + 1]
            value_bytes += scratch[at + 3]
            pair_count += 1
            name_offsets[pair_count] = name_bytes
            value_offsets[pair_count] = value_bytes
        row_offsets[row + 1] = pair_count
    return (pair_count, name_bytes, value_bytes, seen)


def _pairs_of(view: bytes, base: int, size: int, scratch: memoryview) -> int:
    """Put start and length of each name and value in ``scratch``; -1 if there are too many.

    Positions count from ``base``. Adjacent records mostly have the same properties with values of
    the same lengths: comparing with the row before is four times as fast as splitting the pairs.
    """
    if _is_alike(view, base, size, scratch):
        return scratch[_COUNT_AT]
    count = 0
    odd_count = 0
    at = base
    end = base + size
    scratch[_SIZE_AT] = -1
    while at < end:
        start = at
        separator = _name_end(view, at, end)
        at = _pair_end(view, separator, end)
        if separator > start and at > separator + 1:
            if count == _PAIR_COUNT_MAX:
                return -1
            scratch[4 * count] = start - base
            scratch[4 * count + 1] = separator - start
            scratch[4 * count + 2] = separator + 1 - base
            scratch[4 * count + 3] = at - separator - 1
            count += 1
        else:
            odd_count += 1
        at += 1
    scratch[_COUNT_AT] = count
    if odd_count == 0 and count > 0:
        scratch[_SIZE_AT] = size
        # The last pair may lack its byte 2. A value may hold a byte 1; then no later row counts as
        # alike.
        scratch[_MARKS_AT] = 2 * count if view[end - 1] == 2 else 2 * count - 1
    return count


def _is_alike(view: bytes, base: int, size: int, scratch: memoryview) -> bool:
    """Whether this row has its pairs at the same positions as the row before."""
    if size != scratch[_SIZE_AT]:
        return False
    for at in range(0, 4 * scratch[_COUNT_AT], 4):
        value_at = scratch[at + 2]
        if view[base + value_at - 1] != 1:
            return False
        value_end = value_at + scratch[at + 3]
        if value_end < size and view[base + value_end] != 2:
            return False
    return _mark_count(view, base, size) == scratch[_MARKS_AT]


def _mark_count(view: bytes, at: int, size: int) -> int:
    """How many bytes are 1 or 2, in a form that a compiler turns into vector instructions."""
    total = 0
    start = 0
    while start < size:
        stop = min(size, start + _MARK_BLOCK_BYTES)
        count = 0
        for index in range(start, stop):
            byte = view[at + index]
            count += (byte == 1) | (byte == 2)
        total += count
        start = stop
    return total


def _is_repeated(view: bytes, base: int, scratch: memoryview, index: int, count: int) -> bool:
    """Whether a later pair has the same name."""
    start = base + scratch[4 * index]
    length = scratch[4 * index + 1]
    for later in range(index + 1, count):
        if scratch[4 * later + 1] == length:
            if _is_same(view, start, view, base + scratch[4 * later], length):
                return True
    return False


def _name_end(view: bytes, at: int, end: int) -> int:
    """The position of the next byte 1 or 2."""
    while at < end and view[at] != 1 and view[at] != 2:
        at += 1
    return at


def _pair_end(view: bytes, at: int, end: int) -> int:
    """The position of the next byte 2."""
    while at < end and view[at] != 2:
        at += 1
    return at


def _number_of(view: bytes, start: int, length: int, names: bytes, name_count: int) -> int:
    at = 0
    for number in range(name_count):
        wanted_bytes = raw_bytes.u16(names, at)
        if wanted_bytes == length and _is_same(view, start, names, at + 2, length):
            return number
        at += 2 + wanted_bytes
    return -1


def _is_same(view: bytes, start: int, other: bytes, other_start: int, length: int) -> bool:
    for index in range(length):
        if view[start + index] != other[other_start + index]:
            return False
    return True


def _name_count(names: bytes, limit: int) -> int:
    at = 0
    count = 0
    while at < limit:
        if limit - at < 2 or raw_bytes.u16(names, at) > limit - at - 2:
            raise ValueError(f"name {count} reaches past the end of the names")
        at += 2 + raw_bytes.u16(names, at)
        count += 1
    return count


def _check_spans(limit: int, starts: memoryview, sizes: memoryview) -> int:
    """The sum of all lengths; refuses a row outside the buffer."""
    total = 0
    for row in range(len(starts)):
        start = starts[row]
        size = sizes[row]
        if start < 0 or size < 0 or start > limit or size > limit - start:
            raise ValueError(f"row {row} reaches past the end of the buffer")
        total += size
    return total


def _check_bodies(view: bytes, positions: memoryview, limit: int) -> int:
    for row in range(len(positions)):
        position = positions[row]
        if record_layout.record_reason(view, position, limit) != record_layout.REASON_END:
            return row
        body_at = record_layout.body_at(view, position)
        body_end = record_layout.body_end(view, position)
        crc = stretch_crc.crc_of(crc32, view, body_at, body_end) & record_layout.CRC_MASK
        if crc != raw_bytes.i32(view, position + record_layout.BODY_CRC_AT):
            return row
    return -1
