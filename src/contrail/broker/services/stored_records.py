"""Records at places that a client named.

A physical offset in a request is only a number: it may point into the body of a message, and a
body may hold bytes that look like a whole record, with any topic, key and checksum. A place counts
only if the queue that the record names has a row which leads there. Every request that takes a
physical offset or an offset message id asks here.
"""

from __future__ import annotations

from typing import Protocol

from contrail.errors import RecordDamaged
from contrail.model.message import StoredMessage
from contrail.model.replaced_record import read_replacement
from contrail.store import QueueRow


class RecordStore(Protocol):
    """Where records and the rows of queues are read."""

    def record(self, physical_offset: int) -> StoredMessage:
        """Raises ``RecordDamaged`` if no whole record starts there."""
        ...

    def rows(
        self, topic: bytes, queue_id: int, queue_offset: int, count: int
    ) -> list[QueueRow]: ...

    def problem_at(self, physical_offset: int) -> str | None:
        """Words about the whole record that starts there, if its queue row contradicts it."""
        ...


def record_at(store: RecordStore, physical_offset: int) -> StoredMessage:
    """The message whose record starts at a place that a client named.

    Raises:
        RecordDamaged: no whole record starts there, or none that its queue knows, or one that
            replaces a damaged message.
    """
    message = store.record(physical_offset)
    lost = read_replacement(message)
    topic = message.topic.encode() if lost is None else lost.topic
    rows = store.rows(topic, message.queue_id, message.queue_offset, 1)
    if [row.physical_offset for row in rows] != [physical_offset]:
        problem = store.problem_at(physical_offset)
        raise RecordDamaged(
            f"the record at physical offset {physical_offset} {problem}"
            if problem
            else f"no record of a queue starts at physical offset {physical_offset}",
            physical_offset=physical_offset,
            is_record=problem is not None,
        )
    if lost is not None:
        raise RecordDamaged(
            f"the record at physical offset {physical_offset} was damaged, and was replaced: "
            f"{lost}",
            physical_offset=physical_offset,
            is_record=True,
        )
    return message
