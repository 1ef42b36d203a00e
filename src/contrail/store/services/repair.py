"""Rebuilds damaged queues and index files of a stopped store from its log."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from struct import Struct
from typing import Any

from contrail.clock import SystemClock
from contrail.kernels.derive_rows import derive_rows
from contrail.kernels.java_hash import java_hash
from contrail.model.properties import TAGS
from contrail.model.record import decode_record
from contrail.runtime.files import FileSystem
from contrail.store.config import StoreConfig
from contrail.store.disk.key_index import KeyIndex
from contrail.store.disk.marker_files import StoreLock
from contrail.store.disk.queue_table import QueueTable
from contrail.store.services.checkpoint import CheckpointFiles, DerivedMark, Known
from contrail.store.services.log_walk import LogChunk, LogPiece, LogWalk
from contrail.store.services.rebuilt_runs import KnownQueues, RebuiltRuns
from contrail.store.services.record_places import MisplacedRecord, Runs, give_row, without_rows

QueueKey = tuple[bytes, int]
_TAGS_AND_TIME = Struct(">qq")


class Repair:
    """Holds the store's lock from construction to ``close``.

    Raises:
        StoreLocked: a broker has the store open; its scrubber repairs what it finds.
    """

    def __init__(self, root: Path, files: FileSystem) -> None:
        self._root = root
        self._files = files
        self._lock = StoreLock(files, root / "lock")
        self._lock.take()

    def close(self) -> None:
        self._lock.release()

    def rebuild(
        self,
        config: StoreConfig,
        pieces: Collection[LogPiece],
        *,
        known: Known,
        batch_topics: frozenset[bytes],
        damaged_queues: Collection[QueueKey],
        damaged_index: bool,
        kept_rows: Mapping[int, MisplacedRecord],
        physical_min: int,
        physical_end: int,
        progress: Callable[[int], None],
    ) -> tuple[list[str], list[str]]:
        """Empty damaged queues and index, feed them from the log, and write ``contrail.queues``.

        Records in ``kept_rows``, by physical offset, get the rows that they had. Returns texts
        about damaged and about missing messages.
        """
        queues = QueueTable(config, self._files, batch_topics=batch_topics)
        queues.tombstones.update(known.derived.tombstones if known.derived else {})
        problems = queues.load(physical_limit=physical_end, marks=None)
        wanted = {*damaged_queues, *((problem.topic, problem.queue_id) for problem in problems)}
        for topic, queue_id in wanted:
            queue = queues.get(topic, queue_id)
            if queue is not None:
                queue.reset()
        derived = known.derived if known.log is not None else None
        noted = None if derived is None else KnownQueues(derived.bounds(), derived.dispatched_end)
        rebuilt = RebuiltRuns(queues, known=noted)
        index = self._load_index(config, physical_end, emptied=damaged_index)
        walk = LogWalk(
            self._files,
            list(pieces),
            physical_start=physical_min,
            durable_end=physical_end,
            physical_limit=physical_end,
        )
        for found in walk if wanted or damaged_index else ():
            if isinstance(found, LogChunk):
                rows, index_rows = _derived(config, queues.batch_topics, found, damaged_index)
                _put_right(rows, found, kept_rows, queues.batch_topics, config.queue_ext_enabled)
                queues.put(_only(rebuilt.take(rows), wanted))
                index.put(index_rows)
            progress(walk.position)
        rebuilt.finish()
        self._make_durable(queues, index, known, physical_end)
        return rebuilt.problems, rebuilt.missing

    def _load_index(self, config: StoreConfig, physical_end: int, *, emptied: bool) -> KeyIndex:
        index = KeyIndex(
            self._root / "index", config=config, files=self._files, clock=SystemClock()
        )
        if emptied:
            for entry in self._files.entries(self._root / "index"):
                if entry.name.isdecimal() and not entry.is_dir():
                    self._files.unlink(Path(entry.path))
        index.load(physical_limit=physical_end, marks=None, trusted=True)
        return index

    def _make_durable(
        self, queues: QueueTable, index: KeyIndex, known: Known, physical_end: int
    ) -> None:
        queues.write_pending()
        index.write_pending()
        queues.sync()
        index.sync()
        if known.log is not None:
            marks = queues.marks()
            # A lost record may be restored later: keep its queue and the queue's next offset.
            floors = {
                key: end
                for key, (_, end) in (known.derived.bounds() if known.derived else {}).items()
                if key not in marks or marks[key].queue_offset_max < end
            }
            CheckpointFiles(self._files, self._root).write_derived(
                DerivedMark(physical_end, marks, index.marks(), dict(queues.tombstones), floors)
            )
        queues.close()
        index.close()


def _derived(
    config: StoreConfig, batch_topics: frozenset[bytes], chunk: LogChunk, with_index: bool
) -> tuple[dict[bytes, dict[int, list[Any]]], bytearray]:
    queues, index_rows, _, _ = derive_rows(
        chunk.data,
        chunk.start,
        chunk.end,
        chunk.base,
        config.delay_table,
        batch_topics,
        config.queue_ext_enabled,
        with_index,
    )
    return queues, index_rows


def _put_right(
    queues: Runs,
    chunk: LogChunk,
    kept_rows: Mapping[int, MisplacedRecord],
    batch_topics: frozenset[bytes],
    with_times: bool,
) -> None:
    """Give the records in ``kept_rows`` the rows that they had, not the rows derived from them."""
    start, end = chunk.base + chunk.start, chunk.base + chunk.end
    records = [record for at, record in kept_rows.items() if start <= at < end]
    if not records:
        return
    for topic, by_queue in queues.items():
        for queue_id, runs in by_queue.items():
            by_queue[queue_id] = list(without_rows(runs, topic in batch_topics, kept_rows))
    for record in records:
        is_batch = record.place.topic in batch_topics
        row = record.row
        if with_times and not is_batch:
            row = _timed(row, chunk, record.physical_start)
        give_row(queues, record, row, is_batch)


def _timed(row: bytes, chunk: LogChunk, physical_offset: int) -> bytes:
    """The row as a queue with an extension takes it: the stored row has an address of that.

    Tags code and store time are therefore taken from the record.
    """
    message = decode_record(chunk.data, physical_offset - chunk.base, check_body_crc=False)
    tags_code = java_hash(message.properties.get(TAGS, "").encode())
    return row[:12] + _TAGS_AND_TIME.pack(tags_code, message.store_timestamp_ms)


def _only(
    queues: dict[bytes, dict[int, list[Any]]], wanted: Collection[QueueKey]
) -> dict[bytes, dict[int, list[Any]]]:
    """The rows of the queues that are rebuilt; the other queues keep their rows."""
    kept: dict[bytes, dict[int, list[Any]]] = {}
    for topic, by_queue in queues.items():
        runs = {queue_id: run for queue_id, run in by_queue.items() if (topic, queue_id) in wanted}
        if runs:
            kept[topic] = runs
    return kept
