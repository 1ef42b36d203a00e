"""The replication benchmark runs end to end with few messages; its structure is checked."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bench import replication
from bench.client_peers import Absent
from bench.harness import REPOSITORY
from bench.peers_servers import apache_peer
from bench.replication_parts import copied

SHAPES = ("1x64, 1 KB, async flush", "16x32, 1 KB, sync flush, SYNC_MASTER")


def tiny_run(written: Path, *groups: str) -> list[dict[str, Any]]:
    """The rows of a tiny run; in the build folder, since a sync in memory is refused."""
    command = [sys.executable, "-m", "bench", "replication", "--size", "tiny"]
    chosen = [word for group in groups for word in ("--only", group)]
    done = subprocess.run(
        [*command, "--json", str(written), *chosen],
        capture_output=True,
        text=True,
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        timeout=580,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    rows: list[dict[str, Any]] = json.loads(written.read_text(encoding="utf-8"))["rows"]
    return rows


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    written = tmp_path_factory.mktemp("bench") / "result.json"
    return tiny_run(written, "async", "sync", "catch-up")


@pytest.mark.timeout(600)
def test_masters_and_slaves_have_their_targets(rows: list[dict[str, Any]]) -> None:
    targets = {row["name"]: row["target"] for row in rows}
    for shape in SHAPES:
        assert targets[f"master with one slave, {shape}"] == "<= 1.2x"
        assert targets[f"master with two slaves, {shape}"] == "<= 1.3x"
        assert targets[f"slave, {shape}"] == "<= 0.7x"
    assert targets["catch-up of an empty slave, sync flush"] == ">= 0.5x"
    assert targets["answer to a send, p99, during a catch-up"] == "<= 2x"
    assert len(targets) == len(rows) == 8


@pytest.mark.timeout(600)
def test_every_row_stands_beside_its_reference(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        assert row["ours"]["best"] > 0 and row["reference"]["best"] > 0, row["name"]


@pytest.mark.timeout(600)
def test_the_backlog_is_copied_while_messages_are_sent(rows: list[dict[str, Any]]) -> None:
    by_name = {row["name"]: row["details"] for row in rows}
    assert by_name["catch-up of an empty slave, sync flush"]["backlog"].startswith("4 MiB")
    assert by_name["answer to a send, p99, during a catch-up"]["sends_meanwhile"] > 0


@pytest.mark.torture
@pytest.mark.timeout(900)
def test_a_java_client_sends_to_both_pairs(tmp_path: Path) -> None:
    try:
        apache_peer()
    except Absent as absent:
        pytest.skip(str(absent))
    rate, cpu = tiny_run(tmp_path / "result.json", "java")
    assert (rate["unit"], cpu["target"]) == ("messages/s", "<= 0.333x")
    assert rate["ours"]["best"] > 0 and rate["reference"]["best"] > 0


def test_without_apache_only_its_group_is_left_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def absent() -> Any:
        raise Absent("no Java")

    monkeypatch.setattr(replication, "apache_peer", absent)
    assert replication.measure("java", size="tiny", folder=tmp_path) == []
    assert "Apache's servers are absent: no Java" in capsys.readouterr().err


def test_a_copy_has_what_is_written_of_the_log_and_no_more(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.mkdir()
    (log / f"{0:020d}").write_bytes(b"a" * 100)
    (log / f"{100:020d}").write_bytes(b"b" * 30 + bytes(70))
    (log / f"{200:020d}").write_bytes(bytes(100))
    assert copied(log, tmp_path / "copy", 130)["wall_s"] > 0
    found = {path.name: path.read_bytes() for path in (tmp_path / "copy").iterdir()}
    assert found == {f"{0:020d}": b"a" * 100, f"{100:020d}": b"b" * 30}
