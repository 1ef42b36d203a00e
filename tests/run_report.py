"""The report of a run of pytest for its caller: counts, failures, seconds of each file.

With ``CONTRAIL_TEST_REPORT`` in the environment they are written there as JSON; the ten slowest
files are printed at the end of a run that took longer than a minute.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

SLOWEST = 10
WORTH_TELLING_S = 60.0


class RunReport:
    """Takes the reports of all tests, those of other workers too."""

    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()
        self.outcomes: dict[str, str] = {}
        self.failed: dict[str, str] = {}

    def take(self, report: pytest.TestReport) -> None:
        self.seconds[report.nodeid.partition("::")[0]] += report.duration
        if report.failed:
            self.failed.setdefault(report.nodeid, _why(report.longrepr))
            self.outcomes[report.nodeid] = "failed"
        elif report.when == "call" or report.skipped:
            self.outcomes.setdefault(report.nodeid, report.outcome)

    def slowest(self) -> list[str]:
        return [f"{seconds:8.1f} s  {file}" for file, seconds in self.seconds.most_common(SLOWEST)]

    def as_json(self) -> dict[str, Any]:
        seconds = {file: round(seconds, 2) for file, seconds in self.seconds.most_common()}
        return {
            "counts": dict(Counter(self.outcomes.values())),
            "failed": self.failed,
            "seconds": seconds,
        }


def _why(longrepr: Any) -> str:
    """The line that says what failed."""
    crash = getattr(longrepr, "reprcrash", None)
    text = crash.message if crash is not None else str(longrepr).strip().rpartition("\n")[2]
    return text.strip().partition("\n")[0][:200]


def write(report: RunReport) -> None:
    if place := os.environ.get("CONTRAIL_TEST_REPORT"):
        Path(place).write_text(json.dumps(report.as_json()), encoding="utf-8")
