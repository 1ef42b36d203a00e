"""Derives consume queues and key index from the log, in log order, from ``dispatched_end`` on.

Rows are a function of the log: after any loss recovery sets the dispatcher back and feeds the
records again, and queues and index skip the rows they already have.
"""

from __future__ import annotations

import mmap
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from contrail.errors import RecordDamaged
from contrail.kernels.derive_rows import derive_rows
from contrail.kernels.record_layout import REASON_BLANK, REASON_END
from contrail.kernels.record_scan import check_record, scan_records
from contrail.kernels.send_places import are_watched
from contrail.runtime.crashpoints import crashpoint
from contrail.store.config import StoreConfig
from contrail.store.disk.key_index import KeyIndex
from contrail.store.disk.queue_table import Arrival, QueueTable
from contrail.store.disk.segments import Segment, SegmentList
from contrail.store.services.append import AppendedChunks, AppendedRaw
from contrail.store.services.rebuilt_runs import RebuiltRuns

if TYPE_CHECKING:
    from contrail.kernels.send_records import Chunk

# Large enough to amortise the calls, small enough to stay in the processor's cache between the
# verifying and the deriving pass.
CHUNK_BYTES = 1 << 20
# Under SYNC_FLUSH records wait in memory for their sync; records beyond this are read back.
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
        # Set while recovery derives queues that have lost their rows.
        self.rebuilt: RebuiltRuns | None = None
        # Set once recovery is over: rows that recovery derives again are no arrivals.
        self.on_arrival: ArrivalListener | None = None
        # By topic and queue id: queues where a pull waits. None: announce every arrival.
        self.watched: dict[tuple[bytes, int], Any] | None = None
        self._unannounced: list[Arrival] = []
        # Appends just written, in log order: records as bytes, or the sends' rows of numbers.
        self._fresh: deque[tuple[AppendedChunks, list[Chunk]] | tuple[AppendedRaw, None]]
        self._fresh = deque()
        self._fresh_bytes = 0
        self.dispatched_end = 0
        # Underived records below this physical offset went to queues where no pull waits.
        self.unawaited_end = 0
        self.last_store_timestamp_ms = 0

    def offer_records(self, appended: AppendedRaw) -> None:
        """Take records that were just written, so that they are not read back and checked."""
        fresh_bytes = self._fresh_bytes + appended.physical_end - appended.physical_start
        if fresh_bytes <= _FRESH_BYTES_MAX:
            self._fresh_bytes = fresh_bytes
            self._fresh.append((appended, None))

    def offer_chunks(self, appended: AppendedChunks, chunks: list[Chunk]) -> None:
        """Take sends that were just written, as rows of numbers: their records are not decoded.

        The received bytes are not kept, so that the next sends reuse that memory while it is
        still in the processor's cache.
        """
        fresh_bytes = self._fresh_bytes + appended[1] - appended[0]
        if fresh_bytes > _FRESH_BYTES_MAX:
            return
        self._fresh_bytes = fresh_bytes
        follows = appended[0] == self.unawaited_end or appended[0] == self.dispatched_end
        if follows and self.watched is not None and not are_watched(chunks, self.watched):
            self.unawaited_end = appended[1]
        if len(chunks) == 1:
            kept = [(b"", *chunks[0][1:])]
        else:
            kept = [(b"", *chunk[1:]) for chunk in chunks]
        self._fresh.append((appended, kept))

    def begin_at(self, physical_offset: int) -> None:
        """An empty log begins elsewhere: there is nothing to derive below."""
        self.dispatched_end = physical_offset
        self.unawaited_end = 0

    def cut(self) -> None:
        """The log was cut above ``dispatched_end``: forget the appends that wait in memory."""
        self._fresh.clear()
        self._fresh_bytes = 0
        self.unawaited_end = 0

    def advance(self, physical_limit: int) -> int:
        """Derive all whole records up to ``physical_limit``; returns the bytes passed."""
        begun_at = self.dispatched_end
        while self.dispatched_end < physical_limit:
            if self._fresh and self._advance_in_memory(physical_limit):
                continue
            segment = self._segments.at(self.dispatched_end)
            if segment is None:
                # Retention removed the segment: its records cannot be derived any more.
                self.dispatched_end = max(self.dispatched_end, self._segments.physical_min)
                if self._segments.at(self.dispatched_end) is None:
                    break
                continue
            if not self._advance_in(segment, physical_limit):
                break
        return self.dispatched_end - begun_at

    def _advance_in_memory(self, physical_limit: int) -> bool:
        """Derive the first fresh append if it is next; returns whether. Drop one already passed."""
        appended, chunks = self._fresh[0]
        is_next = appended.physical_start == self.dispatched_end
        if appended.physical_start > self.dispatched_end or (
            is_next and appended.physical_end > physical_limit
        ):
            return False
        if is_next and chunks is not None:
            self._derive_rows(self._fast_run(physical_limit))
            return True
        if is_next:
            assert not isinstance(appended, AppendedChunks), "sends come with rows of numbers"
            self._derive(appended.records, 0, len(appended.records), appended.physical_start)
        self._drop(1)
        return is_next

    def _drop(self, count: int) -> None:
        for _ in range(count):
            appended, _ = self._fresh.popleft()
            self._fresh_bytes -= appended.physical_end - appended.physical_start

    def _advance_in(self, segment: Segment, physical_limit: int) -> bool:
        """Derive what one segment has below the limit; False if the limit lies in what is next."""
        start = self.dispatched_end - segment.start
        if self._fresh and self._fresh[0][0].physical_start > self.dispatched_end:
            physical_limit = min(physical_limit, self._fresh[0][0].physical_start)
        limit = min(physical_limit - segment.start, segment.byte_count)
        position, reason, count, _, _ = scan_records(
            segment.map, start, limit, segment.start, False, 0
        )
        if count:
            self.feed(segment, start, position)
        if reason == REASON_BLANK and segment.end <= physical_limit:
            self.dispatched_end = segment.end
        elif reason != REASON_END:
            return self._reads_on(segment, position, limit)
        return True

    def _reads_on(self, segment: Segment, position: int, limit: int) -> bool:
        """Returns False if a sound record begins here and goes on behind the limit.

        Raises:
            RecordDamaged: no record is here.
        """
        reason, _ = check_record(segment.map, position, segment.byte_count, segment.start, False, 0)
        if limit < segment.byte_count and reason in (REASON_END, REASON_BLANK):
            return False
        raise RecordDamaged(
            f"the log cannot be read at {segment.start + position} (reason {reason}): run "
            f"`contrail store verify`",
            physical_offset=segment.start + position,
        )

    def feed(self, segment: Segment, start: int, end: int) -> None:
        """Derive from whole, verified records at ``start`` to ``end`` of one segment."""
        self._derive(segment.map, start, end, segment.start)

    def _derive(
        self, buffer: mmap.mmap | bytearray | memoryview, start: int, end: int, base_offset: int
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
        if self.rebuilt is not None:
            queues = self.rebuilt.take(queues)
        self._note(self._queues.put(queues))
        crashpoint("dispatch.queues_put")
        self._put_keys(index_rows)
        self.last_store_timestamp_ms = store_timestamp_ms or self.last_store_timestamp_ms
        self.dispatched_end = base_offset + end

    def _fast_run(self, physical_limit: int) -> list[tuple[AppendedChunks, list[Chunk]]]:
        """Fresh sends that are adjacent in the log, with their rows of numbers."""
        run: list[tuple[AppendedChunks, list[Chunk]]] = []
        end = self.dispatched_end
        for appended, chunks in self._fresh:
            if chunks is None or appended.physical_start != end:
                break
            end = appended.physical_end
            if end > physical_limit:
                break
            assert isinstance(appended, AppendedChunks), "only sends come with rows of numbers"
            run.append((appended, chunks))
        return run

    def _derive_rows(self, run: list[tuple[AppendedChunks, list[Chunk]]]) -> None:
        """As ``_derive``, from the rows of numbers alone.

        If one send needs the general way, the rows of numbers are dropped and the records are
        read back.
        """
        arrivals, index_rows = self._queues.put_sends(
            [(chunks, appended.store_timestamp_ms) for appended, chunks in run],
            watched=self.watched,
            with_index=self._index is not None,
        )
        self._note(arrivals)
        if index_rows is None:
            self._drop(len(run))
            return
        last = run[-1][0]
        self._queues.note_end(last.physical_end)
        crashpoint("dispatch.queues_put")
        self._put_keys(index_rows)
        self.last_store_timestamp_ms = last.store_timestamp_ms
        self.dispatched_end = last.physical_end
        self._drop(len(run))

    def _note(self, arrivals: list[Arrival]) -> None:
        """Note arrivals before the next step can fail: rows put again later are no arrivals."""
        if self.on_arrival is not None:
            self._unannounced += arrivals

    def _put_keys(self, index_rows: bytearray) -> None:
        if self._index is not None and index_rows:
            self._index.put(index_rows)
            crashpoint("dispatch.index_put")

    def announce(self) -> None:
        """Tell the listener which queues grew since the last time."""
        arrivals, self._unannounced = self._unannounced, []
        if arrivals and self.on_arrival is not None:
            self.on_arrival(arrivals)
