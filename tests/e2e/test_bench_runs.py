"""The store benchmark runs end to end with tiny counts; its structure is checked, no figure."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from bench.harness import REPOSITORY, BenchError, Figures, Limit, Row, Samples, in_rounds
from bench.report import Commit, Result, describe_commit, publish, write_page_again


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The result of a tiny run; in the build folder, since a sync in memory is refused."""
    written = tmp_path_factory.mktemp("bench") / "result.json"
    done = _bench("store", "--size", "tiny", "--json", str(written))
    assert done.returncode == 0, done.stderr
    loaded: dict[str, Any] = json.loads(written.read_text(encoding="utf-8"))
    return loaded


def _bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "bench", *arguments],
        capture_output=True,
        text=True,
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        timeout=240,
        check=False,
    )


def test_without_a_name_the_suites_are_listed() -> None:
    done = _bench()
    assert done.returncode == 0
    assert "store" in done.stdout


def test_every_target_of_the_store_has_a_row(result: dict[str, Any]) -> None:
    targets = {row["target"] for row in result["rows"] if row["target"]}
    assert targets == {"<= 6x", "<= 4x", ">= 0.5x", ">= 0.25x", "<= 2", "<= 60", "<= 2000"}


def test_every_row_has_figures_and_every_ratio_a_reference(result: dict[str, Any]) -> None:
    for row in result["rows"]:
        assert row["ours"]["best"] > 0, row["name"]
        assert (row["ratio"] is None) == (row["reference"] is None), row["name"]
        if row["target_on"] == "ratio":
            assert row["reference"]["best"] > 0, row["name"]


def test_the_machine_and_each_kernel_are_named(result: dict[str, Any]) -> None:
    assert result["machine"]["cpu"]
    assert result["machine"]["filesystem"]
    assert result["commit"]
    assert result["dirty"] in (True, False, None)
    assert set(result["kernels"]["record_build"].split()) <= {"compiled", "interpreted"}


@pytest.mark.parametrize(
    ("size", "kernel", "reason"),
    [("full", "interpreted", "are interpreted"), ("quick", "compiled", "says too little")],
)
def test_a_result_that_says_too_little_is_not_published(
    size: str, kernel: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bench.report.PUBLISHED", tmp_path)
    result = _result(size=size, kernel=kernel)
    with pytest.raises(BenchError, match=reason):
        publish(result)
    assert list(tmp_path.iterdir()) == []


def test_a_full_run_with_compiled_kernels_is_published_with_its_misses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bench.report.PUBLISHED", tmp_path)
    publish(_result(size="full", kernel="compiled"))
    assert "MISS" in (tmp_path / "store.md").read_text(encoding="utf-8")
    rows = json.loads((tmp_path / "store.json").read_text(encoding="utf-8"))["rows"]
    assert [(row["ratio"], row["passed"]) for row in rows] == [(3.0, True), (3.0, False)]


def test_a_page_is_written_again_from_its_data_and_says_why_targets_were_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bench.report.PUBLISHED", tmp_path)
    publish(_result(size="full", kernel="compiled"))
    page = tmp_path / "store.md"
    assert "**at most 2**: not looked into yet" in page.read_text(encoding="utf-8")
    table = [line for line in page.read_text(encoding="utf-8").splitlines() if "|" in line]
    write_page_again("store", {"at most 2": "a slow bus; a faster one"}, None)
    written = page.read_text(encoding="utf-8").splitlines()
    assert [line for line in written if "|" in line] == table
    assert "- **at most 2**: a slow bus; a faster one" in written
    with pytest.raises(BenchError, match="never published"):
        write_page_again("wire", {}, None)


def test_data_that_names_no_commit_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.report.PUBLISHED", tmp_path)
    publish(replace(_result(size="full", kernel="compiled"), commit="abc1234", is_dirty=True))
    page, data = tmp_path / "store.md", tmp_path / "store.json"
    assert "Commit: abc1234, with changes." in page.read_text(encoding="utf-8")
    write_page_again("store", {}, None)
    assert "Commit: abc1234, with changes." in page.read_text(encoding="utf-8")
    older = json.loads(data.read_text(encoding="utf-8"))
    del older["commit"], older["dirty"]
    data.write_text(json.dumps(older), encoding="utf-8")
    write_page_again("store", {}, None)
    assert "Commit: unknown." in page.read_text(encoding="utf-8")


def test_without_git_no_commit_is_known(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert describe_commit() == Commit("unknown", None)


def test_warm_up_work_runs_first_and_is_not_counted() -> None:
    runs: list[str] = []

    def side(name: str) -> Figures:
        runs.append(name)
        return {"number": len(runs)}

    sides = {name: partial(side, name) for name in ("ours", "theirs")}
    taken = in_rounds(2, sides, warm_up=sides.values())
    assert runs == ["ours", "theirs", "ours", "theirs", "theirs", "ours"]
    assert taken == {
        "ours": [{"number": 3}, {"number": 6}],
        "theirs": [{"number": 4}, {"number": 5}],
    }


def _result(*, size: str, kernel: str) -> Result:
    rows = tuple(
        Row(
            name=f"at most {bound}",
            unit="µs",
            ours=Samples((9.0, 6.0)),
            reference=Samples((2.0, 4.0)),
            reference_name="C",
            limit=Limit("<=", bound),
        )
        for bound in (3, 2)
    )
    return Result(
        suite="store",
        size=size,
        machine={"cpu": "any"},
        kernels={"record_build": kernel},
        rows=rows,
        elapsed_s=1.0,
    )
