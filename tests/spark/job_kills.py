"""A job in a process of its own: left to end, or killed while it works."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from contrail import Message, Producer
from contrail.testing import LocalCluster

# A second Spark on a busy machine takes its time to start.
_DEADLINE_S = 600


def start_job(arguments: list[str], log: Path) -> subprocess.Popen[bytes]:
    """``contrail pipeline ...`` with a small Spark, in a process group of its own."""
    command = [sys.executable, "-m", "contrail.cli", "pipeline", *arguments]
    command += ["--master", "local[2]", "--conf", "spark.driver.memory=512m"]
    with log.open("wb") as output:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def finish_job(arguments: list[str], log: Path) -> dict[str, Any]:
    """Let a job end, and return its summary."""
    job = start_job([*arguments, "--json"], log)
    try:
        assert job.wait(timeout=_DEADLINE_S) == 0, log.read_text()
    finally:
        if job.poll() is None:
            os.killpg(job.pid, signal.SIGKILL)
            job.wait()
    # Spark's own first words stand before it, and may stand behind it.
    text = log.read_text()
    summary: dict[str, Any] = json.JSONDecoder().raw_decode(text, text.index("{\n"))[0]
    return summary


def send_large(cluster: LocalCluster, topic: str, count: int) -> None:
    """Messages of 1 MB that no compressor makes smaller; every second one has a key of its own."""
    source = random.Random(17)
    with Producer("large", cluster.namesrv, send_timeout_ms=60_000) as producer:
        for number in range(count):
            keys = [f"k{number}"] if number % 2 else []
            producer.send(Message(topic, source.randbytes(1_000_000), keys=keys))


def kill_after_batches(arguments: list[str], checkpoint: Path, *, batches: int) -> None:
    """Start a job and kill it, and its Spark, as soon as it has finished that many batches."""
    log = checkpoint.with_suffix(".log")
    job = start_job(arguments, log)
    try:
        deadline = time.monotonic() + _DEADLINE_S
        while finished_batches(checkpoint) < batches:
            assert job.poll() is None, f"it ended by itself:\n{log.read_text()}"
            assert time.monotonic() < deadline, f"no batch came:\n{log.read_text()}"
            time.sleep(0.02)
        assert job.poll() is None, f"it ended by itself:\n{log.read_text()}"
    finally:
        os.killpg(job.pid, signal.SIGKILL)
        job.wait()


def finished_batches(checkpoint: Path) -> int:
    commits = checkpoint / "spark" / "copy" / "commits"
    return sum(one.name.isdecimal() for one in commits.iterdir()) if commits.is_dir() else 0
