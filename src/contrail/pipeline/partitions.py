"""Spark's partitions: slices of queues, as many as the options ask for."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heapreplace
from itertools import pairwise

from pyspark.sql.datasource import InputPartition

from contrail.pipeline.offsets import Slice

# A task costs Spark some 10 ms and a slice 1 ms. Up to so many slices, each is a task of its own;
# more of them share tasks until a task has so many records, but in not more tasks than this.
_ALONE_COUNT_MAX = 64
_SHARED_RECORDS_MIN = 1_000
_SHARED_COUNT_MAX = 256


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


class SharedTask(InputPartition):
    """The work of one task: short slices of several queues, one after the other."""

    def __init__(self, pieces: Sequence[QueueSlice]) -> None:
        super().__init__(None)
        self.pieces = tuple(pieces)

    def __repr__(self) -> str:
        return f"SharedTask({', '.join(map(repr, self.pieces))})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SharedTask) and self.pieces == other.pieces

    def __hash__(self) -> int:
        return hash(self.pieces)


Task = QueueSlice | SharedTask


def pieces_of(partition: InputPartition) -> tuple[QueueSlice, ...]:
    """The slices of a task, in order; none for the partition that Spark makes where there is no."""
    if isinstance(partition, QueueSlice):
        return (partition,)
    return partition.pieces if isinstance(partition, SharedTask) else ()


def plan_partitions(
    slices: Sequence[Slice],
    *,
    min_partitions: int | None = None,
    max_records_per_partition: int | None = None,
) -> list[Task]:
    """Partitions that cover ``slices`` exactly; a queue's are in order, and none is empty.

    ``min_partitions`` are shared by length: long queues are cut, short ones stay whole. Short
    slices of very many queues share tasks. Equal slices give equal partitions: a replayed batch
    must have the same ones.
    """
    present = [piece for piece in slices if piece.queue_offset_end > piece.queue_offset_start]
    bounded = [
        part for piece in present for part in _cut(piece, _pieces(piece, max_records_per_partition))
    ]
    counts = _counts(bounded, min_partitions or 0)
    pieces = [
        QueueSlice(*part.queue, part.queue_offset_start, part.queue_offset_end)
        for piece, count in zip(bounded, counts, strict=True)
        for part in _cut(piece, count)
    ]
    return _shared(pieces, min_partitions or 0, max_records_per_partition)


def _shared(pieces: Sequence[QueueSlice], wanted: int, count_max: int | None) -> list[Task]:
    """The pieces as tasks: neighbours share one where there are many more pieces than work."""
    total = sum(map(_count, pieces))
    task_count = min(_SHARED_COUNT_MAX, max(_ALONE_COUNT_MAX, total // _SHARED_RECORDS_MIN))
    task_count = max(task_count, wanted)
    if len(pieces) <= task_count:
        return list(pieces)
    enough = -(-total // task_count)
    tasks: list[Task] = []
    gathered: list[QueueSlice] = []
    gathered_count = 0
    for piece in pieces:
        is_too_many = count_max is not None and gathered_count + _count(piece) > count_max
        if gathered and (gathered_count >= enough or is_too_many):
            tasks.append(_task(gathered))
            gathered, gathered_count = [], 0
        gathered.append(piece)
        gathered_count += _count(piece)
    return [*tasks, _task(gathered)]


def _task(pieces: Sequence[QueueSlice]) -> Task:
    return pieces[0] if len(pieces) == 1 else SharedTask(pieces)


def _count(piece: QueueSlice) -> int:
    return piece.queue_offset_end - piece.queue_offset_start


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
