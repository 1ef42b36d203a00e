"""Chooses the records of a read: by topic, queue, queue offset, store time and tag."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from contrail.model.record import TRANSACTION_MASK, TRANSACTION_PREPARED, TRANSACTION_ROLLBACK
from contrail.model.topic import is_system_topic
from contrail.pipeline.arrow import Glance, Positions, decode
from contrail.pipeline.columns import plan_columns, schema_of

FOREVER = (1 << 63) - 1

QueueName: TypeAlias = tuple[str, int]
Mask: TypeAlias = npt.NDArray[np.bool_]
Rows: TypeAlias = slice | npt.NDArray[np.intp]

_FIELDS = ["sysFlag", "queueId", "queueOffset", "physicalOffset", "storeTimestamp"]
_TAGS_PLAN = plan_columns(schema_of(["tags"]))


@dataclass(frozen=True, slots=True)
class QueueBounds:
    """The wanted part of a queue; ends are exclusive.

    Records below ``physical_start`` belong to a deleted topic of the same name: their queues and
    queue offsets may equal those of the present topic.
    """

    physical_start: int = 0
    # Below zero: from the beginning of the queue.
    queue_offset_start: int = -1
    queue_offset_end: int = FOREVER
    begin_ms: int = -FOREVER
    end_ms: int = FOREVER

    @property
    def names_start(self) -> bool:
        """Whether the options name a first queue offset."""
        return self.queue_offset_start >= 0

    def hold(self, found: dict[str, Positions], rows: Rows) -> Mask:
        """A mask of the wanted rows, by the numbers of their records."""
        queue_offsets, stored_ms = found["queueOffset"][rows], found["storeTimestamp"][rows]
        kept = found["physicalOffset"][rows] >= self.physical_start
        kept &= (queue_offsets >= self.queue_offset_start) & (queue_offsets < self.queue_offset_end)
        kept &= (stored_ms >= self.begin_ms) & (stored_ms < self.end_ms)
        return kept


@dataclass(frozen=True)
class Choice:
    """The records of a read. Without topics, a pattern or queues it is the whole log."""

    topics: frozenset[str] = frozenset()
    pattern: str | None = None
    queues: frozenset[QueueName] | None = None
    internal_topics: bool = False
    tags: frozenset[str] = frozenset()
    bounds: Mapping[QueueName, QueueBounds] = field(default_factory=dict)
    # The bounds of queues without bounds of their own.
    other_bounds: QueueBounds = QueueBounds()

    @property
    def is_everything(self) -> bool:
        return not self.topics and self.pattern is None and self.queues is None

    def takes_topic(self, topic: str) -> bool:
        """Whether a topic is read: system topics only if the options name them."""
        if self.queues is not None:
            return any(topic == name for name, _ in self.queues)
        return is_topic_read(topic, self.topics, self.pattern, internal=self.internal_topics)

    def takes_queue(self, topic: str, queue_id: int) -> bool:
        return self.takes_topic(topic) and (self.queues is None or (topic, queue_id) in self.queues)

    def bounds_of(self, topic: str, queue_id: int) -> QueueBounds:
        return self.bounds.get((topic, queue_id), self.other_bounds)

    @property
    def fields(self) -> list[str]:
        """The numbers that decide about a record."""
        unbounded = not self.bounds and self.queues is None and self.other_bounds == QueueBounds()
        return ["sysFlag"] if unbounded else _FIELDS

    def masked(self, seen: Glance) -> Mask:
        """A mask of the wanted records; tags are not compared here."""
        coded = seen.topics.dictionary_encode()
        codes = coded.indices.to_numpy()
        kept = np.ones(len(codes), np.bool_)
        if not (self.is_everything and self.internal_topics):
            kept &= _are_no_halves(seen.numbers["sysFlag"])
        for code, topic in enumerate(coded.dictionary.to_pylist()):
            of_topic = slice(None) if len(coded.dictionary) == 1 else np.flatnonzero(codes == code)
            kept[of_topic] &= self._inside(topic, seen.numbers, of_topic)
        return kept

    def tagged(self, data: bytes, rows: Positions) -> Positions:
        """The records that have one of the wanted tags; all records if no tag is named."""
        if not self.tags or not len(rows):
            return rows
        tags = decode(data, rows, _TAGS_PLAN, broker_name="").column(0)
        is_asked: Mask = pc.is_in(tags, pa.array(sorted(self.tags))).to_numpy(zero_copy_only=False)
        return rows[is_asked]

    def _inside(self, topic: str, found: dict[str, Positions], rows: Rows) -> Mask | bool:
        if not self.takes_topic(topic):
            return False
        if "queueId" not in found:
            return True
        queue_ids = found["queueId"][rows]
        kept = np.zeros(len(queue_ids), np.bool_)
        for queue_id in np.unique(queue_ids).tolist():
            if self.takes_queue(topic, queue_id):
                of_queue = queue_ids == queue_id
                kept |= of_queue & self.bounds_of(topic, queue_id).hold(found, rows)
        return kept


def is_topic_read(
    topic: str, topics: Collection[str], pattern: str | None, *, internal: bool
) -> bool:
    """Whether a read of a store folder includes a topic: by name, by pattern, or all topics.

    System topics are read only if they are named or ``internal`` is set.
    """
    if topic in topics:
        return True
    if is_system_topic(topic) and not internal:
        return False
    if pattern is not None:
        return re.fullmatch(pattern, topic) is not None
    return not topics


def _are_no_halves(sys_flags: Positions) -> Mask:
    """Leaves out prepared and rolled back half messages, which no queue shows."""
    kinds = sys_flags & TRANSACTION_MASK
    are_messages: Mask = (kinds != TRANSACTION_PREPARED) & (kinds != TRANSACTION_ROLLBACK)
    return are_messages
