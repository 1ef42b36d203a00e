"""Periodic jobs by the injected clock: due when the clock says so, whoever moves it.

A server that has nothing to do wakes for its jobs only, so waking seldom is what keeps it cheap:
when one job is due, those that soon would be are run with it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

_log = logging.getLogger(__name__)

# With another one a job is run as much of its interval early as this part, but no more than so
# long: some count on being run about once a second.
_EARLY_PART = 4
_EARLY_MS_MAX = 25
_IDLE_WAIT_MS = 1000

Interval = int | Callable[[], int]
"""Milliseconds, or who says how many it is now."""


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
        """Have ``run(now_ms)`` called each interval."""
        self._jobs.append(_Job(name, interval, run, self._started_ms))

    def when_over(
        self, wait_ms: Callable[[], int | None], run: Callable[[int], object], *, name: str
    ) -> None:
        """Have ``run(now_ms)`` called when nothing is left of a wait, if there is one.

        ``wait_ms`` says what is left, by a clock of its choice: a step of the wall clock need not
        end or prolong it.
        """
        self._deadlines.append(_Deadline(name, wait_ms, run))

    def run_due(self, now_ms: int) -> None:
        """Run what is due, once each, and with it what nearly is.

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
        """How long until the next job is due; 0 when one is."""
        waits = [wait_ms for _, wait_ms, _ in self._waiting(now_ms)]
        left = (deadline.wait_ms() for deadline in self._deadlines)
        waits += [wait_ms for wait_ms in left if wait_ms is not None]
        return max(0, min(waits, default=_IDLE_WAIT_MS))

    def _waiting(self, now_ms: int) -> list[tuple[_Job, int, int]]:
        """Every job with how long it waits yet, and its interval now."""
        waiting = []
        for job in self._jobs:
            # A clock set back by more than an interval must not silence a job until it catches up.
            if job.ran_ms > now_ms + 1:
                job.ran_ms = now_ms
            interval = job.interval
            interval_ms = interval if isinstance(interval, int) else interval()
            waiting.append((job, job.ran_ms + interval_ms - now_ms, interval_ms))
        return waiting
