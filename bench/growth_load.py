"""The load of the growth suite: fills, sends over many queues, connections that stay."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench import growth_frames as frames
from bench.growth_brokers import PARKED_QUEUES, PARKED_TOPIC
from bench.harness import BenchError, Figures
from bench.warm_pages import warm_pages
from bench.wire_frames import PULL_MESSAGES, TOPIC, frame_bytes
from bench.wire_parts import (
    ANSWER_TIMEOUT_S,
    HOST,
    Server,
    Shape,
    ask,
    loaded,
    pinned,
    received,
    settle,
)

WAVE = 64
_FILL_REQUESTS = 100_000
_INTAKE_TIMEOUT_S = 180.0
_HELD_PER_CONNECTION = 100
# Held pulls are answered after two minutes, silent connections are closed after as long.
_STAY_S = 60.0
_RECEIVE_BYTES = 1 << 18


def replayed(server: Server, folder: Path, frame: bytes, shape: Shape) -> Figures:
    """The C load with this frame."""
    frame_file = folder / "request.frame"
    frame_file.write_bytes(frame)
    return loaded(server, frame_file, shape)


def fill(server: Server, folder: Path, frame: bytes, request_count: int, depth: int = 8) -> None:
    """Send about this many requests; a load runs for a minute at most, so in parts."""
    left = request_count
    while left > 0:
        part = min(left, _FILL_REQUESTS)
        # The load sends a fifth more, to warm up.
        count = max(1, part * 5 // 6)
        replayed(server, folder, frame, Shape(connections=1, depth=depth, count=count))
        left -= part


def wait_for_timers(server: Server, least: int) -> None:
    """Wait until the broker has filed this many timed messages."""
    deadline = time.monotonic() + _INTAKE_TIMEOUT_S
    pause = threading.Event()
    while (found := pending_timers(server)) < least:
        if time.monotonic() > deadline:
            raise BenchError(f"{found} of {least} timers wait after {_INTAKE_TIMEOUT_S:g} s")
        pause.wait(0.2)


def pending_timers(server: Server) -> int:
    answer = ask(server, frames.timer_counts())
    header_bytes = int.from_bytes(answer[5:8], "big")
    counts = json.loads(answer[8 + header_bytes :])["timingCount"]
    return sum(entry["count"] for entry in counts.values())


def queue_end(server: Server, topic: str = TOPIC) -> int:
    return frames.told_queue_end(ask(server, frames.queue_end(topic)))


# Sends over many queues.


def spread(server: Server, waves: list[bytes], wave_count: int) -> Figures:
    """Send waves of ready requests, each after the answers to the one before, and time them."""
    # As much as the requests, in each of memory, log and derived files.
    warm_pages(server.log.parent, 3 * wave_count * len(waves[0]))
    settle(server)
    with pinned("load"), _connected(server) as connection:
        for number in range(max(wave_count // 5, 1)):
            _ride(connection, waves[number % len(waves)])
        latencies: list[float] = []
        cpu_s, began = _cpu_s(server), time.perf_counter()
        for number in range(wave_count):
            latencies += _ride(connection, waves[number % len(waves)])
        wall_s = time.perf_counter() - began
        cpu_s = _cpu_s(server) - cpu_s
    latencies.sort()
    return {
        "record_count": len(latencies),
        "wall_s": wall_s,
        "cpu_s": max(cpu_s, 1e-6),
        "p99_us": latencies[len(latencies) * 99 // 100] * 1e6,
    }


def waves_of(requests: list[bytes]) -> list[bytes]:
    """The requests in groups of 64; too few are repeated."""
    whole = requests * max(1, -(-WAVE // len(requests)))
    starts = range(0, len(whole) - WAVE + 1, WAVE)
    return [b"".join(whole[start : start + WAVE]) for start in starts]


def _ride(connection: socket.socket, wave: bytes) -> list[float]:
    """Send one wave; how long each of its answers took."""
    began = time.perf_counter()
    connection.sendall(wave)
    data = b""
    latencies: list[float] = []
    while len(latencies) < WAVE:
        piece = connection.recv(_RECEIVE_BYTES)
        if not piece:
            raise BenchError("the broker closed the connection instead of answering")
        answers, data = _split(data + piece)
        took_s = time.perf_counter() - began
        latencies += [took_s] * len(answers)
        for answer in answers:
            if b'"code":0,' not in answer:
                raise BenchError(f"a send was refused: {answer[8:600]!r}")
    return latencies


def _split(data: bytes) -> tuple[list[bytes], bytes]:
    """The whole frames of ``data``, and what follows them."""
    found, start = [], 0
    while len(data) - start >= 4:
        end = start + frame_bytes(data[start : start + 4])
        if end > len(data):
            break
        found.append(data[start:end])
        start = end
    return found, data[start:]


def _cpu_s(server: Server) -> float:
    # The kernel's own way to name another process's CPU clock, as in clock_getcpuclockid(3).
    return time.clock_gettime(~server.pid << 3 | 2)


@contextmanager
def _connected(server: Server) -> Iterator[socket.socket]:
    with socket.create_connection((HOST, server.port), timeout=ANSWER_TIMEOUT_S) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        yield connection


# Connections that stay.


class Guests:
    """Connections that stay open meanwhile, each with a number of held pulls or with none."""

    def __init__(self, server: Server, pull_counts: list[int]) -> None:
        self._server = server
        self._pull_counts = pull_counts
        self._connections: list[socket.socket] = []
        self._came_s = float("-inf")

    @classmethod
    def idle(cls, server: Server, connection_count: int) -> Guests:
        return cls(server, [0] * connection_count)

    @classmethod
    def holding(cls, server: Server, pull_count: int) -> Guests:
        whole, rest = divmod(pull_count, _HELD_PER_CONNECTION)
        counts = [_HELD_PER_CONNECTION] * whole + ([rest] if rest else [])
        return cls(server, counts)

    def __enter__(self) -> Guests:
        self.stay()
        return self

    def __exit__(self, *_: object) -> None:
        for connection in self._connections:
            connection.close()
        self._connections = []

    def stay(self) -> None:
        """Call before each run: they come anew before the broker would see them off."""
        if time.monotonic() - self._came_s < _STAY_S:
            return
        self.__exit__()
        # Each wake stores one message in every queue: all of them end at the same offset.
        end = queue_end(self._server, PARKED_TOPIC)
        self._connections = [self._arrive(count, end) for count in self._pull_counts]
        self._came_s = time.monotonic()

    def wake(self) -> None:
        """Store a message in each queue that the pulls wait at, all in one write."""
        sends = [frames.send(PARKED_TOPIC, number) for number in range(PARKED_QUEUES)]
        with socket.create_connection(
            (HOST, self._server.port), timeout=ANSWER_TIMEOUT_S
        ) as sender:
            sender.sendall(b"".join(sends))
            for _ in sends:
                head = received(sender, 4)
                received(sender, frame_bytes(head) - 4)

    def _arrive(self, pull_count: int, end: int) -> socket.socket:
        connection = socket.create_connection((HOST, self._server.port), timeout=ANSWER_TIMEOUT_S)
        pulls = [
            frames.held_pull(PARKED_TOPIC, number % PARKED_QUEUES, end, number + 1)
            for number in range(pull_count)
        ]
        connection.sendall(b"".join(pulls) + frames.queue_end())
        head = received(connection, 4)
        answer = received(connection, frame_bytes(head) - 4)
        # Were a pull not held, its answer would come before the one to the last question.
        if b'"offset":' not in answer:
            raise BenchError(f"a pull at the end of a queue was not held: {answer[4:600]!r}")
        return connection


def newest_pull(server: Server, *, commits: bool = False) -> bytes:
    """A pull of the last messages of the topic's first queue."""
    end = queue_end(server)
    if end < PULL_MESSAGES:
        raise BenchError(f"{TOPIC} has {end} messages: too few to pull")
    return frames.pull(end - PULL_MESSAGES, commits=commits)
