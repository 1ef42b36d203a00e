"""How long other answers take while one kind of work is large: refused pulls, waking, all lags."""

from __future__ import annotations

import os
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench import growth_frames as frames
from bench.growth_brokers import (
    Home,
    new_home,
    topic_name,
    write_many_groups,
    write_topics,
)
from bench.growth_load import Guests, fill
from bench.harness import BenchError, Limit, Row, Samples, compiled
from bench.wire_frames import frame_bytes
from bench.wire_parts import (
    ANSWER_TIMEOUT_S,
    HOST,
    PROGRAMS,
    Server,
    describe_cores,
    pinned,
    received,
)

SUCCESS = 0
TOPIC_NOT_EXIST = 17
_DEPTH = 256
_PAUSE_S = 0.002
_LONG_S = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Fairness:
    """How much there is beside the sends that are timed, and for how long."""

    connections: int
    parked: int
    topics: int
    groups: int
    seconds: float
    round_count: int


def fairness_rows(folder: Path, sizes: Fairness, segment_bytes: int) -> list[Row]:
    """The delays of single sends beside each kind of large work."""
    home = new_home(folder / "fairness", segment_bytes)
    write_topics(home, topic_count=sizes.topics)
    write_many_groups(home, sizes.topics, sizes.groups)
    with home.running() as server:
        fill(server, home.folder, frames.keyed_send(), 2000, depth=64)
        taken: dict[str, list[list[float]]] = {}
        for _ in range(sizes.round_count):
            for name, beside in _works(home, server, sizes).items():
                taken.setdefault(name, []).append(beside())
    alone = _p99_ms(taken["alone"])
    worst = min(_worst_ms(taken["alone"]).values)
    return [
        _row(
            f"a send beside {sizes.connections:,} connections of refused pulls",
            "ms p99",
            _p99_ms(taken["refused"]),
            Limit("<=", 50, on="figure"),
            alone,
        ),
        _row(
            f"a send beside {sizes.connections:,} connections of costly queries",
            "ms p99",
            _p99_ms(taken["queries"]),
            Limit("<=", 50, on="figure"),
            alone,
        ),
        _row(
            f"a send while {sizes.parked:,} held pulls are woken",
            "ms at most",
            _worst_ms(taken["woken"]),
            Limit("<=", 50, on="figure"),
            alone,
        ),
        _row(
            f"a send beside all lags of {sizes.topics:,} topics and {sizes.groups:,} groups",
            "ms p99 more than alone",
            Samples(tuple(max(0.0, one - alone.best) for one in _p99_ms(taken["lags"]).values)),
            Limit("<=", 10, on="figure"),
            alone,
        ),
        _row(
            f"a send beside the figures of {sizes.topics:,} topics and {sizes.groups:,} groups",
            "ms at most, more than alone",
            Samples(tuple(max(0.0, one - worst) for one in _worst_ms(taken["figures"]).values)),
            Limit("<=", 20, on="figure"),
            alone,
        ),
    ]


def _row(name: str, unit: str, ours: Samples, limit: Limit, alone: Samples) -> Row:
    details = {"alone_p99_ms": round(alone.best, 3), "cores": describe_cores()}
    return Row(name=name, unit=unit, ours=ours, limit=limit, details=details)


def _works(home: Home, server: Server, sizes: Fairness) -> dict[str, Callable[[], list[float]]]:
    def alone() -> list[float]:
        return timed_sends(server, sizes.seconds)

    def refused() -> list[float]:
        load = (frames.refused_pull(), TOPIC_NOT_EXIST)
        with _loading(home, server, sizes.connections, *load):
            return timed_sends(server, sizes.seconds)

    def queries() -> list[float]:
        with _loading(home, server, sizes.connections, frames.costly_query(), SUCCESS):
            return timed_sends(server, sizes.seconds)

    def woken() -> list[float]:
        with Guests.holding(server, sizes.parked) as guests:
            began = threading.Timer(sizes.seconds / 4, guests.wake, [])
            began.start()
            try:
                return timed_sends(server, sizes.seconds)
            finally:
                began.join()

    def lags() -> list[float]:
        with _asking(server, frames.all_lags()):
            return timed_sends(server, sizes.seconds)

    def figures() -> list[float]:
        with _asking(server, frames.figures()):
            return timed_sends(server, sizes.seconds)

    return {
        "alone": alone,
        "refused": refused,
        "queries": queries,
        "woken": woken,
        "lags": lags,
        "figures": figures,
    }


def timed_sends(server: Server, seconds: float) -> list[float]:
    """How long single sends took, one after the other with a pause, in seconds."""
    taken = []
    frame = frames.send(topic_name(0))
    with pinned("load"), _connected(server) as connection:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            began = time.perf_counter()
            connection.sendall(frame)
            answer = _answer(connection)
            taken.append(time.perf_counter() - began)
            if b'"code":0,' not in answer:
                raise BenchError(f"a send was refused: {answer[4:600]!r}")
            time.sleep(_PAUSE_S)
    return taken


@contextmanager
def _loading(
    home: Home, server: Server, connections: int, frame: bytes, answer_code: int
) -> Iterator[None]:
    """The C load with one request that is answered by ``answer_code``, until the block ends."""
    frame_file = home.folder / "load.frame"
    frame_file.write_bytes(frame)
    program = str(compiled("load", PROGRAMS))
    numbers = (connections, _DEPTH, 0, 1 << 30, _LONG_S)
    command = [program, "remoting", HOST, server.port, server.pid, *numbers, frame_file]
    environment = os.environ | {"LOAD_ANSWER_CODE": str(answer_code)}
    with pinned("load"):
        load = subprocess.Popen(
            list(map(str, command)),
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
    try:
        yield
        if load.poll() is not None:
            raise BenchError("the load has ended too early")
    finally:
        load.kill()
        load.wait()


@contextmanager
def _asking(server: Server, frame: bytes) -> Iterator[None]:
    """One connection asks again as soon as it was answered, until the block ends."""
    is_over = threading.Event()
    failures: list[str] = []

    def ask() -> None:
        with _connected(server) as connection:
            while not is_over.is_set():
                connection.sendall(frame)
                answer = _answer(connection)
                if b'"code":0,' not in answer[:200]:
                    failures.append(f"the question was refused: {answer[4:600]!r}")
                    return

    asker = threading.Thread(target=ask)
    asker.start()
    try:
        yield
    finally:
        is_over.set()
        asker.join()
    if failures:
        raise BenchError(failures[0])


def _answer(connection: socket.socket) -> bytes:
    head = received(connection, 4)
    return received(connection, frame_bytes(head) - 4)


@contextmanager
def _connected(server: Server) -> Iterator[socket.socket]:
    with socket.create_connection((HOST, server.port), timeout=ANSWER_TIMEOUT_S) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        yield connection


def _p99_ms(rounds: list[list[float]]) -> Samples:
    return Samples(tuple(sorted(one)[len(one) * 99 // 100] * 1000 for one in rounds))


def _worst_ms(rounds: list[list[float]]) -> Samples:
    return Samples(tuple(max(one) * 1000 for one in rounds))
