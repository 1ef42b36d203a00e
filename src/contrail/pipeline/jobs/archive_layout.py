"""An archive's names and rules, without I/O: hours, files, rounds, messages near deletion.

    ARCHIVE/topic=orders/date=2026-11-16/hour=10/00000012-0003.parquet
    ARCHIVE/_contrail/rounds/00000012.json     the files of round 12, and the next queue offsets
    ARCHIVE/_contrail/staging/...              files of a round that is not committed

Hours are UTC hours of the store time of messages. Readers of Parquet folders skip names that begin
with an underscore.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple
from urllib.parse import unquote

from contrail.errors import JobFailed
from contrail.pipeline.offsets import QueueKey

CONTROL = "_contrail"
PARTITION_COLUMNS = ("topic", "date", "hour")
# Retention deletes whole segments, and one queue may fill a good part of a segment.
_MARGIN_SHARE = 0.1


class Range(NamedTuple):
    """The messages of a queue: ``[queue_offset_start, queue_offset_end)``."""

    queue_offset_start: int
    queue_offset_end: int

    @property
    def length(self) -> int:
        return self.queue_offset_end - self.queue_offset_start


class Hour(NamedTuple):
    """One folder of an archive: the messages of a topic that were stored in one hour."""

    topic: str
    date: str
    hour: int

    @property
    def starts_at(self) -> datetime:
        return datetime.fromisoformat(self.date).replace(hour=self.hour, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class PlacedFile:
    """A file of a round: its staged path and its path in the archive."""

    staged: str
    place: str
    rows: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Round:
    """The files that one round added, and every queue's next queue offset after it."""

    number: int
    next_offsets: dict[QueueKey, int]
    read: dict[QueueKey, Range]
    files: tuple[PlacedFile, ...]

    def as_json(self) -> dict[str, Any]:
        return {
            "round": self.number,
            "next": _by_topic(self.next_offsets),
            "read": _by_topic({queue: list(span) for queue, span in self.read.items()}),
            "files": [
                {
                    "staged": one.staged,
                    "place": one.place,
                    "rows": one.rows,
                    "bytes": one.size_bytes,
                }
                for one in self.files
            ],
        }

    @classmethod
    def of_json(cls, data: Mapping[str, Any]) -> Round:
        return cls(
            number=int(data["round"]),
            next_offsets={queue: int(place) for queue, place in _flat(data["next"])},
            read={queue: Range(*map(int, span)) for queue, span in _flat(data["read"])},
            files=tuple(
                PlacedFile(one["staged"], one["place"], int(one["rows"]), int(one["bytes"]))
                for one in data["files"]
            ),
        )


def _by_topic(values: Mapping[QueueKey, Any]) -> dict[str, dict[str, Any]]:
    table: dict[str, dict[str, Any]] = {}
    for queue in sorted(values):
        table.setdefault(queue.topic, {})[f"{queue.broker_name}:{queue.queue_id}"] = values[queue]
    return table


def _flat(table: Mapping[str, Mapping[str, Any]]) -> Iterable[tuple[QueueKey, Any]]:
    for topic, queues in table.items():
        for name, value in queues.items():
            broker_name, _, queue_id = name.rpartition(":")
            yield QueueKey(topic, broker_name, int(queue_id)), value


def starting_offsets(spans: Mapping[QueueKey, Range]) -> dict[str, dict[str, int]]:
    """The ``startingOffsets`` that make the source read ``spans`` and no other queue."""
    return _by_topic({queue: span.queue_offset_start for queue, span in spans.items()})


def ending_offsets(spans: Mapping[QueueKey, Range]) -> dict[str, dict[str, int]]:
    return _by_topic({queue: span.queue_offset_end for queue, span in spans.items()})


def assigned(spans: Mapping[QueueKey, Range]) -> dict[str, list[str]]:
    """The ``assign`` option for the queues of ``spans``."""
    return {topic: list(queues) for topic, queues in _by_topic(spans).items()}


def parse_hour(place: str) -> Hour | None:
    """The hour of a file or folder inside an archive; None if its path names no hour."""
    parts = [part.partition("=") for part in place.split("/")[:3]]
    if tuple(name for name, _, _ in parts) != PARTITION_COLUMNS:
        return None
    topic, date, hour = (unquote(value) for _, _, value in parts)
    try:
        found = Hour(topic, date, int(hour))
        found.starts_at  # noqa: B018  a date or an hour that is none is no hour
    except ValueError:
        return None
    return found


def is_closed(hour: Hour, now: datetime, grace: timedelta) -> bool:
    """Whether an hour ended so long ago that the archive job is not expected to add to it."""
    return now >= hour.starts_at + timedelta(hours=1) + grace


