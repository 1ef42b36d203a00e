"""The wire benchmark runs end to end with tiny counts; its structure is checked, no figure."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bench.harness import REPOSITORY, BenchError
from bench.wire_frames import NUMBER, pull_frame, send_frame
from bench.wire_parts import (
    Server,
    Shape,
    loaded,
    running_null_server,
)
from bench.wire_peers import absent_peers, is_installed


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The result of a tiny run; in the build folder, since a sync in memory is refused."""
    written = tmp_path_factory.mktemp("bench") / "result.json"
    done = subprocess.run(
        [sys.executable, "-m", "bench", "wire", "--size", "tiny", "--json", str(written)],
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


@pytest.mark.proves("wire.speed.printed")
def test_every_target_of_the_wire_has_a_row(result: dict[str, Any]) -> None:
    targets = [row["target"] for row in result["rows"] if row["target"]]
    assert targets == ["<= 6x", "<= 2x", "<= 3x", ">= 0.5x"]


@pytest.mark.proves("wire.speed.printed")
def test_every_row_has_figures_and_a_reference(result: dict[str, Any]) -> None:
    for row in result["rows"]:
        assert row["ours"]["best"] > 0, row["name"]
        assert row["reference"]["best"] > 0, row["name"]


@pytest.mark.parametrize(("peer", "row_count"), [("redis", 3), ("nats", 2)])
def test_a_peer_has_its_rows_or_is_said_to_be_absent(
    peer: str, row_count: int, result: dict[str, Any]
) -> None:
    beside = [row for row in result["rows"] if row["name"].endswith(f"beside {peer}")]
    said = {row["details"].get(peer) for row in result["rows"]} - {None}
    if is_installed(peer):
        assert (len(beside), said) == (row_count, set())
    else:
        assert (len(beside), said) == (0, {absent_peers()[peer]})


def test_a_load_ends_with_the_answer_to_its_last_request(tmp_path: Path) -> None:
    shape = Shape(connections=3, depth=5, count=500)
    figures = _load_on_null_server(tmp_path, shape, _answer(code=0))
    assert figures["record_count"] == 500
    # The window is closed under load: what was in flight then is answered as well.
    assert figures["answered"] == 100 + 500 + 3 * 5 - 1
    assert figures["answer_bytes"] == 500 * len(_answer(code=0))


def test_latencies_are_told_in_order_and_cpu_is_counted(tmp_path: Path) -> None:
    figures = _load_on_null_server(tmp_path, Shape(connections=1, depth=4, count=2000))
    assert 0 < figures["p50_us"] <= figures["p99_us"] <= figures["p999_us"]
    assert figures["p50_us"] <= figures["wall_s"] * 1e6
    assert figures["cpu_s"] > 0


def test_an_answer_larger_than_the_receive_buffer_is_counted_whole(tmp_path: Path) -> None:
    answer = _answer(code=0, body=bytes(1 << 20))
    shape = Shape(connections=2, depth=2, count=20)
    figures = _load_on_null_server(tmp_path, shape, answer)
    assert figures["answer_bytes"] == 20 * len(answer)


def test_a_refused_request_fails_the_load_and_is_shown(tmp_path: Path) -> None:
    with pytest.raises(BenchError, match=r'the first error: \{"code":14'):
        _load_on_null_server(tmp_path, Shape(connections=1, depth=1, count=5), _answer(code=14))


def test_requests_refused_as_busy_are_not_counted_as_done(tmp_path: Path) -> None:
    with pytest.raises(BenchError, match="every request was refused"):
        _load_on_null_server(tmp_path, Shape(connections=1, depth=1, count=5), _answer(code=2))


def test_an_answer_to_another_request_fails_the_load(tmp_path: Path) -> None:
    # Taken from the wrong place of the request, the digits are none that was sent.
    with (
        running_null_server(tmp_path, "null", pull_frame(), _answer(code=0)) as server,
        pytest.raises(BenchError, match="to no request in flight"),
    ):
        _load(tmp_path, server, Shape(connections=1, depth=1, count=5))


def _load_on_null_server(folder: Path, shape: Shape, answer: bytes | None = None) -> dict[str, Any]:
    with running_null_server(folder, "null", send_frame(), answer or _answer(code=0)) as server:
        return _load(folder, server, shape)


def _load(folder: Path, server: Server, shape: Shape) -> dict[str, Any]:
    frame_file = folder / "send.frame"
    frame_file.write_bytes(send_frame())
    return loaded(server, frame_file, shape)


def _answer(*, code: int, body: bytes = b"") -> bytes:
    header = b'{"code":%d,"extFields":{"queueId":"0"},"flag":1,"opaque":%b}' % (code, NUMBER)
    lengths = (4 + len(header) + len(body)).to_bytes(4, "big") + len(header).to_bytes(4, "big")
    return lengths + header + body
