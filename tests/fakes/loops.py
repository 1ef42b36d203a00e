"""An event loop that a test turns by hand."""

from __future__ import annotations

from collections.abc import Callable


class FakeLoop:
    """Holds scheduled calls; ``turn`` runs the calls that are due, not those they schedule."""

    def __init__(self) -> None:
        self.soon: list[Callable[[], object]] = []
        self.later: list[tuple[float, Callable[[], object]]] = []

    def call_soon(self, callback: Callable[[], object]) -> None:
        self.soon.append(callback)

    def call_later(self, delay: float, callback: Callable[[], object]) -> None:
        self.later.append((delay, callback))

    def turn(self) -> int:
        """One turn of the loop; returns how many calls were due."""
        due, self.soon = self.soon, []
        for callback in due:
            callback()
        return len(due)

    def settle(self) -> int:
        """Turn until no call is due any more; returns how many turns that took."""
        turn_count = 0
        while self.turn():
            turn_count += 1
        return turn_count

    def ring(self) -> None:
        """Run the calls that wait for a time, whatever that time is."""
        due, self.later = self.later, []
        for _, callback in due:
            callback()
