"""Merges Parquet files into one, and checks that it holds the same rows.

The merged file is read back and compared with its parts value by value, which costs a second read
of the parts.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from contrail.errors import JobFailed
from contrail.pipeline.row_groups import read_batches, same_rows, schema_of_all, write_rows


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
    schema = schema_of_all(parts)
    rows = same_rows(read_batches(parts, schema), read_batches([target], schema))
    if rows is None:
        raise JobFailed(f"{str(target)!r} does not hold the rows of its {len(parts)} parts")
    with target.open("rb") as file:
        os.fsync(file.fileno())
        return Merged(rows, os.fstat(file.fileno()).st_size)
