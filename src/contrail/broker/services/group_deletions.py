"""Deletions of topics in a failover group: carried out by every member where they stand in the log.

The record of a deletion is its tombstone: the topic's records before it are dead, those behind it
are of a new topic with that name. A member therefore derives nothing behind such a record before it
has removed the queues. It looks for these records in what is committed, before that is derived.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Protocol

from contrail.model.message import StoredMessage
from contrail.replication.state.state_records import (
    STATE_TOPIC,
    TopicDeletion,
    decode_state_record,
)

_TOPICS = frozenset((STATE_TOPIC.encode(),))


class DeletingLog(Protocol):
    """The log as deletions need it."""

    def appended_between(
        self, physical_start: int, physical_end: int, topics: frozenset[bytes]
    ) -> Iterator[StoredMessage]: ...
    def derive_to(self, physical_end: int | None) -> None: ...
    def delete_topic_at(self, topic: bytes, physical_end: int) -> None: ...
    @property
    def dispatched_end(self) -> int: ...
    @property
    def physical_min(self) -> int: ...


class TopicDeletions:
    """The deletions that are committed and not carried out yet, in the log's order."""

    def __init__(self, log: DeletingLog) -> None:
        self._log = log
        self._seen_end = log.dispatched_end
        self._ends: deque[int] = deque()

    @property
    def are_due(self) -> bool:
        return bool(self._ends)

    def committed(self, physical_end: int) -> None:
        """The log is committed up to there; nothing of it is derived yet."""
        if physical_end <= self._seen_end:
            return
        # A member that copied its log begins behind what the leader's retention removed.
        start = max(self._seen_end, self._log.physical_min)
        for message in self._log.appended_between(start, physical_end, _TOPICS):
            if isinstance(decode_state_record(message.body), TopicDeletion):
                self._ends.append(message.physical_offset + message.record_bytes)
        self._seen_end = physical_end
        self._limit()

    def carry_out(self, topic: str, physical_end: int) -> None:
        """Everything up to the record of this deletion is derived: remove the queues."""
        self._log.delete_topic_at(topic.encode(), physical_end)
        while self._ends and self._ends[0] <= physical_end:
            self._ends.popleft()
        self._limit()

    def _limit(self) -> None:
        self._log.derive_to(self._ends[0] if self._ends else None)
