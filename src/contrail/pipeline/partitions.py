"""Spark's partitions: slices of queues, as many as the options ask for."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heapreplace
from itertools import pairwise

from pyspark.sql.datasource import InputPartition

from contrail.pipeline.offsets import Slice


class QueueSlice(InputPartition):
    """The work of one task: ``[queue_offset_start, queue_offset_end)`` of one queue."""

    def __init__(
        self,
        topic: str,
        broker_name: str,
        queue_id: int,
        queue_offset_start: int,
        queue_offset_end: int,
    ) -> None:
        super().__init__(None)
        self.topic = topic
        self.broker_name = broker_name
        self.queue_id = queue_id
        self.queue_offset_start = queue_offset_start
        self.queue_offset_end = queue_offset_end

    def __repr__(self) -> str:
        place = f"{self.topic} {self.broker_name}:{self.queue_id}"
        return f"QueueSlice({place} [{self.queue_offset_start}, {self.queue_offset_end}))"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, QueueSlice) and self.__dict__ == other.__dict__

    def __hash__(self) -> int:
        return hash((self.topic, self.broker_name, self.queue_id, self.queue_offset_start))


def plan_partitions(
    slices: Sequence[Slice],
    *,
    min_partitions: int | None = None,
    max_records_per_partition: int | None = None,
) -> list[QueueSlice]:
    """Partitions that cover ``slices`` exactly; a queue's are in order, and none is empty.

    ``min_partitions`` are shared by length: long queues are cut, short ones stay whole.
    """
    present = [piece for piece in slices if piece.queue_offset_end > piece.queue_offset_start]
    bounded = [
        part for piece in present for part in _cut(piece, _pieces(piece, max_records_per_partition))
    ]
    counts = _counts(bounded, min_partitions or 0)
    return [
        QueueSlice(*part.queue, part.queue_offset_start, part.queue_offset_end)
        for piece, count in zip(bounded, counts, strict=True)
        for part in _cut(piece, count)
    ]


def _length(piece: Slice) -> int:
    return piece.queue_offset_end - piece.queue_offset_start


def _pieces(piece: Slice, count_max: int | None) -> int:
    return 1 if count_max is None else -(-_length(piece) // count_max)


def _counts(slices: Sequence[Slice], wanted: int) -> list[int]:
    """The number of parts of each slice: ``wanted`` in all, if there are as many records.

    Each cut goes to the slice with the longest parts so far.
    """
    counts = [1] * len(slices)
    longest = [(-float(_length(piece)), place) for place, piece in enumerate(slices)]
    heapify(longest)
    for _ in range(min(wanted, sum(map(_length, slices))) - len(slices)):
        place = longest[0][1]
        counts[place] += 1
        heapreplace(longest, (-_length(slices[place]) / counts[place], place))
    return counts


def _cut(piece: Slice, count: int) -> list[Slice]:
    """``count`` slices of about the same length."""
    length = _length(piece)
    edges = [piece.queue_offset_start + length * number // count for number in range(count + 1)]
    return [Slice(piece.queue, first, last) for first, last in pairwise(edges)]
