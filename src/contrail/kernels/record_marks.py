"""Pick the records that speak of another record: deliveries, commits, rows of sinks.

Their header names that record in ``preparedTransactionOffset``, or ``sysFlag`` says that they are
part of a transaction. All other records are passed over unread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from contrail.kernels import raw_bytes, record_layout

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

_PREPARED_BEFORE_BODY = 12


def marked_records(
    buffer: ReadableBuffer, start: int, end: int
) -> tuple[int, int, list[tuple[int, int]]]:
    """Walk the records in ``buffer[start:end]``.

    Returns where the walk ended, its ``REASON_``, and for each marked record its position and its
    ``preparedTransactionOffset``.
    """
    data = memoryview(buffer)
    if not 0 <= start <= end <= len(data):
        raise ValueError(f"the range {start}..{end} is outside the buffer's {len(data)} bytes")
    return _marked(data, start, end)


def _marked(data: memoryview, start: int, end: int) -> tuple[int, int, list[tuple[int, int]]]:
    view = raw_bytes.begin(data)
    position = start
    reason = record_layout.REASON_END
    found: list[tuple[int, int]] = []
    while position < end:
        reason = record_layout.record_reason(view, position, end)
        if reason != record_layout.REASON_END:
            break
        at = record_layout.body_at(view, position) - _PREPARED_BEFORE_BODY
        prepared = raw_bytes.i64(view, at)
        flags = view[position + record_layout.LOW_FLAGS_AT]
        if prepared != 0 or flags & record_layout.TRANSACTION_MASK:
            found.append((position, prepared))
        position += raw_bytes.i32(view, position)
    return (position, reason, found)
