"""The machine's clock with a distance that a test chooses."""

from __future__ import annotations

from contrail.clock import SystemClock


class MovedClock:
    """Runs like the machine's clock, ahead of it by the sum of its moves.

    Clients keep the machine's time. Since this clock runs along, times that clients compute from
    theirs, such as a delivery time, stay right until the first move.
    """

    def __init__(self) -> None:
        self._machine = SystemClock()
        self._shift_ms = self._passed_ms = 0

    def now_ms(self) -> int:
        return self._machine.now_ms() + self._shift_ms

    def elapsed_ms(self) -> int:
        return self._machine.elapsed_ms() + self._passed_ms

    def advance(self, *, ms: int = 0, hours: float = 0) -> None:
        """Move the clock; negative values move it back."""
        moved_ms = ms + int(hours * 3_600_000)
        self._shift_ms += moved_ms
        self._passed_ms += max(0, moved_ms)
