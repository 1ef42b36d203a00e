"""The pop suite: what popping costs beside Apache's broker, how soon and how late messages come.

``work``: messages of 1 KB are popped and acknowledged over eight connections, 32 at a time with one
acknowledgement for each batch, and one by one; the brokers' CPU is compared. ``waits``: how soon a
pop that waits gets a message. ``late``: how late a message comes again that nobody acknowledged.
``million``: a million messages in flight, a kill, and all of them coming again.
"""

from __future__ import annotations

import signal
import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.harness import BenchError, Figures, Limit, Row, Samples, figure, in_rounds
from bench.peers_servers import (
    NAMES,
    Name,
    RocketServer,
    both,
    make_topics,
    others,
    running_contrail,
    standing_still,
)
from bench.pop_load import Popper, consumed_by_many
from bench.wire_parts import Server, describe_cores, pinned, running, wait_until_listening
from contrail.model.record import split_record_run

_CONNECTIONS = 8
_INVISIBLE_MS = 60_000
_LATE_MS = 2_000
_CPU_S_MIN = 1e-3
_MB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Messages of each run, rounds, and how many are in flight."""

    batch_count: int
    single_count: int
    rounds: int
    wait_count: int
    late_count: int
    flight_count: int


SIZES = {
    "full": Sizes(
        batch_count=32_000,
        single_count=4_000,
        rounds=5,
        wait_count=300,
        late_count=224,
        flight_count=1_000_000,
    ),
    "quick": Sizes(
        batch_count=9_600,
        single_count=1_280,
        rounds=2,
        wait_count=60,
        late_count=64,
        flight_count=64_000,
    ),
    "tiny": Sizes(
        batch_count=640, single_count=64, rounds=1, wait_count=5, late_count=32, flight_count=640
    ),
}


def groups() -> list[str]:
    return ["work", "waits", "late", "million"]


def measure(group: str, *, size: str, folder: Path) -> list[Row]:
    """The rows of one group, measured in ``folder``, which must be empty."""
    sizes = SIZES[size]
    if group == "million":
        return _million_rows(folder, sizes)
    with both(folder, flush="ASYNC_FLUSH", heap="1g") as servers, pinned("load"):
        if group == "work":
            return _work_rows(servers, sizes)
        return _wait_rows(servers, sizes) if group == "waits" else _late_rows(servers, sizes)


# Work.


def _work_rows(servers: dict[Name, RocketServer], sizes: Sizes) -> list[Row]:
    rows: list[Row] = []
    for batch, count in ((32, sizes.batch_count), (1, sizes.single_count)):
        turns = {name: _Turns(servers[name], servers, batch, count) for name in NAMES}
        taken = in_rounds(
            sizes.rounds,
            {name: turns[name].run for name in NAMES},
            warm_up=[turns[name].run for name in NAMES],
        )
        ours, theirs = (_per_cpu_second(taken[name]) for name in NAMES)
        rows.append(
            Row(
                name=f"pop and ack, 1 KB, batches of {batch}",
                unit="messages per CPU second",
                ours=ours,
                reference=theirs,
                reference_name="Apache",
                limit=Limit(">=", 2),
                details={"messages": count, "cores": describe_cores()},
            )
        )
    return rows


class _Turns:
    """One broker's runs, each on a topic of its own."""

    def __init__(
        self, server: RocketServer, servers: dict[Name, RocketServer], batch: int, count: int
    ) -> None:
        self._server = server
        self._others = others(server, servers)
        self._batch = batch
        self._count = count
        self._number = 0

    def run(self) -> Figures:
        server, self._number = self._server, self._number + 1
        topic = f"Pop{self._batch}x{self._number}"
        make_topics(server, [topic], queues=1)
        with standing_still(self._others):
            _fill(server, topic, self._count)
            before_s, began_s = server.cpu_s(), time.perf_counter()
            consumed_by_many(
                server.port,
                topic,
                count=self._count,
                batch=self._batch,
                connections=_CONNECTIONS,
                invisible_ms=_INVISIBLE_MS,
            )
            return {
                "cpu_s": max(server.cpu_s() - before_s, _CPU_S_MIN),
                "wall_s": time.perf_counter() - began_s,
                "record_count": self._count,
            }


