"""The growth benchmark runs end to end with tiny counts; its structure is checked, no figure."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bench.growth import DIMENSIONS, FAIRNESS, SIZES, draw, groups, measure
from bench.growth_curves import gathered
from bench.growth_load import WAVE, waves_of
from bench.harness import REPOSITORY, Row, Samples
from bench.plots import can_plot
from bench.report import Result


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The result of a tiny run."""
    written = tmp_path_factory.mktemp("bench") / "result.json"
    done = subprocess.run(
        [sys.executable, "-m", "bench", "growth", "--size", "tiny", "--json", str(written)],
        capture_output=True,
        text=True,
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    loaded_result: dict[str, Any] = json.loads(written.read_text(encoding="utf-8"))
    return loaded_result


def test_every_point_but_the_smallest_has_a_row_for_each_dimension(result: dict[str, Any]) -> None:
    names = [row["name"] for row in result["rows"]]
    for dimension, points in SIZES["tiny"].points.items():
        for point in points[1:]:
            assert f"send vs {dimension}: {point:,}" in names
    assert {*SIZES["tiny"].points, FAIRNESS} == set(groups())


def test_the_delays_of_other_answers_have_targets(result: dict[str, Any]) -> None:
    targets = {row["name"]: row["target"] for row in result["rows"] if " vs " not in row["name"]}
    assert list(targets.values()) == ["<= 50", "<= 50", "<= 50", "<= 10", "<= 20"], targets


def test_every_row_has_figures_and_the_smallest_point_beside_them(result: dict[str, Any]) -> None:
    for row in result["rows"]:
        if " vs " not in row["name"]:
            continue
        assert row["ours"]["best"] > 0, row["name"]
        assert row["reference"]["best"] > 0, row["name"]


def test_rows_that_must_stay_flat_have_a_target(result: dict[str, Any]) -> None:
    targets = {row["name"].split(":")[0]: row["target"] for row in result["rows"]}
    for dimension in DIMENSIONS:
        assert targets[f"send vs {dimension}"] == "<= 1.25x"
    for dimension in ("connections", "backlog", "store"):
        assert targets[f"pull vs {dimension}"] == "<= 1.25x"
    assert targets["clean restart vs store"] == "<= 2x"
    assert targets["send over all vs topics"] is None


def test_a_full_run_leaves_no_dimension_out() -> None:
    assert set(SIZES["full"].points) == set(DIMENSIONS)


def test_a_run_says_which_rows_it_leaves_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert measure("timers", size="quick", folder=tmp_path) == []
    assert "timers is left out of a quick run" in capsys.readouterr().err


@pytest.mark.parametrize("size", ["full", "quick", "tiny"])
def test_the_points_of_a_curve_are_in_order(size: str) -> None:
    assert set(SIZES[size].points) <= set(DIMENSIONS)
    for points in SIZES[size].points.values():
        assert len(points) >= 2
        assert list(points) == sorted(set(points))


def test_the_curves_of_a_picture_begin_with_the_smallest_point() -> None:
    rows = [_row("send vs topics: 10", 5.0), _row("send vs topics: 1,000", 6.0)]
    assert gathered(rows) == {
        ("topics", "CPU"): {"send": [(1.0, 4.0), (10.0, 5.0), (1000.0, 6.0)]},
        ("topics", "p99"): {"send": [(1.0, 80.0), (10.0, 90.0), (1000.0, 90.0)]},
    }


def test_a_restart_is_a_picture_of_its_own() -> None:
    rows = [_row("clean restart vs store: 4,000", 7.0, unit="ms to the first send")]
    assert gathered(rows) == {("store", "restart"): {"clean restart": [(1.0, 4.0), (4000.0, 7.0)]}}


def test_pictures_name_machine_and_command(tmp_path: Path) -> None:
    if not can_plot():
        pytest.skip("matplotlib is not installed: pip install 'contrail-mq[bench]'")
    result = Result(
        suite="growth",
        size="full",
        machine={"cpu": "any CPU", "cores": 2, "system": "Linux"},
        kernels={},
        rows=(_row("send vs topics: 10", 5.0),),
        elapsed_s=1.0,
        command="make bench SUITE=growth",
    )
    pictures = draw(result, tmp_path)
    assert [path.name for path in pictures] == ["growth-topics.svg", "growth-topics-p99.svg"]
    for picture in pictures:
        assert "make bench SUITE=growth on any CPU, 2 cores" in picture.read_text(encoding="utf-8")


@pytest.mark.parametrize(("request_count", "wave_count"), [(1, 1), (3, 1), (64, 1), (200, 3)])
def test_every_wave_holds_as_many_requests(request_count: int, wave_count: int) -> None:
    waves = waves_of([b"x"] * request_count)
    assert [len(wave) for wave in waves] == [WAVE] * wave_count


def _row(name: str, figure: float, unit: str = "µs CPU/request") -> Row:
    return Row(
        name=name,
        unit=unit,
        ours=Samples((figure,)),
        reference=Samples((4.0,)),
        reference_name="1",
        details={"smallest": 1, "p99_us": 90, "p99_us_at_smallest": 80},
    )
