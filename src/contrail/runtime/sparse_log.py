"""Warnings that a peer can cause at any rate: logged at most once a minute, with their number."""

from __future__ import annotations

import logging

INTERVAL_MS = 60_000


class SparseLog:
    """Writes the first line of each minute; the next minute's line says how many were left out."""

    def __init__(self, log: logging.Logger, *, interval_ms: int = INTERVAL_MS) -> None:
        self._log = log
        self._interval_ms = interval_ms
        self._told_ms: int | None = None
        self._left_out = 0

    def warning(self, now_ms: int, text: str, *values: object) -> bool:
        """Whether the line was written."""
        told_ms = self._told_ms
        # A clock that was set back must not silence the log for longer than a minute.
        if told_ms is not None and 0 <= now_ms - told_ms < self._interval_ms:
            self._left_out += 1
            return False
        if self._left_out:
            text += " (and %d like it since the last such line)"
            values = (*values, self._left_out)
        self._told_ms, self._left_out = now_ms, 0
        self._log.warning(text, *values)
        return True