def _fill(server: RocketServer, topic: str, count: int) -> None:
    with Popper(server.port, topic) as popper:
        popper.fill(count)
    # The queue's rows are derived before anything is measured.
    time.sleep(1)


def _per_cpu_second(taken: list[Figures]) -> Samples:
    rates = tuple(run["record_count"] / run["cpu_s"] for run in taken)
    return Samples(rates, higher_is_better=True)


# Waiting.


def _wait_rows(servers: dict[Name, RocketServer], sizes: Sizes) -> list[Row]:
    taken = {name: [_waits(servers[name], sizes)] for name in NAMES}
    details = {
        f"{name}_{point}_ms": round(float(taken[name][0][point]), 2)
        for name in NAMES
        for point in ("median", "p99")
    }
    return [
        Row(
            name="a waiting pop gets a message: median",
            unit="ms after the send",
            ours=figure(taken["contrail"], "median"),
            reference=figure(taken["apache"], "median"),
            reference_name="Apache",
            limit=Limit("<=", 5, on="figure"),
            details=details,
        )
    ]


def _waits(server: RocketServer, sizes: Sizes) -> Figures:
    topic = "PopWaits"
    make_topics(server, [topic], queues=1)
    took_ms: list[float] = []
    with Popper(server.port, topic) as popper, Popper(server.port, topic) as producer:
        for _ in range(sizes.wait_count):
            began: list[float] = []
            sending = threading.Timer(0.03, _send, (producer, began))
            sending.start()
            found = popper.pop(1, _INVISIBLE_MS, poll_ms=10_000)
            ended_s = time.perf_counter()
            sending.join()
            if found.count != 1:
                raise BenchError("a waiting pop got nothing")
            took_ms.append((ended_s - began[0]) * 1000)
            popper.ack_all(found)
    took_ms.sort()
    return {
        "median": statistics.median(took_ms),
        "p99": took_ms[len(took_ms) * 99 // 100],
        "cpu_s": 0.0,
        "wall_s": 0.0,
        "record_count": len(took_ms),
    }


def _send(producer: Popper, began: list[float]) -> None:
    began.append(time.perf_counter())
    producer.send()


# Late deliveries.


def _late_rows(servers: dict[Name, RocketServer], sizes: Sizes) -> list[Row]:
    taken = {name: [_late(servers[name], sizes)] for name in NAMES}
    return [
        Row(
            name="a message that nobody acknowledged comes again: latest",
            unit="ms after its time",
            ours=figure(taken["contrail"], "latest"),
            reference=figure(taken["apache"], "latest"),
            reference_name="Apache",
            limit=Limit("<=", 1200, on="figure"),
            details={
                f"{name}_{point}_ms": int(taken[name][0][point])
                for name in NAMES
                for point in ("earliest", "median")
            },
        )
    ]


def _late(server: RocketServer, sizes: Sizes) -> Figures:
    topic = "PopLate"
    make_topics(server, [topic], queues=1)
    due_ms: dict[str, int] = {}
    late_ms: list[int] = []
    with Popper(server.port, topic) as popper:
        popper.fill(sizes.late_count)
        time.sleep(1)
        while (found := popper.pop(8, _LATE_MS)).count:
            for message in split_record_run(found.body):
                due_ms[message.properties["UNIQ_KEY"]] = found.pop_time_ms + _LATE_MS
            time.sleep(0.02)
        last_s = time.monotonic() + 30
        while len(late_ms) < len(due_ms) and time.monotonic() < last_s:
            found = popper.pop(32, _INVISIBLE_MS, poll_ms=2_000)
            now_ms = time.time_ns() // 1_000_000
            for message in split_record_run(found.body):
                late_ms.append(now_ms - due_ms[message.properties["UNIQ_KEY"]])
            if found.count:
                popper.ack_all(found)
    if len(late_ms) != len(due_ms):
        raise BenchError(f"{len(late_ms)} of {len(due_ms)} messages came again")
    late_ms.sort()
    return {
        "latest": late_ms[-1],
        "earliest": late_ms[0],
        "median": statistics.median(late_ms),
        "cpu_s": 0.0,
        "wall_s": 0.0,
        "record_count": len(late_ms),
    }


# A million in flight.


def _million_rows(folder: Path, sizes: Sizes) -> list[Row]:
    count, topic = sizes.flight_count, "PopFlight"
    with running_contrail(folder / "contrail", flush="ASYNC_FLUSH") as server, pinned("load"):
        make_topics(server, [topic, "PopProbe"], queues=1)
        _fill(server, topic, count)
        before = server.anonymous_bytes()
        # Enough for the pops, the kill and the start: then all of them come again at once.
        due_s = time.time() + 60 + count / 8_000
        _take_all(server, topic, count, due_s)
        more_mb = (server.anonymous_bytes() - before) / _MB
        time.sleep(1)
        with _killed(server) as again:
            ready_s = again.ready_s
            slowest_ms, seconds = _probed(again, topic, count, due_s)
    return [
        Row(
            name=f"{count:,} messages in flight: memory",
            unit="MB more",
            ours=Samples((more_mb,)),
            limit=Limit("<=", 400, on="figure"),
        ),
        Row(
            name=f"{count:,} messages in flight: ready after a kill",
            unit="s",
            ours=Samples((ready_s,)),
            limit=Limit("<=", 30, on="figure"),
        ),
        Row(
            name=f"{count:,} messages come again: the slowest other answer",
            unit="ms",
            ours=Samples((slowest_ms,)),
            limit=Limit("<=", 20, on="figure"),
            details={"all_came_after_s": round(seconds, 1)},
        ),
    ]


def _take_all(server: RocketServer, topic: str, count: int, due_s: float) -> None:
    taken = 0
    with Popper(server.port, topic) as popper:
        while taken < count:
            found = popper.pop(32, max(1000, int((due_s - time.time()) * 1000)))
            if not found.count:
                raise BenchError(f"{taken} of {count} messages were popped")
            taken += found.count
    if time.time() > due_s:
        raise BenchError("popping took longer than the messages are invisible")


@dataclass(frozen=True, slots=True)
class _Again:
    """The broker after its kill."""

    server: Server
    ready_s: float


@contextmanager
def _killed(server: RocketServer) -> Iterator[_Again]:
    """Kill the broker and start it anew in its folder."""
    server.process.send_signal(signal.SIGKILL)
    server.process.wait()
    began_s = time.perf_counter()
    command = [str(part) for part in server.process.args]  # type: ignore[union-attr]
    log = server.folder / "again.log"
    with running(command, log, is_pinned=True) as process:
        again = Server(port=server.port, process=process, log=log)
        wait_until_listening(again)
        with Popper(server.port, "PopProbe") as popper:
            popper.pop(1, _INVISIBLE_MS)
        yield _Again(again, time.perf_counter() - began_s)
        process.kill()


def _probed(again: _Again, topic: str, count: int, due_s: float) -> tuple[float, float]:
    """Send one message after the other until all came again: the slowest answer, and how long."""
    slowest_ms, port = 0.0, again.server.port
    time.sleep(max(0.0, due_s - time.time()))
    began_s = time.perf_counter()
    with Popper(port, "PopProbe") as probe, Popper(port, topic) as popper:
        arrived = 0
        next_look_s = began_s
        while arrived < count:
            sent_s = time.perf_counter()
            probe.send()
            slowest_ms = max(slowest_ms, (time.perf_counter() - sent_s) * 1000)
            if time.perf_counter() > next_look_s:
                arrived = popper.queue_offset_max(f"%RETRY%{popper.group}_{topic}")
                next_look_s = time.perf_counter() + 0.5
            if time.perf_counter() - began_s > 300:
                raise BenchError(f"{arrived} of {count} messages came again within 300 s")
            time.sleep(0.001)
    return slowest_ms, time.perf_counter() - began_s
