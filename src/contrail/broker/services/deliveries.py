"""Messages that the broker appends by itself: delivered, retried, committed, rolled on.

Everything runs on the loop's thread. ``append`` writes a run now; consumers see it at the end
of the tick that it asks for. A service writes its cursor through ``DurableMarks``: first the
message on the disk, then the cursor that names it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from contrail.broker.state.stats import BrokerStats
from contrail.model.message import MessageDraft
from contrail.store import AppendedRun, MessageStore


class Deliveries:
    """The way from the broker's own services into the log."""

    def __init__(
        self, store: MessageStore, stats: BrokerStats, *, on_appended: Callable[[], None]
    ) -> None:
        self._store = store
        self._stats = stats
        self._on_appended = on_appended

    @property
    def settled_end(self) -> int:
        """How far cursors on disk may speak of the log."""
        return self._store.settled_end

    def append(self, drafts: Sequence[MessageDraft]) -> AppendedRun:
        """Append in order and in one piece; all are stored or none is.

        Raises:
            MessageIllegal: one of them breaks a limit.
            StoreError: the store takes nothing now; try again later.
        """
        run = self._store.append(drafts)
        self._stats.stored(drafts, run.physical_offsets, run.physical_end)
        self._on_appended()
        return run
