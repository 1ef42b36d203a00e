"""Messages that the broker appends by itself: delivered, retried, committed, rolled on.

Everything runs on the loop's thread. ``append`` writes a run at once; consumers see it at the end
of the tick that it asks for. Who keeps a cursor writes it down through ``DurableMarks``: first the
message on the disk, then the cursor that says so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from contrail.broker.state.stats import BrokerStats
from contrail.model.message import MessageDraft
from contrail.store.log import MessageStore
from contrail.store.services.append import AppendedRun


class Deliveries:
    """The way from the broker's own services into the log."""

    def __init__(
        self, store: MessageStore, stats: BrokerStats, *, on_appended: Callable[[], None]
    ) -> None:
        self._store = store
        self._stats = stats
        self._on_appended = on_appended

    @property
    def flushed_end(self) -> int:
        """How far the log is durable."""
        return self._store.flushed_end

    def append(self, drafts: Sequence[MessageDraft]) -> AppendedRun:
        """Append in order and in one piece; all are stored or none is.

        Raises:
            MessageIllegal: one of them breaks a limit.
            StoreError: the store takes nothing now; try again later.
        """
        run = self._store.append(drafts)
        self._count(drafts, run)
        self._on_appended()
        return run

    def _count(self, drafts: Sequence[MessageDraft], run: AppendedRun) -> None:
        ends = [*run.physical_offsets[1:], run.physical_end]
        totals: dict[bytes, tuple[int, int]] = {}
        for draft, start, end in zip(drafts, run.physical_offsets, ends, strict=True):
            count, byte_count = totals.get(draft.topic, (0, 0))
            totals[draft.topic] = (count + 1, byte_count + end - start)
        for topic, (count, byte_count) in totals.items():
            self._stats.sent(topic.decode("utf-8", "replace"), count, byte_count)
