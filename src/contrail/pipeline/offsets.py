"""Queue offsets as plain numbers: Spark's offset JSON, and the rules by which a stream moves.

An offset of a stream is ``{"orders": {"broker-a:0": 1200, "broker-b:0": 990}}``. Queue ids repeat
per broker, so a queue's key names its broker. This module asks no broker: the ranges of the queues
are arguments.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from contrail.errors import NotThere, OptionInvalid
from contrail.pipeline.options import EARLIEST_OFFSET, LATEST_OFFSET, Place, PlaceKind, parse_queue
from contrail.protocol.json_style import MessageQueue

QueueKey = MessageQueue
OffsetJson = dict[str, dict[str, int]]
# A queue's smallest and its next offset.
Range = tuple[int, int]


class Slice(NamedTuple):
    """A stretch of one queue: ``[queue_offset_start, queue_offset_end)``."""

    queue: QueueKey
    queue_offset_start: int
    queue_offset_end: int


def queue_name(key: QueueKey) -> str:
    """A queue's name in error texts."""
    return f"{key.topic} {key.broker_name}:{key.queue_id}"


def to_json(offsets: Mapping[QueueKey, int]) -> OffsetJson:
    """Offsets as Spark keeps them; equal offsets give equal text."""
    found: OffsetJson = {}
    for key in sorted(offsets):
        found.setdefault(key.topic, {})[f"{key.broker_name}:{key.queue_id}"] = offsets[key]
    return found


def from_json(value: Mapping[str, Mapping[str, int]]) -> dict[QueueKey, int]:
    """The inverse of ``to_json``."""
    return {
        QueueKey(topic, *parse_queue("checkpoint", queue)): queue_offset
        for topic, queues in value.items()
        for queue, queue_offset in queues.items()
    }


# The beginning and end of a read.


def asked_times(place: Place, keys: Collection[QueueKey]) -> dict[int, list[QueueKey]]:
    """The times that must be looked up for a place, each with its queues."""
    if place.kind is PlaceKind.TIMESTAMP:
        return {place.timestamp_ms: sorted(keys)}
    asked: dict[int, list[QueueKey]] = {}
    if place.kind is PlaceKind.TIMESTAMPS:
        for key in sorted(keys):
            asked.setdefault(place.by_queue[key], []).append(key)
    return asked


def start_of_group(
    place: Place,
    ranges: Mapping[QueueKey, Range],
    committed: Mapping[QueueKey, int | None],
) -> dict[QueueKey, int]:
    """Where a group stands on each queue; a queue without its offset begins at the smallest.

    Raises:
        NotThere: the group has no offset on any of the queues.
    """
    if ranges and all(at is None for at in committed.values()):
        topics = ", ".join(sorted({key.topic for key in ranges})[:3])
        raise NotThere(
            f"{place.option}: group {place.group!r} has no offset on {topics}: correct its name, "
            "or give earliest"
        )
    found = {}
    for key, (queue_offset_min, _) in ranges.items():
        at = committed[key]
        found[key] = queue_offset_min if at is None else at
    return found


def check_place(place: Place, keys: Collection[QueueKey]) -> None:
    """Raises ``OptionInvalid`` when a place by queue names other queues than are read."""
    if place.kind not in (PlaceKind.OFFSETS, PlaceKind.TIMESTAMPS):
        return
    missing = sorted(set(keys) - set(place.by_queue))
    unknown = sorted(QueueKey(*key) for key in set(place.by_queue) - set(keys))
    if missing:
        raise OptionInvalid(f"{place.option}: it lacks {_named(missing)}: name every queue")
    if unknown:
        raise OptionInvalid(f"{place.option}: {_named(unknown)}: no such queue is read")


def start_of(
    place: Place,
    ranges: Mapping[QueueKey, Range],
    at_times: Mapping[QueueKey, int],
    *,
    latest_if_none_is_so_new: bool = False,
) -> dict[QueueKey, int]:
    """The queue offset at which each queue is read first.

    Raises:
        OptionInvalid: a queue has no message as new as the given time, and the options do not
            say to begin at its end then.
    """
    starts = {key: _at(place, key, ranges[key], at_times) for key in ranges}
    too_new = sorted(key for key in at_times if starts[key] >= ranges[key][1])
    if too_new and not latest_if_none_is_so_new:
        raise OptionInvalid(
            f"{place.option}: {_named(too_new)} has no message that new: give an earlier time, or "
            "startingOffsetsByTimestampStrategy=latest to begin at the end there"
        )
    return starts


def end_of(
    place: Place, ranges: Mapping[QueueKey, Range], at_times: Mapping[QueueKey, int]
) -> dict[QueueKey, int]:
    """The queue offset before which each queue's read ends."""
    return {key: _at(place, key, ranges[key], at_times) for key in ranges}


def _at(place: Place, key: QueueKey, ends: Range, at_times: Mapping[QueueKey, int]) -> int:
    queue_offset_min, queue_offset_max = ends
    if key in at_times:
        return min(at_times[key], queue_offset_max)
    if place.kind is not PlaceKind.OFFSETS:
        return queue_offset_min if place.kind is PlaceKind.EARLIEST else queue_offset_max
    asked = place.by_queue[key]
    if asked >= 0:
        return asked
    return queue_offset_min if asked == EARLIEST_OFFSET else queue_offset_max


# The moves of a stream.


