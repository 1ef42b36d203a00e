"""Other servers that store messages, where they are installed: Redis streams and NATS JetStream.

Each is offered as sides of a round, ``name redis`` or ``name nats``; none where it is absent.
"""

from __future__ import annotations

import json
import shutil
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from bench.harness import BenchError, Figures
from bench.wire_frames import (
    PULL_MESSAGES,
    STREAM,
    nats_greeting,
    publication,
    resp_command,
    xadd_command,
    xrange_command,
)
from bench.wire_parts import (
    ANSWER_TIMEOUT_S,
    HOST,
    Server,
    Shape,
    free_port,
    loaded,
    received,
    running,
    tail,
    wait_until_listening,
)

Sides = dict[str, Callable[[], Figures]]

# peer -> the program it is, which is also the package that brings it
PROGRAMS_OF_PEERS = {"redis": "redis-server", "nats": "nats-server"}


def is_installed(peer: str) -> bool:
    return shutil.which(PROGRAMS_OF_PEERS[peer]) is not None


def absent_peers() -> dict[str, str]:
    """The remedy for each peer that is not here."""
    return {
        peer: f"absent: apt-get install {program}"
        for peer, program in PROGRAMS_OF_PEERS.items()
        if not is_installed(peer)
    }


@contextmanager
def xadd_sides(folder: Path, shapes: Mapping[str, Shape]) -> Iterator[Sides]:
    """Redis appending the same bodies to a stream that is emptied before each run."""
    if not is_installed("redis"):
        yield {}
        return
    with _running_redis(folder / "redis") as server:
        frame_file = folder / "xadd.frame"
        frame_file.write_bytes(xadd_command())
        yield {
            f"{name} redis": partial(_added, server, frame_file, shape)
            for name, shape in shapes.items()
        }


def _added(server: Server, frame_file: Path, shape: Shape) -> Figures:
    _tell_redis(server, "FLUSHALL")
    return loaded(server, frame_file, shape, "resp")


@contextmanager
def xrange_sides(folder: Path, name: str, shape: Shape) -> Iterator[Sides]:
    """Redis reading the first messages of a stream."""
    if not is_installed("redis"):
        yield {}
        return
    xadd, xrange = folder / "xadd.frame", folder / "xrange.frame"
    xadd.write_bytes(xadd_command())
    xrange.write_bytes(xrange_command())
    with _running_redis(folder / "redis") as server:
        loaded(server, xadd, Shape(connections=1, depth=1, count=PULL_MESSAGES), "resp")
        yield {f"{name} redis": partial(loaded, server, xrange, shape, "resp")}


@contextmanager
def publish_sides(folder: Path, shapes: Mapping[str, Shape]) -> Iterator[Sides]:
    """JetStream storing the same bodies in a stream that is emptied before each run."""
    if not is_installed("nats"):
        yield {}
        return
    frame_file, greeting_file = folder / "publication.frame", folder / "nats.greeting"
    frame_file.write_bytes(publication())
    greeting_file.write_bytes(nats_greeting())
    with _running_nats(folder / "nats") as server:
        yield {
            f"{name} nats": partial(_published, server, frame_file, greeting_file, shape)
            for name, shape in shapes.items()
        }


def _published(server: Server, frame_file: Path, greeting_file: Path, shape: Shape) -> Figures:
    _tell_nats(server, f"$JS.API.STREAM.PURGE.{STREAM}", {})
    return loaded(server, frame_file, shape, "nats", greeting_file)


@contextmanager
def _running_redis(folder: Path) -> Iterator[Server]:
    """On a free port, syncing its log every second."""
    settings = {
        "bind": HOST,
        "dir": folder,
        "daemonize": "no",
        "save": "",
        "appendonly": "yes",
        "appendfsync": "everysec",
        "auto-aof-rewrite-percentage": 0,
    }
    options = [word for name, value in settings.items() for word in (f"--{name}", str(value))]
    with _running_peer(folder, ["redis-server", *options], "--port") as server:
        yield server


@contextmanager
def _running_nats(folder: Path) -> Iterator[Server]:
    """On a free port, with one stream in files."""
    command = ["nats-server", "-a", HOST, "-js", "-sd", str(folder)]
    with _running_peer(folder, command, "-p") as server:
        stream = {"name": STREAM, "subjects": [STREAM], "storage": "file", "num_replicas": 1}
        _tell_nats(server, f"$JS.API.STREAM.CREATE.{STREAM}", stream)
        yield server


@contextmanager
def _running_peer(folder: Path, command: list[str], port_option: str) -> Iterator[Server]:
    folder.mkdir(parents=True)
    port, log = free_port(), folder / "peer.log"
    with running([*command, port_option, str(port)], log) as process:
        server = Server(port=port, process=process, log=log)
        wait_until_listening(server)
        yield server


def _tell_redis(server: Server, *words: str) -> None:
    """Give a command that is answered by one line."""
    with socket.create_connection((HOST, server.port), timeout=ANSWER_TIMEOUT_S) as connection:
        connection.sendall(resp_command(*words))
        if received(connection, 1) != b"+":
            raise BenchError(f"redis refused {' '.join(words)}:\n{tail(server.log)}")


def _tell_nats(server: Server, subject: str, request: dict[str, object]) -> None:
    """Make a request of JetStream's own and check its answer."""
    text = json.dumps(request)
    asked = f'CONNECT {{"verbose":false}}\r\nSUB _INBOX.told 1\r\nPUB {subject} _INBOX.told '
    with (
        socket.create_connection((HOST, server.port), timeout=ANSWER_TIMEOUT_S) as connection,
        connection.makefile("rb") as lines,
    ):
        connection.sendall(f"{asked}{len(text)}\r\n{text}\r\n".encode())
        line = next((line for line in lines if line.startswith((b"MSG ", b"-ERR"))), b"")
        answer = lines.readline() if line.startswith(b"MSG ") else line
    if b'"error"' in answer or not answer.startswith(b"{"):
        raise BenchError(f"nats refused {subject}: {answer.decode(errors='replace')}")
