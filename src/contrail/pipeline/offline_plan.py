"""Cuts a read of a store folder into slices; runs on the driver."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from contrail.errors import OptionInvalid, StoreLayoutError
from contrail.model.subscription import parse_subscription
from contrail.pipeline.offline_choice import Choice, QueueBounds, QueueName
from contrail.pipeline.offline_files import Losses, Segment
from contrail.pipeline.offline_slices import OfflineSlice, QueueRows
from contrail.pipeline.options import Place, PlaceKind, SourceSettings
from contrail.store.reader import StoreReader

SLICE_BYTES = 128 << 20
# A query that wants more than this part of the log reads the whole log.
_DENSE_PART = 0.2
_SAMPLE_COUNT = 32


class WantedQueue(NamedTuple):
    """The wanted rows of a queue, the bytes of its records, and the first physical offset."""

    rows: QueueRows
    record_bytes: int
    physical_start: int

    @property
    def row_count(self) -> int:
        return self.rows.row_stop - self.rows.row_start

    @property
    def byte_count(self) -> int:
        return self.row_count * self.record_bytes


class OfflinePlan:
    """One store folder and the options of its read."""

    def __init__(self, settings: SourceSettings) -> None:
        self._settings = settings
        self._path = settings.store_path or ""
        self._reader = _opened(self._path, settings.segment_bytes)
        self._losses = Losses(self._path, settings.fail_on_data_loss)
        self._segments = tuple(
            Segment(str(file.path), file.start, file.end) for file in self._reader.segments
        )
        self._choice = self._bounded(_choice(settings))

    def slices(self) -> list[OfflineSlice]:
        """Slices that cover all wanted records, in the order of the log or of the queues."""
        if not self._segments:
            return []
        queues = list(self._wanted_queues())
        self._require_topics()
        if self._reads_the_log(queues):
            return self._log_slices(self._log_start(queues), queues)
        return [*self._queue_slices(queues), *self._log_slices(self._reader.derived_end, [])]

    # The wanted records.

    def _bounded(self, choice: Choice) -> Choice:
        """The choice with the bounds of each queue, from the options and the folder."""
        reader = self._reader
        everywhere, bounds = _asked_bounds(self._settings.starting, self._settings.ending)
        if choice.is_everything:
            return replace(choice, bounds=bounds, other_bounds=everywhere)
        dead = reader.known.derived.tombstones if reader.known.derived else {}
        for (topic, queue_id), queue in reader.queues.items():
            name = (topic.decode("utf-8", "replace"), queue_id)
            if not choice.takes_queue(*name):
                continue
            live = queue.live_rows(reader.physical_min, reader.physical_end)
            start = queue.place(live[0])[0] if live else reader.derived_end
            asked = bounds.get(name, everywhere)
            bounds[name] = replace(asked, physical_start=max(start, dead.get(topic, 0)))
            self._require_start(name, asked, queue.queue_offsets(live[0])[0] if live else 0)
        # Without any rows only the log tells the offsets.
        other = replace(everywhere, physical_start=reader.derived_end if reader.queues else 0)
        return replace(choice, bounds=bounds, other_bounds=other)

    def _require_start(self, name: QueueName, asked: QueueBounds, queue_offset_min: int) -> None:
        if asked.queue_offset_start < queue_offset_min and asked.names_start:
            self._losses.note_text(
                f"queue {name[1]} of {name[0]!r} has lost {asked.queue_offset_start} to "
                f"{queue_offset_min - 1}: it begins at {queue_offset_min}"
            )

    def _require_topics(self) -> None:
        reader = self._reader
        known = {topic.decode("utf-8", "replace") for topic, _ in reader.queues}
        missing = sorted(self._choice.topics - known)
        if missing and known and reader.derived_end >= reader.physical_end:
            raise OptionInvalid(
                f"subscribe: {self._path} has no topic {missing[0]!r}: it has "
                f"{', '.join(sorted(known)[:8])}"
            )

    def _wanted_queues(self) -> Iterator[WantedQueue]:
        """The rows of records below the physical offset from which on the log itself is read."""
        for topic, queue_id in sorted(self._reader.queues):
            name = topic.decode("utf-8", "replace")
            if self._choice.takes_queue(name, queue_id):
                wanted = self._wanted(topic, queue_id, self._choice.bounds_of(name, queue_id))
                if wanted is not None:
                    yield wanted

    def _wanted(self, topic: bytes, queue_id: int, bounds: QueueBounds) -> WantedQueue | None:
        queue = self._reader.queues[topic, queue_id]
        live = queue.live_rows(self._reader.physical_min, self._reader.derived_end)

        def reach(number: int) -> int:
            return queue.queue_offsets(number)[1]

        with queue.held_open():
            first = live.start + bisect_left(live, bounds.queue_offset_start + 1, key=reach)
            stop = live.start + bisect_left(live, bounds.queue_offset_end, key=reach) + 1
            stop = min(stop, live.stop)
            if first >= stop:
                return None
            step = max((stop - first) // _SAMPLE_COUNT, 1)
            sizes = [queue.place(number)[1] for number in range(first, stop, step)]
            physical_start = queue.place(first)[0]
        rows = QueueRows(
            topic.decode("utf-8", "replace"),
            queue_id,
            str(queue.folder),
            queue.file_bytes,
            queue.is_batch,
            first,
            stop,
        )
        return WantedQueue(rows, sum(sizes) // len(sizes), physical_start)

    # The kind and number of slices.

    def _reads_the_log(self, queues: list[WantedQueue]) -> bool:
        if self._settings.physical_order or self._choice.is_everything or not queues:
            return True
        span = self._reader.derived_end - self._log_start(queues)
        return sum(queue.byte_count for queue in queues) >= _DENSE_PART * span

    def _log_start(self, queues: list[WantedQueue]) -> int:
        if self._choice.is_everything or not self._reader.queues:
            return self._reader.physical_min
        starts = [queue.physical_start for queue in queues]
        return max(min([*starts, self._reader.derived_end]), self._reader.physical_min)

    def _log_slices(self, start: int, queues: list[WantedQueue]) -> list[OfflineSlice]:
        end = self._reader.physical_end
        if start >= end:
            return []
        count = self._count(end - start, sum(queue.row_count for queue in queues))
        count = max(count, self._settings.min_partitions or 1)
        edges = {self._record_start(start + (end - start) * n // count) for n in range(1, count)}
        inner = sorted(edge for edge in edges if start < edge < end)
        return [self._slice(low, high) for low, high in pairwise([start, *inner, end])]

    def _queue_slices(self, queues: list[WantedQueue]) -> Iterator[OfflineSlice]:
        row_count = sum(queue.row_count for queue in queues)
        for queue in queues:
            share = -(-(self._settings.min_partitions or 0) * queue.row_count // row_count)
            count = max(share, self._count(queue.byte_count, queue.row_count))
            count = min(count, queue.row_count)
            first = queue.rows.row_start
            edges = [first + queue.row_count * n // count for n in range(count + 1)]
            for low, high in pairwise(edges):
                yield self._queue_slice(replace(queue.rows, row_start=low, row_stop=high))

    def _count(self, byte_count: int, record_count: int) -> int:
        """The number of slices for these bytes and records; records of a log are estimated."""
        most = self._settings.max_records_per_partition
        by_records = -(-record_count // most) if most else 1
        return max(by_records, -(-byte_count // SLICE_BYTES), 1)

    def _record_start(self, physical_offset: int) -> int:
        """The next sure start of a record: the target of a row, or the start of a segment."""
        starts = [file.start for file in self._segments if file.start >= physical_offset]
        found = starts[0] if starts else self._reader.physical_end
        number = bisect_left(self._sample_rows, physical_offset, key=self._sample_place)
        if number < len(self._sample_rows):
            found = min(found, self._sample_place(self._sample_rows[number]))
        return found

    @cached_property
    def _sample_key(self) -> tuple[bytes, int] | None:
        """The queue with the most rows: its records are closest together."""
        rows = {key: len(self._rows_of(key)) for key in self._reader.queues}
        return max(rows, key=rows.__getitem__) if rows else None

    @cached_property
    def _sample_rows(self) -> range:
        return self._rows_of(self._sample_key) if self._sample_key is not None else range(0)

    def _sample_place(self, number: int) -> int:
        assert self._sample_key is not None, "a row is one of a queue"
        return self._reader.queues[self._sample_key].place(number)[0]

    def _rows_of(self, key: tuple[bytes, int]) -> range:
        reader = self._reader
        return reader.queues[key].live_rows(reader.physical_min, reader.derived_end)

    # The slices.

    def _queue_slice(self, rows: QueueRows) -> OfflineSlice:
        queue = self._reader.queues[rows.topic.encode(), rows.queue_id]
        last_place, last_size = queue.place(rows.row_stop - 1)
        return self._slice(queue.place(rows.row_start)[0], last_place + last_size, rows)

    def _slice(self, start: int, end: int, rows: QueueRows | None = None) -> OfflineSlice:
        settings, log = self._settings, self._reader.known.log
        return OfflineSlice(
            store_path=self._path,
            choice=self._choice,
            segments=tuple(s for s in self._segments if s.start < end and s.end > start),
            physical_start=start,
            physical_end=end,
            queue=rows,
            broker_name=_broker_name(settings),
            raw_body=settings.raw_body,
            fail_on_decode_error=settings.fail_on_decode_error,
            fail_on_data_loss=settings.fail_on_data_loss,
            record_crc=log is not None and log.record_crc_from is not None,
        )


def _opened(path: str, segment_bytes: int | None) -> StoreReader:
    try:
        return StoreReader.open(Path(path), segment_bytes=segment_bytes)
    except StoreLayoutError as error:
        raise OptionInvalid(f"storePath: {error}") from error


def _choice(settings: SourceSettings) -> Choice:
    queues = None
    if settings.assigned is not None:
        queues = frozenset(
            (topic, queue_id)
            for topic, assigned in settings.assigned.items()
            for _, queue_id in assigned
        )
    return Choice(
        topics=frozenset(settings.topics),
        pattern=settings.topic_pattern,
        queues=queues,
        internal_topics=settings.internal_topics,
        tags=parse_subscription("", settings.tags).tags,
    )


def _asked_bounds(
    starting: Place, ending: Place
) -> tuple[QueueBounds, dict[QueueName, QueueBounds]]:
    """The bounds from the options: for every queue, and for named queues."""
    everywhere = QueueBounds()
    if starting.kind is PlaceKind.TIMESTAMP:
        everywhere = replace(everywhere, begin_ms=starting.timestamp_ms)
    if ending.kind is PlaceKind.TIMESTAMP:
        everywhere = replace(everywhere, end_ms=ending.timestamp_ms)
    bounds: dict[QueueName, QueueBounds] = {}
    for place, offset_name, time_name in (
        (starting, "queue_offset_start", "begin_ms"),
        (ending, "queue_offset_end", "end_ms"),
    ):
        name = time_name if place.kind is PlaceKind.TIMESTAMPS else offset_name
        for (topic, _, queue_id), number in place.by_queue.items():
            asked = bounds.get((topic, queue_id), everywhere)
            # Numbers below zero mean the first and the next offset: the queue's own bounds.
            bounds[topic, queue_id] = replace(asked, **{name: number}) if number >= 0 else asked
    return everywhere, bounds


def _broker_name(settings: SourceSettings) -> str:
    """The broker's name in the options: a store folder does not hold it.

    Raises:
        OptionInvalid: they name two brokers.
    """
    places = [*settings.starting.by_queue, *settings.ending.by_queue]
    names = {broker_name for _, broker_name, _ in places}
    for assigned in (settings.assigned or {}).values():
        names |= {broker_name for broker_name, _ in assigned}
    if len(names) > 1:
        raise OptionInvalid(
            f"assign: a folder is that of one broker, not of {' and '.join(sorted(names))}: read "
            f"each broker's folder by itself"
        )
    return names.pop() if names else ""
