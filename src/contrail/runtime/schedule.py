"""Periodic jobs by the injected clock: due when the clock says so, whoever moves it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

_log = logging.getLogger(__name__)

# A patient job waits for others for so much of its interval: a quarter.
_PATIENCE = 4

Interval = int | Callable[[], int]
"""Milliseconds, or who says how many it is now."""


@dataclass(slots=True)
class _Job:
    name: str
    interval: Interval
    run: Callable[[int], object]
    ran_ms: int
    is_patient: bool

    def due_ms(self) -> int:
        interval = self.interval
        return self.ran_ms + (interval if isinstance(interval, int) else interval())

    def latest_ms(self) -> int:
        due_ms = self.due_ms()
        return due_ms + (due_ms - self.ran_ms) // _PATIENCE if self.is_patient else due_ms


class Schedule:
    """Holds the jobs of one server. The owner calls ``run_due`` at least once a second."""

    def __init__(self, now_ms: int) -> None:
        self._started_ms = now_ms
        self._jobs: list[_Job] = []

    def every(
        self,
        interval: Interval,
        run: Callable[[int], object],
        *,
        name: str,
        is_patient: bool = False,
    ) -> None:
        """Have ``run(now_ms)`` called each interval.

        A patient job may be late by a quarter of it: within that time it is run when another one
        is. To be woken up costs more than most jobs do.
        """
        self._jobs.append(_Job(name, interval, run, self._started_ms, is_patient))

    def run_due(self, now_ms: int) -> None:
        """Run what is due, once each. A job that fails is logged and stays in the schedule."""
        for job in self._jobs:
            # A clock set back by more than an interval must not silence a job until it catches up.
            if job.ran_ms > now_ms + 1:
                job.ran_ms = now_ms
            if now_ms >= job.due_ms():
                job.ran_ms = now_ms
                try:
                    job.run(now_ms)
                except Exception:
                    _log.exception("the periodic job %r failed; it will be tried again", job.name)

    def due_in_ms(self, now_ms: int) -> int:
        """How long until a job is due that waits no longer for others; 0 when one is."""
        due_ms = min([job.latest_ms() for job in self._jobs], default=now_ms + 1000)
        return max(0, due_ms - now_ms)
