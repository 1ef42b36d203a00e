"""Decides when the log is committed from memory to its file, and when it is synced."""

from __future__ import annotations

_PAGE_BYTES = 4096


def is_due(done_end: int, written_end: int, *, pages_min: int, thorough: bool) -> bool:
    """Whether enough pages wait between two positions; in a thorough round one byte is enough.

    Pages are counted as RocketMQ does: pages begun since, not pages filled.
    """
    if written_end <= done_end:
        return False
    pages = written_end // _PAGE_BYTES - done_end // _PAGE_BYTES
    return thorough or pages >= pages_min


class Rounds:
    """Tells when the next thorough round is due: one per interval."""

    def __init__(self, interval_ms: int, now_ms: int) -> None:
        self._interval_ms = interval_ms
        self._due_ms = now_ms + interval_ms

    def is_thorough(self, now_ms: int) -> bool:
        if now_ms < self._due_ms:
            return False
        self._due_ms = now_ms + self._interval_ms
        return True
