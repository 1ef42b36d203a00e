"""Decides what a slave reports to its master, which bytes it takes, and when it gives up.

| phase    | the slave                                                                          |
| -------- | ---------------------------------------------------------------------------------- |
| READY    | has no link; it connects at ``connect_at_ms``                                      |
| TRANSFER | has reported the end of its log and takes what follows                             |
| DIVERGED | writes nothing any more: its log is not a part of the master's; a person decides   |

Frames must come at the expected place, heartbeats too. A wrong place ends the link; after three in
a row, or bytes that are no records of their place, the slave is DIVERGED until it is restarted.
"""

from __future__ import annotations

from collections import Counter
from enum import StrEnum

from contrail.replication.state.ha_limits import HaLimits


class Phase(StrEnum):
    """Where a slave stands."""

    READY = "READY"
    TRANSFER = "TRANSFER"
    DIVERGED = "DIVERGED"


class HaSlaveState:
    """One slave's view of its link and of its log's next byte."""

    def __init__(self, limits: HaLimits, *, segment_bytes: int, now_ms: int) -> None:
        self._limits = limits
        self._segment_bytes = segment_bytes
        self.phase = Phase.READY
        self.connect_at_ms = now_ms
        # The place of the next byte from the master; None while an empty log may begin anywhere.
        self.expected: int | None = None
        self.reported_end = 0
        self.heard_ms = self.sent_ms = now_ms
        self.received_bytes = 0
        self.problem = self.problem_reason = ""
        self.counts: Counter[str] = Counter()
        self._mismatch_count = 0

    def begin(self, physical_end: int, now_ms: int, *, is_empty: bool) -> None:
        """The link is open and the slave asks for its log from ``physical_end`` on."""
        assert self.phase is not Phase.DIVERGED, "a diverged slave connects to nobody"
        self.phase = Phase.TRANSFER
        self.expected = None if is_empty else physical_end
        self.reported_end = physical_end
        self.heard_ms = self.sent_ms = now_ms

    def received(self, physical_offset: int, byte_count: int, now_ms: int) -> bool:
        """Bytes came, or a heartbeat with none; False: they are refused and the link ends."""
        if self.phase is not Phase.TRANSFER:
            return False
        self.heard_ms = now_ms
        if self.expected is None and not byte_count:
            # The heartbeat of a master whose log is as empty as ours.
            return True
        if not self._is_expected(physical_offset):
            self._mismatched(physical_offset)
            return False
        self.expected = physical_offset + byte_count
        if self.problem:
            self.fault("", "")
        self.received_bytes += byte_count
        return True

    def _is_expected(self, physical_offset: int) -> bool:
        if self.expected is None:
            return physical_offset % self._segment_bytes == 0
        return physical_offset == self.expected

    def _mismatched(self, physical_offset: int) -> None:
        self.counts["mismatch"] += 1
        self._mismatch_count += 1
        wanted = "the start of a segment" if self.expected is None else self.expected
        text = f"the master sent bytes at {physical_offset} where {wanted} was expected"
        self.fault("mismatch", text)
        if self._mismatch_count >= self._limits.mismatch_count_max:
            self.diverged("mismatch", text)

    def appended(self) -> None:
        """Bytes of the master became part of the log: both agree so far."""
        self._mismatch_count = 0
        self.fault("", "")

    def diverged(self, reason: str, text: str) -> None:
        """Master and slave have different logs: take nothing from now on."""
        if self.phase is not Phase.DIVERGED:
            self.phase = Phase.DIVERGED
            self.counts[f"diverged_{reason}"] += 1
            self.fault(reason, text)

    def fault(self, reason: str, text: str) -> None:
        """Remember why there is no link, in one word and in a sentence; empty: all is well."""
        self.problem_reason, self.problem = reason, text

    def due_report(self, kept_end: int, now_ms: int) -> int | None:
        """The end of the log to report now, because it moved or because nothing was sent lately."""
        if self.phase is not Phase.TRANSFER:
            return None
        is_idle = now_ms - self.sent_ms >= self._limits.heartbeat_interval_ms
        if kept_end <= self.reported_end and not is_idle:
            return None
        self.reported_end = max(kept_end, self.reported_end)
        self.sent_ms = now_ms
        return self.reported_end

    def is_silent(self, now_ms: int) -> bool:
        """Whether the master's silence has lasted until the link counts as dead."""
        silent_ms = now_ms - self.heard_ms
        return self.phase is Phase.TRANSFER and silent_ms >= self._limits.housekeeping_interval_ms

    def lost(self, reason: str, now_ms: int) -> None:
        """The link ended, or could not be made: connect again in a while."""
        self.counts[reason] += 1
        if self.phase is not Phase.DIVERGED:
            self.phase = Phase.READY
            self.connect_at_ms = now_ms + self._limits.reconnect_ms

    def is_due(self, now_ms: int) -> bool:
        """Whether to connect now."""
        return self.phase is Phase.READY and now_ms >= self.connect_at_ms
