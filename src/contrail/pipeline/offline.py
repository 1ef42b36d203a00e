"""The offline source: a store folder read without a broker.

A folder may be of a running or stopped broker or a copy, Contrail's or RocketMQ's. A read is cut
into slices of one of two kinds. Slices of the log are read from front to back in big pieces, and
unwanted records are dropped: for reads of most of the log. Slices of a queue follow its rows and
read only their records: for a small topic in a large log. Queue rows reach the disk after their
records, so the end of the log, which may lack rows, is always read as log.

Checksums of bodies are compared where a query reads bodies.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from contrail.model.record import SYS_FLAG_NEED_UNWRAP
from contrail.pipeline.arrow import Positions, Undecodable, batches, glance, unwrapped
from contrail.pipeline.columns import ColumnKind, ColumnPlan
from contrail.pipeline.offline_files import Chunk, LogFiles, Losses
from contrail.pipeline.offline_plan import OfflinePlan
from contrail.pipeline.offline_slices import OfflineSlice, QueueRows
from contrail.pipeline.options import SourceSettings

__all__ = ["OfflineSlice", "plan_offline", "read_offline"]

Stretch: TypeAlias = tuple[bytes, Positions]


def plan_offline(settings: SourceSettings) -> list[OfflineSlice]:
    """The partitions of a read of ``storePath``.

    Raises:
        OptionInvalid: the folder is no store, or has no such topic.
        DataLost: wanted messages were removed, and ``failOnDataLoss`` is true.
    """
    return OfflinePlan(settings).slices()


def read_offline(piece: OfflineSlice, plan: ColumnPlan) -> Iterator[pa.RecordBatch]:
    """The rows of a slice; runs on an executor.

    Raises:
        DataLost: bytes of the log are damaged or removed, and ``failOnDataLoss`` is true.
    """
    reading = _Reading(piece, checks_bodies=bool(plan.names(ColumnKind.BODY)))
    undecodable = Undecodable(refuses=piece.fail_on_decode_error, where=f"{piece.store_path}: ")
    for data, rows in reading.stretches():
        yield from batches(
            data,
            rows,
            plan,
            broker_name=piece.broker_name,
            raw_body=piece.raw_body,
            undecodable=undecodable,
        )


class _Reading:
    """One task's read of its slice."""

    def __init__(self, piece: OfflineSlice, *, checks_bodies: bool) -> None:
        self._piece = piece
        self._checks_bodies = checks_bodies
        self._losses = Losses(piece.store_path, piece.fail_on_data_loss)
        self._files = LogFiles(piece.segments, self._losses, record_crc=piece.record_crc)

    def stretches(self) -> Iterator[Stretch]:
        """Buffers with the positions of wanted records, each large enough for a batch."""
        piece, queue = self._piece, self._piece.queue
        if queue is None:
            chunks = self._files.chunks(piece.physical_start, piece.physical_end)
        else:
            chunks = self._queue_chunks(queue)
        for chunk in chunks:
            data, rows = self._wanted(chunk)
            if len(rows):
                yield data, rows

    def _queue_chunks(self, queue: QueueRows) -> Iterator[Chunk]:
        for places, sizes, gone_count in queue.places():
            if gone_count:
                self._losses.note_text(
                    f"{gone_count} rows of queue {queue.queue_id} of {queue.topic!r} are damaged "
                    f"or were removed"
                )
            for chunk in self._files.pieces(places, sizes):
                yield self._of_queue(chunk, queue)

    def _of_queue(self, chunk: Chunk, queue: QueueRows) -> Chunk:
        """The records of this queue; a damaged row may point to a record of another queue."""
        seen = glance(chunk.data, chunk.rows, ["queueId", "storeSize"])
        is_ours = pc.equal(seen.topics, queue.topic).to_numpy(zero_copy_only=False)
        is_ours &= seen.numbers["queueId"] == queue.queue_id
        for index in np.flatnonzero(~is_ours).tolist():
            start = int(chunk.places[index])
            why = f"a row of queue {queue.queue_id} of {queue.topic!r} leads to another's record"
            self._losses.note(start, start + int(seen.numbers["storeSize"][index]), why)
        return chunk.only(is_ours)

    def _wanted(self, chunk: Chunk) -> Stretch:
        """The wanted records of a chunk, with inner batches expanded."""
        choice, data = self._piece.choice, chunk.data
        seen = glance(data, chunk.rows, choice.fields)
        if seen.flags & SYS_FLAG_NEED_UNWRAP:
            # A batch is cut by the queue offsets of its messages, so it is opened first.
            data, rows = unwrapped(data, self._files.with_whole_bodies(chunk).rows)
            rows = rows[choice.masked(glance(data, rows, choice.fields))]
        else:
            chunk = chunk.only(choice.masked(seen))
            if self._checks_bodies:
                chunk = self._files.with_whole_bodies(chunk)
            rows = chunk.rows
        return data, choice.tagged(data, rows)
