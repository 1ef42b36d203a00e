"""Parquet files of a table: written by tasks, one file at a time for each partition, and merged."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from contrail.errors import JobFailed
from contrail.pipeline.arrow_fitting import fitted_batch
from contrail.pipeline.row_groups import CHECKED_ROWS, ROW_GROUP_BYTES, same_rows
from contrail.pipeline.tables.layout import DataFile, Partition
from contrail.pipeline.tables.places import Place
from contrail.runtime.crashpoints import crashpoint

TOPIC, DAY_OF, DATE = "topic", "storeTimestamp", "date"
_BOUNDED = ("queueId", "queueOffset", "bornTimestamp", "storeTimestamp")
_DAY_US = 86_400_000_000
# Rows of all partitions that a task holds before it writes a row group.
_HELD_BYTES_MAX = 64 << 20
_BATCH_ROWS = 1_024


class RowFiles:
    """The files that one task writes below a folder; use it in ``with``."""

    def __init__(
        self,
        place: Place,
        folder: str,
        schema: pa.Schema,
        *,
        compression: str,
        file_bytes_max: int,
    ) -> None:
        self._place = place
        self._folder = folder
        self._schema = schema
        self._compression = compression
        self._file_bytes_max = file_bytes_max
        self._open: dict[Partition, _OpenFile] = {}
        self._held: dict[Partition, list[pa.RecordBatch]] = {}
        self._held_bytes: dict[Partition, int] = {}
        self.done: list[DataFile] = []

    def __enter__(self) -> RowFiles:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        for file in self._open.values():
            file.abandon()
        self._open.clear()

    def add(self, batch: pa.RecordBatch) -> None:
        """Take rows with the columns of the schema, in any order of partitions."""
        for partition, rows in _by_partition(batch):
            self._held.setdefault(partition, []).append(fitted_batch(rows, self._schema))
            self._held_bytes[partition] = self._held_bytes.get(partition, 0) + rows.nbytes
            if self._held_bytes[partition] > ROW_GROUP_BYTES:
                self._write(partition)
        while sum(self._held_bytes.values()) > _HELD_BYTES_MAX:
            self._write(max(self._held_bytes, key=self._held_bytes.__getitem__))

    def finish(self) -> list[DataFile]:
        """Write what is held, close all files, and name them."""
        for partition in list(self._held):
            self._write(partition)
        for partition in list(self._open):
            self._close(partition)
        return self.done

    def _write(self, partition: Partition) -> None:
        rows = pa.Table.from_batches(self._held.pop(partition), self._schema)
        del self._held_bytes[partition]
        file = self._open.get(partition)
        if file is None:
            path = f"{self._folder}/{uuid.uuid4().hex}.parquet"
            file = _OpenFile(self._place, path, partition, self._schema, self._compression)
            self._open[partition] = file
        if file.write(rows) >= self._file_bytes_max:
            self._close(partition)

    def _close(self, partition: Partition) -> None:
        self.done.append(self._open.pop(partition).close())
        crashpoint("tables.file_written")


class _OpenFile:
    """A file of one partition while it is written."""

    def __init__(
        self, place: Place, path: str, partition: Partition, schema: pa.Schema, compression: str
    ) -> None:
        self._place, self._path, self._partition = place, path, partition
        self._stack = ExitStack()
        self._file = self._stack.enter_context(place.writing(path))
        self._writer = pq.ParquetWriter(
            self._file, schema, compression=compression, write_batch_size=CHECKED_ROWS
        )
        self._rows = 0
        self._bounds: dict[str, tuple[int, int]] = {}

    def write(self, rows: pa.Table) -> int:
        """Write a row group; returns the bytes of the file."""
        self._writer.write_table(rows)
        self._rows += rows.num_rows
        self._bounds = _joined(self._bounds, _bounds_of(rows))
        return int(self._file.tell())

    def close(self) -> DataFile:
        self._writer.close()
        size = int(self._file.tell())
        self._stack.close()
        return DataFile(self._path, self._partition, self._rows, size, self._bounds)

    def abandon(self) -> None:
        """Leave the file as it is: no commit names it, and the next run deletes it."""
        self._writer.close()
        self._stack.close()


def merge_files(
    place: Place,
    parts: Iterable[str],
    target: str,
    partition: Partition,
    schema: pa.Schema,
    compression: str,
) -> DataFile:
    """Write the rows of ``parts`` to ``target``, in order; compared and durable on return.

    Raises:
        JobFailed: the merged file has other rows than its parts.
    """
    paths = list(parts)
    file = _OpenFile(place, target, partition, schema, compression)
    held: list[pa.RecordBatch] = []
    held_bytes = 0
    try:
        for batch in read_rows(place, paths, schema):
            held.append(batch)
            held_bytes += batch.nbytes
            if held_bytes > ROW_GROUP_BYTES:
                file.write(pa.Table.from_batches(held, schema))
                held, held_bytes = [], 0
        if held:
            file.write(pa.Table.from_batches(held, schema))
    except BaseException:
        file.abandon()
        raise
    merged = file.close()
    crashpoint("tables.merged_file_written")
    if same_rows(read_rows(place, paths, schema), read_rows(place, [target], schema)) is None:
        raise JobFailed(f"{target!r} does not hold the rows of its {len(paths)} parts")
    return merged


def read_rows(place: Place, paths: Iterable[str], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The rows of files in their order; columns that a file lacks are null."""
    for path in paths:
        with place.reading(path) as opened, pq.ParquetFile(opened) as file:
            for batch in file.iter_batches(batch_size=_BATCH_ROWS):
                yield fitted_batch(batch, schema)


