"""Derives single queue rows from the log again, where a read met a damaged row.

The scrubber gets to every row, but late. The row that a reader waits for is derived within moments:
its record lies between the records of the nearest sound rows on either side, so the log is read
there, some of it in each step. A row that is not found there has no record: readers pass over it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass

from contrail.kernels.queue_select import match_records
from contrail.store.disk.consume_queue import ConsumeQueue
from contrail.store.disk.queue_table import QueueTable
from contrail.store.disk.segments import SegmentList
from contrail.store.services.log_walk import LogChunk
from contrail.store.services.scrub import Scrubber
from contrail.store.state.row_layout import QUEUE_ROW

_log = logging.getLogger(__name__)

_NEIGHBOURS_MAX = 1000
_ASKED_MAX = 1000
_LOST_MAX = 10_000
_STEP_BYTES = 1 << 20

Place = tuple[bytes, int, int]
"""Topic, queue id and queue offset."""


@dataclass(slots=True)
class _Search:
    """The bytes of the log still to be read for a row."""

    position: int
    end: int


class RowRepair:
    """The rows that readers asked for; belongs to the store's owner thread."""

    def __init__(
        self,
        segments: SegmentList,
        queues: QueueTable,
        scrubber: Scrubber,
        *,
        dispatched_end: Callable[[], int],
    ) -> None:
        self._segments = segments
        self._queues = queues
        self._scrubber = scrubber
        self._dispatched_end = dispatched_end
        self._asked: dict[Place, _Search] = {}
        self._lost: dict[Place, None] = {}

    def ask(self, topic: bytes, queue_id: int, queue_offset: int) -> bool:
        """Have a row derived again soon; False if that was done and found no record."""
        place = (topic, queue_id, queue_offset)
        if place in self._lost:
            return False
        if place not in self._asked and len(self._asked) < _ASKED_MAX:
            self._begin(place)
        return True

    def run_once(self, bytes_max: int = _STEP_BYTES) -> None:
        """Read some of the log for the row that was asked for first."""
        place = next(iter(self._asked), None)
        if place is None:
            return
        search = self._asked[place]
        if not self._advance(search, bytes_max):
            del self._asked[place]
            self._judge(place)

    def repair(self, topic: bytes, queue_id: int, queue_offset: int) -> bool:
        """Derive a row again now, however long it takes; returns whether it is sound then."""
        place = (topic, queue_id, queue_offset)
        search = self._begin(place)
        while search is not None and self._advance(search, _STEP_BYTES):
            pass
        if self._asked.pop(place, None) is not None:
            self._judge(place)
        queue = self._queues.get(topic, queue_id)
        return isinstance(queue, ConsumeQueue) and self._is_sound(queue, place)

    def _begin(self, place: Place) -> _Search | None:
        topic, queue_id, queue_offset = place
        queue = self._queues.get(topic, queue_id)
        if not isinstance(queue, ConsumeQueue):
            # A batch's row has no fixed position in the file: the scrubber derives these in order.
            return None
        search = _Search(self._segments.physical_min, self._dispatched_end())
        for earlier in range(queue_offset - 1, queue_offset - _NEIGHBOURS_MAX, -1):
            if earlier < queue.queue_offset_min:
                break
            if self._is_sound(queue, (topic, queue_id, earlier)):
                physical_offset, size, _ = QUEUE_ROW.unpack(queue.raw_rows(earlier, 1))
                search.position = physical_offset + size
                break
        for later in range(queue_offset + 1, queue_offset + _NEIGHBOURS_MAX):
            if later >= queue.queue_offset_max:
                break
            if self._is_sound(queue, (topic, queue_id, later)):
                search.end = QUEUE_ROW.unpack(queue.raw_rows(later, 1))[0]
                break
        self._asked[place] = search
        return search

    def _is_sound(self, queue: ConsumeQueue, place: Place) -> bool:
        """Whether a row leads to a record of its own topic, queue and queue offset."""
        topic, queue_id, queue_offset = place
        row = queue.raw_rows(queue_offset, 1)
        if len(row) != QUEUE_ROW.size:
            return False
        physical_offset, size, _ = QUEUE_ROW.unpack(row)
        segment = self._segments.at(physical_offset)
        if segment is None:
            return False
        flat = [physical_offset - segment.start, size]
        return match_records(segment.map, flat, segment.start, queue_id, topic, [queue_offset]) < 0

    def _advance(self, search: _Search, bytes_max: int) -> bool:
        """Derive rows from some more of the log; False at the end of the search."""
        walk = self._scrubber.walk(search.position, search.end)
        with closing(walk.steps()) as steps:
            passed = 0
            for found in steps:
                if isinstance(found, LogChunk):
                    self._scrubber.repair_rows(found)
                passed += walk.position - search.position
                search.position = walk.position
                if passed >= bytes_max:
                    return search.position < search.end
        return False

    def _judge(self, place: Place) -> None:
        topic, queue_id, queue_offset = place
        queue = self._queues.get(topic, queue_id)
        if not isinstance(queue, ConsumeQueue) or self._is_sound(queue, place):
            return
        self._lost[place] = None
        if len(self._lost) > _LOST_MAX:
            del self._lost[next(iter(self._lost))]
        _log.error(
            "damaged: the row of message %d of queue %d of %s, and the log has no sound record of "
            "it; readers pass over it",
            queue_offset,
            queue_id,
            topic.decode("utf-8", "replace"),
        )
