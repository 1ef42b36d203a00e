"""Finds the queue offset of a point in time: binary search over store times.

Times come from the caller, row by row. ``None`` stands for a record the log no longer has: it is
older than any time asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum

TimeOf = Callable[[int], int | None]


class Boundary(StrEnum):
    """The message to choose when none has exactly the time asked for, or several have."""

    LOWER = "lower"
    UPPER = "upper"


def search(
    queue_offset_min: int,
    queue_offset_max: int,
    time_of: TimeOf,
    timestamp_ms: int,
    boundary: Boundary = Boundary.LOWER,
) -> int:
    """LOWER: the first message stored at or after the time, else the maximum offset.

    UPPER: the last message stored at or before the time, else the minimum offset.
    """
    if boundary is Boundary.LOWER:
        return _first(
            queue_offset_min, queue_offset_max, lambda at: _at_least(time_of(at), timestamp_ms)
        )
    after = _first(
        queue_offset_min, queue_offset_max, lambda at: _at_least(time_of(at), timestamp_ms + 1)
    )
    return max(after - 1, queue_offset_min)


def search_batches(
    row_count: int, time_of: TimeOf, timestamp_ms: int, boundary: Boundary = Boundary.LOWER
) -> int | None:
    """The number of the row that answers in a queue of batches; None when there is no row.

    As RocketMQ does it: at or past the newest time the last row; otherwise the first row at or
    after the time, except that UPPER takes the last of several rows of exactly that time.
    """
    if row_count == 0:
        return None
    if _at_least(timestamp_ms, time_of(row_count - 1) or 0):
        return row_count - 1
    first = _first(0, row_count, lambda at: _at_least(time_of(at), timestamp_ms))
    if boundary is Boundary.LOWER:
        return first
    after = _first(first, row_count, lambda at: _at_least(time_of(at), timestamp_ms + 1))
    return max(after - 1, first)


def _at_least(time_ms: int | None, bound_ms: int) -> bool:
    return time_ms is not None and time_ms >= bound_ms


def _first(low: int, high: int, holds: Callable[[int], bool]) -> int:
    """The first number in [low, high) from which on ``holds``, else ``high``."""
    while low < high:
        middle = (low + high) // 2
        if holds(middle):
            high = middle
        else:
            low = middle + 1
    return low
