"""Cuts the log of a group's member while the store runs.

A follower cuts records that never were committed before it takes its leader's. A crash at any step
leaves a log that ends somewhere between the cut and the old end, and once ``run`` has returned no
byte from the cut on ever comes back:

1. no checkpoint and no sync is under way, and none begins before the end;
2. the checkpoint durably promises no byte from the cut on: what follows may tear the log there;
3. the segment that was prepared and those behind the cut are removed, the newest first;
4. the rest of the cut's segment is overwritten with zeros and synced;
5. writers, flusher and dispatcher forget what they knew of the bytes above.

Queues, index and readers know nothing above the commit, so they need no cut.
"""

from __future__ import annotations

from contrail.kernels.record_layout import BLANK_RECORD_BYTES, REASON_BLANK, REASON_END
from contrail.kernels.record_scan import scan_records
from contrail.runtime.crashpoints import crashpoint
from contrail.runtime.files import FileSystem, write_zeros
from contrail.store.disk.queue_table import QueueTable
from contrail.store.disk.segments import Segment, SegmentList
from contrail.store.disk.sent_file import SentFile
from contrail.store.services.append import Appender
from contrail.store.services.dispatch import Dispatcher
from contrail.store.services.flush import Flusher
from contrail.store.services.upkeep import Upkeep
from contrail.store.state.positions import Positions


class Truncation:
    """One log's cuts. Called by the store's owner only; it waits for the disk."""

    def __init__(
        self,
        files: FileSystem,
        segments: SegmentList,
        queues: QueueTable,
        positions: Positions,
        appender: Appender,
        flusher: Flusher,
        dispatcher: Dispatcher,
        upkeep: Upkeep,
        sent_file: SentFile,
    ) -> None:
        self._files = files
        self._segments = segments
        self._queues = queues
        self._positions = positions
        self._appender = appender
        self._flusher = flusher
        self._dispatcher = dispatcher
        self._upkeep = upkeep
        self._sent_file = sent_file

    def run(self, physical_end: int) -> None:
        """Cut the log at ``physical_end``, where a record ends, not below the commit.

        After an ``OSError`` the log may be cut in part: nothing may be appended any more.
        """
        self._require_uncommitted(physical_end)
        self._upkeep.drain()
        with self._flusher.held():
            self._upkeep.lower_mark(min(physical_end, self._positions.flushed_end))
            crashpoint("truncate.marked")
            self._sent_file.close()
            self._appender.let_go()
            self._segments.remove_after(physical_end + 1)
            crashpoint("truncate.segments_removed")
            self._zero(physical_end)
            crashpoint("truncate.zeroed")
            self._flusher.cut(physical_end)
            self._appender.cut(physical_end)
            self._dispatcher.cut()

    def _require_uncommitted(self, physical_end: int) -> None:
        positions = self._positions
        assert physical_end <= positions.physical_end, "a cut behind the log's end"
        assert physical_end >= positions.commit_limit, "a cut below the commit"
        assert physical_end >= self._dispatcher.dispatched_end, "a cut below derived records"
        assert physical_end >= self._queues.physical_end_max, "a cut below a queue's row"
        assert physical_end == self._last_record_end(physical_end), "a cut inside a record"

    def _last_record_end(self, physical_end: int) -> int:
        """Where the last whole record below ``physical_end`` ends; the derived ones are sound."""
        at = self._dispatcher.dispatched_end
        while at < physical_end and (segment := self._segments.at(at)) is not None:
            limit = min(physical_end, segment.end) - segment.start
            position, reason, _, _, _ = scan_records(
                segment.map, at - segment.start, limit, segment.start, False, 0
            )
            at = segment.start + position
            if reason == REASON_BLANK and segment.end < physical_end:
                at = segment.end
            elif reason != REASON_END:
                break
        return at

    def _zero(self, physical_end: int) -> None:
        """Durably overwrite what the segment of the cut holds behind it."""
        segment = self._segments.at(physical_end)
        if segment is None:
            return
        position = physical_end - segment.start
        end = self._written_end(segment, position)
        for _ in write_zeros(self._files, segment.fd, position, end - position):
            crashpoint("truncate.zeroing")
        self._files.fdatasync(segment.fd)

    def _written_end(self, segment: Segment, position: int) -> int:
        """Behind the last byte written to the segment: zeros to its end would take seconds."""
        if self._positions.physical_end < segment.end:
            return self._positions.physical_end - segment.start
        found, reason, _, _, _ = scan_records(
            segment.map, position, segment.byte_count, segment.start, False, 0
        )
        assert reason == REASON_BLANK, "a segment that the log went over ends with a blank record"
        return found + BLANK_RECORD_BYTES
