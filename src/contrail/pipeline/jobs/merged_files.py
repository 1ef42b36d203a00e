"""Merges Parquet files into one, and checks that it holds the same rows.

The merged file is read back and compared with its parts value by value, which costs a second read
of the parts.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from contrail.errors import JobFailed
from contrail.pipeline.jobs.row_groups import read_batches, write_rows


class Merged(NamedTuple):
    """Rows and bytes of a merged file."""

    rows: int
    size_bytes: int


def merge_files(parts: list[Path], target: Path, compression: str) -> Merged:
    """Write the rows of ``parts`` to ``target``, in order; compared and durable on return.

    Raises:
        JobFailed: the merged file has other rows than its parts, or the parts differ in columns.
    """
    write_rows(parts, target, compression)
    rows = same_rows(read_batches(parts), read_batches([target]))
    if rows is None:
        raise JobFailed(f"{str(target)!r} does not hold the rows of its {len(parts)} parts")
    with target.open("rb") as file:
        os.fsync(file.fileno())
        return Merged(rows, os.fstat(file.fileno()).st_size)


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
