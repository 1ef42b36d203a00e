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
    with pq.ParquetWriter(
        target,
        _schema(parts),
        compression=compression,
        # By default a page or dictionary ends only after 1,024 bodies of any size.
        write_batch_size=CHECKED_ROWS,
    ) as writer:
        for row_group in _row_groups(read_batches(parts)):
            writer.write_table(row_group)


def read_batches(parts: Iterable[Path]) -> Iterator[pa.RecordBatch]:
    """The rows of files in their order, a few megabytes at a time."""
    for part in parts:
        with pq.ParquetFile(part) as file:
            for number in range(file.num_row_groups):
                rows = _batch_rows(file.metadata.row_group(number))
                for batch in file.iter_batches(batch_size=rows, row_groups=[number]):
                    yield from _cut(batch)


def _schema(parts: list[Path]) -> pa.Schema:
    schema = pq.read_schema(parts[0])
    for part in parts[1:]:
        if not pq.read_schema(part).equals(schema):
            raise JobFailed(f"{str(part)!r} has other columns than {str(parts[0])!r}")
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
