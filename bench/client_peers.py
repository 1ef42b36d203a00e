"""Other clients, and Apache's broker with its proxy: fetched once, each in its own process.

A peer that cannot be had is ``Absent``, with the reason.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TypeVar

import pytest

from bench.client_parts import BODY_BYTES
from bench.harness import REPOSITORY, BenchError, Figures
from bench.wire_parts import pinned
from tests.interop.clients.fetched import built_once, call, fetch
from tests.interop.peers import JavaPeer, PeerFailed, java_peer, own_environment

T = TypeVar("T")

# By name, since type checkers take the folder beside it for this module.
_cpp = import_module("tests.interop.clients.cpp")

CPP_VERSION: str = _cpp.VERSION
GRPC_VERSION = "5.1.2"

_PROGRAMS = REPOSITORY / "bench" / "client_programs"
_INSTALL_VENV = "apt-get install --no-install-recommends python3-venv"
_CONSUME_TIMEOUT_S = 240
_PROGRAM_TIMEOUT_S = 300
_JAVA_HEAP = "-Xmx256m"
# The tests compile quickly; a client under measurement is compiled well.
_QUICK_COMPILER = "-XX:TieredStopAtLevel=1"


class Absent(Exception):
    """A peer cannot be had here; the message says why."""


def absent_peers() -> dict[str, str]:
    """The peers that are not measured, and why."""
    needed: dict[str, Callable[[], object]] = {
        "cpp": cpp_python,
        "java": java_client,
        "grpc": grpc_python,
        "apache_with_proxy": proxy_peer,
    }
    reasons = {}
    for name, get in needed.items():
        try:
            get()
        except Absent as reason:
            reasons[name] = f"absent: {reason}"
    return reasons


def is_here(get: Callable[[], object]) -> bool:
    try:
        get()
    except Absent:
        return False
    return True


@cache
def cpp_python() -> Path:
    """The interpreter of an environment that has the C++ client alone."""
    made_of = [CPP_VERSION.encode(), sys.version.encode(), sys.executable.encode()]
    return _had(lambda: built_once("cpp", made_of, _cpp._install)) / "bin" / "python"


@cache
def grpc_python() -> Path:
    """The interpreter of an environment with the gRPC client and its dependencies."""
    made_of = [GRPC_VERSION.encode(), sys.version.encode(), sys.executable.encode()]
    return _had(lambda: built_once("grpc", made_of, _install_grpc)) / "bin" / "python"


def _install_grpc(folder: Path) -> None:
    call([sys.executable, "-m", "venv", str(folder)], cwd=folder)
    pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet"]
    command = [*pip, f"rocketmq-python-client=={GRPC_VERSION}"]
    fetch(command, cwd=folder, install=_INSTALL_VENV)


@cache
def java_client() -> JavaPeer:
    return _had(lambda: java_peer("java-client-5"))


@cache
def proxy_peer() -> JavaPeer:
    """Apache's servers. Their proxy listens on every address: it needs a network of its own."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        raise Absent("the proxy needs a network namespace: be root and install iproute2")
    return _had(lambda: java_peer("apache-5-proxy"))


def _had(get: Callable[[], T]) -> T:
    """The result of a fetching function of the tests, without its words for pytest."""
    try:
        return get()
    except (pytest.skip.Exception, PeerFailed) as reason:
        raise Absent(str(reason).replace("\n", "; ")) from reason
    except pytest.fail.Exception as problem:
        raise BenchError(str(problem)) from problem


def java_command(
    peer: JavaPeer, main: str, arguments: list[str], home: Path, heap: str
) -> list[str]:
    command = peer.command(main, arguments, home=home, heap=heap)
    return [word for word in command if word != _QUICK_COMPILER]


# Clients under measurement.


def cpp_sent(home: Path, *, namesrv: str, topic: str, warm_up_count: int, count: int) -> Figures:
    """The C++ client behind Python, each message answered before the next."""
    arguments = {
        "namesrv": namesrv,
        "topic": topic,
        "body_bytes": BODY_BYTES,
        "warm_up_count": warm_up_count,
        "count": count,
    }
    program = str(_PROGRAMS / "cpp_client.py")
    return _in_program([str(cpp_python()), "-B", program, json.dumps(arguments)], home)


def java_sent(home: Path, *, namesrv: str, topic: str, warm_up_count: int, count: int) -> Figures:
    """Apache's Java client, the same way."""
    arguments = [namesrv, topic, *map(str, (BODY_BYTES, warm_up_count, count))]
    # Java compiles a program that is given by its source file.
    program = str(_PROGRAMS / "SendLoop.java")
    return _in_program(java_command(java_client(), program, arguments, home, _JAVA_HEAP), home)


def grpc_sent(home: Path, *, proxy: str, topic: str, warm_up_count: int, count: int) -> Figures:
    """Apache's Python client for gRPC, the same way."""
    return _in_grpc_program(
        home,
        "send",
        proxy=proxy,
        topic=topic,
        body_bytes=BODY_BYTES,
        warm_up_count=warm_up_count,
        count=count,
    )


def grpc_consumed(home: Path, *, proxy: str, topic: str, group: str, count: int) -> Figures:
    """Its push consumer with a listener that counts: first to last message."""
    return _in_grpc_program(
        home,
        "consume",
        proxy=proxy,
        topic=topic,
        group=group,
        count=count,
        timeout_s=_CONSUME_TIMEOUT_S,
    )


def _in_grpc_program(home: Path, command: str, **arguments: object) -> Figures:
    program = str(_PROGRAMS / "grpc_client.py")
    return _in_program([str(grpc_python()), "-B", program, command, json.dumps(arguments)], home)


def _in_program(command: list[str], home: Path) -> Figures:
    """Run a client in a folder where it cannot import Contrail and may write files."""
    home.mkdir(parents=True, exist_ok=True)
    try:
        with pinned("load"):
            done = subprocess.run(
                command,
                capture_output=True,
                text=True,
                cwd=home,
                env=own_environment(home),
                timeout=_PROGRAM_TIMEOUT_S,
                check=False,
            )
    except subprocess.TimeoutExpired as late:
        raise BenchError(f"{command[0]} ran longer than {_PROGRAM_TIMEOUT_S} s") from late
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if not lines:
        said = f"{done.stdout}\n{done.stderr}".strip()[-4000:]
        raise BenchError(f"{Path(command[0]).name} ended with {done.returncode}:\n{said}")
    figures: Figures = json.loads(lines[-1])
    return figures
