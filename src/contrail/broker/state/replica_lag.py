"""How long ago a master's log ended where a slave's ends: the slave's lag in time."""

from __future__ import annotations

from collections import deque

SAMPLE_INTERVAL_MS = 100
_SAMPLES_MAX = 3000


class ReplicaLag:
    """Where the log ended at moments of the last minutes; the oldest are forgotten."""

    def __init__(self) -> None:
        self._samples: deque[tuple[int, int]] = deque(maxlen=_SAMPLES_MAX)

    def sample(self, elapsed_ms: int, physical_end: int) -> None:
        """The log ends here now; moments at which it ended at the same place are one."""
        if not self._samples or self._samples[-1][1] != physical_end:
            self._samples.append((elapsed_ms, physical_end))

    def lag_ms(self, acknowledged_end: int, elapsed_ms: int) -> int:
        """How long the first byte that the slave lacks has been there; 0 if it lacks none.

        A lag longer than the memory is as long as the memory.
        """
        for since_ms, physical_end in self._samples:
            if physical_end > acknowledged_end:
                return elapsed_ms - since_ms
        return 0
