"""Put keys into the image of one index file.

An index file, all integers big-endian and signed:

    at              bytes  part
    0               40     header: i64 beginTimestamp, i64 endTimestamp, i64 beginPhyOffset,
                           i64 endPhyOffset, i32 hashSlotCount, i32 indexCount
    40              4 * s  slots: number of the newest entry of each chain, 0 = none
    40 + 4 * s      20 * n entries; number 0 is never used, so indexCount starts at 1

    at     bytes  entry
    0      4      keyHash, never negative; its slot is keyHash mod s
    4      8      physicalOffset
    12     4      seconds since beginTimestamp, 0 .. 2^31-1; 0 while beginTimestamp is 0
    16     4      number of the previous entry of the chain, 0 = none

The index rows to put are tabled in ``record_layout``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from contrail.kernels import raw_bytes, record_layout

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

_ENTRY_BYTES = 20
_PAGE_SLOTS = 1024


def put_rows(
    rows: ReadableBuffer,
    slots: bytearray,
    slot_count: int,
    tail: bytearray,
    header: list[int],
    entry_limit: int,
    dirty: bytearray,
) -> int:
    """Put ``rows`` into the file until it is full; return how many rows were consumed.

    ``header`` is [begin_timestamp, end_timestamp, begin_physical_offset, end_physical_offset,
    slot_used, index_count] and is updated. New entries go to the end of ``tail``; ``dirty`` gets
    a 1 for each 4 KiB page of the slot region that was touched. The file has rows before the
    header's end offset already: these are skipped.
    """
    data = memoryview(rows)
    if len(data) % record_layout.INDEX_ROW_BYTES:
        raise ValueError(f"{len(data)} bytes are not whole rows of {record_layout.INDEX_ROW_BYTES}")
    _check_slots(len(slots), slot_count)
    if len(dirty) * _PAGE_SLOTS < slot_count:
        raise ValueError(f"{len(dirty)} page marks are too few for {slot_count} slots")
    return _put(data, slots, slot_count, tail, header, entry_limit, dirty)


def rebuild_slots(
    entries: ReadableBuffer, entry_count: int, slots: bytearray, slot_count: int
) -> int:
    """Clear ``slots``, chain entries 1 to ``entry_count - 1`` again and return the slots used.

    ``entries`` starts at entry number 0; the chain links inside it are left as they are.
    """
    data = memoryview(entries)
    _check_slots(len(slots), slot_count)
    if entry_count * _ENTRY_BYTES > len(data):
        raise ValueError(f"{len(data)} bytes do not hold {entry_count} entries")
    slots[:] = bytes(len(slots))
    return _chain(data, entry_count, slots, slot_count)


def _check_slots(slots_bytes: int, slot_count: int) -> None:
    if slot_count < 1 or slots_bytes < slot_count * 4:
        raise ValueError(f"{slots_bytes} bytes do not hold {slot_count} slots")


def _put(
    rows: memoryview,
    slots: bytearray,
    slot_count: int,
    tail: bytearray,
    header: list[int],
    entry_limit: int,
    dirty: bytearray,
) -> int:
    """C reads and writes by bare pointers: ``rows`` are whole, ``tail`` gets room for as many,
    and the lengths of the slots and their page marks were checked."""
    begin_timestamp_ms = header[0]
    end_timestamp_ms = header[1]
    begin_physical_offset = header[2]
    end_physical_offset = header[3]
    slot_used = header[4]
    index_count = header[5]
    at = 0
    rows_bytes = len(rows)
    if rows_bytes == 0:
        return 0
    # Make room for every row, then cut the unused rest: growing by entry costs twice as much.
    entry_at = raw_bytes.grow(tail, rows_bytes)
    source = raw_bytes.begin(rows)
    entries = tail
    chains = slots
    pages = dirty
    while at < rows_bytes and index_count < entry_limit:
        physical_offset = raw_bytes.i64(source, at + record_layout.INDEX_PHYSICAL_AT)
        if physical_offset < end_physical_offset:
            at += record_layout.INDEX_ROW_BYTES
            continue
        key_hash = raw_bytes.i32(source, at + record_layout.INDEX_HASH_AT)
        store_timestamp_ms = raw_bytes.i64(source, at + record_layout.INDEX_TIME_AT)
        slot = key_hash % slot_count
        previous = raw_bytes.i32(chains, slot * 4)
        if previous <= 0 or previous > index_count:
            previous = 0
            slot_used += 1
        seconds = _seconds_since(begin_timestamp_ms, store_timestamp_ms)
        raw_bytes.put_i32(entries, entry_at, key_hash)
        raw_bytes.put_i64(entries, entry_at + 4, physical_offset)
        raw_bytes.put_i32(entries, entry_at + 12, seconds)
        raw_bytes.put_i32(entries, entry_at + 16, previous)
        entry_at += _ENTRY_BYTES
        raw_bytes.put_i32(chains, slot * 4, index_count)
        pages[slot // _PAGE_SLOTS] = 1
        if index_count <= 1:
            begin_physical_offset = physical_offset
            begin_timestamp_ms = store_timestamp_ms
        index_count += 1
        end_physical_offset = physical_offset
        end_timestamp_ms = store_timestamp_ms
        at += record_layout.INDEX_ROW_BYTES
    del tail[entry_at:]
    header[0] = begin_timestamp_ms
    header[1] = end_timestamp_ms
    header[2] = begin_physical_offset
    header[3] = end_physical_offset
    header[4] = slot_used
    header[5] = index_count
    return at // record_layout.INDEX_ROW_BYTES


def _chain(entries: memoryview, entry_count: int, slots: bytearray, slot_count: int) -> int:
    """C reads and writes by bare pointers: the lengths of entries and slots were checked."""
    slot_used = 0
    if entry_count <= 1:
        return slot_used
    source = raw_bytes.begin(entries)
    chains = slots
    for number in range(1, entry_count):
        slot = raw_bytes.i32(source, number * _ENTRY_BYTES) % slot_count
        if raw_bytes.i32(chains, slot * 4) == 0:
            slot_used += 1
        raw_bytes.put_i32(chains, slot * 4, number)
    return slot_used


def _seconds_since(begin_timestamp_ms: int, store_timestamp_ms: int) -> int:
    if begin_timestamp_ms <= 0 or store_timestamp_ms < begin_timestamp_ms:
        return 0
    seconds = (store_timestamp_ms - begin_timestamp_ms) // 1000
    return seconds if seconds < record_layout.I32_MAX else record_layout.I32_MAX
