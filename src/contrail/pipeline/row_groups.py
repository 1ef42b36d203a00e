"""Sizes of the row groups of Parquet files with messages.

A writer gathers a row group in memory, and Spark's reader holds it whole. By default writers check
sizes only every hundred rows or more: with bodies of a megabyte that alone is more than a small
JVM has.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from contrail.errors import JobFailed
from contrail.pipeline.arrow_fitting import fitted_batch, united

COMPRESSIONS = ("zstd", "snappy", "gzip", "lz4", "none")
ROW_GROUP_BYTES = 32 << 20
# After this many rows a writer checks whether a page, a dictionary or a row group is full.
CHECKED_ROWS = 8
_BATCH_ROWS_MAX = 1_024
_BATCH_BYTES = 4 << 20

ROW_GROUPS = {
    "parquet.block.size": str(ROW_GROUP_BYTES),
    "parquet.block.size.row.check.min": str(CHECKED_ROWS),
    "parquet.page.size.row.check.min": str(CHECKED_ROWS),
}


def write_rows(parts: list[Path], target: Path, compression: str) -> None:
    """Write the rows of ``parts``, at least one file, to ``target``, in order.

    Raises:
        JobFailed: the parts have different columns.
    """
    schema = schema_of_all(parts)
    with pq.ParquetWriter(
        target,
        schema,
        compression=compression,
        # By default a page or dictionary ends only after 1,024 bodies of any size.
        write_batch_size=CHECKED_ROWS,
    ) as writer:
        for row_group in _row_groups(read_batches(parts, schema)):
            writer.write_table(row_group)


def read_batches(
    parts: Iterable[Path], schema: pa.Schema | None = None
) -> Iterator[pa.RecordBatch]:
    """The rows of files in their order, a few megabytes at a time, with the columns of ``schema``.

    A column that a file does not have is null.
    """
    for part in parts:
        with pq.ParquetFile(part) as file:
            for number in range(file.num_row_groups):
                rows = _batch_rows(file.metadata.row_group(number))
                for batch in file.iter_batches(batch_size=rows, row_groups=[number]):
                    fits = schema is None or batch.schema.equals(schema)
                    yield from _cut(batch if fits else fitted_batch(batch, schema))


def schema_of_all(parts: list[Path]) -> pa.Schema:
    """The columns of all files: those of the first, then what others have more.

    Raises:
        JobFailed: files have a column of different types.
    """
    schema = pq.read_schema(parts[0])
    for part in parts[1:]:
        other = pq.read_schema(part)
        if other.equals(schema):
            continue
        schema = united(schema, other)
        for field in other:
            kind = schema.field(field.name).type
            if kind != field.type and not pa.types.is_struct(kind):
                raise JobFailed(
                    f"{str(part)!r} has other columns than {str(parts[0])!r}: {field.name!r} is "
                    f"{field.type} there and {kind} before"
                )
    return schema


def _row_groups(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Batches gathered to row groups that a reader can hold, whatever size they had before."""
    held: list[pa.RecordBatch] = []
    held_bytes = 0
    for batch in batches:
        if held and held_bytes + batch.nbytes > ROW_GROUP_BYTES:
            yield pa.Table.from_batches(held)
            held, held_bytes = [], 0
        held.append(batch)
        held_bytes += batch.nbytes
    if held:
        yield pa.Table.from_batches(held)


def _cut(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Halve a batch until it fits: its rows may be larger than their mean, or dictionary coded."""
    if batch.nbytes <= 2 * _BATCH_BYTES or batch.num_rows == 1:
        yield batch
        return
    half = batch.num_rows // 2
    yield from _cut(batch.slice(0, half))
    yield from _cut(batch.slice(half))


def _batch_rows(row_group: pq.RowGroupMetaData) -> int:
    """How many rows of a row group are read together."""
    row_bytes: int = row_group.total_byte_size // max(1, row_group.num_rows)
    return max(1, min(_BATCH_ROWS_MAX, _BATCH_BYTES // max(1, row_bytes)))


def same_rows(one: Iterator[pa.RecordBatch], other: Iterator[pa.RecordBatch]) -> int | None:
    """The number of rows, if both have the same rows in the same order; else None."""
    rows = 0
    left = right = None
    while True:
        left, right = _next(left, one), _next(right, other)
        if left is None or right is None:
            return rows if left is right else None
        count = min(left.num_rows, right.num_rows)
        if not left.slice(0, count).equals(right.slice(0, count)):
            return None
        rows += count
        left, right = left.slice(count), right.slice(count)


def _next(held: pa.RecordBatch | None, more: Iterator[pa.RecordBatch]) -> pa.RecordBatch | None:
    """The held batch if it has rows, else the next batch with rows; None at the end."""
    while held is None or held.num_rows == 0:
        held = next(more, None)
        if held is None:
            return None
    return held
