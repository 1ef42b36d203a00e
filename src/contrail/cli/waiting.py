"""Waiting for a cluster to come to rest: polls, progress on standard error, and a deadline."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta

from contrail.cli.exits import CommandFailed

_POLL_S = 0.5


class Quiet:
    """Measures how long a counter has stood still. Times are seconds of any steady clock."""

    def __init__(self, count: int, now_s: float) -> None:
        self._count = count
        self._since_s = now_s
        self.moved = 0

    def see(self, count: int, now_s: float) -> float:
        """Take the newest count; for how many seconds it has been the same."""
        if count != self._count:
            # A restarted server counts from 0.
            self.moved += count - self._count if count > self._count else count
            self._count, self._since_s = count, now_s
        return now_s - self._since_s


_LINE_INTERVAL_S = 5.0


class Progress:
    """A line on standard error: rewritten at a terminal, else a new one every few seconds."""

    def __init__(self) -> None:
        self._last = ""
        self._last_s = float("-inf")
        self._is_open = False

    def say(self, text: str, now_s: float) -> None:
        if sys.stderr.isatty():
            print(f"\r\x1b[2K{text}", end="", file=sys.stderr, flush=True)
            self._is_open = True
        elif text != self._last and now_s - self._last_s >= _LINE_INTERVAL_S:
            print(text, file=sys.stderr, flush=True)
            self._last, self._last_s = text, now_s

    def close(self) -> None:
        if self._is_open:
            print(file=sys.stderr)
            self._is_open = False


def ticks(timeout: timedelta, interval_s: float) -> Iterator[float]:
    """The time now, again and again, until the deadline has passed; at least once."""
    deadline_s = time.monotonic() + timeout.total_seconds()
    pause = threading.Event()
    while True:
        now_s = time.monotonic()
        yield now_s
        if now_s >= deadline_s:
            return
        pause.wait(min(interval_s, max(0.0, deadline_s - now_s)))


def wait_until_at_rest(
    count: Callable[[], int],
    left: Callable[[], list[str]],
    *,
    timeout: timedelta,
    quiet: timedelta,
    late: str,
) -> int:
    """Wait until a count stands still for ``quiet`` and none is left; returns the count's change.

    Raises:
        CommandFailed: the time is over; ``late`` describes the state then.
    """
    progress, stillness, rest = Progress(), Quiet(count(), time.monotonic()), [""]
    try:
        for now_s in ticks(timeout, _POLL_S):
            still_s = stillness.see(count(), now_s)
            rest = left()
            if not rest and still_s >= quiet.total_seconds():
                return stillness.moved
            progress.say(_rest_text(stillness.moved, rest, quiet), now_s)
    finally:
        progress.close()
    reason = rest[0] if rest else f"messages arrived within {quiet.total_seconds():.0f} s"
    raise CommandFailed(f"waited for {timeout.total_seconds():.0f} s: {reason}. {late}")


def _rest_text(moved: int, rest: list[str], quiet: timedelta) -> str:
    if rest:
        more = f", and {len(rest) - 1} more" if len(rest) > 1 else ""
        return f"waiting: {rest[0]}{more}"
    return (
        f"{moved:,} messages came since; waiting until none does for {quiet.total_seconds():.0f} s"
    )
