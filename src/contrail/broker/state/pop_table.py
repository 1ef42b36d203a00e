"""Everything that is popped and not settled: the truth while the broker runs.

Checkpoints by group, topic and queue, then by start offset and pop time, as acknowledgements name
them. A checkpoint whose record has come back from the timer stands in the line of those that
become visible, in steps of ``GRAIN_MS``; before that the timer keeps its time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from heapq import heappop, heappush
from itertools import islice

from contrail.broker.state.pop_records import Ack, Checkpoint, CheckpointKey

GRAIN_MS = 50

Queue = tuple[str, str, int]
"""A group, a topic and a queue's id."""


class PopTable:
    """The messages in flight. ``grace_ms`` is how long after their time they still may be acked."""

    def __init__(self, grace_ms: int) -> None:
        self._grace_ms = grace_ms
        self._queues: dict[Queue, dict[tuple[int, int], Checkpoint]] = {}
        self._counts: Counter[tuple[str, str]] = Counter()
        self._due: dict[int, dict[Checkpoint, None]] = {}
        self._due_order: list[int] = []
        self._count = 0

    def __len__(self) -> int:
        """How many messages are in flight."""
        return self._count

    def add(self, checkpoint: Checkpoint) -> None:
        """Messages were popped; their checkpoint's key is new."""
        queue = (checkpoint.group, checkpoint.topic, checkpoint.queue_id)
        of_queue = self._queues.setdefault(queue, {})
        assert (checkpoint.start_offset, checkpoint.pop_time_ms) not in of_queue, checkpoint.key
        of_queue[checkpoint.start_offset, checkpoint.pop_time_ms] = checkpoint
        open_count = len(checkpoint.offsets) - checkpoint.settled.bit_count()
        self._counts[checkpoint.group, checkpoint.topic] += open_count
        self._count += open_count

    def find(self, key: CheckpointKey) -> Checkpoint | None:
        of_queue = self._queues.get(key[:3])
        return None if of_queue is None else of_queue.get(key[3:])

    def has_key(self, queue: Queue, start_offset: int, pop_time_ms: int) -> bool:
        return (start_offset, pop_time_ms) in self._queues.get(queue, ())

    def settle(self, checkpoint: Checkpoint, queue_offset: int) -> bool:
        """A message need not come again; False if it is none of the checkpoint's, or settled."""
        if queue_offset not in checkpoint.offsets:
            return False
        bit = 1 << checkpoint.offsets.index(queue_offset)
        if checkpoint.settled & bit or self.find(checkpoint.key) is not checkpoint:
            return False
        checkpoint.settled |= bit
        self._counted(checkpoint, -1)
        if checkpoint.is_settled:
            self._remove(checkpoint)
        return True

    def settle_all(self, checkpoint: Checkpoint, offsets: Iterable[int]) -> list[int]:
        """Settle several messages of a checkpoint; returns those that were open."""
        if self.find(checkpoint.key) is not checkpoint:
            return []
        places = {offset: index for index, offset in enumerate(checkpoint.offsets)}
        settled, taken = checkpoint.settled, []
        for offset in offsets:
            index = places.get(offset)
            if index is not None and not settled >> index & 1:
                settled |= 1 << index
                taken.append(offset)
        checkpoint.settled = settled
        if taken:
            self._counted(checkpoint, -len(taken))
            if checkpoint.is_settled:
                self._remove(checkpoint)
        return taken

    def reopen(self, checkpoint: Checkpoint, offsets: Iterable[int]) -> None:
        """Take ``settle`` back: what should have made it durable could not be written."""
        if checkpoint.is_settled:
            self._put_back(checkpoint)
        for offset in offsets:
            checkpoint.settled &= ~(1 << checkpoint.offsets.index(offset))
            self._counted(checkpoint, 1)

    def take_ack(self, ack: Ack, broker_name: str) -> None:
        """An acknowledgement stands in the log; one of another broker or checkpoint is nothing."""
        checkpoint = self.find(ack.key)
        if checkpoint is None or (ack.broker_name or broker_name) != checkpoint.broker_name:
            return
        for offset in ack.offsets:
            self.settle(checkpoint, offset)

    def drop(self, checkpoint: Checkpoint) -> None:
        """Forget a checkpoint with all its open messages."""
        if self.find(checkpoint.key) is checkpoint:
            self._counted(checkpoint, -len(checkpoint.open_offsets))
            self._remove(checkpoint)

    # Becoming visible.

    def came_back(self, checkpoint: Checkpoint, place: int) -> None:
        """The checkpoint's record stands in its revive queue: its messages' time is near."""
        if checkpoint.place >= 0 or self.find(checkpoint.key) is not checkpoint:
            return
        checkpoint.place = place
        self._stand_in_line(checkpoint)

    def _stand_in_line(self, checkpoint: Checkpoint) -> None:
        due_ms = self._due_ms(checkpoint)
        of_time = self._due.get(due_ms)
        if of_time is None:
            of_time = self._due[due_ms] = {}
            heappush(self._due_order, due_ms)
        of_time[checkpoint] = None

    def _due_ms(self, checkpoint: Checkpoint) -> int:
        return -(-(checkpoint.visible_ms + self._grace_ms) // GRAIN_MS) * GRAIN_MS

    @property
    def next_due_ms(self) -> int | None:
        """When the next message comes again; None while none is near."""
        while self._due_order and not self._due[self._due_order[0]]:
            del self._due[heappop(self._due_order)]
        return self._due_order[0] if self._due_order else None

    def due(self, now_ms: int, count_max: int) -> list[Checkpoint]:
        """The first checkpoints whose messages are to come again; they stay until settled."""
        found: list[Checkpoint] = []
        looked_at: list[int] = []
        while len(found) < count_max and (due_ms := self.next_due_ms) is not None:
            if due_ms > now_ms:
                break
            looked_at.append(heappop(self._due_order))
            found += islice(self._due[due_ms], count_max - len(found))
        for due_ms in looked_at:
            heappush(self._due_order, due_ms)
        return found

    # Asking.

    def in_flight(self, group: str, topic: str) -> int:
        """How many messages of a topic a group has popped and not settled."""
        return self._counts[group, topic]

    def count_of_group(self, group: str, is_wanted: Callable[[str], bool]) -> int:
        """How many messages of wanted topics a group has popped and not settled."""
        return sum(
            count
            for (name, topic), count in self._counts.items()
            if name == group and is_wanted(topic)
        )

    def oldest_of_group(self, group: str, count_max: int) -> list[Checkpoint]:
        """A group's checkpoints, of each queue the first ones by their pops; bounded in all."""
        found: list[Checkpoint] = []
        for queue, of_queue in self._queues.items():
            if queue[0] == group and len(found) < count_max:
                found += islice(of_queue.values(), count_max - len(found))
        return found

    def of_queue(self, queue: Queue) -> list[Checkpoint]:
        return list(self._queues.get(queue, {}).values())

    def of_group(self, group: str) -> Iterator[Checkpoint]:
        for queue in [queue for queue in self._queues if queue[0] == group]:
            yield from self.of_queue(queue)

    def of_topic(self, topic: str) -> Iterator[Checkpoint]:
        for queue in [queue for queue in self._queues if queue[1] == topic]:
            yield from self.of_queue(queue)

    # Inside.

    def _counted(self, checkpoint: Checkpoint, change: int) -> None:
        self._counts[checkpoint.group, checkpoint.topic] += change
        if not self._counts[checkpoint.group, checkpoint.topic]:
            del self._counts[checkpoint.group, checkpoint.topic]
        self._count += change

    def _remove(self, checkpoint: Checkpoint) -> None:
        queue = (checkpoint.group, checkpoint.topic, checkpoint.queue_id)
        of_queue = self._queues[queue]
        del of_queue[checkpoint.start_offset, checkpoint.pop_time_ms]
        if not of_queue:
            del self._queues[queue]
        if checkpoint.place >= 0:
            self._due[self._due_ms(checkpoint)].pop(checkpoint, None)

    def _put_back(self, checkpoint: Checkpoint) -> None:
        queue = (checkpoint.group, checkpoint.topic, checkpoint.queue_id)
        of_queue = self._queues.setdefault(queue, {})
        of_queue[checkpoint.start_offset, checkpoint.pop_time_ms] = checkpoint
        if checkpoint.place >= 0:
            self._stand_in_line(checkpoint)
