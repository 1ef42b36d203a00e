"""The rows of the log's end that queue and index files do not hold yet, derived in memory.

A running store writes rows about once a second; a reader in another process derives the rest.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from contrail.kernels.derive_rows import derive_rows
from contrail.kernels.record_layout import ROW_BASE_AT
from contrail.model.delay_levels import DEFAULT_DELAY_LEVELS, parse_delay_levels
from contrail.store.services.log_walk import LogChunk
from contrail.store.state.row_layout import INDEX_ROW, ROW_BATCH, ROW_TARGET

QueueKey = tuple[bytes, int]


class RowPlace(NamedTuple):
    """A queue row: its queue offsets, and the physical offset and size of its record."""

    queue_offset: int
    next_queue_offset: int
    physical_offset: int
    size: int


class LogTail:
    """Queue and index rows of the log's end."""

    def __init__(self) -> None:
        self.runs: dict[QueueKey, list[tuple[int, int, bytearray]]] = {}
        self._index_rows = bytearray()
        self._delay_table = parse_delay_levels(DEFAULT_DELAY_LEVELS)

    def add(self, chunk: LogChunk, batch_topics: frozenset[bytes]) -> None:
        queues, index_rows, _, _ = derive_rows(
            chunk.data,
            chunk.start,
            chunk.end,
            chunk.base,
            self._delay_table,
            batch_topics,
            False,
            True,
        )
        self._index_rows += index_rows
        for topic, by_queue in queues.items():
            for queue_id, runs in by_queue.items():
                known = self.runs.setdefault((topic, queue_id), [])
                known += [(run[0], run[1], run[2]) for run in runs]

    def drop_dead(self, tombstones: dict[bytes, int]) -> None:
        """Forget deleted topics' messages."""
        for key, runs in list(self.runs.items()):
            dead_below = tombstones.get(key[0], 0)
            kept = [run for run in runs if int.from_bytes(run[2][:8], "big") >= dead_below]
            if kept:
                self.runs[key] = kept
            else:
                del self.runs[key]

    def rows(self, key: QueueKey, is_batch: bool) -> Iterator[RowPlace]:
        for first, _, data in self.runs.get(key, []):
            yield from places(data, first, is_batch)

    def ends(self, key: QueueKey, is_batch: bool) -> list[RowPlace]:
        """The first and the last row of a queue, if it has any."""
        runs = self.runs.get(key)
        if not runs:
            return []
        row_bytes = 46 if is_batch else 20
        last = runs[-1]
        return [
            next(places(runs[0][2][:row_bytes], runs[0][0], is_batch)),
            next(places(last[2][-row_bytes:], last[0] + last[1] - 1, is_batch)),
        ]

    def find(self, key_hash: int) -> set[int]:
        rows = INDEX_ROW.iter_unpack(self._index_rows)
        return {physical_offset for found, physical_offset, _ in rows if found == key_hash}


def places(data: bytes | bytearray, first: int, is_batch: bool) -> Iterator[RowPlace]:
    row_bytes = 46 if is_batch else 20
    for number, at in enumerate(range(0, len(data), row_bytes)):
        physical_offset, size = ROW_TARGET.unpack_from(data, at)
        base, count = (
            ROW_BATCH.unpack_from(data, at + ROW_BASE_AT) if is_batch else (first + number, 1)
        )
        yield RowPlace(base, base + count, physical_offset, size)
