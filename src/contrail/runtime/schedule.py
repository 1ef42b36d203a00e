"""Periodic jobs by the injected clock: due when the clock says so, whoever moves it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

_log = logging.getLogger(__name__)


Interval = int | Callable[[], int]
"""Milliseconds, or who says how many it is now."""


@dataclass(slots=True)
class _Job:
    name: str
    interval: Interval
    run: Callable[[int], object]
    ran_ms: int

    def due_ms(self) -> int:
        interval = self.interval
        return self.ran_ms + (interval if isinstance(interval, int) else interval())


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
    ) -> None:
        """Have ``run(now_ms)`` called each interval."""
        self._jobs.append(_Job(name, interval, run, self._started_ms))

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
        """How long until the next job is due; 0 when one is."""
        due_ms = min([job.due_ms() for job in self._jobs], default=now_ms + 1000)
        return max(0, due_ms - now_ms)
