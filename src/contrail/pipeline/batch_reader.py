"""Batch reads: the driver cuts queues into slices, executors read them into Arrow batches."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import accumulate, groupby, islice

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from contrail.client.raw_pulls import BUSY_CODES, RawPulls
from contrail.errors import (
    BrokerRefused,
    CallFailed,
    ClientError,
    DataLost,
    OptionInvalid,
    PipelineError,
)
from contrail.pipeline.arrow import Undecodable, batches
from contrail.pipeline.cluster import ClusterView, client_settings
from contrail.pipeline.columns import ColumnPlan
from contrail.pipeline.offsets import (
    QueueKey,
    Range,
    Slice,
    asked_times,
    check_place,
    end_of,
    queue_name,
    ranges_to_read,
    require_order,
    start_of,
    start_of_group,
)
from contrail.pipeline.options import Place, PlaceKind, SourceSettings
from contrail.pipeline.partitions import QueueSlice, Task, pieces_of, plan_partitions
from contrail.pipeline.pulls import Chunk, is_short, read_short, read_slice, subscription_of
from contrail.pipeline.pushed_filters import (
    NOTHING_PUSHED,
    Pushed,
    before_time_ms,
    from_time_ms,
    narrow_slices,
    push,
)
from contrail.pipeline.spoken_errors import spoken
from contrail.pipeline.typed.reading import ReadColumns
from contrail.protocol.json_style import MessageQueue

log = logging.getLogger(__name__)

# Slices of a shared task that are read together.
_TOGETHER_MAX = 64


class BatchReader(DataSourceReader):
    """Reads the messages that queues hold at the time of planning."""

    def __init__(self, settings: SourceSettings, schema: StructType) -> None:
        self._settings = settings
        self._columns = ReadColumns(schema, settings.body)
        self._pushed = NOTHING_PUSHED

    @spoken
    def partitions(self) -> list[InputPartition]:
        with closing(ClusterView(self._settings)) as view:
            return list(plan_batch(self._settings, view, self._pushed))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._columns.batches(read_task(self._settings, partition, self._columns.plan))


class FilteringBatchReader(BatchReader):
    """Also accepts pushed filters: Spark refuses such a reader while its setting forbids them."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        settings = self._settings
        with_tags = settings.tags is None and settings.sql_filter is None
        self._pushed, unhandled = push(filters, with_tags=with_tags)
        self._settings = replace(settings, tags=settings.tags or self._pushed.tag_expression)
        return unhandled


class OfflineReader(DataSourceReader):
    """Reads a store folder; reads of a cluster do not import its modules."""

    def __init__(self, settings: SourceSettings, schema: StructType) -> None:
        self._settings = settings
        self._columns = ReadColumns(schema, settings.body)

    @spoken
    def partitions(self) -> list[InputPartition]:
        from contrail.pipeline.offline import plan_offline

        return list(plan_offline(self._settings))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        from contrail.pipeline.offline import OfflineSlice, read_offline

        if not isinstance(partition, OfflineSlice):
            return iter(())
        return self._columns.batches(read_offline(partition, self._columns.plan))


def read_task(
    settings: SourceSettings, partition: InputPartition, plan: ColumnPlan
) -> Iterator[pa.RecordBatch]:
    """The rows of a partition; runs on an executor."""
    pieces = pieces_of(partition)
    if len(pieces) == 1:
        yield from _read_queue(settings, pieces[0], plan)
        return
    for broker_name, neighbours in groupby(pieces, key=lambda piece: piece.broker_name):
        for some in _some(neighbours):
            yield from _read_together(settings, broker_name, some, plan)


def _some(pieces: Iterator[QueueSlice]) -> Iterator[list[QueueSlice]]:
    while some := list(islice(pieces, _TOGETHER_MAX)):
        yield some


def _read_together(
    settings: SourceSettings, broker_name: str, pieces: Sequence[QueueSlice], plan: ColumnPlan
) -> Iterator[pa.RecordBatch]:
    """The rows of slices on one broker, in their order whichever way each is read.

    A sink may know rows by their place, and a slice that was read the fast way may be read the
    general way when its batch is replayed.
    """
    short = [piece for piece in pieces if is_short(settings, piece)]
    chunks = dict(zip(short, read_short(settings, short), strict=True))
    undecodable = Undecodable(
        refuses=settings.fail_on_decode_error,
        where=f"{broker_name}, {pieces[0].topic} to {pieces[-1].topic}: ",
    )
    for is_read, neighbours in groupby(pieces, key=lambda piece: chunks.get(piece) is not None):
        if not is_read:
            for piece in neighbours:
                yield from _read_queue(settings, piece, plan)
            continue
        found = [chunk for piece in neighbours if (chunk := chunks[piece]) is not None]
        yield from batches(
            *_joined(found),
            plan,
            broker_name=broker_name,
            raw_body=settings.raw_body,
            undecodable=undecodable,
        )


def _joined(chunks: Sequence[Chunk]) -> Chunk:
    starts = accumulate((len(buffer) for buffer, _ in chunks), initial=0)
    placed = [positions + start for start, (_, positions) in zip(starts, chunks, strict=False)]
    return b"".join(buffer for buffer, _ in chunks), np.concatenate(placed)


