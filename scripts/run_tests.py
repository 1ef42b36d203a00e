"""Run the tests by tests/plan.toml.

    python -m scripts.run_tests test           every step of `make test`
    python -m scripts.run_tests all PART       `make test-all PART=…`; records the run in docs/

A step fails when a test fails, except by the rule of scripts/unsteady.py.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from scripts.parts import ROOT, Run, read_plan
from scripts.unsteady import committed_entries, new_entries, refusal, too_many_unknown
from tests.run_report import SLOWEST

RECORD = ROOT / "docs" / "reference" / "test-parts.md"
PART_SECONDS_MAX = 40 * 60
SOME_TESTS_FAILED = 1
COLUMNS = ("part", "commit", "passed", "failed", "skipped", "seconds")


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a run of pytest."""

    code: int
    counts: Counter[str]
    failed: dict[str, str]
    file_seconds: Counter[str]
    seconds: float


def pytest_run(run: Run, *, is_shown: bool = True) -> Outcome:
    """Run pytest; what it prints is shown as it comes, or all of it at the end."""
    title = f"\n== {run.name}: {len(run.files)} files =="
    if is_shown:
        print(title, flush=True)
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "report.json"
        environment = os.environ | run.environment | {"CONTRAIL_TEST_REPORT": str(place)}
        # A cache of its own: steps run beside each other.
        own = ["-o", f"cache_dir={folder}/cache"]
        command = [sys.executable, "-m", "pytest", *own, *run.arguments]
        started = time.monotonic()
        with (Path(folder) / "printed").open("w+b") as printed:
            to = {} if is_shown else {"stdout": printed, "stderr": subprocess.STDOUT}
            code = subprocess.run(command, cwd=ROOT, env=environment, **to).returncode
            seconds = time.monotonic() - started
            printed.seek(0)
            if not is_shown:
                print(f"{title}\n{printed.read().decode(errors='replace')}", flush=True)
        found = json.loads(place.read_text(encoding="utf-8")) if place.exists() else {}
    return Outcome(
        code,
        Counter(found.get("counts", {})),
        found.get("failed", {}),
        Counter(found.get("seconds", {})),
        seconds,
    )


def run_tracks(tracks: list[list[Run]]) -> list[tuple[Run, Outcome]]:
    """Run tracks beside each other, the steps of each in order; the first track is printed live."""

    def run_track(track: list[Run]) -> list[tuple[Run, Outcome]]:
        return [(run, pytest_run(run, is_shown=track is tracks[0])) for run in track]

    with ThreadPoolExecutor(len(tracks)) as threads:
        return [ended for track in threads.map(run_track, tracks) for ended in track]


def settled(run: Run, first: Outcome, commit: str) -> Outcome:
    """The outcome of a step after what may be asked again has been asked, alone."""
    if first.code != SOME_TESTS_FAILED or not first.failed:
        return first
    if said := refusal(first.failed, committed_entries()):
        print(f"\n{said}", file=sys.stderr)
        return first
    # Whole files: some tests stand on what those before them left.
    files = sorted({test.partition("::")[0] for test in first.failed})
    print("\nfailed; their files are run once more, alone:", *first.failed, sep="\n  ")
    again = pytest_run(replace(run, name="once more, alone", files=files, workers=0))
    if again.code:
        return again
    print("\nUNSTEADY: failed beside others, passed alone. Commit to tests/unsteady.toml:\n")
    print(new_entries(first.failed, commit))
    return replace(first, code=0)


def run_steps() -> int:
    """`make test`."""
    if said := too_many_unknown(committed_entries()):
        print(said, file=sys.stderr)
        return 1
    commit, slowest, seconds = current_commit(), Counter[str](), list[str]()
    for tracks in read_plan().stages():
        outcomes = [(run, settled(run, first, commit)) for run, first in run_tracks(tracks)]
        if failed := [outcome.code for _, outcome in outcomes if outcome.code]:
            return failed[0]
        for run, outcome in outcomes:
            slowest.update(outcome.file_seconds)
            seconds.append(f"{outcome.seconds:8.1f} s  {run.name}")
    print("\nThe steps:", *seconds, sep="\n")
    print("\nThe ten slowest files of all steps:")
    print(*(f"{spent:8.1f} s  {file}" for file, spent in slowest.most_common(SLOWEST)), sep="\n")
    return 0


def run_part(part: str) -> int:
    """`make test-all PART=…`."""
    plan = read_plan()
    if part not in plan.part_names:
        print(f"there is no part {part!r}; parts: {' '.join(plan.part_names)}", file=sys.stderr)
        return 2
    commit = current_commit()
    outcome = pytest_run(plan.whole(part))
    if not outcome.counts:
        return outcome.code or 1
    text = RECORD.read_text(encoding="utf-8")
    RECORD.write_text(recorded(text, row(part, commit, outcome)), encoding="utf-8")
    print(f"recorded in {RECORD.relative_to(ROOT)}")
    if outcome.seconds > PART_SECONDS_MAX:
        print(f"part {part} took longer than 40 minutes: divide it", file=sys.stderr)
        return outcome.code or 1
    return outcome.code


def row(part: str, commit: str, outcome: Outcome) -> list[str]:
    counts = (str(outcome.counts[name]) for name in COLUMNS[2:5])
    return [f"`{part}`", f"`{commit}`", *counts, f"{outcome.seconds:.0f}"]


def recorded(text: str, cells: list[str]) -> str:
    """The page with the row of that part, at its place among the others."""
    lines = text.splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith("| --- ")) + 1
    rows = [line for line in lines[first:] if line.startswith("| ")]
    rest = lines[first + len(rows) :]
    kept = [line for line in rows if not line.startswith(f"| {cells[0]} ")]
    rows = sorted([*kept, f"| {' | '.join(cells)} |"])
    return "\n".join([*lines[:first], *rows, *rest]) + "\n"


def current_commit() -> str:
    """The commit that is tested; ``+`` says that files were changed since."""
    found = _git("rev-parse", "--short", "HEAD")
    record = RECORD.relative_to(ROOT).as_posix()
    changed = _git("status", "--porcelain", "--untracked-files=no", "--", ".", f":!{record}")
    return found + ("+" if changed else "")


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True)
    return done.stdout.strip() or ("" if done.returncode == 0 else "unknown")


def main(arguments: list[str]) -> int:
    match arguments:
        case ["test"]:
            return run_steps()
        case ["all", part]:
            return run_part(part)
    print(__doc__, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
