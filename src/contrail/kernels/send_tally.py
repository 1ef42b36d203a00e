"""Counts the messages of a stored run: by topic, kind and size, and by request code.

A run is counted in one pass, with one dictionary entry per stretch of neighbours that are alike, so
that counting costs a few nanoseconds a message.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from contrail.kernels import raw_bytes, send_rows

if TYPE_CHECKING:
    from contrail.kernels.send_places import QueuePlace

NORMAL, FIFO, DELAY, TRANSACTION = range(4)
# Classes end at 1 KiB, 4 KiB, 512 KiB, 1 MiB, 2 MiB and 4 MiB; the last one has no end.

Tally = dict[tuple[bytes, int], list[int]]
"""By topic and kind: messages, bytes, and the messages of each size class."""


def skips_of(mark: bytes) -> bytes:
    """How far a search for ``mark`` may go on behind a byte that is not its last; 0 for the last.

    This is Horspool's table. A search with it looks at every tenth byte or so, and that is what
    makes looking into the properties of every message affordable.
    """
    length = len(mark)
    if not 0 < length < 256:
        raise ValueError(f"a mark of {length} bytes cannot be searched for: 1 to 255 can")
    skips = bytearray([length] * 256)
    for place in range(length):
        skips[mark[place]] = length - 1 - place
    return bytes(skips)


def tally_run(
    drafts: list[Any],
    physical_offsets: list[int],
    physical_end: int,
    fifo_mark: bytes,
    fifo_skips: bytes,
) -> Tally:
    """Count drafts that were stored at these places, the last of them ending at ``physical_end``.

    Bytes between two messages count for the first, also the blank that ends a segment. A
    message whose properties hold ``fifo_mark`` is of the kind FIFO; one that names the message it
    was made from (a negative ``prepared_transaction_offset``) is DELAY, a committed one
    TRANSACTION. ``fifo_skips`` is ``skips_of(fifo_mark)``.
    """
    rows: Tally = {}
    row: list[int] = []
    topic = b""
    kind = -1
    count = byte_count = small_count = 0
    end = len(drafts)
    for index in range(end):
        draft = drafts[index]
        start = physical_offsets[index]
        stop = physical_offsets[index + 1] if index + 1 < end else physical_end
        size = stop - start
        prepared = draft[9]
        flags = draft[5]
        if prepared < 0:
            found = 2
        elif flags & 12 == 8:
            found = 3
        elif _holds(draft[3], fifo_mark, fifo_skips):
            found = 1
        else:
            found = 0
        if found != kind or draft[0] != topic:
            if count:
                row[0] += count
                row[1] += byte_count
                row[2] += small_count
                count = byte_count = small_count = 0
            topic = draft[0]
            kind = found
            key = (topic, kind)
            if key not in rows:
                rows[key] = [0] * 9
            row = rows[key]
        count += 1
        byte_count += size
        if size <= 1024:
            small_count += 1
        else:
            row[_size_place(size)] += 1
    if count:
        row[0] += count
        row[1] += byte_count
        row[2] += small_count
    return rows


def tally_rows(chunks: list[Any], counted: list[QueuePlace]) -> int:
    """Count chunks of ``send_records`` that were stored; returns how many messages they hold.

    They are counted at their queues' places. Places that had no counts before are added to
    ``counted``, whose owner takes the counts.
    """
    total = 0
    for chunk in chunks:
        count = chunk[1]
        table = raw_bytes.numbers(chunk[2], send_rows.ROW_NUMBERS * count)
        places = chunk[5]
        place: QueuePlace | None = None
        kind = 0
        # Neighbours are of one size class, mostly.
        size_place = alike = byte_count = 0
        at = 0
        for index in range(count):
            found = table[at + send_rows.IS_FIFO]
            size = table[at + send_rows.RECORD_BYTES]
            found_place = _size_place(size)
            if found_place != size_place or found != kind or places[index] is not place:
                if place is not None and place.count(kind, size_place, alike, byte_count):
                    counted.append(place)
                alike = byte_count = 0
                size_place = found_place
                kind = found
                place = places[index]
            alike += 1
            byte_count += size
            at += send_rows.ROW_NUMBERS
        if place is not None and place.count(kind, size_place, alike, byte_count):
            counted.append(place)
        total += count
    return total


def _holds(data: bytes, mark: bytes, skips: bytes) -> bool:
    last = len(mark) - 1
    place = last
    end = len(data)
    while place < end:
        skip = skips[data[place]]
        if skip:
            place += skip
        elif data[place - last : place + 1] == mark:
            return True
        else:
            place += 1
    return False


def _size_place(size: int) -> int:
    """Where a row counts messages of a size."""
    if size <= 1024:
        return 2
    if size <= 4096:
        return 3
    if size <= 524288:
        return 4
    if size <= 1048576:
        return 5
    if size <= 2097152:
        return 6
    return 7 if size <= 4194304 else 8
