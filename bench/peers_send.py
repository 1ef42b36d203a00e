"""Sends by Apache's Java client: the same load on our broker and on Apache's, in turn.

A Java client on one core may be slower than a broker. Where its core is busy, the rate is the
client's own: then the broker's CPU per message tells both apart, and the rate only informs.
"""

from __future__ import annotations

import re
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import NamedTuple

from bench.client_peers import _had, java_command
from bench.harness import (
    BenchError,
    Figures,
    Limit,
    Row,
    cpu_us_per_record,
    in_rounds,
    records_per_second,
)
from bench.peers_java import IDLE_SHARE_MAX, JavaLoad, loads_on
from bench.peers_servers import (
    HEAP,
    NAMES,
    Name,
    RocketServer,
    apache_peer,
    both,
    make_topics,
    others,
    process_cpu_s,
    standing_still,
)
from bench.report import filesystem_of
from bench.warm_pages import warm_pages
from bench.wire_parts import Flush, describe_cores, pinned, settle
from tests.interop.peers import JavaPeer, java_peer, own_environment

TOPIC = "BenchSends"
QUEUE_COUNT = 8
BATCH_MESSAGES = 32
THREADS = 64
CLIENT_SHARE_SATURATED = 0.9
SMALL_HEAP = "1g"

Taken = dict[str, list[Figures]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """How long each run loads, how often, and which cells there are."""

    round_count: int
    first: Mapping[str, float]
    """Settings of the run before the rounds, in which both sides compile their code."""
    each: Mapping[str, float]
    heap: str = HEAP
    is_whole: bool = True


SIZES = {
    "full": Sizes(
        round_count=3,
        first={"warm_up_s": 10, "seconds": 1},
        each={"warm_up_s": 1, "seconds": 3},
    ),
    "quick": Sizes(
        round_count=1,
        first={"warm_up_s": 2, "seconds": 0.5},
        each={"warm_up_s": 0.5, "seconds": 1.5},
        is_whole=False,
    ),
    # Counts, not seconds: a busy machine may do nothing in so short a time.
    "tiny": Sizes(
        round_count=1,
        first={"count": 64},
        each={"warm_up_count": 64, "count": 256},
        heap="1g",
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One kind of load and what its rows must keep."""

    name: str
    words: Mapping[str, object]
    rate_limit: Limit | None = None
    cpu_limit: Limit | None = None
    is_excused: bool = True
    """Whether a client that has no time left excuses the rate."""


def _sync(body_bytes: int) -> dict[str, object]:
    return {"mode": "sync", "threads": THREADS, "bytes": body_bytes}


_RATE = Limit(">=", 2)
_CPU = Limit("<=", 1 / 3)
_HEADLINE = Cell(
    name=f"{THREADS} threads, 1 KB",
    words=_sync(1024),
    rate_limit=_RATE,
    cpu_limit=_CPU,
)
_CELLS = (
    Cell(name="1 thread, 1 KB", words={"mode": "sync", "threads": 1, "bytes": 1024}),
    Cell(name=f"{THREADS} threads, 128 B", words=_sync(128)),
    _HEADLINE,
    Cell(name=f"{THREADS} threads, 16 KB", words=_sync(16 * 1024)),
    Cell(
        name="async, 1 KB",
        words={"mode": "async", "threads": 1, "bytes": 1024, "window": 1024},
    ),
    Cell(
        name=f"batches of {BATCH_MESSAGES} x 1 KB",
        words={"mode": "batch", "threads": 1, "bytes": 1024, "batch": BATCH_MESSAGES},
    ),
)
# With both cores for both: then it is unknown whether client or broker is the slower one.
_UNPINNED = Cell(name=f"{THREADS} threads, 1 KB, not pinned", words=_sync(1024))
_SYNCED = Cell(
    name=f"{THREADS} threads, 1 KB, sync flush",
    words=_sync(1024),
    rate_limit=Limit(">=", 1.5),
    is_excused=False,
)
_BENCHMARK = Cell(
    name=f"Apache's benchmark, {THREADS} threads, 1 KB", words={}, rate_limit=_RATE, cpu_limit=_CPU
)
_BENCHMARK_MAIN = "org.apache.rocketmq.example.benchmark.Producer"
_BENCHMARK_HEAP = "-Xmx1g"
_BENCHMARK_TIMEOUT_S = 60
# About the number of messages stored until its last report.
_BENCHMARK_STORED_BYTES = 1 << 30
# Rounds, and after how many reports beyond the first a run ends. There is one a second from the
# tenth second on, each over the nine seconds before it.
_BENCHMARK_SIZES = {"full": (2, 9), "tiny": (1, 1)}
# The broker compiles its code in a run that ends as soon as possible.
_BENCHMARK_WARM_UP_REPORTS = {"full": 1}
_BENCHMARK_REPORT = re.compile(
    r"Send TPS: (?P<rate>\d+) .* Send Failed: (?P<failed>\d+) .* Response Failed: (?P<refused>\d+)"
)


def send_rows(size: str, folder: Path) -> list[Row]:
    """Async flush: every kind of send, and the most watched one without pinning."""
    sizes = SIZES[size]
    if not sizes.is_whole:
        left_out = "other sends, sync flush, Apache's benchmark"
        return _measured(sizes, folder / "pinned", "ASYNC_FLUSH", [_HEADLINE], left_out=left_out)
    rows = _measured(sizes, folder / "pinned", "ASYNC_FLUSH", _CELLS)
    free = _measured(sizes, folder / "free", "ASYNC_FLUSH", [_UNPINNED], is_pinned=False)
    return rows + free


def synced_rows(size: str, folder: Path) -> list[Row]:
    """Sync flush, each broker's own against the other's."""
    _require_disk(folder)
    if not SIZES[size].is_whole:
        return []
    return _measured(SIZES[size], folder / "synced", "SYNC_FLUSH", [_SYNCED])


def synced_kind_rows(size: str, folder: Path) -> list[Row]:
    """Sync flush of every other kind of send; nothing here has a target."""
    if not SIZES[size].is_whole:
        return []
    _require_disk(folder)
    cells = [_informing(cell, "sync flush") for cell in _CELLS if cell is not _HEADLINE]
    return _measured(SIZES[size], folder / "synced", "SYNC_FLUSH", cells)


def small_heap_rows(size: str, folder: Path) -> list[Row]:
    """Every kind of send beside an Apache that has less memory; nothing here has a target."""
    if not SIZES[size].is_whole:
        return []
    cells = [_informing(cell, f"Apache with -Xmx{SMALL_HEAP}") for cell in _CELLS]
    return _measured(SIZES[size], folder / "small", "ASYNC_FLUSH", cells, heap=SMALL_HEAP)


def _informing(cell: Cell, word: str) -> Cell:
    return replace(cell, name=f"{cell.name}, {word}", rate_limit=None, cpu_limit=None)


def _require_disk(folder: Path) -> None:
    if filesystem_of(folder) in ("tmpfs", "ramfs"):
        raise BenchError(f"{folder} is in memory, where a sync is free: use --folder on a disk")


def _measured(
    sizes: Sizes,
    folder: Path,
    flush: Flush,
    cells: Sequence[Cell],
    *,
    is_pinned: bool = True,
    heap: str = "",
    **details: object,
) -> list[Row]:
    """All cells in the same rounds, on servers that live through all of them."""
    heap = heap or sizes.heap
    with running_loads(folder, flush, is_pinned=is_pinned, heap=heap) as loads:
        for load in loads.values():
            load.run(_command(_HEADLINE, sizes.first))
        sides = {
            f"{cell.name} {name}": partial(load.run, _command(cell, sizes.each))
            for cell in cells
            for name, load in loads.items()
        }
        taken = in_rounds(sizes.round_count, sides)
    details["cores"] = describe_cores() if is_pinned else "not pinned"
    rows = []
    for cell in cells:
        runs = {name: taken[f"{cell.name} {name}"] for name in NAMES}
        rows += rows_of(cell, runs, flush=flush, apache_heap=heap, **details)
    return rows


@contextmanager
def running_loads(
    folder: Path, flush: Flush, *, is_pinned: bool = True, heap: str = HEAP
) -> Iterator[dict[Name, JavaLoad]]:
    """Both brokers with a topic, and a Java load beside each."""
    with ExitStack() as running:
        servers = running.enter_context(both(folder, flush=flush, heap=heap, pinned=is_pinned))
        for server in servers.values():
            make_topics(server, [TOPIC], queues=QUEUE_COUNT)
        yield running.enter_context(loads_on(servers, folder, pinned=is_pinned))


def _command(cell: Cell, timing: Mapping[str, float]) -> dict[str, object]:
    return {"command": "send", "topic": TOPIC, **cell.words, **timing}


def rows_of(cell: Cell, taken: Mapping[Name, list[Figures]], **details: object) -> list[Row]:
    """The rate and the broker's CPU of a cell, ours beside Apache's."""
    ours, theirs = taken["contrail"], taken["apache"]
    reference_name = f"Apache {apache_peer().version}"
    details = {**details, **_shares("ours", ours), **_shares("apache", theirs)}
    latencies = {**_latencies("ours", ours), **_latencies("apache", theirs)}
    saturated = _saturation(ours) if cell.rate_limit and cell.is_excused else None
    return [
        Row(
            name=f"send, {cell.name}",
            unit="messages/s",
            ours=records_per_second(ours),
            reference=records_per_second(theirs),
            reference_name=reference_name,
            limit=None if saturated else cell.rate_limit,
            guide=f"{cell.rate_limit} or client saturated" if saturated else "",
            details={**details, **latencies, **(saturated or {})},
        ),
        Row(
            name=f"broker CPU, {cell.name}",
            unit="µs/message",
            ours=cpu_us_per_record(ours),
            reference=cpu_us_per_record(theirs),
            reference_name=reference_name,
            limit=cell.cpu_limit,
            details=details,
        ),
    ]


def _saturation(ours: list[Figures]) -> dict[str, object] | None:
    """That the rate is the Java client's own, where its core had no time left."""
    share = median(_share(run, "client_cpu_s") for run in ours)
    if share < CLIENT_SHARE_SATURATED:
        return None
    return {"java client saturated": f"{share:.0%} of its core"}


def _shares(name: str, taken: list[Figures]) -> dict[str, object]:
    return {
        f"{name}_client_core_share": round(median(_share(run, "client_cpu_s") for run in taken), 3),
        f"{name}_broker_core_share": round(median(_share(run, "cpu_s") for run in taken), 3),
    }


def _share(run: Figures, cpu: str) -> float:
    share: float = run[cpu] / run["wall_s"]
    return share


def _latencies(name: str, taken: list[Figures]) -> dict[str, object]:
    """Times of single sends, if the load reports them."""
    return {
        f"{name}_{figure}": round(median(run[figure] for run in taken), 3)
        for figure in ("p50_ms", "p99_ms")
        if figure in taken[0]
    }


# Apache's own benchmark program.


def benchmark_rows(size: str, folder: Path) -> list[Row]:
    """The most watched cell once more, by the program that Apache measures itself with."""
    if not SIZES[size].is_whole:
        return []  # It reports after ten seconds at the earliest.
    rounds, reports = _BENCHMARK_SIZES[size]
    peer = _had(lambda: java_peer("apache-5-example"))
    heap = SIZES[size].heap
    with both(folder / "benchmark", flush="ASYNC_FLUSH", heap=heap) as servers:
        for server in servers.values():
            make_topics(server, [TOPIC], queues=QUEUE_COUNT)
        runs = {
            name: partial(_benchmarked, peer, server, others(server, servers), folder)
            for name, server in servers.items()
        }
        sides: dict[str, Callable[[], Figures]] = {
            name: partial(run, reports) for name, run in runs.items()
        }
        few = _BENCHMARK_WARM_UP_REPORTS.get(size)
        warm_up = [partial(run, few) for run in runs.values()] if few is not None else []
        taken = in_rounds(rounds, sides, warm_up=warm_up)
    by_name = {name: taken[name] for name in NAMES}
    failed = {f"{name}_failed": sum(run["failed_count"] for run in taken[name]) for name in NAMES}
    return rows_of(_BENCHMARK, by_name, cores=describe_cores(), apache_heap=heap, **failed)


def _benchmarked(
    peer: JavaPeer,
    server: RocketServer,
    beside: list[RocketServer],
    folder: Path,
    reports: int,
) -> Figures:
    """Let the program run until it has reported so often, and take its rate of the last one."""
    home = folder / f"benchmark-{server.name}"
    home.mkdir(exist_ok=True)
    arguments = ["-n", server.namesrv, "-t", TOPIC, "-w", str(THREADS), "-s", "1024", "-ri", "1000"]
    command = java_command(peer, _BENCHMARK_MAIN, arguments, home, _BENCHMARK_HEAP)
    warm_pages(home, _BENCHMARK_STORED_BYTES)
    with standing_still(beside):
        settle(server.under_load, IDLE_SHARE_MAX)
        return _timed(server, command, home, reports)


def _timed(server: RocketServer, command: list[str], home: Path, reports: int) -> Figures:
    with pinned("load"), (home / "errors.log").open("wb") as log:
        process = subprocess.Popen(
            command, cwd=home, env=own_environment(home), stdout=subprocess.PIPE, stderr=log
        )
    guard = threading.Timer(_BENCHMARK_TIMEOUT_S + reports, process.kill)
    guard.start()
    with process:
        try:
            return _reported(process, server, reports)
        finally:
            guard.cancel()
            process.kill()


def _reported(process: subprocess.Popen[bytes], server: RocketServer, reports: int) -> Figures:
    """The CPU of client and broker from the first report to the last, with the last's rate."""
    assert process.stdout is not None
    seen: list[_Report] = []
    printed = ""
    for raw in process.stdout:
        line = raw.decode(errors="replace")
        printed += line
        found = _BENCHMARK_REPORT.search(line)
        if found is not None:
            clocks = (time.perf_counter(), server.cpu_s(), process_cpu_s(process.pid))
            seen.append(_Report(*clocks, int(found["failed"]) + int(found["refused"])))
            if len(seen) > reports:
                return _between(seen[0], seen[-1], int(found["rate"]))
    raise BenchError(f"Apache's benchmark ended before its report:\n{printed[-4000:]}")


class _Report(NamedTuple):
    wall_s: float
    cpu_s: float
    client_cpu_s: float
    failed_count: int


def _between(begun: _Report, ended: _Report, rate: int) -> Figures:
    wall_s = ended.wall_s - begun.wall_s
    if rate == 0:
        raise BenchError("Apache's benchmark sent nothing for nine seconds")
    return {
        "wall_s": wall_s,
        "cpu_s": ended.cpu_s - begun.cpu_s,
        "client_cpu_s": ended.client_cpu_s - begun.client_cpu_s,
        "record_count": rate * wall_s,
        # While its classes load on a busy machine, its first sends may take too long for it.
        "failed_count": ended.failed_count - begun.failed_count,
    }


GROUPS: dict[str, Callable[[str, Path], list[Row]]] = {
    "java-send": send_rows,
    "java-send-sync-flush": synced_rows,
    "java-benchmark": benchmark_rows,
}
EXTRA_GROUPS: dict[str, Callable[[str, Path], list[Row]]] = {
    "java-send-sync-flush-kinds": synced_kind_rows,
    "java-send-small-heap": small_heap_rows,
}
