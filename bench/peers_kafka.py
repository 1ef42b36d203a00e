"""Kafka beside the broker: one node, its own controller, loaded by its project's own tool."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache, partial
from pathlib import Path

from bench.client_peers import Absent, _had
from bench.harness import BenchError, Figures
from bench.spark_peers import Absent as AbsentKafka
from bench.spark_peers import running_kafka
from bench.warm_pages import warm_pages
from bench.wire_parts import pinned, process_cpu_s
from bench.wire_peers import Sides
from tests.interop.peers import JavaPeer, java_peer, own_environment

_TOPIC = "bench"
_RUN_TIMEOUT_S = 120
_HEAP = "-Xmx512m"
_TOTAL = re.compile(r"^(\d+) records sent, ([\d.]+) records/sec .* 99\.9th", re.MULTILINE)


@cache
def tools() -> JavaPeer:
    """Its project's load; ``Absent`` where it or the server cannot be had."""
    _had(lambda: java_peer("kafka"))
    return _had(lambda: java_peer("kafka-tools"))


@contextmanager
def produced_sides(folder: Path, name: str, record_count: int, body_bytes: int) -> Iterator[Sides]:
    """The tool's producer with its own settings, which gathers batches, as side ``name kafka``."""
    peer = tools()
    home = folder / "kafka-tools"
    home.mkdir()
    with ExitStack() as started:
        address = _started(started, folder / "kafka")
        produce = partial(_produced, peer, home, address, body_bytes)
        # A first run shows that all of it works, makes the topic and warms the server up.
        produce(record_count)
        yield {f"{name} kafka": partial(produce, record_count)}


def _started(started: ExitStack, folder: Path) -> str:
    """The address of a server that ends with ``started``; it keeps to the servers' core."""
    try:
        with pinned("server"):
            return started.enter_context(running_kafka(folder, partition_count=1))
    except AbsentKafka as reason:
        raise Absent(str(reason)) from reason


def _produced(
    peer: JavaPeer, home: Path, address: str, body_bytes: int, record_count: int
) -> Figures:
    """One run of the tool, charged with all CPU of the server until it has ended."""
    # As much as the messages, in each of memory, log and derived files.
    warm_pages(home, 3 * record_count * body_bytes)
    pid = _child_of_ours("kafka.Kafka")
    cpu_before = process_cpu_s(pid)
    printed = _producer_performance(peer, home, address, body_bytes, record_count)
    cpu_s = process_cpu_s(pid) - cpu_before
    totals = _TOTAL.findall(printed)
    if not totals or int(totals[-1][0]) != record_count:
        raise BenchError(f"Kafka's tool did not report {record_count} records:\n{printed[-2000:]}")
    return {
        "cpu_s": cpu_s,
        "wall_s": record_count / float(totals[-1][1]),
        "record_count": record_count,
    }


def _producer_performance(
    peer: JavaPeer, home: Path, address: str, body_bytes: int, record_count: int
) -> str:
    main = "org.apache.kafka.tools.ProducerPerformance"
    sizes = ["--num-records", str(record_count), "--record-size", str(body_bytes)]
    where = ["--topic", _TOPIC, "--producer-props", f"bootstrap.servers={address}"]
    with pinned("load"):
        done = subprocess.run(
            ["java", _HEAP, "-cp", peer.class_path, main, *where, *sizes, "--throughput", "-1"],
            capture_output=True,
            text=True,
            cwd=home,
            env=own_environment(home),
            timeout=_RUN_TIMEOUT_S,
            check=False,
        )
    if done.returncode:
        raise BenchError(f"Kafka's tool ended with {done.returncode}:\n{done.stderr[-2000:]}")
    return done.stdout


def _child_of_ours(word: str) -> int:
    """The process that we started with this word in its command."""
    for task in Path("/proc/self/task").iterdir():
        for pid in (task / "children").read_text(encoding="ascii").split():
            command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            if word.encode() in command:
                return int(pid)
    raise BenchError(f"process {os.getpid()} has no child that runs {word}")
