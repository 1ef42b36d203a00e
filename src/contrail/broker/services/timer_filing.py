"""Writes down the messages that wait for their time: off the loop, and never ahead of the log.

A mark says how far the timer topic was enqueued and which slots are finished. It may be written
once the log is durable as far as everything it speaks of: the enqueued records, so that no row
ever leads to a message that a power cut took, and the deliveries.
"""

from __future__ import annotations

import logging
from collections import deque
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import NamedTuple

from contrail.broker.services.deliveries import Deliveries
from contrail.broker.state.durable_marks import DurableMarks
from contrail.model.timer_row import FiledRow
from contrail.runtime.files import OUT_OF_SPACE
from contrail.store import FileBatch, MessageStore, TimerFiles

_log = logging.getLogger(__name__)

# How long finished slots alone, with nothing new, may wait to be written down.
_QUIET_MS = 60_000


class _Mark(NamedTuple):
    row_count: int
    queue_offset: int
    read_ms: int


class TimerFiling:
    """Takes rows and deliveries in, and has them written down now and then."""

    def __init__(
        self,
        files: TimerFiles,
        store: MessageStore,
        deliveries: Deliveries,
        *,
        interval_ms: int,
        writer: Executor | None = None,
    ) -> None:
        self._files = files
        self._store = store
        self._deliveries = deliveries
        self._interval_ms = interval_ms
        self._writer = writer or ThreadPoolExecutor(1, "timer-files")
        self._running: Future[None] | None = None
        self._batch: FileBatch | None = None
        self._rows: deque[FiledRow] = deque()
        self._row_count = 0
        self._filed_count = 0
        self._marks: DurableMarks[_Mark] = DurableMarks()
        self._durable_after = 0
        self._noted_ms: int | None = None
        self._noted: _Mark | None = None
        # Where in the log the deliveries of a slot begin, for slots that no written mark covers.
        self._first_deliveries: dict[int, int] = {}
        self._frozen = False
        self.check = files.check

    @property
    def read_ms(self) -> int:
        """The line that the written files know."""
        return self.check.read_ms

    @property
    def durable_end(self) -> int:
        """The log position up to which the files speak for all deliveries."""
        return min(self._first_deliveries.values(), default=self._deliveries.settled_end)

    # Before anything is served.

    @property
    def unfiled_count(self) -> int:
        return len(self._rows)

    def take_unfiled(self) -> list[FiledRow]:
        """Rows that were not written down; the caller does it."""
        rows = list(self._rows)
        self._rows.clear()
        self._filed_count = self._row_count
        return rows

    def started(self) -> None:
        """The caller has written everything down."""
        self.check = self._files.check
        self._noted = _Mark(self._row_count, self.check.queue_offset, self.check.read_ms)

    # On the loop.

    def forget_marks(self) -> int:
        """Write no mark that was noted so far: it may speak of records that are cut from the log.

        Returns the line below which slots are finished in the files, or soon will be.
        """
        self._marks = DurableMarks()
        self._noted = self._noted_ms = None
        self._durable_after = self._deliveries.settled_end
        under_way_ms = 0 if self._batch is None else self._batch.read_ms
        return max(self.read_ms, under_way_ms)

    def enqueued(self, row: FiledRow, physical_end: int) -> None:
        """A message waits; its record ends at ``physical_end``."""
        self._durable_after = max(self._durable_after, physical_end)
        if not self._frozen:
            self._rows.append(row)
            self._row_count += 1

    def delivered(self, slot_ms: int, physical_start: int, physical_end: int) -> None:
        """A message filed in this slot has been delivered within that stretch of the log."""
        self._durable_after = max(self._durable_after, physical_end)
        if slot_ms >= self.read_ms:
            # A follower passes slots over in their order, not in that of the log.
            known = self._first_deliveries.get(slot_ms, physical_start)
            self._first_deliveries[slot_ms] = min(known, physical_start)

    def tick(
        self, now_ms: int, *, queue_offset: int, read_ms: int, is_urgent: bool = False
    ) -> None:
        """Note how far things are, if it is time, and write down as much as the log allows."""
        if self._frozen:
            return
        if self._running is not None and self._running.done():
            self._take_result()
        if is_urgent:
            self._noted_ms = None
        self._note(now_ms, _Mark(self._row_count, queue_offset, read_ms))
        if self._running is None:
            self._start(now_ms)

    def _note(self, now_ms: int, mark: _Mark) -> None:
        if self._noted_ms is not None and self._noted_ms <= now_ms:
            quiet = self._noted is not None and mark[:2] == self._noted[:2]
            quiet = quiet and not self._first_deliveries
            if now_ms - self._noted_ms < (_QUIET_MS if quiet else self._interval_ms):
                return
        self._noted_ms = now_ms
        if mark != self._noted:
            self._noted = mark
            self._marks.note(self._durable_after, mark)

    def _start(self, now_ms: int) -> None:
        if self._batch is None:
            self._batch = self._next_batch(now_ms)
        if self._batch is not None:
            self._running = self._writer.submit(self._files.write, self._batch)

    def _next_batch(self, now_ms: int) -> FileBatch | None:
        newest = self._marks.take(self._deliveries.settled_end)
        if newest is None:
            return None
        _, mark = newest
        count = mark.row_count - self._filed_count
        rows = [self._rows.popleft() for _ in range(count)]
        self._filed_count = mark.row_count
        return FileBatch(
            rows=rows,
            read_ms=mark.read_ms,
            queue_offset=mark.queue_offset,
            now_ms=now_ms,
            physical_min=self._store.physical_min,
        )

    def _take_result(self) -> None:
        assert self._running is not None
        running, self._running = self._running, None
        error = running.exception()
        if error is None:
            self._batch = None
            self.check = self._files.check
            for slot_ms in [at for at in self._first_deliveries if at < self.read_ms]:
                del self._first_deliveries[slot_ms]
        elif isinstance(error, OSError) and error.errno in OUT_OF_SPACE:
            _log.warning("the timer files cannot be written now, the disk is full: %s", error)
        else:
            self._freeze(error)

    def _freeze(self, error: BaseException) -> None:
        """After a failed write or sync the disk's bytes are unknown: leave them as they are.

        The check that was written last stays true; the next start reads on from there.
        """
        _log.error("the timer files are not written any more until a restart: %s", error)
        self._frozen = True
        self._rows.clear()

    def close(self, now_ms: int, *, queue_offset: int, read_ms: int) -> None:
        """Write as much as the log allows and let go of the files; may block."""
        if self._running is not None:
            self._running.exception()
            self._take_result()
        if not self._frozen:
            self._marks.note(self._durable_after, _Mark(self._row_count, queue_offset, read_ms))
            self._start(now_ms)
            if self._running is not None:
                self._running.exception()
                self._take_result()
        self._writer.shutdown()
        self._files.close()
