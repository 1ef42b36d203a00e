"""The place of a queue: one object with the fields that the steps of fast sends keep for it.

A send is counted, placed, put into its queue and listed for the index. With thousands of topics a
table of its own for each step would cost each step a cache miss. Admission looks the place up once
(``send_records.are_admitted``) and leaves it in the chunk; every step keeps its fields there. Each
field belongs to one step and has a value that means "not set". When topics have changed admission
makes new places: the steps then fill their fields again, and nothing is lost.

Queue offsets are given out here and nowhere else: by a table (``plan_offsets``), or by places to
which the table lends its offsets (``borrow_offsets``, ``place_chunk``, ``commit_places``,
``return_lent``). Table and list of loans belong to the store's append state.
"""

from __future__ import annotations

from typing import Any

from contrail.kernels import raw_bytes, send_rows

SIZE_PLACES = 9


class QueuePlace:
    """The place of one queue: a few fields for each step of a fast send."""

    def __init__(self, topic: bytes, queue_id: int) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self.key = (topic, queue_id)
        # The next offset of the queue while it is lent to this place, and as a run plans it.
        self.is_lent = False
        self.next_offset = 0
        self.planned_offset = 0
        # The queue's end (``send_dispatch.RowTail``), for as long as it takes fast rows.
        self.tail: Any = None
        # The seed of the key hashes of this topic; -1 until a message with keys comes.
        self.key_seed = -1
        # Messages, bytes and the messages of each size class, not taken yet.
        self.is_counted = False
        self.normal = [0, 0, 0, 0, 0, 0, 0, 0, 0]
        self.fifo = [0, 0, 0, 0, 0, 0, 0, 0, 0]

    def count(self, kind: int, size_place: int, count: int, byte_count: int) -> bool:
        """Count messages of a kind (0: normal, else FIFO) and of one size class.

        Returns whether they are the first ones since the counts were taken.
        """
        was_counted = self.is_counted
        self.is_counted = True
        if kind:
            self.fifo[0] += count
            self.fifo[1] += byte_count
            self.fifo[size_place] += count
        else:
            self.normal[0] += count
            self.normal[1] += byte_count
            self.normal[size_place] += count
        return not was_counted

    def take_counts(self) -> tuple[list[int], list[int]]:
        """The counts of normal and of FIFO messages; they begin again at 0."""
        normal: list[int] = []
        fifo: list[int] = []
        for index in range(SIZE_PLACES):
            normal.append(self.normal[index])
            fifo.append(self.fifo[index])
            self.normal[index] = 0
            self.fifo[index] = 0
        self.is_counted = False
        return normal, fifo


def plan_offsets(
    planned: dict[tuple[bytes, int], int],
    next_offsets: dict[tuple[bytes, int], int],
    key: tuple[bytes, int],
    count: int,
    new_queues: list[tuple[bytes, int]] | None,
) -> int:
    """Plan the next ``count`` offsets of a queue for a message; the first of them.

    ``next_offsets`` is only read; ``planned`` holds what the run has taken. A queue in neither
    table begins at 0 and is added to ``new_queues``; without such a list the answer is -1.
    """
    known = planned.get(key)
    if known is None:
        known = next_offsets.get(key)
        if known is None:
            if new_queues is None:
                return -1
            known = 0
            new_queues.append(key)
    queue_offset = known
    planned[key] = queue_offset + count
    return queue_offset


def borrow_offsets(
    chunk: Any, next_offsets: dict[tuple[bytes, int], int], lent: list[QueuePlace]
) -> bool:
    """Begin the plan of each queue of a chunk at its next offset; False if one has none."""
    count, places = chunk[1], chunk[5]
    for index in range(count):
        place = places[index]
        if not place.is_lent:
            known = next_offsets.pop(place.key, None)
            if known is None:
                return False
            place.next_offset = known
            place.is_lent = True
            lent.append(place)
        place.planned_offset = place.next_offset
    return True


def place_chunk(chunk: Any, physical_offset: int) -> int:
    """Note the places of a chunk's records, which were measured; where the last one begins."""
    count, places = chunk[1], chunk[5]
    table = raw_bytes.numbers(chunk[2], send_rows.ROW_NUMBERS * count)
    last = physical_offset
    at = 0
    for index in range(count):
        place = places[index]
        table[at + send_rows.QUEUE_OFFSET] = place.planned_offset
        table[at + send_rows.PHYSICAL_OFFSET] = physical_offset
        place.planned_offset += 1
        last = physical_offset
        physical_offset += table[at + send_rows.RECORD_BYTES]
        at += send_rows.ROW_NUMBERS
    return last


def commit_places(chunks: list[Any]) -> None:
    """Make the planned queue offsets of these chunks those of their places."""
    for chunk in chunks:
        places = chunk[5]
        for index in range(chunk[1]):
            place = places[index]
            place.next_offset = place.planned_offset


def are_watched(chunks: list[Any], watched: dict[tuple[bytes, int], Any]) -> bool:
    """Whether a message of these chunks goes to one of the ``watched`` queues."""
    for chunk in chunks:
        places = chunk[5]
        last: QueuePlace | None = None
        for index in range(chunk[1]):
            place = places[index]
            if place is not last:
                last = place
                if place.key in watched:
                    return True
    return False


def return_lent(lent: list[QueuePlace], next_offsets: dict[tuple[bytes, int], int]) -> None:
    """Put next offsets that were lent to places back into the table."""
    for place in lent:
        place.is_lent = False
        next_offsets[place.key] = place.next_offset
    lent.clear()