def reachable(
    start: Mapping[QueueKey, int],
    ranges: Mapping[QueueKey, Range],
    gone: Collection[QueueKey] = (),
) -> tuple[dict[QueueKey, int], list[str]]:
    """The offsets up to which a stream at ``start`` can read now, and the contradictions.

    A queue without a range (its broker is away) keeps its offset; one of ``gone`` (its broker has
    deleted the topic) leaves, so that offsets do not grow with every topic that there ever was.
    A new queue is first entered at its smallest offset, with nothing read: only queues in
    ``start`` are replayed exactly. A queue that ends before ``start`` was made anew: it is
    reported, and the stream goes to its end.
    """
    ends = {key: at for key, at in start.items() if key not in gone}
    losses = []
    for key, (queue_offset_min, queue_offset_max) in ranges.items():
        if key not in start:
            ends[key] = queue_offset_min
            continue
        ends[key] = queue_offset_max
        if queue_offset_max < start[key]:
            losses.append(
                f"{queue_name(key)} ends at {queue_offset_max} and was read up to {start[key]}: "
                "the topic was made anew, or its broker lost messages"
            )
    return ends, losses


def share_by_lag(
    start: Mapping[QueueKey, int], end: Mapping[QueueKey, int], count_max: int
) -> dict[QueueKey, int]:
    """``end`` moved back so that at most ``count_max`` offsets lie between the two.

    Every queue gets a share in proportion to its lag, and at least one offset while there are
    enough for all; when there are not, the queues take turns.
    """
    lags = {
        key: end[key] - start[key] for key in sorted(end) if end[key] > start.get(key, end[key])
    }
    if sum(lags.values()) <= count_max:
        return dict(end)
    if count_max < len(lags):
        shares = dict.fromkeys(_turn(list(lags), count_max, sum(start.values())), 1)
    else:
        shares = _largest_remainder(lags, count_max)
    return {key: start[key] + shares.get(key, 0) if key in lags else end[key] for key in end}


def _turn(keys: list[QueueKey], count: int, moved: int) -> list[QueueKey]:
    """``count`` of the queues; ``moved`` grows by as many each time, so all queues get a turn."""
    first = moved % len(keys)
    return (keys[first:] + keys[:first])[:count]


def _largest_remainder(lags: Mapping[QueueKey, int], count: int) -> dict[QueueKey, int]:
    """Share ``count`` by lag: rounded down, the rest by largest remainders; at least one each."""
    total = sum(lags.values())
    shares = {key: count * lag // total for key, lag in lags.items()}
    by_remainder = sorted(lags, key=lambda key: (-(count * lags[key] % total), key))
    for key in by_remainder[: count - sum(shares.values())]:
        shares[key] += 1
    for key in [key for key, share in shares.items() if share == 0]:
        shares[max(shares, key=shares.__getitem__)] -= 1
        shares[key] = 1
    return shares


def count_between(start: Mapping[QueueKey, int], end: Mapping[QueueKey, int]) -> int:
    """How many queue offsets lie between two offsets of a stream."""
    return sum(max(0, end[key] - start.get(key, end[key])) for key in end)


def ranges_to_read(
    start: Mapping[QueueKey, int],
    end: Mapping[QueueKey, int],
    ranges: Mapping[QueueKey, Range],
) -> tuple[list[Slice], list[str]]:
    """The slices between two offsets of a stream, without removed messages, and the losses.

    A queue without a range is not cut: its broker is away, and the task that reads it fails.
    """
    slices, losses = [], []
    for key in sorted(end):
        queue_offset_min, queue_offset_max = ranges.get(key, (0, end[key]))
        first = start.get(key, queue_offset_min)
        if first > queue_offset_max:
            losses.append(f"{queue_name(key)} ends at {queue_offset_max}, before {first}")
        elif first < queue_offset_min and first < end[key]:
            last = min(end[key], queue_offset_min)
            losses.append(
                f"{queue_name(key)} has lost {first} to {last}: it begins at {queue_offset_min}"
            )
        elif end[key] > queue_offset_max:
            losses.append(f"{queue_name(key)} ends at {queue_offset_max}, before {end[key]}")
        first, last = max(first, queue_offset_min), min(end[key], queue_offset_max)
        if first < last:
            slices.append(Slice(key, first, last))
    return slices, losses


def require_order(
    starting: Place,
    ending: Place,
    start: Mapping[QueueKey, int],
    end: Mapping[QueueKey, int],
) -> None:
    """Raises ``OptionInvalid`` if the read of a queue would end before it begins.

    A read that begins at the oldest message left, or ends at the queue's end, is no
    contradiction: messages that are missing there are lost, which is another error.
    """
    for key in sorted(end):
        is_open = (
            starting.kind is PlaceKind.EARLIEST
            or ending.kind is PlaceKind.LATEST
            or starting.by_queue.get(key) == EARLIEST_OFFSET
            or ending.by_queue.get(key) == LATEST_OFFSET
        )
        if end[key] < start[key] and not is_open:
            raise OptionInvalid(
                f"{ending.option or 'endingOffsets'}: {queue_name(key)} would end at {end[key]}, "
                f"before {start[key]}, where {starting.option or 'startingOffsets'} begins: give "
                "an end that is not before the start"
            )


def lag_by_queue(
    start: Mapping[QueueKey, int], ranges: Mapping[QueueKey, Range]
) -> dict[QueueKey, int]:
    """How many offsets each queue has after ``start``."""
    return {key: ends[1] - start.get(key, ends[0]) for key, ends in ranges.items()}


def _named(keys: Iterable[QueueKey]) -> str:
    """The names of some of the queues, for an error text."""
    names = [queue_name(key) for key in keys]
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more
