"""The filters of a batch query that a broker applies more cheaply than Spark.

Several filters are ANDed, so each narrows the read. A filter that is not applied exactly is
returned to Spark, which applies it to the rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from contrail.pipeline.offsets import QueueKey, Slice

# After a step back of a broker's clock later messages have earlier times, and the search by time
# is binary: a cut must be this far away from the time in the filter.
TIME_MARGIN_MS = 10_000

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
# column -> the field of Pushed that holds its remaining values
_SETS = {"topic": "topics", "brokerName": "broker_names", "queueId": "queue_ids", "tags": "tags"}


@dataclass(frozen=True, slots=True)
class Pushed:
    """The narrowed read; None for a column without a filter."""

    topics: frozenset[Any] | None = None
    broker_names: frozenset[Any] | None = None
    queue_ids: frozenset[Any] | None = None
    tags: frozenset[Any] | None = None
    queue_offset_start: int | None = None
    queue_offset_end: int | None = None
    stored_from_ms: int | None = None
    stored_before_ms: int | None = None

    def takes(self, key: QueueKey) -> bool:
        """Whether a queue can have rows."""
        asked = (
            (self.topics, key.topic),
            (self.broker_names, key.broker_name),
            (self.queue_ids, key.queue_id),
        )
        return all(values is None or value in values for values, value in asked)

    @property
    def is_empty(self) -> bool:
        """Whether no row can pass."""
        sets = (self.topics, self.broker_names, self.queue_ids, self.tags)
        return any(values is not None and not values for values in sets)

    @property
    def tag_expression(self) -> str | None:
        """The subscription to the remaining tags."""
        return " || ".join(sorted(self.tags)) if self.tags else None


NOTHING_PUSHED = Pushed()


def push(
    filters: Iterable[Filter], *, with_tags: bool, pushed: Pushed = NOTHING_PUSHED
) -> tuple[Pushed, list[Filter]]:
    """The narrowed read, and the filters that Spark must still apply.

    ``with_tags`` is false if the subscription already has an expression: brokers accept only one.
    """
    unhandled = []
    for asked in filters:
        narrowed, is_exact = _narrow(pushed, asked, with_tags=with_tags)
        pushed = narrowed
        if not is_exact:
            unhandled.append(asked)
    return pushed, unhandled


def narrow_slices(
    slices: Iterable[Slice],
    pushed: Pushed,
    from_times: Mapping[QueueKey, int],
    before_times: Mapping[QueueKey, int],
) -> list[Slice]:
    """The slices without parts that cannot have rows; times are queue offsets, by queue."""
    cut = []
    for piece in slices:
        key, first, last = piece
        first = max(first, pushed.queue_offset_start or first, from_times.get(key, first))
        if pushed.queue_offset_end is not None:
            last = min(last, pushed.queue_offset_end)
        last = min(last, before_times.get(key, last))
        if pushed.takes(key) and first < last and not pushed.is_empty:
            cut.append(Slice(key, first, last))
    return cut


def from_time_ms(pushed: Pushed) -> int | None:
    """The time from which on to look up offsets, with its margin."""
    if pushed.stored_from_ms is None:
        return None
    return max(0, pushed.stored_from_ms - TIME_MARGIN_MS)


def before_time_ms(pushed: Pushed) -> int | None:
    """The time before which to look up offsets, with its margin."""
    if pushed.stored_before_ms is None:
        return None
    return max(0, pushed.stored_before_ms + TIME_MARGIN_MS)


def _narrow(pushed: Pushed, asked: Filter, *, with_tags: bool) -> tuple[Pushed, bool]:
    """``pushed`` with one more filter, and whether it is applied exactly."""
    attribute = getattr(asked, "attribute", None)
    column = attribute[0] if attribute is not None and len(attribute) == 1 else None
    if column == "tags" and not with_tags:
        return pushed, False
    if column in _SETS:
        return _narrow_set(pushed, asked, column)
    if column == "queueOffset":
        return _narrow_offsets(pushed, asked)
    if column == "storeTimestamp":
        return _narrow_times(pushed, asked), False
    return pushed, False


def _narrow_set(pushed: Pushed, asked: Filter, column: str) -> tuple[Pushed, bool]:
    values = _values(asked)
    if values is None or not all(_is_askable(column, value) for value in values):
        return pushed, False
    left = getattr(pushed, _SETS[column])
    narrowed: dict[str, Any] = {_SETS[column]: values if left is None else left & values}
    return replace(pushed, **narrowed), True


def _values(asked: Filter) -> frozenset[Any] | None:
    """The values of an equality or a list; null equals nothing, so it is left out."""
    if isinstance(asked, In):
        return frozenset(value for value in asked.value if value is not None)
    if isinstance(asked, EqualTo):
        return frozenset() if asked.value is None else frozenset({asked.value})
    if isinstance(asked, EqualNullSafe) and asked.value is not None:
        return frozenset({asked.value})
    return None


def _is_askable(column: str, value: Any) -> bool:
    if column == "queueId":
        return isinstance(value, int)
    if column != "tags":
        return isinstance(value, str)
    # Spark applies a filter whose text a subscription would not read as one tag.
    return isinstance(value, str) and value.strip() == value and not {"*", "|"} & set(value or "*")


def _narrow_offsets(pushed: Pushed, asked: Filter) -> tuple[Pushed, bool]:
    value = getattr(asked, "value", None)
    if isinstance(asked, In):
        values = [each for each in asked.value if isinstance(each, int)]
        if not values:
            return pushed, False
        return _between(pushed, min(values), max(values) + 1), False
    if not isinstance(value, int) or isinstance(value, bool):
        return pushed, False
    if isinstance(asked, EqualTo | EqualNullSafe):
        return _between(pushed, value, value + 1), True
    if isinstance(asked, GreaterThan | GreaterThanOrEqual):
        return _between(pushed, value + isinstance(asked, GreaterThan), None), True
    if isinstance(asked, LessThan | LessThanOrEqual):
        return _between(pushed, None, value + isinstance(asked, LessThanOrEqual)), True
    return pushed, False


def _between(pushed: Pushed, start: int | None, end: int | None) -> Pushed:
    return replace(
        pushed,
        queue_offset_start=_tighter(max, pushed.queue_offset_start, start),
        queue_offset_end=_tighter(min, pushed.queue_offset_end, end),
    )


def _narrow_times(pushed: Pushed, asked: Filter) -> Pushed:
    value = getattr(asked, "value", None)
    if not isinstance(value, datetime) or value.tzinfo is None:
        return pushed
    first, last = pushed.stored_from_ms, pushed.stored_before_ms
    # Milliseconds are coarser than Spark's times: round to the side that keeps more rows.
    floor_ms = (value - _EPOCH) // _MILLISECOND
    if isinstance(asked, EqualTo | EqualNullSafe | GreaterThan | GreaterThanOrEqual):
        first = _tighter(max, first, floor_ms)
    if isinstance(asked, EqualTo | EqualNullSafe | LessThan | LessThanOrEqual):
        last = _tighter(min, last, floor_ms + 1)
    return replace(pushed, stored_from_ms=first, stored_before_ms=last)


def _tighter(choose: Any, known: int | None, new: int | None) -> int | None:
    given = [each for each in (known, new) if each is not None]
    return choose(given) if given else None