def plan_spans(
    next_offsets: Mapping[QueueKey, int],
    ranges: Mapping[QueueKey, Range],
    first_offsets: Mapping[QueueKey, int],
) -> dict[QueueKey, Range]:
    """The unarchived range of each queue: from the archive's next offset to the newest message.

    A queue that is not in the archive begins at ``first_offsets``, or else at its oldest message.
    """
    spans = {}
    for queue, there in ranges.items():
        start = next_offsets.get(queue)
        if start is None:
            start = max(first_offsets.get(queue, 0), there.queue_offset_start)
        if start < there.queue_offset_end:
            spans[queue] = Range(start, there.queue_offset_end)
    return spans


def lost_spans(
    spans: Mapping[QueueKey, Range], ranges: Mapping[QueueKey, Range]
) -> dict[QueueKey, Range]:
    """The parts of ``spans`` that the broker deleted before they were archived."""
    return {
        queue: Range(
            span.queue_offset_start, min(ranges[queue].queue_offset_start, span.queue_offset_end)
        )
        for queue, span in spans.items()
        if span.queue_offset_start < ranges[queue].queue_offset_start
    }


def without_lost(
    spans: Mapping[QueueKey, Range], ranges: Mapping[QueueKey, Range]
) -> dict[QueueKey, Range]:
    """``spans`` without the messages that were deleted."""
    kept = {
        queue: Range(
            max(span.queue_offset_start, ranges[queue].queue_offset_start), span.queue_offset_end
        )
        for queue, span in spans.items()
    }
    return {queue: span for queue, span in kept.items() if span.length > 0}


def refuse_foreign(next_offsets: Mapping[QueueKey, int], ranges: Mapping[QueueKey, Range]) -> None:
    """Refuse an archive that is ahead of its queues: it was made from other queues.

    Raises:
        JobFailed: the message names the queue.
    """
    for queue, place in next_offsets.items():
        there = ranges.get(queue)
        if there is not None and place > there.queue_offset_end:
            raise JobFailed(
                f"the archive holds topic {queue.topic!r}, queue {queue.broker_name}:"
                f"{queue.queue_id} up to queue offset {place}, but the queue ends at "
                f"{there.queue_offset_end}: the topic was made anew, or this is another cluster. "
                "Archive it into another folder"
            )


def near_deletion(
    spans: Mapping[QueueKey, Range], ranges: Mapping[QueueKey, Range]
) -> dict[QueueKey, int]:
    """Queues whose oldest unarchived message is near deletion, and its distance in messages.

    Only queues that have lost messages to retention already: the others are younger.
    """
    near = {}
    for queue, span in spans.items():
        there = ranges[queue]
        distance = span.queue_offset_start - there.queue_offset_start
        if there.queue_offset_start > 0 and 0 <= distance < there.length * _MARGIN_SHARE:
            near[queue] = distance
    return near


def next_round_spans(spans: Mapping[QueueKey, Range], rows_max: int) -> dict[QueueKey, Range]:
    """The part of ``spans`` for one round, each queue in proportion to its messages."""
    total = sum(span.length for span in spans.values())
    if total <= rows_max:
        return dict(spans)
    taken = {}
    for queue, span in spans.items():
        # At least one message each: a larger round is better than a queue that never moves.
        count = max(1, span.length * rows_max // total)
        taken[queue] = Range(span.queue_offset_start, span.queue_offset_start + count)
    return taken


def place_files(number: int, staged: Iterable[tuple[str, int, int]]) -> tuple[PlacedFile, ...]:
    """A path in the archive for each staged file (path, rows, bytes), unique among rounds."""
    return tuple(
        PlacedFile(path, f"{path.rpartition('/')[0]}/{number:08d}-{index:04d}.parquet", rows, size)
        for index, (path, rows, size) in enumerate(sorted(staged))
    )


class Kept(NamedTuple):
    """The files and rows that a round added."""

    files: int
    rows: int
    size_bytes: int


class Sized(NamedTuple):
    """A file of an hour, by name."""

    name: str
    size_bytes: int


def plan_merges(files: Iterable[Sized], target_bytes: int) -> list[list[Sized]]:
    """Adjacent small files, grouped to about ``target_bytes``; a single file is not rewritten.

    Sorted by name, which is by round, so that each queue's messages keep their order.
    """
    groups: list[list[Sized]] = []
    group: list[Sized] = []
    for file in sorted(files):
        if group and sum(one.size_bytes for one in group) + file.size_bytes > target_bytes:
            groups.append(group)
            group = []
        group.append(file)
    groups.append(group)
    return [group for group in groups if len(group) > 1]
