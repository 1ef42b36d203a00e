"""Decides when the next push to a slave is due, so that a busy master sends few large frames.

A push costs some 50 µs beside its bytes, at both ends (decision 45), and so does its report.

| answers wait for slaves | the next push is due                                                |
| ----------------------- | ------------------------------------------------------------------- |
| yes (``SYNC_MASTER``)   | with the slave's report of all it was sent, or a millisecond after  |
| no                      | ten milliseconds after the last one                                 |

A slave that reports quickly is thus sent what came in one round trip, and a slow one loses no
time: its next bytes are there when its sync ends. A slave that is behind never waits.
"""

from __future__ import annotations

from contrail.replication.state.ha_master import SlaveProgress

AWAITED_INTERVAL_MS = 1
UNAWAITED_INTERVAL_MS = 10


class SlavePacing:
    """The rule for all slaves of a master."""

    def __init__(self, *, is_awaited: bool) -> None:
        self._is_awaited = is_awaited
        self._interval_ms = AWAITED_INTERVAL_MS if is_awaited else UNAWAITED_INTERVAL_MS

    def wait_ms(self, slave: SlaveProgress, now_ms: int) -> int:
        """How long the next push to a slave has to wait; 0 for not at all. Time is the loop's."""
        if slave.is_behind or (self._is_awaited and not slave.owes_report):
            return 0
        return max(slave.pushed_ms + self._interval_ms - now_ms, 0)
