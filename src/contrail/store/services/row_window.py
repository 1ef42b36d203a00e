"""Chooses the rows of a queue that one read looks at."""

from __future__ import annotations

from contrail.kernels.record_layout import BATCH_ROW_BYTES, QUEUE_ROW_BYTES, ROW_BASE_AT
from contrail.store.disk.batch_queue import BatchQueue
from contrail.store.disk.consume_queue import ConsumeQueue
from contrail.store.state.row_layout import BLANK_TARGET, ROW_BATCH

# RocketMQ scans at most this many bytes of rows for one read that matches nothing.
_SCAN_BYTES_MAX = 16_000
SCANNED_ROWS = _SCAN_BYTES_MAX // QUEUE_ROW_BYTES
_BYTES_FLOOR = 100
_BYTES_CEILING = 128 << 20


def bounded_bytes(bytes_max: int) -> int:
    """How many bytes of records one read may take when ``bytes_max`` are asked for."""
    return min(max(bytes_max, _BYTES_FLOOR), _BYTES_CEILING)


def window_rows(count_max: int, tag_codes: frozenset[int] | None) -> int:
    """How many rows a read looks at: without a tag filter, as many as it may return."""
    return count_max if tag_codes is None else max(SCANNED_ROWS, count_max)


def rows_from(
    queue: ConsumeQueue | BatchQueue, queue_offset: int, count_max: int
) -> tuple[bytes, range | list[int]]:
    """Rows in the 20-byte form, and the queue offset of each and of the row behind the last."""
    rows = queue.rows(queue_offset, count_max)
    if isinstance(queue, ConsumeQueue):
        return rows, range(queue_offset, queue_offset + len(rows) // QUEUE_ROW_BYTES + 1)
    simple, offsets, behind = bytearray(), [], queue_offset
    for start in range(0, len(rows), BATCH_ROW_BYTES):
        simple += rows[start : start + QUEUE_ROW_BYTES]
        base, count = ROW_BATCH.unpack_from(rows, start + ROW_BASE_AT)
        offsets.append(base)
        behind = base + count
    return bytes(simple), [*offsets, behind]


def blank_rows_end(rows: bytes, index: int) -> int:
    """The index of the first row from ``index`` on that names a message, or of the end."""
    while rows.startswith(BLANK_TARGET, index * QUEUE_ROW_BYTES):
        index += 1
    return index
