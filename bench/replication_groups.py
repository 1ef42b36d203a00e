"""The groups ``group-cpu`` and ``group-answers``: what a failover group costs beside one broker.

All brokers flush synchronously: a group acknowledges what a majority has on disk. Answers are
compared in memory with syncs of half a millisecond, which every member has for itself, and for
information on the disk, which all of them share here.
"""

from __future__ import annotations

import os
import secrets
import shutil
import statistics
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from bench.backlog_parts import Link, quantile
from bench.harness import (
    BenchError,
    Figures,
    Limit,
    Row,
    Samples,
    cpu_us_per_record,
    figure,
    in_rounds,
    records_per_second,
)
from bench.replication_parts import Brokers, status_of, wait_for_slaves
from bench.report import filesystem_of
from bench.wire_frames import BROKER_NAME, send_frame
from bench.wire_parts import (
    HOST,
    SYNC_MICROS,
    Server,
    Shape,
    ask,
    describe_cores,
    free_port,
    pinned,
    running_broker,
    settle,
    tail,
)
from contrail.broker.services.cluster_secret import write_cluster_secret
from contrail.protocol.codes import RequestCode

_SECRET_BYTES = 32
_LEAD_TIMEOUT_S = 60
_PREPARED_TIMEOUT_S = 60
_MEMORY = Path("/dev/shm")
_INJECTED_US = 500
_BODY = bytes(1024)
_TOPIC = "GroupAnswers"
_THREADS = 8
_LAG_POLL_S = 0.001
_WORDS = {2: "one follower", 3: "two followers"}
_LIMITS = {2: Limit("<=", 1.2), 3: Limit("<=", 1.3)}


@contextmanager
def running_group(folder: Path, size: int) -> Iterator[Brokers]:
    """A group whose first member leads, on the servers' core; with size 1 a single broker."""
    with ExitStack() as started:
        if size == 1:
            opened = running_broker(folder / "single", "SYNC_FLUSH")
            brokers = Brokers(master=started.enter_context(opened))
        else:
            brokers = _members(folder, size, started)
        ask(brokers.master, send_frame())
        # Segments are prepared in the background first.
        for server in (brokers.master, *brokers.slaves):
            settle(server, timeout_s=_PREPARED_TIMEOUT_S)
        yield brokers


def _members(folder: Path, size: int, started: ExitStack) -> Brokers:
    folder.mkdir(parents=True, exist_ok=True)
    secret = folder / "secret"
    write_cluster_secret(secret, secrets.token_bytes(_SECRET_BYTES))
    peers = ";".join(f"n{number}-{HOST}:{free_port()}" for number in range(size))
    servers = []
    for number in range(size):
        properties = {
            "enableDLegerCommitLog": "true",
            "dLegerGroup": BROKER_NAME,
            "dLegerPeers": peers,
            "dLegerSelfId": f"n{number}",
            "preferredLeaderId": "n0",
            "contrailClusterSecretFile": str(secret),
            "metricsExporterType": "DISABLE",
            # The suite measures lateness: no send may be refused for it.
            "brokerFastFailureEnable": "false",
        }
        with pinned("server" if number == 0 else "load"):
            opened = running_broker(
                folder / f"n{number}", "SYNC_FLUSH", properties=properties, is_pinned=False
            )
            servers.append(started.enter_context(opened))
    _wait_until_leads(servers[0])
    wait_for_slaves(servers[0], size - 1)
    return Brokers(master=servers[0], slaves=tuple(servers[1:]))


def _wait_until_leads(server: Server) -> None:
    deadline = time.monotonic() + _LEAD_TIMEOUT_S
    with Link(server.port) as link:
        while status_of(link).role != "LEADER":
            if time.monotonic() > deadline:
                raise BenchError(f"the first member does not lead:\n{tail(server.log)}")
            time.sleep(0.05)


# CPU.


