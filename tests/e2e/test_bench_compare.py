"""The comparison of two trees: its verdicts, its feed and its load run; no figure is checked."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from pathlib import Path

import pytest

from bench import compare
from bench.compare_cases import Case, cases
from bench.compare_instructions import _totals
from bench.compare_rounds import Rounds, interval_of, measured_rounds
from bench.compare_trees import Tree
from bench.harness import REPOSITORY, BenchError

NOW = Tree("head", REPOSITORY, "now")
TWINS = (Tree("base", REPOSITORY, "now"), NOW)


def row(ratios: list[float], instructions: float) -> compare.Row:
    return compare.Row("a send", Rounds(1.0, 1.0, interval_of(ratios)), 1000.0, instructions)


def test_the_interval_is_that_of_the_median_by_order_statistics() -> None:
    interval = interval_of([1 + number / 100 for number in range(40)])
    assert interval.median == pytest.approx(1.195)
    assert (interval.low, interval.high) == (pytest.approx(1.13), pytest.approx(1.27))


@pytest.mark.proves("broker.fast.bench-compare")
@pytest.mark.parametrize(
    ("ratios", "instructions", "is_worse"),
    [
        ([1.00] * 40, 1030, False),
        ([1.00] * 40, 1031, True),
        ([1.02] * 40, 1000, False),
        ([1.04] * 40, 1000, True),
        # The median is above the bound, but the interval reaches below 1.00x.
        ([0.90] * 19 + [1.04] * 21, 1000, False),
    ],
)
def test_a_row_is_worse_by_instructions_or_by_its_whole_interval(
    ratios: list[float], instructions: float, is_worse: bool
) -> None:
    assert row(ratios, instructions).is_worse is is_worse


PAIRS = [case for case in cases() if case.protocol != "remoting"]


@pytest.mark.parametrize("case", PAIRS, ids=lambda case: case.name)
def test_the_load_of_frames_that_follow_each_other_is_served(case: Case, tmp_path: Path) -> None:
    rounds = measured_rounds(case, TWINS, tmp_path / "rounds", pair_count=1, scale=0.0)
    assert rounds.base_us > 0
    assert rounds.head_us > 0


def test_the_feed_serves_every_case_without_valgrind(tmp_path: Path) -> None:
    marks = REPOSITORY / "bench" / "c" / "callgrind_marks.c"
    library = tmp_path / "marks.so"
    without_valgrind = tmp_path / "marks.c"
    without_valgrind.write_text("void marks_begin(void) {}\nvoid marks_end(const char *n) {}\n")
    assert "marks_begin" in marks.read_text()
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, without_valgrind], check=True)
    assert ctypes.CDLL(str(library)).marks_begin is not None
    names = [case.name for case in cases()]
    done = subprocess.run(
        [sys.executable, "-m", "bench.compare_feed", tmp_path / "stores", library, "1", *names],
        cwd=REPOSITORY,
        env=NOW.environment(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(":") == len(cases())


def test_the_output_of_callgrind_is_read_by_its_marks(tmp_path: Path) -> None:
    (tmp_path / "out.1").write_text("desc: Trigger: Client Request: a send\ntotals: 1234\n")
    (tmp_path / "out.2").write_text("desc: Trigger: Program termination\ntotals: 99\n")
    assert _totals(tmp_path / "out") == {"a send": 1234}


def test_an_unknown_row_is_refused_by_name() -> None:
    with pytest.raises(BenchError, match="no row has 'nonsense' in its name"):
        compare._wanted(["nonsense"])
