"""The client benchmark runs end to end with tiny counts; its structure is checked, no figure."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from bench.client_parts import DECODERS, QUEUE_COUNT, pulled_barely, topic_made
from bench.client_peers import absent_peers
from bench.harness import REPOSITORY, BenchError
from contrail.testing.cluster import LocalCluster

SYNC, CONCURRENT, CONSUME = "sync send 1 KB", "64 concurrent sends of 1 KB", "consume a backlog"


@pytest.fixture(scope="module")
def absent() -> dict[str, str]:
    """Asked before the run, so that fetching is not on the run's time."""
    return absent_peers()


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory, absent: dict[str, str]) -> list[dict[str, Any]]:
    """The rows of a tiny run."""
    folder = tmp_path_factory.mktemp("bench")
    written = folder / "result.json"
    command = [sys.executable, "-m", "bench", "client", "--size", "tiny", "--json", str(written)]
    done = subprocess.run(
        [*command, "--folder", str(folder / "work")],
        capture_output=True,
        text=True,
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        timeout=550,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(written.read_text(encoding="utf-8"))
    found: list[dict[str, Any]] = result["rows"]
    return found


@pytest.mark.timeout(600)
def test_rows_that_need_no_peer_have_their_target(rows: list[dict[str, Any]]) -> None:
    targets = {row["name"]: row["target"] for row in rows}
    assert targets[CONCURRENT] == ">= 3x"
    assert [target for name, target in targets.items() if name.startswith(CONSUME)] == [
        ">= 0.5x",
        None,
    ]


@pytest.mark.timeout(600)
def test_every_row_has_figures(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        assert row["ours"]["best"] > 0, row["name"]
        assert row["reference"] is None or row["reference"]["best"] > 0, row["name"]


@pytest.mark.timeout(600)
def test_a_peer_that_is_absent_is_said_to_be(
    rows: list[dict[str, Any]], absent: dict[str, str]
) -> None:
    details = _named(rows, SYNC)[0]["details"]
    assert {peer: details[peer] for peer in details if peer in _PEERS} == absent


_PEERS = ("cpp", "java", "grpc", "apache_with_proxy")


@pytest.mark.timeout(600)
def test_the_cpp_client_is_measured_where_it_can_be_had(
    rows: list[dict[str, Any]], absent: dict[str, str]
) -> None:
    row = _named(rows, SYNC)[0]
    assert row["target"] == (None if "cpp" in absent else ">= 0.7x")
    assert (row["reference"] is None) == ("cpp" in absent)


@pytest.mark.timeout(600)
def test_the_java_client_stands_beside_where_it_can_be_had(
    rows: list[dict[str, Any]], absent: dict[str, str]
) -> None:
    beside = _named(rows, "sync send, beside the Java client")
    assert [row["target"] for row in beside] == ([] if "java" in absent else [None])
    assert ("java_rate" in _named(rows, SYNC)[0]["details"]) == ("java" not in absent)


@pytest.mark.timeout(600)
def test_the_grpc_client_is_measured_where_it_and_the_proxy_can_be_had(
    rows: list[dict[str, Any]], absent: dict[str, str]
) -> None:
    targets = [row["target"] for row in rows if row["name"].endswith("Apache's broker")]
    assert targets == (
        [] if {"grpc", "apache_with_proxy"} & set(absent) else [">= 5x", None, ">= 5x"]
    )


@pytest.mark.parametrize("decoder", list(DECODERS))
def test_bare_pulls_meet_every_message_and_say_when_one_is_missing(
    decoder: str, tmp_path: Path
) -> None:
    stored = 40 * QUEUE_COUNT
    with LocalCluster(folder=tmp_path) as cluster:
        topic_made(namesrv=cluster.namesrv, topic="T", backlog=stored)
        pull = partial(pulled_barely, broker=cluster.brokers[0].address, topic="T", decoder=decoder)
        assert pull(count=stored)["record_count"] == stored
        with pytest.raises(BenchError, match="320 messages were pulled, 321 are stored"):
            pull(count=stored + 1)


def _named(rows: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    return [row for row in rows if row["name"] == name]
