"""Decides where a run of records goes: queue offsets, segment positions, rolls.

Plan first, write, then commit: a plan changes nothing, so a write that fails leaves the old
truth. Each segment keeps 8 bytes for the blank record that ends it. Runs that fit where the log
ends, nearly all of them, are placed by the same function in the kernel that builds them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from contrail.errors import MessageIllegal
from contrail.kernels.record_layout import BLANK_RECORD_BYTES, takes_queue_offset
from contrail.kernels.send_places import QueuePlace, plan_offsets, return_lent
from contrail.model.message import MessageDraft

QueueKey = tuple[bytes, int]


class Chunk(NamedTuple):
    """Consecutive drafts that go to one segment, and the blank that is written before a roll."""

    first: int
    last: int
    physical_offset: int
    byte_count: int
    blank_at: int | None


class AppendPlan(NamedTuple):
    """The effects of an append, once it is committed."""

    queue_offsets: list[int]
    physical_offsets: list[int]
    chunks: list[Chunk]
    physical_end: int
    next_offsets: dict[QueueKey, int]
    new_queues: list[QueueKey]


class AppendState:
    """The end of the log and the next offset of every queue."""

    def __init__(self, *, segment_bytes: int, physical_end: int) -> None:
        self._segment_bytes = segment_bytes
        self.physical_end = physical_end
        # The next offsets of queues, but for those that have theirs at their place. Both are for
        # the kernel that goes by places; everybody else asks for ``next_offsets``.
        self.unlent_offsets: dict[QueueKey, int] = {}
        self.lent: list[QueuePlace] = []

    @property
    def next_offsets(self) -> dict[QueueKey, int]:
        """The next offset of every queue, for kernels to read."""
        if self.lent:
            return_lent(self.lent, self.unlent_offsets)
        return self.unlent_offsets

    def set_next_offset(self, topic: bytes, queue_id: int, queue_offset: int) -> None:
        """Recovery's word on a queue: its next message gets this offset."""
        self.next_offsets[topic, queue_id] = queue_offset

    def reset(self, next_offsets: dict[QueueKey, int]) -> None:
        """A new leader's word on all queues; offsets of appends that were cut off are forgotten."""
        known = self.next_offsets
        known.clear()
        known.update(next_offsets)

    def next_offset(self, topic: bytes, queue_id: int) -> int:
        return self.next_offsets.get((topic, queue_id), 0)

    def forget_topic(self, topic: bytes) -> None:
        """A deleted topic that comes back starts again at 0."""
        known = self.next_offsets
        for key in [key for key in known if key[0] == topic]:
            del known[key]

    def plan_append(
        self,
        drafts: Sequence[MessageDraft],
        sizes: Sequence[int],
        *,
        whole: bool = False,
        weight: int = 1,
    ) -> AppendPlan:
        """Place the drafts in order. ``whole`` keeps them in one segment (a split batch);
        ``weight`` is how many queue offsets a record takes (an inner batch takes several)."""
        known = self.next_offsets
        next_offsets: dict[QueueKey, int] = {}
        new_queues: list[QueueKey] = []
        queue_offsets = [
            plan_offsets(next_offsets, known, (draft.topic, draft.queue_id), weight, new_queues)
            # Half and rolled-back messages have no place in any queue, as in RocketMQ.
            if takes_queue_offset(draft.sys_flag)
            else 0
            for draft in drafts
        ]
        chunks = self._plan_chunks(sizes, whole)
        return AppendPlan(
            queue_offsets,
            _positions(chunks, sizes),
            chunks,
            chunks[-1].physical_offset + chunks[-1].byte_count,
            next_offsets,
            new_queues,
        )

    def commit_append(self, next_offsets: dict[QueueKey, int], physical_end: int) -> None:
        """The planned bytes are written: believe it."""
        self.next_offsets.update(next_offsets)
        self.physical_end = physical_end

    def room(self) -> int:
        """How many bytes of records the segment at the end of the log still takes."""
        used = self.physical_end % self._segment_bytes
        return self._segment_bytes - used - BLANK_RECORD_BYTES

    def _room(self, physical_offset: int) -> int:
        used = physical_offset % self._segment_bytes
        return self._segment_bytes - used - BLANK_RECORD_BYTES

    def _plan_chunks(self, sizes: Sequence[int], whole: bool) -> list[Chunk]:
        groups = [sum(sizes)] if whole else sizes
        self._require_fitting(groups)
        step = len(sizes) if whole else 1
        chunks: list[Chunk] = []
        start, begin, taken, blank_at = self.physical_end, 0, 0, None
        for number, group_bytes in enumerate(groups):
            if group_bytes > self._room(start + taken):
                if taken:
                    chunks.append(Chunk(begin, number * step, start, taken, blank_at))
                blank_at = start + taken
                start, begin, taken = self._next_segment(blank_at), number * step, 0
            taken += group_bytes
        chunks.append(Chunk(begin, len(sizes), start, taken, blank_at))
        return chunks

    def _next_segment(self, physical_offset: int) -> int:
        return (physical_offset // self._segment_bytes + 1) * self._segment_bytes

    def _require_fitting(self, groups: Sequence[int]) -> None:
        largest = max(groups)
        if largest > self._segment_bytes - BLANK_RECORD_BYTES:
            raise MessageIllegal(
                f"a record or batch of {largest} bytes does not fit a segment of "
                f"{self._segment_bytes} bytes: send less at once or raise mappedFileSizeCommitLog"
            )


def _positions(chunks: Sequence[Chunk], sizes: Sequence[int]) -> list[int]:
    positions = []
    for chunk in chunks:
        position = chunk.physical_offset
        for size in sizes[chunk.first : chunk.last]:
            positions.append(position)
            position += size
    return positions
