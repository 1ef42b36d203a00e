"""The backlog benchmark runs end to end with few messages; its structure is checked, no figure."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from bench.harness import REPOSITORY


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The result of a tiny run."""
    written = tmp_path_factory.mktemp("bench") / "result.json"
    done = subprocess.run(
        [sys.executable, "-m", "bench", "backlog", "--size", "tiny", "--json", str(written)],
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


def test_the_tail_has_its_target_with_and_without_scrubbing(result: dict[str, Any]) -> None:
    judged = [(row["name"], row["target"]) for row in result["rows"] if row["target"]]
    assert judged == [
        ("tail latency p99, during a drain", "<= 2x"),
        ("tail latency p99, no scrubbing, during a drain", "<= 2x"),
    ]


def test_every_latency_stands_beside_that_of_the_tail_alone(result: dict[str, Any]) -> None:
    latencies = [row for row in result["rows"] if row["unit"] == "µs"]
    assert len(latencies) == 6
    for row in latencies:
        assert row["ours"]["best"] > 0 and row["reference"]["best"] > 0, row["name"]


def test_the_drain_really_drains(result: dict[str, Any]) -> None:
    drain = result["rows"][-1]
    assert drain["ours"]["best"] > 0
    assert drain["details"]["backlog"].startswith("4,000 messages")
