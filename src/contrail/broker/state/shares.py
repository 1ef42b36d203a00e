"""How much of a bounded table each address uses: one address must not use up all of it."""

from __future__ import annotations

from collections import Counter

THIS_HOST = ""
"""The owner that everything from this host counts for; it has no share but the whole table."""


class Shares:
    """Counts entries by owner against a bound of all and one of each."""

    def __init__(self, total_max: int, share_max: int) -> None:
        self.total_max = total_max
        self.share_max = share_max
        self.total = 0
        self._of: Counter[str] = Counter()

    def count_of(self, owner: str) -> int:
        return self._of[owner]

    def room(self, owner: str) -> int:
        """How many more entries an owner may add."""
        room = self.total_max - self.total
        return room if owner == THIS_HOST else min(room, self.share_max - self._of[owner])

    def add(self, owner: str, count: int = 1) -> None:
        self.total += count
        self._of[owner] += count
        if not self._of[owner]:
            del self._of[owner]

    def remove(self, owner: str, count: int = 1) -> None:
        self.add(owner, -count)
