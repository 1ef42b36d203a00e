"""The processes of the wire suite: the servers under load, and the load on them.

``python -m bench.wire_parts CONF COUNT_FILE`` is the broker under test: the product's own command,
with its syncs of the log counted in a file that the benchmark reads.
"""

from __future__ import annotations

import json
import mmap
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

from bench.harness import REPOSITORY, BenchError, Figures, compiled, in_program
from bench.warm_pages import warm_pages
from bench.wire_frames import BROKER_NAME, frame_bytes, opaque_at

PROGRAMS = REPOSITORY / "build" / "bench-programs"
HOST = "127.0.0.1"
_START_TIMEOUT_S = 300
_STOP_TIMEOUT_S = 60
ANSWER_TIMEOUT_S = 30
_SETTLE_TIMEOUT_S = 10
_LOAD_LIMIT_S = 60
# The least a run is charged: ratios need a divisor.
_CPU_S_MIN = 1e-6
_COUNT_BYTES = 8
# The microseconds that every sync of a broker takes longer, in its environment.
SYNC_MICROS = "CONTRAIL_BENCH_SYNC_MICROS"

Flush = Literal["ASYNC_FLUSH", "SYNC_FLUSH"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A running server: its address and process, for the load and for its CPU."""

    port: int
    process: subprocess.Popen[bytes]
    log: Path
    loop: str = ""
    sync_count_file: Path | None = None

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def sync_count(self) -> int:
        """How often a broker has synced its log."""
        assert self.sync_count_file is not None, "only brokers count their syncs"
        return int.from_bytes(self.sync_count_file.read_bytes(), sys.byteorder)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """How a load is spread: connections, requests in flight on each, and how many in all."""

    connections: int
    depth: int
    count: int

    def __str__(self) -> str:
        return f"{self.connections}x{self.depth}"


@contextmanager
def running_broker(
    folder: Path,
    flush: Flush,
    *,
    source: Path | None = None,
    properties: Mapping[str, str] | None = None,
    is_pinned: bool = True,
) -> Iterator[Server]:
    """A broker on a free port, without NameServer, storing in ``folder``.

    It is the product of this tree, or of another one whose ``source`` folder is given.
    """
    folder.mkdir(parents=True, exist_ok=True)
    port = free_broker_port()
    conf, counts = folder / "broker.conf", folder / "sync-count"
    conf.write_text(_broker_conf(folder, port, flush, properties or {}), encoding="utf-8")
    counts.write_bytes(bytes(_COUNT_BYTES))
    command = [sys.executable, "-m", "bench.wire_parts", str(conf), str(counts)]
    log = folder / "broker.log"
    with running(command, log, source=source, is_pinned=is_pinned) as process:
        server = Server(port=port, process=process, log=log, sync_count_file=counts)
        wait_until_listening(server)
        yield server


def _broker_conf(folder: Path, port: int, flush: Flush, properties: Mapping[str, str]) -> str:
    settings = {
        "brokerName": BROKER_NAME,
        "brokerIP1": HOST,
        "listenAddress": HOST,
        "listenPort": port,
        "storePathRootDir": folder / "store",
        "flushDiskType": flush,
        **properties,
    }
    return "".join(f"{name}={value}\n" for name, value in settings.items())


@contextmanager
def running_null_server(folder: Path, name: str, request: bytes, answer: bytes) -> Iterator[Server]:
    """The server that gives each request, all of one kind, the same ready answer."""
    answer_file, log = folder / f"{name}.answer", folder / f"{name}.log"
    answer_file.write_bytes(answer)
    command = [sys.executable, "-m", "bench.null_server", str(answer_file)]
    with running([*command, str(opaque_at(request))], log, piped=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise BenchError(f"the null server did not start:\n{tail(log)}")
        told = json.loads(line)
        yield Server(port=told["port"], process=process, log=log, loop=told["loop"])


def ask(server: Server, frame: bytes) -> bytes:
    """The answer frame to one request; it must report success."""
    with socket.create_connection((HOST, server.port), timeout=ANSWER_TIMEOUT_S) as connection:
        connection.sendall(frame)
        answer = received(connection, 4)
        answer += received(connection, frame_bytes(answer) - 4)
    if b'"code":0,' not in answer:
        raise BenchError(f"a prepared request was refused: {answer[8:600]!r}")
    return answer


def received(connection: socket.socket, byte_count: int) -> bytes:
    data = b""
    while len(data) < byte_count:
        piece = connection.recv(byte_count - len(data))
        if not piece:
            raise BenchError("a server closed the connection instead of answering")
        data += piece
    return data


def loaded(
    server: Server,
    frame_file: Path,
    shape: Shape,
    protocol: str = "remoting",
    greeting_file: Path | None = None,
    *,
    walk: tuple[int, int] | None = None,
    second_file: Path | None = None,
    idle_share_max: float = 0.05,
) -> Figures:
    """Put a quiet server under load and return the load's figures, with the server's CPU.

    A ``walk`` is a pull that goes on by a number of messages, until another number is read. The
    second file has the frames that a transaction or a wake sends after its first frame. A server
    that uses at most ``idle_share_max`` of a core counts as quiet.
    """
    if walk is None:
        # As much as the requests, in each of memory, log and derived files.
        warm_pages(server.log.parent, 3 * shape.count * frame_file.stat().st_size)
    settle(server, idle_share_max)
    numbers = (shape.connections, shape.depth, shape.count // 5, shape.count, _LOAD_LIMIT_S)
    if walk is not None:
        protocol = "walk"
    command = [str(compiled("load", PROGRAMS)), protocol, HOST, str(server.port), str(server.pid)]
    files = [str(path) for path in (frame_file, greeting_file, second_file) if path is not None]
    files += map(str, walk or ())
    with pinned("load"):
        figures = in_program(*command, *map(str, numbers), *files)
    if figures["timed_out"]:
        raise BenchError(f"{shape.count} requests took over {_LOAD_LIMIT_S} s:\n{tail(server.log)}")
    if figures["record_count"] == 0:
        raise BenchError(f"every request was refused as too busy:\n{tail(server.log)}")
    # In a tiny run all requests may be answered before the load reads the server's clock.
    return {**figures, "cpu_s": max(figures["cpu_s"], _CPU_S_MIN)}


def settle(
    server: Server, busy_share_max: float = 0.05, timeout_s: float = _SETTLE_TIMEOUT_S
) -> None:
    """Wait until the server uses next to no CPU, so that earlier work is not charged to a run."""
    deadline = time.monotonic() + timeout_s
    quiet = threading.Event()  # Never set: its wait is a sleep that burns nothing.
    while time.monotonic() < deadline:
        before = process_cpu_s(server.pid)
        quiet.wait(0.1)
        if process_cpu_s(server.pid) - before < 0.1 * busy_share_max:
            return


def process_cpu_s(pid: int) -> float:
    # The kernel's own way to name another process's CPU clock, as in clock_getcpuclockid(3).
    return time.clock_gettime(~pid << 3 | 2)


@cache
def cores() -> dict[str, int] | None:
    """The core that each side keeps to; None where there is only one."""
    available = sorted(os.sched_getaffinity(0))
    return {"server": available[0], "load": available[1]} if len(available) > 1 else None


def describe_cores() -> str:
    kept = cores()
    if kept is None:
        return "one, shared by server and load"
    return f"server on {kept['server']}, load on {kept['load']}"


@contextmanager
def pinned(side: Literal["server", "load"]) -> Iterator[None]:
    """Processes started meanwhile keep to that side's core."""
    kept = cores()
    before = os.sched_getaffinity(0)
    if kept is not None:
        os.sched_setaffinity(0, {kept[side]})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@contextmanager
def running(
    command: list[str],
    log: Path,
    *,
    piped: bool = False,
    is_pinned: bool = True,
    source: Path | None = None,
) -> Iterator[subprocess.Popen[bytes]]:
    entries = [entry or "." for entry in sys.path]
    path = os.pathsep.join([*([str(source)] if source else []), *entries])
    with log.open("wb") as output, pinned("server") if is_pinned else nullcontext():
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE if piped else output,
            stderr=output,
            cwd=REPOSITORY,
            env={**os.environ, "PYTHONPATH": path},
        )
    with process:
        try:
            yield process
        finally:
            _stop(process)


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(_STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        raise BenchError(f"{process.args!r} did not stop within {_STOP_TIMEOUT_S} s") from None


def wait_until_listening(server: Server) -> None:
    deadline = time.monotonic() + _START_TIMEOUT_S
    while server.process.poll() is None and time.monotonic() < deadline:
        try:
            socket.create_connection((HOST, server.port), timeout=1).close()
            return
        except OSError:
            time.sleep(0.02)
    raise BenchError(f"a server did not listen on port {server.port}:\n{tail(server.log)}")


def tail(log: Path) -> str:
    return log.read_text(encoding="utf-8", errors="replace").strip()[-4000:]


def free_port() -> int:
    with socket.create_server((HOST, 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def free_broker_port() -> int:
    """A port whose fast port, two below, is free as well."""
    while True:
        port = free_port()
        try:
            socket.create_server((HOST, port - 2)).close()
            return port
        except OSError:
            continue


def count_log_syncs(count_file: Path) -> None:
    """From now on, keep the number of syncs of this process's log in ``count_file``."""
    from contrail.runtime.files import FileSystem

    sync = FileSystem.fdatasync
    with count_file.open("r+b") as file:
        shared = mmap.mmap(file.fileno(), _COUNT_BYTES)

    added_s = int(os.environ.get(SYNC_MICROS, "0")) / 1e6

    def counted(self: FileSystem, fd: int) -> None:
        if added_s:
            time.sleep(added_s)
        sync(self, fd)
        if "/commitlog/" in os.readlink(f"/proc/self/fd/{fd}"):
            count = int.from_bytes(shared[:], sys.byteorder) + 1
            shared[:] = count.to_bytes(_COUNT_BYTES, sys.byteorder)

    # The command under test makes its own FileSystem; only its class can be reached from here.
    FileSystem.fdatasync = counted  # type: ignore[method-assign]


def main() -> None:
    from contrail.cli.app import main as contrail

    conf, count_file = sys.argv[1:]
    count_log_syncs(Path(count_file))
    sys.argv = ["contrail", "broker", "-c", conf]
    contrail()


if __name__ == "__main__":
    main()
