"""Files of timed messages speak of committed deliveries alone, directed: seeds seldom meet it."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import patch

import pytest

from contrail.broker.services.deliveries import Deliveries
from contrail.clock import ManualClock
from contrail.model.message import MessageDraft
from tests.simulation.kinds_replica import Replica
from tests.simulation.kinds_story import START_MS

pytestmark = pytest.mark.proves("replication.failover.below-commit")


def _deliver_uncommitted(folder: Path) -> None:
    """A leader delivers, is cut off, and its log grows as long again with another leader's."""
    clock = ManualClock(START_MS)
    first, second = Replica("a", folder, clock), Replica("b", folder, clock)
    try:
        first.append_marker(1)
        first.commit_to(first.end)
        first.lead()
        first.send_timed("k", START_MS + 2_000)
        first.commit_to(first.end)
        second.take_raw(first, first.end)
        second.commit_to(second.end)
        committed = first.end
        for _ in range(6):
            clock.advance(ms=1_000)
            first.run()
            first.store.flush_now()
        assert first.end > committed, "it was delivered"
        _still_waits(first)
        first.follow()
        first.cut(committed)
        second.append_marker(2)
        # The next leader does not run its timers: its log grows by other messages.
        second.commit_to(second.end)
        second.lead()
        while second.end < first.end + 2_000:
            second.store.append([MessageDraft(b"orders", 0, b"x" * 500)])
        second.commit_to(second.end)
        first.take_raw(second, second.end)
        first.commit_to(first.end)
        for _ in range(4):
            clock.advance(ms=1_000)
            first.run()
        _still_waits(first)
        first.write_files()
        first.restart()
        first.commit_to(second.end)
        assert first.timers.pending_count == 1, "a message that nobody delivered is lost"
    finally:
        first.close()
        second.close()


def _still_waits(replica: Replica) -> None:
    line_ms = replica.timers._filing.read_ms
    assert line_ms <= START_MS + 2_000, "I13: the files are ahead of the commit"


def test_timer_files_never_speak_of_deliveries_above_the_commit(memory_path: Path) -> None:
    _deliver_uncommitted(memory_path)


@property
def _cursor_by_flush(self: Deliveries) -> int:
    return self._store.flushed_end


@pytest.mark.proves("replication.groups.mutants")
def test_files_that_are_ahead_of_the_commit_are_found(memory_path: Path) -> None:
    with patch.object(Deliveries, "settled_end", _cursor_by_flush), pytest.raises(AssertionError):
        _deliver_uncommitted(memory_path)
