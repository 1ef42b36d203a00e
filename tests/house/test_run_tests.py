"""The steps of `make test`: what is asked again, and what a run leaves behind."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path

import pytest

from scripts import run_tests
from scripts.parts import QUICK, Run
from scripts.run_tests import Outcome, run_tracks, settled
from scripts.unsteady import Entry

ROOT = Path(__file__).parents[2]
TEST = "tests/e2e/test_it.py::test_it"
RUN = Run("e2e", ["tests/e2e/test_it.py", "tests/e2e/test_other.py"], QUICK, workers=2)


def outcome(*failed: str) -> Outcome:
    return Outcome(int(bool(failed)), Counter(), dict.fromkeys(failed, "late"), Counter(), 1.0)


def run_step(
    monkeypatch: pytest.MonkeyPatch, ends: list[Outcome], entries: list[Entry]
) -> tuple[int, list[Run]]:
    asked: list[Run] = []

    def answer(run: Run, *, is_shown: bool = True) -> Outcome:
        asked.append(run)
        return ends[len(asked) - 1]

    monkeypatch.setattr(run_tests, "pytest_run", answer)
    monkeypatch.setattr(run_tests, "committed_entries", lambda: entries)
    [(run, first)] = run_tracks([[RUN]])
    return settled(run, first, "abc1234").code, asked


@pytest.mark.proves("house.tests.asked-once-more")
def test_a_failed_file_is_run_alone_and_printed_as_an_entry(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, asked = run_step(monkeypatch, [outcome(TEST), outcome()], [])
    assert code == 0
    assert [(run.files, run.workers) for run in asked[1:]] == [(["tests/e2e/test_it.py"], 0)]
    assert f'test = "{TEST}"\ncommit = "abc1234"\nfailed = "late"' in capsys.readouterr().out


def test_a_file_that_fails_alone_too_fails_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run_step(monkeypatch, [outcome(TEST), outcome(TEST)], [])[0] == 1


def test_a_known_unsteady_test_is_not_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    known = Entry(TEST, "abc1234", "late", "unknown")
    code, asked = run_step(monkeypatch, [outcome(TEST)], [known])
    assert (code, len(asked)) == (1, 1)


def test_tracks_run_beside_each_other_and_the_steps_of_a_track_in_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    both_run, begun, shown = threading.Barrier(2, timeout=60), list[str](), dict[str, bool]()

    def answer(run: Run, *, is_shown: bool) -> Outcome:
        begun.append(run.name)
        shown[run.name] = is_shown
        if run.name != "third":
            both_run.wait()
        return outcome(run.name)

    monkeypatch.setattr(run_tests, "pytest_run", answer)
    first, second, third = (Run(name, [], QUICK) for name in ("first", "second", "third"))
    ended = run_tracks([[first], [second, third]])
    assert [(run.name, [*found.failed]) for run, found in ended] == [
        ("first", ["first"]),
        ("second", ["second"]),
        ("third", ["third"]),
    ]
    assert begun[-1] == "third"
    assert shown == {"first": True, "second": False, "third": False}


SAMPLE = """
import pytest
def test_good(): assert True
def test_bad(): assert 1 == 2
def test_left_out(): pytest.skip("no peer")
@pytest.fixture
def broken(): raise OSError("no port")
def test_without(broken): ...
"""


@pytest.mark.proves("house.tests.slowest-files")
@pytest.mark.parametrize("workers", ["0", "2"])
def test_a_run_reports_counts_failures_and_seconds(workers: str, tmp_path: Path) -> None:
    (tmp_path / "test_sample.py").write_text(SAMPLE)
    (tmp_path / "conftest.py").write_text("from tests.conftest import *\n")
    place = tmp_path / "report.json"
    options = ["-n", workers, "--rootdir", str(tmp_path), "-c", "/dev/null"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *options, "-p", "no:cacheprovider", str(tmp_path)],
        cwd=ROOT,
        env={"CONTRAIL_TEST_REPORT": str(place), "PYTHONPATH": f"{ROOT}:{ROOT / 'src'}"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    report = json.loads(place.read_text())
    assert report["counts"] == {"passed": 1, "failed": 2, "skipped": 1}
    why = {name.rpartition("::")[2]: said for name, said in report["failed"].items()}
    assert why == {"test_bad": "assert 1 == 2", "test_without": "OSError: no port"}
    assert [Path(file).name for file in report["seconds"]] == ["test_sample.py"]
