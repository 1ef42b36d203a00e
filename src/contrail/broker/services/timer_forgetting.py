"""Forgets deletions of timed messages, once no message that they delete can arrive."""

from __future__ import annotations

from contrail.broker.services.timer_intake import TimerIntake
from contrail.broker.state.timer_table import TimerTable
from contrail.store import MessageStore


class TimerForgetting:
    """Forgets the deletions of finished slots; their targets may still be on the way then.

    Three more steps follow, one after the other. The log is dispatched:
    a target may have been rolled on. The timer topic is taken in up to there. And messages that
    were late by then, and wait in the slot of the line, are delivered: that may take long.
    """

    def __init__(self, store: MessageStore, table: TimerTable, intake: TimerIntake) -> None:
        self._store = store
        self._table = table
        self._intake = intake
        self._seen_ms = 0
        # Deletions before this slot are to be forgotten; None: there are none.
        self._until_ms: int | None = None
        self._physical_end = 0
        self._queue_end: int | None = None
        self._late_ms: int | None = None

    def begin_anew(self) -> None:
        """Look at the log from now on: another broker may have written it meanwhile."""
        self._until_ms = self._queue_end = self._late_ms = None

    def tick(self, now_ms: int) -> None:
        finished_ms = self._table.finished_until(now_ms)
        if now_ms < self._seen_ms:
            # The clock was set back: slots that were finished may be ahead once more.
            self._until_ms = None
        self._seen_ms = now_ms
        if self._until_ms is None:
            self._begin(finished_ms)
        elif self._late_ms is None:
            self._late_ms = self._latest_of_taken(self._until_ms)
        elif finished_ms > self._late_ms:
            self._table.forget_deletions(self._until_ms, now_ms)
            self._until_ms = None

    def _begin(self, finished_ms: int) -> None:
        first_ms = self._table.due.deletion_slot_ms_min
        if first_ms is not None and first_ms < finished_ms:
            self._until_ms = finished_ms
            self._physical_end = self._store.physical_end
            self._queue_end = self._late_ms = None

    def _latest_of_taken(self, until_ms: int) -> int | None:
        """The last slot that a target can wait in; None while one may not have been taken."""
        if self._queue_end is None and self._store.dispatched_end >= self._physical_end:
            self._queue_end = self._intake.queue_offset + self._intake.behind_count
        if self._queue_end is None or self._intake.queue_offset < self._queue_end:
            return None
        return max(until_ms, self._table.read_ms)
