"""Periodic jobs by the injected clock: due when the clock says so, whoever moves it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Job:
    name: str
    interval_ms: int
    run: Callable[[int], object]
    due_ms: int


class Schedule:
    """Holds the jobs of one server. The owner calls ``run_due`` at least once a second."""

    def __init__(self, now_ms: int) -> None:
        self._started_ms = now_ms
        self._jobs: list[_Job] = []

    def every(
        self,
        interval_ms: int,
        run: Callable[[int], object],
        *,
        name: str,
        first_after_ms: int | None = None,
    ) -> None:
        """Have ``run(now_ms)`` called each interval, first after ``first_after_ms``."""
        first_ms = interval_ms if first_after_ms is None else first_after_ms
        self._jobs.append(_Job(name, interval_ms, run, self._started_ms + first_ms))

    def run_due(self, now_ms: int) -> None:
        """Run what is due, once each. A job that fails is logged and stays in the schedule."""
        for job in self._jobs:
            # A clock set back by more than an interval must not silence a job until it catches up.
            if job.due_ms - now_ms > job.interval_ms + 1:
                job.due_ms = now_ms + job.interval_ms
            if now_ms >= job.due_ms:
                job.due_ms = now_ms + job.interval_ms
                try:
                    job.run(now_ms)
                except Exception:
                    _log.exception("the periodic job %r failed; it will be tried again", job.name)

    def due_in_ms(self, now_ms: int) -> int:
        """How long until the next job is due; 0 when one is."""
        return max(0, min((job.due_ms - now_ms for job in self._jobs), default=1000))
