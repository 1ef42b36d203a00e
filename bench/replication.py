"""The replication suite: what slaves cost a master and themselves, beside a broker without any.

CPU is that of whole processes under the same C load, in turn. A slave that begins with an empty
log stands beside ``cp``, and a Java client's sends beside an Apache master and slave.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from bench.backlog_parts import drop_from_memory
from bench.client_peers import Absent
from bench.harness import (
    BenchError,
    Figures,
    Limit,
    Row,
    Samples,
    cpu_us_per_record,
    figure,
    in_child,
    in_rounds,
    records_per_second,
)
from bench.peers_java import loads_on
from bench.peers_send import QUEUE_COUNT, THREADS, TOPIC, Cell, rows_of
from bench.peers_servers import (
    NAMES,
    Name,
    RocketServer,
    apache_peer,
    make_topics,
    running_apache,
    running_contrail,
    with_slave,
)
from bench.replication_failover import apache_rows, failover_rows
from bench.replication_groups import answer_rows, cpu_rows
from bench.replication_parts import (
    PacedSends,
    copied,
    running_brokers,
    running_filled_master,
    running_slave,
    yield_to_others,
)
from bench.report import filesystem_of
from bench.wire_frames import send_frame
from bench.wire_parts import Flush, Shape, describe_cores
from contrail.broker.services.cluster_secret import write_cluster_secret

_PARTS = "bench.replication_parts"
_SLAVE_COUNTS = (0, 1, 2)
_MASTER_LIMITS = {1: Limit("<=", 1.2), 2: Limit("<=", 1.3)}
_SLAVE_LIMIT = Limit("<=", 0.7)
# The first sends meet a broker whose pages were just dropped, and make the topic.
_SETTLE_S = 0.5
_WORDS = {1: "one slave", 2: "two slaves"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """How much each group sends, and how often."""

    round_count: int
    deep_sends: int
    synced_sends: int
    backlog_bytes: int
    catch_up_rounds: int
    alone_s: float
    java_rounds: int
    java_first: Mapping[str, float]
    java_each: Mapping[str, float]
    java_heap: str
    rate: int = 500


SIZES = {
    "full": Sizes(
        round_count=9,
        deep_sends=100_000,
        synced_sends=60_000,
        backlog_bytes=4 << 30,
        catch_up_rounds=3,
        alone_s=5.0,
        java_rounds=3,
        java_first={"warm_up_s": 10, "seconds": 1},
        java_each={"warm_up_s": 1, "seconds": 3},
        java_heap="2g",
    ),
    "quick": Sizes(
        round_count=2,
        deep_sends=20_000,
        synced_sends=10_000,
        backlog_bytes=128 << 20,
        catch_up_rounds=1,
        alone_s=1.0,
        java_rounds=1,
        java_first={"warm_up_s": 2, "seconds": 0.5},
        java_each={"warm_up_s": 0.5, "seconds": 1.5},
        java_heap="1g",
    ),
    "tiny": Sizes(
        round_count=1,
        deep_sends=640,
        synced_sends=1024,
        backlog_bytes=4 << 20,
        catch_up_rounds=1,
        alone_s=0.2,
        java_rounds=1,
        java_first={"count": 64},
        java_each={"warm_up_count": 64, "count": 256},
        java_heap="512m",
    ),
}

# As profiles of the master showed. On loopback ``sendfile`` hands the bytes to the receiver in the
# sender's time.
_BYTES = (
    "half of what a slave adds is the system's sendfile, which on loopback does the receiver's "
    "part as well; the rest is a push and a report for each frame, of what came within 10 ms"
)
_SYNCED = (
    "each sync of some 230 messages costs a push, a report and two wake-ups for each slave beside "
    "the bytes: batches are as small as the queue of waiting sends allows"
)
_HELD = (
    "a message that waits for a slave costs both brokers a wake-up, a frame and a report, shared "
    "by what comes within one round trip; to wait for more doubled the answers of a window of sends"
)
CAUSES = {
    "master with one slave, 1x64, 1 KB, async flush": _BYTES,
    "master with two slaves, 1x64, 1 KB, async flush": _BYTES,
    "master with one slave, 16x32, 1 KB, sync flush, SYNC_MASTER": _SYNCED,
    "master with two slaves, 16x32, 1 KB, sync flush, SYNC_MASTER": _SYNCED,
    "slave, 16x32, 1 KB, sync flush, SYNC_MASTER": _SYNCED,
    f"send, {THREADS} threads, 1 KB, SYNC_MASTER and a slave": _HELD,
    f"broker CPU, {THREADS} threads, 1 KB, SYNC_MASTER and a slave": _HELD,
    "answer to a send, p99, during a catch-up": (
        "the slave's syncs use the disk that the master's appends use, and threads that bring old "
        "segments in use the master's core"
    ),
}


def groups() -> list[str]:
    return [
        "async",
        "sync",
        "catch-up",
        "java",
        "group-cpu",
        "group-answers",
        "failover",
        "failover-apache",
    ]


def measure(group: str, *, size: str, folder: Path) -> list[Row]:
    """The rows of one group, measured in ``folder``, which must be empty."""
    sizes = SIZES[size]
    if group == "async":
        shape = Shape(connections=1, depth=64, count=sizes.deep_sends)
        return _cpu_rows(sizes, folder, "ASYNC_FLUSH", shape)
    if group == "sync":
        _require_disk(folder)
        shape = Shape(connections=16, depth=32, count=sizes.synced_sends)
        return _cpu_rows(sizes, folder, "SYNC_FLUSH", shape)
    if group == "catch-up":
        _require_disk(folder)
        return _catch_up_rows(sizes, folder)
    if group == "group-cpu":
        _require_disk(folder)
        shapes = [
            Shape(connections=1, depth=64, count=sizes.synced_sends // 2),
            Shape(connections=16, depth=32, count=sizes.synced_sends),
        ]
        return cpu_rows(folder, shapes, sizes.round_count)
    if group == "group-answers":
        return answer_rows(folder, min(3, sizes.round_count), sizes.alone_s)
    if group == "failover":
        return failover_rows(size, folder)
    if group == "failover-apache":
        return apache_rows(size, folder)
    return _java_rows(sizes, folder)


def _require_disk(folder: Path) -> None:
    if filesystem_of(folder) in ("tmpfs", "ramfs"):
        raise BenchError(f"{folder} is in memory, where a sync is free: use --folder on a disk")


# CPU.


def _cpu_rows(sizes: Sizes, folder: Path, flush: Flush, shape: Shape) -> list[Row]:
    """A broker alone, with one slave and with two; under sync flush the answers wait for slaves."""
    frame_file = folder / "send.frame"
    frame_file.write_bytes(send_frame())
    is_synchronous = flush == "SYNC_FLUSH"
    with ExitStack() as running:
        brokers = {
            count: running.enter_context(
                running_brokers(
                    folder / f"{count}-slaves",
                    flush,
                    slave_count=count,
                    is_synchronous=is_synchronous,
                )
            )
            for count in _SLAVE_COUNTS
        }
        sides = {
            str(count): partial(some.loaded, frame_file, shape) for count, some in brokers.items()
        }
        taken = in_rounds(sizes.round_count, sides)
    name = f"{shape}, 1 KB, {'sync flush, SYNC_MASTER' if is_synchronous else 'async flush'}"
    single, runs = taken["0"], {count: taken[str(count)] for count in _WORDS}
    return [
        *(_master_row(name, count, runs[count], single) for count in _WORDS),
        _slave_row(name, runs[1], single),
    ]


def _master_row(name: str, count: int, taken: list[Figures], single: list[Figures]) -> Row:
    return Row(
        name=f"master with {_WORDS[count]}, {name}",
        unit="µs CPU/message",
        ours=cpu_us_per_record(taken),
        reference=cpu_us_per_record(single),
        reference_name="single broker",
        limit=_MASTER_LIMITS[count],
        details={
            "rate": f"{records_per_second(taken).best:,.0f}/s",
            "single_rate": f"{records_per_second(single).best:,.0f}/s",
            "p99_us": round(figure(taken, "p99_us").median),
            "single_p99_us": round(figure(single, "p99_us").median),
            "cores": f"{describe_cores()}, with the slaves",
        },
    )


def _slave_row(name: str, taken: list[Figures], single: list[Figures]) -> Row:
    """Both over the whole load, warm-up included, until the slave has all of it."""
    return Row(
        name=f"slave, {name}",
        unit="µs CPU/message",
        ours=_over_all(taken, "all_slave_cpu_s"),
        reference=_over_all(single, "all_master_cpu_s"),
        reference_name="single broker",
        limit=_SLAVE_LIMIT,
    )


def _over_all(taken: list[Figures], name: str) -> Samples:
    return Samples(tuple(run[name] / run["all_count"] * 1e6 for run in taken))


# Catching up.


def _catch_up_rows(sizes: Sizes, folder: Path) -> list[Row]:
    store = folder / "store"
    filled = in_child(f"{_PARTS}:fill", root=str(store), byte_count=sizes.backlog_bytes)
    taken = [
        _caught_up(sizes, folder / str(number), store, filled["bytes"])
        for number in range(sizes.catch_up_rounds)
    ]
    rates = {
        side: Samples(
            tuple(filled["bytes"] / run[f"{side}_s"] / 1e6 for run in taken), higher_is_better=True
        )
        for side in ("slave", "cp")
    }
    return [
        Row(
            name="catch-up of an empty slave, sync flush",
            unit="MB/s",
            ours=rates["slave"],
            reference=rates["cp"],
            reference_name="cp and sync",
            limit=Limit(">=", 0.5),
            details={
                "backlog": f"{filled['bytes'] / (1 << 20):,.0f} MiB, not in memory before",
                "slave": "on the sender's core, behind it",
            },
        ),
        Row(
            name="answer to a send, p99, during a catch-up",
            unit="µs",
            ours=figure(taken, "during_p99_us"),
            reference=figure(taken, "alone_p99_us"),
            reference_name="alone",
            limit=Limit("<=", 2),
            details={
                "p50_us": f"{figure(taken, 'during_p50_us').median:.0f} beside "
                f"{figure(taken, 'alone_p50_us').median:.0f} alone",
                "sends_meanwhile": min(run["during_send_count"] for run in taken),
                "rate": f"at most {sizes.rate}/s, one after the other",
            },
        ),
    ]


def _caught_up(sizes: Sizes, folder: Path, store: Path, physical_end: int) -> Figures:
    """One round: sends alone, an empty slave that catches up meanwhile, then ``cp``."""
    with running_filled_master(folder, store) as (master, properties):
        drop_from_memory(store)
        with closing(PacedSends(master.port, sizes.rate)) as sends:
            sends.run(_SETTLE_S)
            sends.run(sizes.alone_s)
            alone = sends.figures()
            with running_slave(folder, 1, "SYNC_FLUSH", properties) as slave:
                yield_to_others(slave)
                during = sends.until_caught_up(physical_end)
    drop_from_memory(store)
    log_copy = copied(store / "commitlog", folder / "copy", physical_end)
    shutil.rmtree(folder)
    return {
        "slave_s": during["wall_s"],
        "cp_s": log_copy["wall_s"],
        **{f"alone_{name}": value for name, value in alone.items()},
        **{f"during_{name}": value for name, value in during.items()},
    }


# Apache's client and brokers.


_SYNC_MASTER = {"brokerRole": "SYNC_MASTER", "inSyncReplicas": "2", "totalReplicas": "2"}
_JAVA = Cell(
    name=f"{THREADS} threads, 1 KB, SYNC_MASTER and a slave",
    words={"mode": "sync", "threads": THREADS, "bytes": 1024},
    rate_limit=Limit(">=", 2),
    cpu_limit=Limit("<=", 1 / 3),
)


def _java_rows(sizes: Sizes, folder: Path) -> list[Row]:
    """The rate of a Java client, and the CPU of master and slave together."""
    try:
        apache_peer()
    except Absent as absent:
        print(f" left out: Apache's servers are absent: {absent}", file=sys.stderr)
        return []
    command = {"command": "send", "topic": TOPIC, **_JAVA.words}
    with ExitStack() as running:
        servers = _pairs(sizes, folder, running)
        for server in servers.values():
            make_topics(server, [TOPIC], queues=QUEUE_COUNT)
        loads = running.enter_context(loads_on(servers, folder))
        sides: dict[str, Callable[[], Figures]] = {
            name: partial(load.run, command | dict(sizes.java_each)) for name, load in loads.items()
        }
        first = [partial(load.run, command | dict(sizes.java_first)) for load in loads.values()]
        taken = in_rounds(sizes.java_rounds, sides, warm_up=first)
    runs = {name: taken[name] for name in NAMES}
    details = {"flush": "ASYNC_FLUSH", "apache_heap": f"{sizes.java_heap} each"}
    return rows_of(_JAVA, runs, cores=describe_cores(), **details)


def _pairs(sizes: Sizes, folder: Path, running: ExitStack) -> dict[Name, RocketServer]:
    """A synchronous master with a slave of each make; one pair stands still for the other."""
    secret = folder / "secret"
    write_cluster_secret(secret, bytes(range(32)))
    own = {"contrailClusterSecretFile": str(secret), "metricsExporterType": "DISABLE"}
    heap = sizes.java_heap
    started = running.enter_context
    ours = started(
        running_contrail(folder / "contrail", flush="ASYNC_FLUSH", properties=_SYNC_MASTER | own)
    )
    theirs = started(
        running_apache(folder / "apache", flush="ASYNC_FLUSH", heap=heap, properties=_SYNC_MASTER)
    )
    return {
        "contrail": started(with_slave(ours, properties=own)),
        "apache": started(with_slave(theirs, heap=heap, properties={})),
    }
