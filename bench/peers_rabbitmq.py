"""RabbitMQ beside the broker: a durable queue, persistent messages, publisher confirms.

The server is Debian's package, run as a process of ours that leaves the system's own alone: its
node name, ports, folders and cookie are new each time, and it listens on loopback only. The load is
PerfTest, its project's own.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import cache, partial
from itertools import count
from pathlib import Path

from bench.client_peers import Absent, _had
from bench.harness import BenchError, Figures
from bench.warm_pages import warm_pages
from bench.wire_parts import (
    HOST,
    Server,
    Shape,
    free_port,
    pinned,
    process_cpu_s,
    running,
    settle,
    wait_until_listening,
)
from bench.wire_peers import Sides
from tests.interop.peers import JavaPeer, java_peer, own_environment

INSTALL_COMMAND = "apt-get install --no-install-recommends rabbitmq-server"
_SERVER = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
_EPMD = Path("/usr/bin/epmd")
_RUN_TIMEOUT_S = 120
_HEAP = "-Xmx512m"
_RATE = re.compile(r"sending rate avg: ([\d.]+) msg/s")
_queue_numbers = count()


@cache
def perf_test() -> JavaPeer:
    """Its project's load; ``Absent`` where it or the server cannot be had."""
    if not _SERVER.exists() or not _EPMD.exists():
        raise Absent(INSTALL_COMMAND)
    return _had(lambda: java_peer("rabbitmq-perf-test"))


@contextmanager
def confirmed_sides(folder: Path, shapes: Mapping[str, Shape], body_bytes: int) -> Iterator[Sides]:
    """Publishers that await a number of confirms each, as sides ``name rabbitmq``."""
    peer = perf_test()
    with _running_rabbitmq(folder / "rabbitmq") as server:
        home = folder / "perf-test"
        home.mkdir()
        publish = partial(_published, peer, server, home, body_bytes)
        # A first run shows that all of it works, and warms the server up.
        publish(next(iter(shapes.values())))
        yield {f"{name} rabbitmq": partial(publish, shape) for name, shape in shapes.items()}


def _published(
    peer: JavaPeer, server: Server, home: Path, body_bytes: int, shape: Shape
) -> Figures:
    """One run of PerfTest, charged with all CPU of the server until it has ended."""
    per_publisher = max(1, shape.count // shape.connections)
    # As much as the messages, in each of memory, log and derived files.
    warm_pages(home, 3 * per_publisher * shape.connections * body_bytes)
    settle(server)
    cpu_before = process_cpu_s(server.pid)
    printed = _perf_test(peer, server, home, body_bytes, replace(shape, count=per_publisher))
    cpu_s = process_cpu_s(server.pid) - cpu_before
    found = _RATE.search(printed)
    if found is None or float(found[1]) <= 0:
        raise BenchError(f"PerfTest printed no rate:\n{printed[-2000:]}")
    record_count = per_publisher * shape.connections
    return {
        "cpu_s": cpu_s,
        "wall_s": record_count / float(found[1]),
        "record_count": record_count,
    }


def _perf_test(peer: JavaPeer, server: Server, home: Path, body_bytes: int, shape: Shape) -> str:
    options = {
        "--uri": f"amqp://{HOST}:{server.port}",
        "--producers": shape.connections,
        "--consumers": 0,
        "--confirm": shape.depth,
        "--pmessages": shape.count,
        "--size": body_bytes,
        "--flag": "persistent",
        "--queue": f"bench-{next(_queue_numbers)}",
        "--auto-delete": "false",
    }
    words = [word for name, value in options.items() for word in (name, str(value))]
    java = ["java", _HEAP, "-cp", peer.class_path, "com.rabbitmq.perf.PerfTest"]
    with pinned("load"):
        done = subprocess.run(
            [*java, *words],
            capture_output=True,
            text=True,
            cwd=home,
            env=own_environment(home),
            timeout=_RUN_TIMEOUT_S,
            check=False,
        )
    if done.returncode:
        raise BenchError(f"PerfTest ended with {done.returncode}:\n{done.stderr[-2000:]}")
    return done.stdout


@contextmanager
def _running_rabbitmq(folder: Path) -> Iterator[Server]:
    folder.mkdir()
    port, epmd_port = free_port(), free_port()
    names = {"ERL_EPMD_PORT": str(epmd_port), "ERL_EPMD_ADDRESS": HOST}
    # Erlang's directory of names would be started in the background and stay: this one ends.
    epmd = ["env", *_words(names), str(_EPMD), "-port", str(epmd_port)]
    server = ["env", "-i", *_words(_environment(folder, port) | names), str(_SERVER)]
    log = folder / "rabbitmq.log"
    with (
        running(epmd, folder / "epmd.log") as directory,
        running(server, log) as process,
    ):
        wait_until_listening(Server(port=epmd_port, process=directory, log=folder / "epmd.log"))
        found = Server(port=port, process=process, log=log)
        wait_until_listening(found)
        yield found


def _environment(folder: Path, port: int) -> dict[str, str]:
    conf = folder / "rabbitmq.conf"
    conf.write_text(f"listeners.tcp.1 = {HOST}:{port}\n", encoding="utf-8")
    plugins = folder / "enabled_plugins"
    plugins.write_text("[].\n", encoding="utf-8")
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "LC_ALL": "C.UTF-8",
        "RABBITMQ_NODENAME": f"bench{port}@localhost",
        "RABBITMQ_CONFIG_FILE": str(conf),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(plugins),
        "RABBITMQ_CONF_ENV_FILE": str(folder / "no-such-file"),
        "RABBITMQ_MNESIA_BASE": str(folder / "mnesia"),
        "RABBITMQ_LOG_BASE": str(folder / "log"),
        "RABBITMQ_DIST_PORT": str(free_port()),
        "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
        # Its script then becomes the server instead of waiting for it: the process is the broker.
        "detached": "yes",
    }


def _words(environment: Mapping[str, str]) -> list[str]:
    return [f"{name}={value}" for name, value in environment.items()]
