"""The slice of a store folder that a task reads, and the queue rows that it may follow."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from pyspark.sql.datasource import InputPartition

from contrail.pipeline.arrow import Positions
from contrail.pipeline.offline_choice import Choice
from contrail.pipeline.offline_files import Segment

_ROWS_A_READ = 32_768
# Rows of ordinary queues and of batch queues; only the first two fields are used.
_ROW = np.dtype([("place", ">i8"), ("size", ">i4"), ("rest", "V8")])
_BATCH_ROW = np.dtype([("place", ">i8"), ("size", ">i4"), ("rest", "V34")])
# The size in a row whose record retention removed.
_SPENT_SIZE = 0x7FFFFFFF


@dataclass(frozen=True, slots=True)
class QueueRows:
    """A queue and the numbers of its wanted rows; a row's position is its number by row bytes."""

    topic: str
    queue_id: int
    folder: str
    file_bytes: int
    is_batch: bool
    row_start: int
    row_stop: int

    def places(self) -> Iterator[tuple[Positions, Positions, int]]:
        """Rising physical offsets and sizes, some thousand a time; how many rows are removed."""
        kind = _BATCH_ROW if self.is_batch else _ROW
        for first in range(self.row_start, self.row_stop, _ROWS_A_READ):
            stop = min(first + _ROWS_A_READ, self.row_stop)
            rows = np.frombuffer(self._read(first * kind.itemsize, stop * kind.itemsize), kind)
            places, sizes = rows["place"].astype(np.int64), rows["size"].astype(np.int64)
            is_there = (sizes > 0) & (sizes < _SPENT_SIZE) & (places >= 0)
            places, sizes = places[is_there], sizes[is_there]
            # Only a damaged row breaks the order; its target is checked when it is read.
            order = np.argsort(places, kind="stable")
            yield places[order], sizes[order], stop - first - len(places)

    def _read(self, position: int, end: int) -> bytes:
        parts = []
        while position < end:
            file_start = position - position % self.file_bytes
            stop = min(end, file_start + self.file_bytes)
            path = Path(self.folder, f"{file_start:020d}")
            parts.append(_bytes_of(path, position - file_start, stop - position))
            position = stop
        return b"".join(parts)


@dataclass
class OfflineSlice(InputPartition):
    """The work of one task: a stretch of the log, or the records of some rows of a queue."""

    store_path: str
    choice: Choice
    segments: tuple[Segment, ...]
    physical_start: int
    physical_end: int
    queue: QueueRows | None = None
    broker_name: str = ""
    raw_body: bool = False
    fail_on_decode_error: bool = False
    fail_on_data_loss: bool = True
    record_crc: bool = False

    def __post_init__(self) -> None:
        super().__init__(None)


def _bytes_of(path: Path, position: int, byte_count: int) -> bytes:
    """Bytes of a file; zeros, which are no rows, for missing bytes."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return bytes(byte_count)
    try:
        return os.pread(fd, byte_count, position).ljust(byte_count, b"\0")
    finally:
        os.close(fd)
