"""Streaming reads.

All methods but ``read`` run in one process of the query on the driver, which keeps a view of the
cluster. Progress lives in Spark's checkpoint alone: the published consumer offsets are for
monitors, and never read back.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from contrail.clock import monotonic_ms
from contrail.errors import ContrailError
from contrail.pipeline.batch_reader import (
    all_ranges,
    check_filter,
    read_task,
    report_losses,
    starting_offsets,
)
from contrail.pipeline.cluster import ClusterView
from contrail.pipeline.group_progress import GroupProgress
from contrail.pipeline.offsets import (
    OffsetJson,
    QueueKey,
    Range,
    count_between,
    from_json,
    lag_by_queue,
    queue_name,
    ranges_to_read,
    reachable,
    share_by_lag,
    to_json,
)
from contrail.pipeline.options import SourceSettings
from contrail.pipeline.partitions import QueueSlice, plan_partitions
from contrail.pipeline.pulls import read_slice
from contrail.pipeline.spoken_errors import spoken
from contrail.pipeline.typed.reading import ReadColumns

log = logging.getLogger(__name__)

# Spark asks for the end of the queues twice per poll; both calls may get the same answer.
RANGES_AGE_MS_MAX = 200
# The mean size of records is measured on this many records of each of this many queues.
_SAMPLE_QUEUE_COUNT = 4
_SAMPLE_RECORD_COUNT = 32


class TriggerGate:
    """Delays a small batch until it has grown, or has waited long enough."""

    def __init__(self, count_min: int | None, delay_ms_max: int) -> None:
        self._count_min = count_min
        self._delay_ms_max = delay_ms_max
        self._passed_ms: int | None = None

    def lets_pass(self, count: int, now_ms: int) -> bool:
        """Whether a batch of ``count`` offsets may go at ``now_ms``; the first one always may."""
        if self._count_min is None or count == 0:
            return True
        waited_enough = self._passed_ms is None or now_ms - self._passed_ms >= self._delay_ms_max
        if count < self._count_min and not waited_enough:
            return False
        self._passed_ms = now_ms
        return True


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads queues as they grow."""

    def __init__(self, settings: SourceSettings, schema: StructType) -> None:
        self._settings = settings
        self._columns = ReadColumns(schema, settings.body)
        self._gate = TriggerGate(settings.min_offsets_per_trigger, settings.max_trigger_delay_ms)
        self._view: ClusterView | None = None
        self._target: dict[QueueKey, Range] | None = None
        self._mean_record_bytes = 0.0
        self._group_progress = GroupProgress(settings.cluster, settings.group or "")

    # Offsets of the stream.

    def initialOffset(self) -> OffsetJson:
        ranges = all_ranges(self._settings, self._opened())
        check_filter(self._settings, ranges)
        return to_json(starting_offsets(self._settings, self._opened(), ranges))

    def getDefaultReadLimit(self) -> ReadLimit:
        settings = self._settings
        if settings.max_offsets_per_trigger is not None:
            return ReadMaxRows(settings.max_offsets_per_trigger)
        if settings.max_bytes_per_trigger is not None:
            return ReadMaxBytes(settings.max_bytes_per_trigger)
        if settings.min_offsets_per_trigger is not None:
            return ReadMinRows(settings.min_offsets_per_trigger)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self._ranges_now(age_ms_max=0)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> OffsetJson:
        starts = from_json(start)
        ranges = self._target if self._target is not None else self._ranges_now()
        view = self._opened()
        unknown = [key for key in starts if key not in ranges and key.broker_name not in view.away]
        gone = view.gone(unknown)
        ends, losses = reachable(starts, ranges, gone)
        report_losses(self._settings, losses)
        if isinstance(limit, ReadAllAvailable):
            return to_json(ends)
        return to_json(self._limited(starts, ends))

    def reportLatestOffset(self) -> OffsetJson | None:
        return to_json({key: reach[1] for key, reach in self._ranges_now().items()})

    def _limited(
        self, starts: dict[QueueKey, int], ends: dict[QueueKey, int]
    ) -> dict[QueueKey, int]:
        """The reachable offsets, limited as the options say for one batch.

        A batch is not delayed once the end of the run is fixed: it would never grow.
        """
        count = count_between(starts, ends)
        if self._target is None and not self._gate.lets_pass(count, monotonic_ms()):
            return starts
        if self._settings.max_offsets_per_trigger is not None:
            ends = share_by_lag(starts, ends, self._settings.max_offsets_per_trigger)
        if self._settings.max_bytes_per_trigger is not None and count:
            self._measure(starts, ends)
            count_max = self._settings.max_bytes_per_trigger / max(1.0, self._mean_record_bytes)
            ends = share_by_lag(starts, ends, max(1, int(count_max)))
        return ends

    def _measure(self, starts: Mapping[QueueKey, int], ends: Mapping[QueueKey, int]) -> None:
        """Estimate the size of the next records, by the first ones of the longest queues."""
        lags = {
            key: ends[key] - starts[key] for key in ends if ends[key] > starts.get(key, ends[key])
        }
        size, count = 0, 0
        for key in sorted(lags, key=lambda key: -lags[key])[:_SAMPLE_QUEUE_COUNT]:
            last = starts[key] + min(lags[key], _SAMPLE_RECORD_COUNT)
            found = self._sizes(QueueSlice(*key, starts[key], last))
            size, count = size + found[0], count + found[1]
        if count:
            known = self._mean_record_bytes or size / count
            self._mean_record_bytes = (known + size / count) / 2

    def _sizes(self, piece: QueueSlice) -> tuple[int, int]:
        """The bytes and the number of the records of a slice, without filters."""
        unfiltered = replace(self._settings, tags=None, sql_filter=None, fail_on_data_loss=False)
        size, count = 0, 0
        for buffer, positions in read_slice(unfiltered, piece):
            size, count = size + len(buffer), count + len(positions)
        return size, count

    # Reads of a batch.

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        starts, ends = from_json(start), from_json(end)
        ranges = self._opened().ranges(ends, age_ms_max=RANGES_AGE_MS_MAX)
        slices, losses = ranges_to_read(starts, ends, ranges)
        report_losses(self._settings, losses)
        return list(
            plan_partitions(
                slices,
                min_partitions=self._settings.min_partitions,
                max_records_per_partition=self._settings.max_records_per_partition,
            )
        )

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._columns.batches(read_task(self._settings, partition, self._columns.plan))

    def commit(self, end: dict[str, Any]) -> None:
        ends = from_json(end)
        try:
            self._log_lag(ends)
            if self._settings.group is not None:
                self._group_progress.publish(self._opened(), ends)
        except ContrailError as error:
            # Spark has the progress; it is published again after the next batch.
            log.warning("the progress is not published: %s", error)

    def stop(self) -> None:
        view, self._view = self._view, None
        if view is not None:
            view.close()

    def _log_lag(self, ends: Mapping[QueueKey, int]) -> None:
        lags = lag_by_queue(ends, self._ranges_now())
        behind = ", ".join(f"{queue_name(key)} {lag}" for key, lag in sorted(lags.items()) if lag)
        log.info("lag %d (%s)", sum(lags.values()), behind or "every queue is at its end")

    def _ranges_now(self, *, age_ms_max: int | None = None) -> dict[QueueKey, Range]:
        view = self._opened()
        age_ms = RANGES_AGE_MS_MAX if age_ms_max is None else age_ms_max
        return view.ranges(view.recent_queues(age_ms_max=age_ms), age_ms_max=age_ms)

    def _opened(self) -> ClusterView:
        if self._view is None:
            self._view = ClusterView(self._settings)
        return self._view


class RefusedStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Stands for a stream whose options are refused: raises the error in Spark's first call."""

    def __init__(self, reason: ContrailError) -> None:
        self._reason = reason

    @spoken
    def initialOffset(self) -> OffsetJson:
        raise self._reason

    @spoken
    def getDefaultReadLimit(self) -> ReadLimit:
        raise self._reason

    @spoken
    def prepareForTriggerAvailableNow(self) -> None:
        raise self._reason

    @spoken
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> OffsetJson:
        raise self._reason

    @spoken
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        raise self._reason

    @spoken
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        raise self._reason