def _read_queue(
    settings: SourceSettings, piece: QueueSlice, plan: ColumnPlan
) -> Iterator[pa.RecordBatch]:
    """The rows of a slice."""
    undecodable = Undecodable(
        refuses=settings.fail_on_decode_error,
        where=f"{queue_name(QueueKey(piece.topic, piece.broker_name, piece.queue_id))}: ",
    )
    for buffer, positions in read_slice(settings, piece):
        yield from batches(
            buffer,
            positions,
            plan,
            broker_name=piece.broker_name,
            raw_body=settings.raw_body,
            undecodable=undecodable,
        )


def plan_batch(settings: SourceSettings, view: ClusterView, pushed: Pushed) -> list[Task]:
    """The partitions of a batch.

    Raises:
        DataLost: wanted messages were removed, and ``failOnDataLoss`` is true.
        PipelineError: a broker does not answer, so that its rows would be missing.
    """
    ranges = all_ranges(settings, view)
    check_filter(settings, ranges)
    starts = starting_offsets(settings, view, ranges)
    check_place(settings.ending, ranges)
    ends = end_of(settings.ending, ranges, offsets_of_times(view, settings.ending, ranges))
    require_order(settings.starting, settings.ending, starts, ends)
    slices, losses = ranges_to_read(starts, ends, ranges)
    report_losses(settings, losses)
    return plan_partitions(
        _narrowed(slices, view, pushed),
        min_partitions=settings.min_partitions,
        max_records_per_partition=settings.max_records_per_partition,
    )


def _narrowed(slices: list[Slice], view: ClusterView, pushed: Pushed) -> list[Slice]:
    kept = narrow_slices(slices, pushed, {}, {})
    keys = [piece.queue for piece in kept]
    first_ms, before_ms = from_time_ms(pushed), before_time_ms(pushed)
    from_times = view.offsets_at(keys, first_ms) if keys and first_ms is not None else {}
    before_times = view.offsets_at(keys, before_ms) if keys and before_ms is not None else {}
    return narrow_slices(kept, pushed, from_times, before_times)


def all_ranges(settings: SourceSettings, view: ClusterView) -> dict[QueueKey, Range]:
    """The offset range of every queue that is read; raises if a broker does not answer."""
    keys = set(view.queues())
    for topic, queues in (settings.assigned or {}).items():
        keys |= {QueueKey(topic, *queue) for queue in queues}
    ranges = view.ranges(sorted(keys))
    _require_all(keys, ranges)
    return ranges


def _require_all(asked: Collection[QueueKey], answered: Collection[QueueKey]) -> None:
    away = sorted({key.broker_name for key in asked if key not in answered})
    if away:
        raise PipelineError(
            f"no answer from {', '.join(away)}: its queues cannot be left out, so see that it runs "
            "and can be reached from the driver"
        )


def check_filter(settings: SourceSettings, keys: Iterable[QueueKey]) -> None:
    """Have one broker of each name check ``sqlFilter``, before any task starts.

    Raises:
        OptionInvalid: a broker refuses the expression.
    """
    if settings.sql_filter is None:
        return
    for key in {key.broker_name: key for key in keys}.values():
        queue = MessageQueue(key.topic, key.broker_name, key.queue_id)
        pulls = RawPulls(
            client_settings(settings.cluster),
            queue,
            subscription_of(settings, key.topic),
            timeout_ms=settings.pull_timeout_ms,
        )
        try:
            pulls.connect(0)
        except BrokerRefused as error:
            if error.code not in BUSY_CODES:
                raise OptionInvalid(f"sqlFilter: {error}") from error
        except (CallFailed, ClientError) as error:
            # The task asks again if the broker cannot be reached now.
            log.info("sqlFilter is not checked at %s: %s", key.broker_name, error)
        finally:
            pulls.close()


def starting_offsets(
    settings: SourceSettings, view: ClusterView, ranges: Mapping[QueueKey, Range]
) -> dict[QueueKey, int]:
    """The first queue offset of each queue, as the options say."""
    if settings.starting.kind is PlaceKind.GROUP:
        committed = view.committed(settings.starting.group, ranges)
        _require_all(ranges, committed)
        return start_of_group(settings.starting, ranges, committed)
    check_place(settings.starting, ranges)
    return start_of(
        settings.starting,
        ranges,
        offsets_of_times(view, settings.starting, ranges),
        latest_if_none_is_so_new=settings.latest_if_none_is_so_new,
    )


def offsets_of_times(
    view: ClusterView, place: Place, ranges: Mapping[QueueKey, Range]
) -> dict[QueueKey, int]:
    """The queue offsets of the times in a place; empty if it has no times."""
    found: dict[QueueKey, int] = {}
    for timestamp_ms, keys in asked_times(place, list(ranges)).items():
        found.update(view.offsets_at(keys, timestamp_ms))
        _require_all(keys, found)
    return found


def report_losses(settings: SourceSettings, losses: list[str]) -> None:
    """Raises ``DataLost``, or logs the losses if the query goes on without those messages."""
    if not losses:
        return
    text = "; ".join(losses[:5]) + (f"; and {len(losses) - 5} more" if len(losses) > 5 else "")
    if settings.fail_on_data_loss:
        raise DataLost(f"{text}. To go on with what is left, set failOnDataLoss=false")
    log.warning("%s; the read goes on with what is left (failOnDataLoss=false)", text)
