"""The peers benchmark runs end to end with tiny counts; its structure is checked, no figure."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from bench import peers, peers_others
from bench.harness import REPOSITORY, BenchError, Limit, Row, Samples
from bench.peers_versions import told_version
from bench.plots import can_plot, plot_curves
from bench.report import Result, publish

PEERS = ("redis", "nats", "apache", "rabbitmq", "kafka")


@pytest.fixture(scope="module")
def absent() -> dict[str, str]:
    """Asked before the run, so that fetching is not on the run's time."""
    return peers_others.absent_peers()


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory, absent: dict[str, str]) -> list[dict[str, Any]]:
    """The rows of a tiny run of the group with all peers."""
    return tiny_run(tmp_path_factory.mktemp("bench"), "--only", "c-load")


def tiny_run(folder: Path, *options: str) -> list[dict[str, Any]]:
    written = folder / "result.json"
    command = [sys.executable, "-m", "bench", "peers", "--size", "tiny", "--json", str(written)]
    done = subprocess.run(
        [*command, *options],
        capture_output=True,
        text=True,
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        timeout=850,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: list[dict[str, Any]] = json.loads(written.read_text(encoding="utf-8"))["rows"]
    return found


@pytest.mark.timeout(900)
def test_every_row_has_figures(rows: list[dict[str, Any]]) -> None:
    check_figures(rows)


@pytest.mark.torture
@pytest.mark.timeout(1800)
def test_all_groups_run(tmp_path: Path) -> None:
    check_figures(tiny_run(tmp_path))


def check_figures(rows: list[dict[str, Any]]) -> None:
    assert rows
    for row in rows:
        assert row["ours"]["best"] > 0, row["name"]
        assert row["reference"]["best"] > 0, row["name"]


@pytest.mark.timeout(900)
@pytest.mark.parametrize("peer", PEERS)
def test_a_peer_has_its_rows_or_is_said_to_be_absent(
    peer: str, rows: list[dict[str, Any]], absent: dict[str, str]
) -> None:
    beside = [row for row in rows if row["name"].endswith(f"beside {peer}")]
    said = {row["details"].get(peer) for row in rows} - {None}
    if peer in absent:
        assert (beside, said) == ([], {absent[peer]})
    else:
        assert beside, f"{peer} can be had, but it was left out: {said}"


@pytest.mark.timeout(900)
def test_the_replayed_load_has_its_targets(
    rows: list[dict[str, Any]], absent: dict[str, str]
) -> None:
    targets = {row["name"]: row["target"] for row in rows if row["target"]}
    assert targets["C load 1x64, 1 KB"] == "<= 4x"
    assert targets["C load 64x1, 1 KB"] == "<= 2x"
    if "redis" not in absent:
        assert targets["C load 1x64, 1 KB, beside redis"] == "<= 0.5x"
        assert targets["C load 64x1, 1 KB, beside redis"] == "<= 1.43x"
    if "nats" not in absent:
        assert targets["C load 1x64, 1 KB, beside nats"] == "<= 0.667x"


def test_groups_are_told_apart_by_name_and_full_adds_some(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FULL", raising=False)
    default = peers.groups()
    monkeypatch.setenv("FULL", "1")
    everything = peers.groups()
    assert len(everything) == len(set(everything))
    assert set(default) < set(everything)


def test_without_apache_only_its_groups_are_left_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(peers, "_told_absent_peers", lambda: {"apache": "absent: no Java"})
    assert peers.measure("consume", size="tiny", folder=tmp_path) == []
    assert "consume is left out: Apache's servers are absent: no Java" in capsys.readouterr().err


def test_a_peer_that_does_not_start_is_said_with_its_error(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def start() -> Any:
        raise BenchError("its port is taken")

    said: dict[str, str] = {}
    with ExitStack() as running:
        assert peers_others._entered(running, "redis", start, said) == {}
    assert said == {"redis": "absent: its port is taken"}
    assert "redis is absent: its port is taken" in capsys.readouterr().err


def test_a_request_of_another_size_tells_that_size(tmp_path: Path) -> None:
    path = peers_others._resized(tmp_path / "xadd", peers_others.xadd_command(), 128)
    assert path.read_bytes().endswith(b"$128\r\n" + peers_others.sample_body(128) + b"\r\n")


@pytest.fixture
def _plots() -> None:
    if not can_plot():
        pytest.skip("matplotlib is not installed: pip install 'contrail-mq[bench]'")


@pytest.mark.usefixtures("_plots")
def test_a_published_result_has_pictures_that_name_machine_and_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bench.report.PUBLISHED", tmp_path)
    written = publish(_result(), peers.draw)
    pictures = [path for path in written if path.suffix == ".svg"]
    assert [path.stem for path in pictures] == ["peers-ratios", "peers-cpu", "peers-latency"]
    page = (tmp_path / "peers.md").read_text(encoding="utf-8")
    for picture in pictures:
        assert "make bench SUITE=peers on any CPU, 2 cores" in picture.read_text(encoding="utf-8")
        assert f"({picture.name})" in page


def test_the_first_figure_of_ours_is_drawn_and_the_one_beside_the_jvms_apart() -> None:
    rows = [
        _row("C load 1x64, 1 KB", 3.0, 1.0, None, "null"),
        _row("C load 1x64, 1 KB, beside redis", 3.0, 8.0, None, "redis"),
        _row("C load 1x64, 1 KB, beside apache", 4.0, 20.0, None, "apache"),
    ]
    assert peers._beside(rows, peers._shape) == {
        "ours, 1x64": 3.0,
        "null, 1x64": 1.0,
        "redis, 1x64": 8.0,
        "ours, 1x64, beside the JVMs": 4.0,
        "apache, 1x64": 20.0,
    }


@pytest.mark.usefixtures("_plots")
def test_the_same_figures_give_the_same_bytes(tmp_path: Path) -> None:
    first, second = tmp_path / "first.svg", tmp_path / "second.svg"
    for path in (first, second):
        plot_curves(path, "t", "topics", "µs", {"send": [(1, 2.0), (1000, 2.1), (0, 1.9)]})
    assert first.read_bytes() == second.read_bytes()


def test_nothing_is_published_without_its_pictures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bench.report.PUBLISHED", tmp_path)
    monkeypatch.setattr("bench.report.can_plot", lambda: False)
    with pytest.raises(BenchError, match="matplotlib"):
        publish(_result(), peers.draw)
    assert list(tmp_path.iterdir()) == []


def _result() -> Result:
    return Result(
        suite="peers",
        size="full",
        machine={"cpu": "any CPU", "cores": 2, "system": "Linux"},
        kernels={"record_build": "compiled"},
        rows=(
            _row("C load 1x64, 1 KB, beside redis", 3.0, 8.0, Limit("<=", 0.5)),
            _row("end-to-end latency of 1 KB, p99", 9.0, 8.0, Limit("<=", 1)),
            _row("end-to-end latency of 1 KB, p99.9", 9.0, 18.0, None),
        ),
        elapsed_s=1.0,
        command="make bench SUITE=peers",
    )


def _row(
    name: str, ours: float, theirs: float, limit: Limit | None, reference_name: str = "theirs"
) -> Row:
    return Row(
        name=name,
        unit="µs",
        ours=Samples((ours,)),
        reference=Samples((theirs,)),
        reference_name=reference_name,
        limit=limit,
    )


def test_a_version_is_what_its_program_tells_and_nothing_else() -> None:
    place = re.compile(r"^server: v(\S+)", re.MULTILINE)

    def told(program: str) -> str | None:
        return told_version([sys.executable, "-c", program], place)

    assert told("print('10.1.2.3 listens'); print('server: v2.9.10')") == "2.9.10"
    assert told("import sys; print('server: v1.0', file=sys.stderr)") == "1.0"
    assert told("print('2.9.10')") is None
    assert told("print('server: v1.0'); raise SystemExit(1)") is None
    assert told_version(["no-such-program"], place) is None
