"""A client that sends and consumes in every way for minutes leaks no memory and no sockets.

The broker is restarted shortly before the second half, so that leaks of a reconnection are seen as
well. Growth is judged as ``load_figures`` says: below 1 % over the second half, or below a floor
for figures so small that 1 % is noise (1 MiB of memory, 3 files, 1 thread, 2 tasks).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from contrail.testing import LocalCluster, eventually
from tests.e2e.asking import Asker, route
from tests.e2e.load_figures import Sample, growths

ROOT = Path(__file__).parents[2]
A_MINUTE, TWENTY_MINUTES = (
    float(os.environ.get("CONTRAIL_SOAK_MINUTES", usual)) for usual in (1, 20)
)
PATIENCE_S = 240
# The blocking and the asyncio names each have one to the NameServer and one to the broker, and a
# pair of sockets that wakes their loop.
SOCKETS_MAX = 2 * (1 + 1 + 2)
QUEUES = 4


def soak(minutes: float, folder: Path) -> dict[str, Any]:
    """Run the program, restart the broker under it, and return its report."""
    seconds = minutes * 60
    report = folder / "report.json"
    with LocalCluster(in_children=True, folder=folder / "cluster") as cluster:
        Asker(cluster, 0).make_topic("soak", read=QUEUES, write=QUEUES)
        eventually(lambda: route(cluster, "soak"), "the NameServer knows the topic")
        program = subprocess.Popen(
            [
                sys.executable,
                *("-m", "tests.e2e.client_programs.soak"),
                *(cluster.namesrv, str(seconds), str(report)),
            ],
            cwd=ROOT,
            stderr=subprocess.DEVNULL,
        )
        try:
            threading.Event().wait(0.4 * seconds)
            assert program.poll() is None, "it ended early"
            cluster.brokers[0].stop()
            cluster.brokers[0].start()
            assert program.wait(seconds + PATIENCE_S) == 0
        finally:
            program.kill()
            program.wait()
    found: dict[str, Any] = json.loads(report.read_text(encoding="ascii"))
    return found


def check(report: dict[str, Any]) -> None:
    samples = [
        Sample(sample["at_s"], {name: value for name, value in sample.items() if name != "at_s"})
        for sample in report["samples"]
    ]
    judged = growths(samples)
    print(report["counts"], *judged, sep="\n")
    for when, names in report["task_names"].items():
        print(f"tasks {when}: {names}")
    assert [str(growth) for growth in judged if growth.is_growing] == []
    last_half = samples[len(samples) // 2 :]
    assert max(sample.figures["sockets"] for sample in last_half) <= SOCKETS_MAX
    counts = report["counts"]
    kinds = ("sync", "64 at once", "batch", "delayed", "blocking")
    assert all(counts[kind] > 0 for kind in kinds)
    # Every sent message was received by every group; messages that failed during the restart may
    # be.
    assert report["missing"] == {"concurrent": 0, "ordered": 0, "pulling": 0}
    stored = sum(counts[kind] for kind in kinds)
    assert all(counts[group] >= stored for group in report["missing"])


@pytest.mark.proves("house.tests.minute-of-load", "client.shown.soak")
@pytest.mark.timeout(A_MINUTE * 60 + 2 * PATIENCE_S)
def test_a_minute_of_everything_adds_nothing_to_memory_tasks_threads_and_sockets(
    tmp_path: Path,
) -> None:
    check(soak(A_MINUTE, tmp_path))


@pytest.mark.proves("client.shown.soak")
@pytest.mark.torture
@pytest.mark.timeout(TWENTY_MINUTES * 60 + 2 * PATIENCE_S)
def test_twenty_minutes_of_everything_add_nothing_to_memory_tasks_threads_and_sockets(
    tmp_path: Path,
) -> None:
    check(soak(TWENTY_MINUTES, tmp_path))
