"""Decides when a group leader's next push is due, so that a busy master sends few large frames.

A push costs some 50 µs beside its bytes, at both ends (decision 45). After 64 KiB within an
interval the next push waits for the interval's end, or for the log's next sync. While answers wait
for slaves the interval is a millisecond; a master that waits for nobody takes some more.
"""

from __future__ import annotations

BUSY_BYTES = 64 << 10
AWAITED_INTERVAL_MS = 1
UNAWAITED_INTERVAL_MS = 4


class PushSpacing:
    """Counts the bytes that were pushed within the present interval."""

    def __init__(self, *, is_awaited: bool) -> None:
        self._interval_ms = AWAITED_INTERVAL_MS if is_awaited else UNAWAITED_INTERVAL_MS
        self._began_ms = -UNAWAITED_INTERVAL_MS
        self._pushed_bytes = 0
        self._is_behind = False

    def wait_ms(self, now_ms: int) -> int:
        """How long the next push has to wait; 0 for not at all."""
        if self._is_behind:
            return 0
        passed_ms = now_ms - self._began_ms
        if passed_ms >= self._interval_ms or self._pushed_bytes < BUSY_BYTES:
            return 0
        return self._interval_ms - passed_ms

    def behind(self) -> None:
        """A slave lacks more than it was given by now: the next push does not wait."""
        self._is_behind = True

    def pushed(self, byte_count: int, now_ms: int, *, is_behind: bool = False) -> None:
        """The most that one slave was given; ``is_behind`` if a slave had its share of the turn."""
        self._is_behind = is_behind
        if now_ms - self._began_ms >= self._interval_ms:
            self._began_ms = now_ms
            self._pushed_bytes = 0
        self._pushed_bytes += byte_count

    def synced(self) -> None:
        """The log was synced: all that it holds may go out at once."""
        self._pushed_bytes = 0
