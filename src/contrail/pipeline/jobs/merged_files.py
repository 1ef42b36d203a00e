"""Merges Parquet files into one, and makes sure that it holds the same rows.

The merged file is read back beside its parts and compared with them value by value, which costs a
second reading of the parts and leaves no doubt.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from contrail.errors import JobFailed
from contrail.pipeline.jobs.row_groups import CHECKED_ROWS, ROW_GROUP_BYTES

_BATCH_ROWS_MAX = 1_024
_BATCH_BYTES = 4 << 20


class Merged(NamedTuple):
    """What a merged file holds."""

    rows: int
    size_bytes: int


def merge_files(parts: list[Path], target: Path, compression: str) -> Merged:
    """Write the rows of ``parts`` to ``target``, in order; compared and durable on return.

    Raises:
        JobFailed: what was written is not what was read, or the parts have different columns.
    """
    with pq.ParquetWriter(
        target,
        _schema(parts),
        compression=compression,
        # Otherwise no page and no dictionary ends before it has 1,024 bodies of any size.
        write_batch_size=CHECKED_ROWS,
    ) as writer:
        for row_group in _row_groups(_batches(parts)):
            writer.write_table(row_group)
    rows = same_rows(_batches(parts), _batches([target]))
    if rows is None:
        raise JobFailed(f"{str(target)!r} does not hold the rows of its {len(parts)} parts")
    with target.open("rb") as file:
        os.fsync(file.fileno())
        return Merged(rows, os.fstat(file.fileno()).st_size)


def same_rows(one: Iterator[pa.RecordBatch], other: Iterator[pa.RecordBatch]) -> int | None:
    """How many rows two readings have, if they are the same in the same order, however cut."""
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
    """What is held if there are rows in it, else the next with some; None at the end."""
    while held is None or held.num_rows == 0:
        held = next(more, None)
        if held is None:
            return None
    return held


def _schema(parts: list[Path]) -> pa.Schema:
    schema = pq.read_schema(parts[0])
    for part in parts[1:]:
        if not pq.read_schema(part).equals(schema):
            raise JobFailed(f"{str(part)!r} has other columns than {str(parts[0])!r}")
    return schema


def _row_groups(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Batches gathered to what a reader can hold, however large the row groups were before."""
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


def _batches(parts: Iterable[Path]) -> Iterator[pa.RecordBatch]:
    for part in parts:
        with pq.ParquetFile(part) as file:
            for number in range(file.num_row_groups):
                rows = _batch_rows(file.metadata.row_group(number))
                yield from file.iter_batches(batch_size=rows, row_groups=[number])


def _batch_rows(row_group: pq.RowGroupMetaData) -> int:
    """How many rows of a row group are read at once."""
    row_bytes: int = row_group.total_byte_size // max(1, row_group.num_rows)
    return max(1, min(_BATCH_ROWS_MAX, _BATCH_BYTES // max(1, row_bytes)))
