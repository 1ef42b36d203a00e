"""The long campaigns: every file with tests marked `torture` is one, by its name.

    python -m scripts.torture [CAMPAIGN [SEED]]

A campaign ends within 60 minutes. One that has cases left by then says so and exits with 3; the
same command goes on with those, unless the commit or the seed is another. Without a name all
campaigns are run, each for its 60 minutes; what is finished at this commit is not run again.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

import pytest

from scripts.parts import ROOT, TORTURE
from scripts.run_tests import current_commit

PROGRESS = ROOT / ".torture"
MARK = re.compile(r"^(?:@|pytestmark = .*)pytest\.mark\.torture\b", re.MULTILINE)
MINUTES_MAX = 60.0
# The seconds in which a case that is cut off must put its processes and folders away.
FAREWELL_S = 60.0
NOT_FINISHED = 3


@dataclass(slots=True)
class Progress:
    """The cases that have passed at a commit with a seed; kept in a file between two runs."""

    commit: str
    seed: str
    passed: list[str] = field(default_factory=list)
    left: list[str] | None = None

    @property
    def is_finished(self) -> bool:
        return self.left == []

    @classmethod
    def of(cls, place: Path, commit: str, seed: str) -> Progress:
        """The noted progress, or a fresh start if it belongs to another commit or seed."""
        if place.exists():
            kept = cls(**json.loads(place.read_text(encoding="utf-8")))
            if (kept.commit, kept.seed) == (commit, seed):
                return kept
        return cls(commit, seed)

    def keep(self, place: Path) -> None:
        place.parent.mkdir(exist_ok=True)
        place.write_text(json.dumps(asdict(self)), encoding="utf-8")


class Plugin:
    """Skips cases that have passed before, notes passes, and stops before the time is over."""

    def __init__(self, place: Path, seconds: float) -> None:
        self._place = place
        self._progress = Progress(**json.loads(place.read_text(encoding="utf-8")))
        self._ends_s = time.monotonic() + seconds
        self._longest_s = 0.0

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        done = [item for item in items if item.nodeid in self._progress.passed]
        items[:] = [item for item in items if item.nodeid not in self._progress.passed]
        config.hook.pytest_deselected(items=done)
        self._progress.left = [item.nodeid for item in items]
        self._progress.keep(self._place)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        began_s = time.monotonic()
        # A case that takes as long as the longest so far would be cut off.
        if self._longest_s and began_s + self._longest_s > self._ends_s:
            item.session.shouldstop = "the time of this campaign is over"
            return True
        ended = yield
        self._longest_s = max(self._longest_s, time.monotonic() - began_s)
        return ended

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        left = self._progress.left
        assert left is not None
        if report.failed and report.nodeid in self._progress.passed:
            self._progress.passed.remove(report.nodeid)
            left.append(report.nodeid)
        elif (report.when == "call" and report.passed) or report.skipped:
            self._progress.passed.append(report.nodeid)
            left.remove(report.nodeid)
        self._progress.keep(self._place)


def pytest_configure(config: pytest.Config) -> None:
    place, seconds = os.environ["CONTRAIL_TORTURE"].split(" ")
    config.pluginmanager.register(Plugin(Path(place), float(seconds)))


def campaigns(root: Path = ROOT) -> dict[str, str]:
    """The files with tests marked `torture`, by the name of their campaign."""
    return {
        path.stem.removeprefix("test_"): path.relative_to(root).as_posix()
        for path in sorted((root / "tests").rglob("test_*.py"))
        if path.parent.name != "house" and MARK.search(path.read_text(encoding="utf-8"))
    }


def run_campaign(name: str, file: str, seed: str, seconds: float, root: Path = ROOT) -> int:
    """Run the rest of a campaign for this long."""
    place = (PROGRESS if root == ROOT else root / ".torture") / f"{name}.json"
    progress = Progress.of(place, current_commit(), seed)
    before = len(progress.passed)
    progress.keep(place)
    environment = os.environ | {"CONTRAIL_TORTURE": f"{place} {seconds}"}
    if seed:
        environment["CONTRAIL_SEED"] = seed
    command = [sys.executable, "-m", "pytest", "-p", "scripts.torture", "-m", TORTURE]
    began_s = time.monotonic()
    code = _run_for(seconds, [*command, "--timeout=0", file], environment)
    progress = Progress.of(place, progress.commit, seed)
    spent = f"{time.monotonic() - began_s:.0f} s"
    if code == pytest.ExitCode.TESTS_FAILED or progress.left is None:
        print(f"campaign {name} failed after {spent}", file=sys.stderr)
        return code or 1
    if progress.is_finished:
        print(f"campaign {name}: {len(progress.passed)} cases, the last ones in {spent}")
        return 0
    if len(progress.passed) == before:
        print(f"campaign {name}: no case ended within {spent}", file=sys.stderr)
        return 1
    print(f"campaign {name}: {len(progress.left)} cases left after {spent}; run it again to go on")
    return NOT_FINISHED


def _run_for(seconds: float, command: list[str], environment: dict[str, str]) -> int:
    process = subprocess.Popen(command, cwd=ROOT, env=environment)
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)
    try:
        process.wait(FAREWELL_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    return int(pytest.ExitCode.INTERRUPTED)


def main(arguments: list[str]) -> int:
    known = campaigns()
    name, seed = (*arguments, "", "")[:2]
    if name and name not in known:
        print(f"there is no campaign {name!r}; campaigns: {' '.join(known)}", file=sys.stderr)
        return 2
    seconds = 60 * float(os.environ.get("CONTRAIL_TORTURE_MINUTES", MINUTES_MAX)) - FAREWELL_S
    if name:
        # A finished campaign that is named runs again.
        if Progress.of(PROGRESS / f"{name}.json", current_commit(), seed).is_finished:
            (PROGRESS / f"{name}.json").unlink()
        return run_campaign(name, known[name], seed, seconds)
    codes = [
        run_campaign(one, file, seed, seconds)
        for one, file in known.items()
        if not Progress.of(PROGRESS / f"{one}.json", current_commit(), seed).is_finished
    ]
    return next((code for code in sorted(codes) if code), 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
