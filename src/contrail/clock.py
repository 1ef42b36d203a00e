"""The only place that asks what time it is."""

from __future__ import annotations

import time
from typing import Protocol


def monotonic_ms() -> int:
    """For measuring how long something took; means nothing by itself."""
    return time.monotonic_ns() // 1_000_000


class Clock(Protocol):
    """Wall time in epoch milliseconds; a test hands in one it can move."""

    def now_ms(self) -> int: ...


class SystemClock:
    """The machine's wall clock."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000


class ManualClock:
    """A clock that stands still until it is moved."""

    def __init__(self, now_ms: int = 1_760_000_000_000) -> None:
        self._now_ms = now_ms

    def now_ms(self) -> int:
        return self._now_ms

    def advance(self, *, ms: int = 0, hours: float = 0) -> None:
        """Move the clock; negative values move it back, as operators do."""
        self._now_ms += ms + int(hours * 3_600_000)