def _by_partition(batch: pa.RecordBatch) -> Iterator[tuple[Partition, pa.RecordBatch]]:
    """The rows of each topic and day, each in the order of the batch."""
    if batch.num_rows == 0:
        return
    micros = batch.column(DAY_OF).cast(pa.timestamp("us", tz="UTC")).cast(pa.int64())
    days = pc.divide(pc.subtract(micros, _floor_rest(micros)), _DAY_US)
    topics = batch.column(TOPIC).cast(pa.string())
    pairs = pa.table({"topic": topics, "day": days}).group_by(["topic", "day"]).aggregate([])
    for topic, day in zip(pairs["topic"].to_pylist(), pairs["day"].to_pylist(), strict=True):
        date = datetime.fromtimestamp(day * 86_400, UTC).date().isoformat()
        if pairs.num_rows == 1:
            yield Partition(topic, date), batch
            return
        mask = pc.and_(pc.equal(topics, topic), pc.equal(days, day))
        yield Partition(topic, date), batch.filter(mask)


def _floor_rest(micros: pa.Array) -> pa.Array:
    """The time since the beginning of its day; never negative, also before 1970."""
    quotient = pc.floor(pc.divide(micros.cast(pa.float64()), float(_DAY_US))).cast(pa.int64())
    return pc.subtract(micros, pc.multiply(quotient, _DAY_US))


def _bounds_of(rows: pa.Table) -> dict[str, tuple[int, int]]:
    found = {}
    for name in _BOUNDED:
        if rows.schema.get_field_index(name) < 0:
            continue
        column = rows[name]
        if pa.types.is_timestamp(column.type):
            column = column.cast(pa.timestamp("us", tz="UTC")).cast(pa.int64())
        ends = pc.min_max(column).as_py()
        if ends["min"] is not None:
            found[name] = (int(ends["min"]), int(ends["max"]))
    return found


def _joined(
    one: dict[str, tuple[int, int]], other: dict[str, tuple[int, int]]
) -> dict[str, tuple[int, int]]:
    joined = dict(one)
    for name, (low, high) in other.items():
        known = joined.get(name, (low, high))
        joined[name] = (min(known[0], low), max(known[1], high))
    return joined
