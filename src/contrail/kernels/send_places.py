"""One queue as tidy sends meet it on their way: what each step knows of it, in one object.

A send is counted, placed, put into its queue and listed for the index. With thousands of topics
each step's look into a table of its own is one into memory that is in no cache. So admission looks
once (``plain_sends.are_admitted``) and leaves the queue's place in the chunk; every step keeps what
it found there. Each field is one step's alone and says when it is worth anything: whoever makes new
places, because topics have changed, loses what was found and nothing else.
"""

from __future__ import annotations

from typing import Any

SIZE_PLACES = 9


class QueuePlace:
    """What the steps of a send keep for one queue."""

    def __init__(self, topic: bytes, queue_id: int) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self.key = (topic, queue_id)
        # The next offset of the queue while it is lent to this place, and as a run plans it.
        self.is_lent = False
        self.next_offset = 0
        self.planned_offset = 0
        # The queue's end (``plain_rows.RowTail``), for as long as it takes plain rows.
        self.tail: Any = None
        # What the hashes of the topic's keys go on from; -1 while nobody asked.
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
        """What was counted of either kind; it starts over at nothing."""
        normal: list[int] = []
        fifo: list[int] = []
        for index in range(SIZE_PLACES):
            normal.append(self.normal[index])
            fifo.append(self.fifo[index])
            self.normal[index] = 0
            self.fifo[index] = 0
        self.is_counted = False
        return normal, fifo


def commit_places(chunks: list[Any]) -> None:
    """What was planned for the queues of these chunks is so."""
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