def cpu_rows(folder: Path, shapes: Sequence[Shape], round_count: int) -> list[Row]:
    """A broker alone, and the leaders of groups of two and three."""
    frame_file = folder / "send.frame"
    frame_file.write_bytes(send_frame())
    rows = []
    with ExitStack() as running:
        brokers = {
            size: running.enter_context(running_group(folder / f"group-{size}", size))
            for size in (1, *_WORDS)
        }
        for shape in shapes:
            sides = {
                str(size): partial(some.loaded, frame_file, shape) for size, some in brokers.items()
            }
            taken = in_rounds(round_count, sides)
            rows += _cpu_rows_of(shape, {size: taken[str(size)] for size in brokers}, folder)
    return rows


def _cpu_rows_of(shape: Shape, taken: dict[int, list[Figures]], folder: Path) -> list[Row]:
    name, single = f"{shape}, 1 KB, sync flush", taken[1]
    details = {"cores": f"{describe_cores()}, with the followers"}
    rows = [
        Row(
            name=f"leader with {_WORDS[size]}, {name}",
            unit="µs CPU/message",
            ours=cpu_us_per_record(taken[size]),
            reference=cpu_us_per_record(single),
            reference_name="single broker",
            limit=_LIMITS[size],
            details={
                **details,
                "rate": f"{records_per_second(taken[size]).best:,.0f}/s",
                "single_rate": f"{records_per_second(single).best:,.0f}/s",
                "files": filesystem_of(folder),
            },
        )
        for size in _WORDS
    ]
    all_single = _per_message(single, 0)
    rows.append(
        Row(
            name=f"follower, {name}",
            unit="µs CPU/message",
            ours=Samples(
                tuple(run["all_slave_cpu_s"] / run["all_count"] * 1e6 for run in taken[3])
            ),
            reference=all_single,
            reference_name="single broker",
            limit=Limit("<=", 0.7),
        )
    )
    rows.append(
        Row(
            name=f"all three members, {name}",
            unit="µs CPU/message",
            ours=_per_message(taken[3], 2),
            reference=all_single,
            reference_name="single broker",
            limit=Limit("<=", 2.7),
        )
    )
    return rows


def _per_message(taken: list[Figures], follower_count: int) -> Samples:
    """Over the whole load, warm-up included, until followers have all of it."""
    return Samples(
        tuple(
            (run["all_master_cpu_s"] + follower_count * run["all_slave_cpu_s"])
            / run["all_count"]
            * 1e6
            for run in taken
        )
    )


# Answers.


