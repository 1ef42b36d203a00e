"""A steady rate: how long to wait before the next messages are sent."""

from __future__ import annotations


class Pacer:
    """Allows a number of messages a second; unused allowance of idle time is lost."""

    def __init__(self, rate_per_s: float, now_s: float) -> None:
        assert rate_per_s > 0
        self._interval_s = 1 / rate_per_s
        self._free_at_s = now_s

    def wait_s(self, count: int, now_s: float) -> float:
        """Reserve ``count`` messages; returns how long to wait before they are sent."""
        begins_s = max(self._free_at_s, now_s)
        self._free_at_s = begins_s + count * self._interval_s
        return begins_s - now_s


def chunk_size(rate_per_s: float | None, most: int) -> int:
    """How many messages to send together, so that a rate holds within a fifth of a second."""
    if rate_per_s is None:
        return most
    return max(1, min(most, int(rate_per_s / 5)))
