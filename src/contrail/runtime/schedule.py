"""Periodic jobs by the injected clock, which a test may move.

An idle server wakes for its jobs only, so it must wake seldom: when one job is due, jobs that will
be due soon run with it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

_log = logging.getLogger(__name__)

# A job may run early together with another: by at most 1/4 of its interval and 25 ms, because some
# jobs count on running about once a second.
_EARLY_PART = 4
_EARLY_MS_MAX = 25
_IDLE_WAIT_MS = 1000

Interval = int | Callable[[], int]
"""Milliseconds, or a function that returns them."""


@dataclass(slots=True)
class _Job:
    name: str
    interval: Interval
    run: Callable[[int], object]
    ran_ms: int


@dataclass(slots=True)
class _Deadline:
    name: str
    wait_ms: Callable[[], int | None]
    run: Callable[[int], object]


class Schedule:
    """Holds the jobs of one server. The owner calls ``run_due`` at least once a second."""

    def __init__(self, now_ms: int) -> None:
        self._started_ms = now_ms
        self._jobs: list[_Job] = []
        self._deadlines: list[_Deadline] = []

    def every(
        self,
        interval: Interval,
        run: Callable[[int], object],
        *,
        name: str,
    ) -> None:
        """Call ``run(now_ms)`` each interval."""
        self._jobs.append(_Job(name, interval, run, self._started_ms))

    def when_over(
        self, wait_ms: Callable[[], int | None], run: Callable[[int], object], *, name: str
    ) -> None:
        """Call ``run(now_ms)`` when a wait is over, if there is one.

        ``wait_ms`` returns the time left, by any clock: a step of the wall clock need not end or
        prolong the wait.
        """
        self._deadlines.append(_Deadline(name, wait_ms, run))

    def run_due(self, now_ms: int) -> None:
        """Run each job that is due once, and with it each job that nearly is.

        A job that fails is logged and stays in the schedule.
        """
        for deadline in self._deadlines:
            wait_ms = deadline.wait_ms()
            if wait_ms is not None and wait_ms <= 0:
                self._run(deadline.name, deadline.run, now_ms)
        nearly = self._waiting(now_ms)
        if not any(wait_ms <= 0 for _, wait_ms, _ in nearly):
            return
        for job, left_ms, interval_ms in nearly:
            if left_ms <= min(interval_ms // _EARLY_PART, _EARLY_MS_MAX):
                job.ran_ms = now_ms
                self._run(job.name, job.run, now_ms)

    def _run(self, name: str, run: Callable[[int], object], now_ms: int) -> None:
        try:
            run(now_ms)
        except Exception:
            _log.exception("the periodic job %r failed; it will be tried again", name)

    def due_in_ms(self, now_ms: int) -> int:
        """How long until the next job is due; 0 if a job is due now."""
        waits = [wait_ms for _, wait_ms, _ in self._waiting(now_ms)]
        left = (deadline.wait_ms() for deadline in self._deadlines)
        waits += [wait_ms for wait_ms in left if wait_ms is not None]
        return max(0, min(waits, default=_IDLE_WAIT_MS))

    def _waiting(self, now_ms: int) -> list[tuple[_Job, int, int]]:
        """Every job with the time until it is due, and its interval now."""
        waiting = []
        for job in self._jobs:
            # A clock set back by more than an interval must not silence a job until it catches up.
            if job.ran_ms > now_ms + 1:
                job.ran_ms = now_ms
            interval = job.interval
            interval_ms = interval if isinstance(interval, int) else interval()
            waiting.append((job, job.ran_ms + interval_ms - now_ms, interval_ms))
        return waiting