class PacedThreads:
    """Synchronous senders at a steady rate together, and how long each answer took."""

    def __init__(self, port: int, rate: float) -> None:
        self._links = [Link(port) for _ in range(_THREADS)]
        self._step_s = _THREADS / rate

    def run(self, seconds: float) -> list[float]:
        """Milliseconds from each send's due time to its answer."""
        taken: list[list[float]] = [[] for _ in self._links]
        end = time.perf_counter() + seconds
        threads = [
            threading.Thread(target=self._send, args=(link, own, end, at / _THREADS))
            for at, (link, own) in enumerate(zip(self._links, taken, strict=True))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return [one for own in taken for one in own]

    def _send(self, link: Link, taken: list[float], end: float, shift: float) -> None:
        due = time.perf_counter() + shift * self._step_s
        while due < end:
            time.sleep(max(0.0, due - time.perf_counter()))
            send_one(link)
            now = time.perf_counter()
            taken.append(1000 * (now - due))
            # A machine that stands still is no queue of sends.
            due = max(due + self._step_s, now - self._step_s)

    def close(self) -> None:
        for link in self._links:
            link.close()


def send_one(link: Link) -> None:
    fields = {"a": "paced", "b": _TOPIC, "c": "TBW102", "d": "4", "e": "0", "f": "0"}
    fields |= {"g": "0", "h": "0", "i": "", "j": "0", "k": "false"}
    link.ask(RequestCode.SEND_MESSAGE_V2, fields, _BODY)
    for answer in link.answers():
        if answer.code:
            raise BenchError(f"a message was refused: {answer.remark}")


def answer_rows(folder: Path, round_count: int, seconds: float) -> list[Row]:
    """A single broker and a group of three at half of the rate that the single one reaches."""
    rows = []
    if _MEMORY.is_dir() and os.access(_MEMORY, os.W_OK):
        place = _MEMORY / f"contrail-bench-{os.getpid()}"
        os.environ[SYNC_MICROS] = str(_INJECTED_US)
        try:
            rows += _answer_rows_in(place, round_count, seconds, "syncs of 0.5 ms in memory", True)
        finally:
            del os.environ[SYNC_MICROS]
            shutil.rmtree(place, ignore_errors=True)
    what = f"the {filesystem_of(folder)} disk that all members share"
    rows += _answer_rows_in(folder / "disk", round_count, seconds, what, False)
    return rows


def _answer_rows_in(
    folder: Path, round_count: int, seconds: float, what: str, is_judged: bool
) -> list[Row]:
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as running:
        single = running.enter_context(running_group(folder / "one", 1))
        group = running.enter_context(running_group(folder / "three", 3))
        rate = _rate_reached(single.master.port, seconds) / 2
        sides = {
            "single": partial(_paced, single.master, rate, seconds, False),
            "group": partial(_paced, group.master, rate, seconds, True),
        }
        taken = in_rounds(round_count, sides)
    bounds = {"p50": 1.6, "p99": 2.0}
    details = {"rate": f"{rate:,.0f}/s, half of what {_THREADS} synchronous senders reach"}
    rows = [
        Row(
            name=f"answer at half load, {name}, {what}",
            unit="ms",
            ours=figure(taken["group"], f"{name}_ms"),
            reference=figure(taken["single"], f"{name}_ms"),
            reference_name="single broker, synchronous flush",
            limit=Limit("<=", bound) if is_judged else None,
            details=details,
        )
        for name, bound in bounds.items()
    ]
    if is_judged:
        rows.append(
            Row(
                name=f"follower lag, p99, {what}",
                unit="ms",
                ours=figure(taken["group"], "lag_p99_ms"),
                limit=Limit("<=", 10, on="figure"),
                details={**details, "counted": "until the slower follower has it on disk"},
            )
        )
    return rows


def _rate_reached(port: int, seconds: float) -> float:
    """How many messages a second the senders store when they do not wait."""
    sends = PacedThreads(port, 1e6)
    try:
        sends.run(0.5)
        began = time.perf_counter()
        count = len(sends.run(seconds / 2))
        return count / (time.perf_counter() - began)
    finally:
        sends.close()


def _paced(server: Server, rate: float, seconds: float, has_followers: bool) -> Figures:
    settle(server)
    sends, lag = PacedThreads(server.port, rate), Lag(server.port)
    try:
        sends.run(min(1.0, seconds))
        if has_followers:
            lag.start()
        times = sorted(sends.run(seconds))
    finally:
        lags = sorted(lag.stop())
        sends.close()
    return {
        "p50_ms": quantile(times, 0.5),
        "p99_ms": quantile(times, 0.99),
        "mean_ms": statistics.fmean(times),
        "lag_p99_ms": quantile(lags, 0.99) if lags else 0.0,
        "cpu_s": 0.0,
        "wall_s": seconds,
        "record_count": len(times),
    }


class Lag:
    """How long it takes until all followers have on disk what the leader has written."""

    def __init__(self, port: int) -> None:
        self._link = Link(port)
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._lags_ms: list[float] = []

    def start(self) -> None:
        self._thread.start()

    def _run(self) -> None:
        waiting: deque[tuple[float, int]] = deque()
        while not self._is_over.wait(_LAG_POLL_S):
            asked = time.perf_counter()
            status = status_of(self._link)
            reached = min((one.acknowledged_end for one in status.slaves), default=0)
            while waiting and waiting[0][1] <= reached:
                self._lags_ms.append(1000 * (asked - waiting.popleft()[0]))
            if not waiting or waiting[-1][1] < status.physical_end:
                waiting.append((asked, status.physical_end))

    def stop(self) -> list[float]:
        self._is_over.set()
        if self._thread.is_alive():
            self._thread.join()
        self._link.close()
        return self._lags_ms
