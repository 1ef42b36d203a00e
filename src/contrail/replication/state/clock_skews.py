"""Members whose wall clocks differ: each is told of once, and again after it was right."""

from __future__ import annotations

from collections.abc import Mapping

SKEW_MS_MAX = 1_000


class ClockSkews:
    """Remembers the members that were warned of."""

    def __init__(self) -> None:
        self._known: frozenset[str] = frozenset()

    def new_ones(self, skews_ms: Mapping[str, int]) -> list[str]:
        """The members whose clocks have come to differ by more than a second."""
        skewed = frozenset(one for one, ms in skews_ms.items() if abs(ms) > SKEW_MS_MAX)
        new, self._known = sorted(skewed - self._known), skewed
        return new
