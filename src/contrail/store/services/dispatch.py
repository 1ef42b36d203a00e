"""Derives consume queues and key index from the log, in log order, from where it left off.

What is derived is a function of the log: after any loss the dispatcher is set back and fed
again, and queues and index skip what they already have.
"""

from __future__ import annotations

import mmap
from collections import deque
from collections.abc import Callable

from contrail.errors import RecordDamaged
from contrail.kernels.derive_rows import derive_rows
from contrail.kernels.record_scan import REASON_BLANK, REASON_END, scan_records
from contrail.runtime.crashpoints import crashpoint
from contrail.store.config import StoreConfig
from contrail.store.disk.key_index import KeyIndex
from contrail.store.disk.queue_table import Arrival, QueueTable
from contrail.store.disk.segments import Segment, SegmentList

# Large enough to amortise the calls, small enough to stay in the processor's cache between the
# verifying and the deriving pass.
CHUNK_BYTES = 1 << 20
# Under synchronous flush records wait here for their sync; beyond this they are read back.
_FRESH_BYTES_MAX = 4 << 20

ArrivalListener = Callable[[list[Arrival]], None]


class Dispatcher:
    """Owns ``dispatched_end``: queues and index hold everything below it."""

    def __init__(
        self,
        config: StoreConfig,
        segments: SegmentList,
        queues: QueueTable,
        index: KeyIndex | None,
    ) -> None:
        self._segments = segments
        self._queues = queues
        self._index = index
        self._delay_table = config.delay_table
        self._with_times = config.queue_ext_enabled
        # Set once recovery is over: what is derived again then is no news to anybody.
        self.on_arrival: ArrivalListener | None = None
        self._unannounced: list[Arrival] = []
        # Records as they were written, by where they begin, in that order.
        self._fresh: deque[tuple[int, bytearray]] = deque()
        self._fresh_bytes = 0
        self.dispatched_end = 0
        self.last_store_timestamp_ms = 0

    def offer(self, physical_offset: int, records: bytearray) -> None:
        """Whole records that were just written there: no need to read and check them again."""
        if self._fresh_bytes + len(records) <= _FRESH_BYTES_MAX:
            self._fresh.append((physical_offset, records))
            self._fresh_bytes += len(records)

    def advance(self, physical_limit: int) -> int:
        """Derive everything up to ``physical_limit``; returns the bytes passed."""
        begun_at = self.dispatched_end
        while self.dispatched_end < physical_limit:
            if self._fresh and self._advance_in_memory(physical_limit):
                continue
            segment = self._segments.at(self.dispatched_end)
            if segment is None:
                # Retention passed us by: what is gone cannot be derived any more.
                self.dispatched_end = max(self.dispatched_end, self._segments.physical_min)
                if self._segments.at(self.dispatched_end) is None:
                    break
                continue
            self._advance_in(segment, physical_limit)
        return self.dispatched_end - begun_at

    def _advance_in_memory(self, physical_limit: int) -> bool:
        """Whether it was the turn of fresh records; those that were passed by are dropped."""
        physical_offset, records = self._fresh[0]
        is_next = physical_offset == self.dispatched_end
        if physical_offset > self.dispatched_end or (
            is_next and physical_offset + len(records) > physical_limit
        ):
            return False
        if is_next:
            self._derive(records, 0, len(records), physical_offset)
        self._fresh.popleft()
        self._fresh_bytes -= len(records)
        return is_next

    def _advance_in(self, segment: Segment, physical_limit: int) -> None:
        start = self.dispatched_end - segment.start
        if self._fresh:
            physical_limit = min(physical_limit, self._fresh[0][0])
        limit = min(physical_limit - segment.start, segment.byte_count)
        position, reason, count, _, _ = scan_records(
            segment.map, start, limit, segment.start, False, 0
        )
        if count:
            self.feed(segment, start, position)
        if reason == REASON_BLANK:
            self.dispatched_end = segment.end
        elif reason != REASON_END:
            raise RecordDamaged(
                f"the log cannot be read at {segment.start + position} (reason {reason}): run "
                f"`contrail store verify`",
                physical_offset=segment.start + position,
            )

    def feed(self, segment: Segment, start: int, end: int) -> None:
        """Derive from whole, verified records at ``start`` to ``end`` of one segment."""
        self._derive(segment.map, start, end, segment.start)

    def _derive(
        self, buffer: mmap.mmap | bytearray, start: int, end: int, base_offset: int
    ) -> None:
        queues, index_rows, _, store_timestamp_ms = derive_rows(
            buffer,
            start,
            end,
            base_offset,
            self._delay_table,
            self._queues.batch_topics,
            self._with_times,
            self._index is not None,
        )
        arrivals = self._queues.put(queues)
        # Noted at once: rows that are put again after a failure below are no news.
        if self.on_arrival is not None:
            self._unannounced += arrivals
        crashpoint("dispatch.queues_put")
        if self._index is not None and index_rows:
            self._index.put(index_rows)
            crashpoint("dispatch.index_put")
        self.last_store_timestamp_ms = store_timestamp_ms or self.last_store_timestamp_ms
        self.dispatched_end = base_offset + end

    def announce(self) -> None:
        """Tell the listener which queues grew since the last time."""
        arrivals, self._unannounced = self._unannounced, []
        if arrivals and self.on_arrival is not None:
            self.on_arrival(arrivals)
