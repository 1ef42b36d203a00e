"""Load by Apache's Java client: a process per broker that lives as long as its rounds do.

Its programs are in ``bench/peers_programs``; ``Load.java`` lists its commands.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Self

from bench.client_peers import java_client, java_command
from bench.harness import REPOSITORY, BenchError, Figures
from bench.peers_servers import Name, RocketServer, others, standing_still
from bench.warm_pages import warm_pages
from bench.wire_parts import PROGRAMS, settle, tail
from bench.wire_parts import pinned as kept_to_core
from tests.interop.peers import JavaPeer, own_environment

# A command may name the time of its load; beyond that it has this much time to end.
_SPARE_S = 180
_COMPILE_TIMEOUT_S = 120
_STOP_TIMEOUT_S = 30
_HEAP = "-Xmx512m"
_CPU_S_MIN = 1e-6
# Apache's broker never rests: its timers alone take more than what other servers call idle.
IDLE_SHARE_MAX = 0.3
# More than a Java client on one core gets stored, its warm-up included.
_STORED_BYTES_PER_S = 200 << 20
_SOURCES = REPOSITORY / "bench" / "peers_programs"


class JavaLoad:
    """One of our Java programs beside one broker; ``with`` starts it and ends it."""

    def __init__(
        self,
        server: RocketServer,
        folder: Path,
        *,
        program: str = "Load",
        pinned: bool = True,
        heap: str = _HEAP,
        beside: Sequence[RocketServer] = (),
    ) -> None:
        """``beside`` are other brokers on the same core: they stand still during a command."""
        self._server = server
        self._beside = beside
        self._folder = folder / f"{program}-{server.name}"
        self._folder.mkdir(parents=True, exist_ok=True)
        self._log = self._folder / "errors.log"
        self._command = java_command(
            compiled_peer(program), program, [server.namesrv], self._folder, heap
        )
        self._pinned = pinned

    def __enter__(self) -> Self:
        keep = kept_to_core("load") if self._pinned else nullcontext()
        with self._log.open("wb") as log, keep:
            self._process = subprocess.Popen(
                self._command,
                cwd=self._folder,
                env=own_environment(self._folder),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        with self._process:
            # Nothing of it is worth a graceful end.
            self._process.kill()
            self._process.wait(_STOP_TIMEOUT_S)

    def run(self, command: Mapping[str, object]) -> Figures:
        """Let the program do ``command["command"]`` with all other words, and return its figures.

        ``cpu_s`` is the broker's over what is measured, ``client_cpu_s`` the program's own.
        """
        if "bytes" in command:
            warm_pages(
                self._folder, int(_STORED_BYTES_PER_S * float(str(command.get("seconds", 0))))
            )
        with standing_still(self._beside):
            settle(self._server.under_load, IDLE_SHARE_MAX)
            return self._run(command)

    def _run(self, command: Mapping[str, object]) -> Figures:
        limit_s = _SPARE_S + float(str(command.get("seconds", 0)))
        # A command that hangs is ended with its process, which ends the reads below.
        guard = threading.Timer(limit_s, self._process.kill)
        guard.start()
        try:
            self._ask(command)
            return self._figures()
        finally:
            guard.cancel()

    def _ask(self, command: Mapping[str, object]) -> None:
        words = [f"{name}={value}" for name, value in command.items() if name != "command"]
        assert self._process.stdin is not None
        self._process.stdin.write("\t".join([str(command["command"]), *words]) + "\n")
        self._process.stdin.flush()

    def _figures(self) -> Figures:
        clock: dict[str, float] = {}
        assert self._process.stdout is not None
        for line in self._process.stdout:
            word = line.strip()
            if word in ("begin", "end"):
                clock[word] = self._server.cpu_s()
            elif word.startswith("error"):
                raise BenchError(f"{self._told()}: {word}\n{tail(self._log)}")
            elif word.startswith("{"):
                figures: Figures = json.loads(word)
                # The clock of a short run may not have moved.
                cpu_s = max(clock["end"] - clock["begin"], _CPU_S_MIN)
                return {**figures, "cpu_s": cpu_s}
        raise BenchError(f"{self._told()} ended while it was at work:\n{tail(self._log)}")

    def _told(self) -> str:
        return f"the Java load on {self._server.name}'s broker"


@contextmanager
def loads_on(
    servers: Mapping[Name, RocketServer], folder: Path, *, pinned: bool = True
) -> Iterator[dict[Name, JavaLoad]]:
    """A Java client for each broker; both live as long as the rounds, so that both are warm."""
    with ExitStack() as running:
        loads = {
            name: JavaLoad(server, folder, pinned=pinned, beside=others(server, servers))
            for name, server in servers.items()
        }
        yield {name: running.enter_context(load) for name, load in loads.items()}


@cache
def compiled_peer(program: str) -> JavaPeer:
    """The Java client with our compiled programs on its class path; ``Absent`` without it."""
    peer = java_client()
    sources = sorted(_SOURCES.glob("*.java"))
    content = b"".join(source.read_bytes() for source in sources) + peer.class_path.encode()
    mark = hashlib.sha256(content).hexdigest()[:16]
    classes = PROGRAMS / f"peers-{program}-{mark}"
    if not classes.exists():
        _compile(program, peer, classes)
    return replace(peer, class_path=f"{classes}{os.pathsep}{peer.class_path}")


def _compile(program: str, peer: JavaPeer, classes: Path) -> None:
    building = classes.with_name(f"{classes.name}.{os.getpid()}")
    building.mkdir(parents=True)
    command = ["javac", "-nowarn", "-encoding", "UTF-8", "-d", str(building)]
    command += ["-cp", peer.class_path, "-sourcepath", str(_SOURCES)]
    done = subprocess.run(
        [*command, str(_SOURCES / f"{program}.java")],
        capture_output=True,
        text=True,
        timeout=_COMPILE_TIMEOUT_S,
        check=False,
    )
    if done.returncode != 0:
        shutil.rmtree(building)
        raise BenchError(f"{program}.java does not compile:\n{done.stderr[-4000:]}")
    try:
        building.rename(classes)
    except OSError:
        # Another process was first with the same.
        shutil.rmtree(building)
        if not classes.exists():
            raise
