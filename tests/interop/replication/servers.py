"""Our own servers as processes, on loopback or on the test's address in a private network.

They listen where they are told to and need no namespace of their own. They have the names of
``ApacheBroker`` and ``ApacheNameServer``: a pair takes either.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from contrail.testing import eventually
from tests.interop.apache_cluster import (
    CLUSTER_NAME,
    RoutesFrom,
    answers,
    broker_answers,
    free_port,
    routes_to,
)
from tests.interop.peers import PeerFailed

_START_TIMEOUT_S = 60.0
_STOP_TIMEOUT_S = 60.0
_LOG_TAIL_CHARACTERS = 6000

_BROKER_PROPERTIES = {
    "brokerClusterName": CLUSTER_NAME,
    "brokerId": "0",
    "flushDiskType": "ASYNC_FLUSH",
    "enablePropertyFilter": "true",
    "mappedFileSizeConsumeQueue": str(20 * 10_000),
    "maxHashSlotNum": "10000",
    "maxIndexNum": "40000",
    "brokerFastFailureEnable": "false",
    "metricsExporterType": "DISABLE",
}


class BrokerProcess(Protocol):
    """One side of a pair."""

    # Read again at every start.
    properties: Mapping[str, str]

    @property
    def name(self) -> str: ...

    @property
    def address(self) -> str: ...

    @property
    def ha_address(self) -> str: ...

    @property
    def store(self) -> Path: ...

    @property
    def running(self) -> bool: ...

    def launch(self) -> None: ...

    def wait_ready(self) -> None: ...

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def kill(self) -> None: ...

    def pause(self) -> None: ...

    def resume(self) -> None: ...

    def log_tail(self) -> str: ...


class OurProcess:
    """One ``contrail`` command that runs until it is ended."""

    def __init__(self, words: list[str], folder: Path) -> None:
        self._command = [sys.executable, "-m", "contrail.cli", *words]
        self._log = folder / "log.txt"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def launch(self) -> None:
        self._log.parent.mkdir(parents=True, exist_ok=True)
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=dict(os.environ),
            )

    def wait_until(self, ready: Callable[[], bool], *, what: str) -> None:
        def is_ready() -> bool:
            if not self.running:
                raise PeerFailed(f"{self._command} ended while it started\n{self.log_tail()}")
            return ready()

        eventually(is_ready, lambda: f"{what}\n{self.log_tail()}", timeout_s=_START_TIMEOUT_S)

    def signal(self, which: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(which)

    def end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(how)
        try:
            process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired as late:
            process.kill()
            process.wait()
            raise PeerFailed(f"{self._command} did not stop\n{self.log_tail()}") from late

    def log_tail(self) -> str:
        text = self._log.read_text(encoding="utf-8", errors="replace")
        return f"the end of {self._log}:\n{text[-_LOG_TAIL_CHARACTERS:]}"


@dataclass(slots=True)
class OurNameServer:
    """A NameServer of ours at a fixed address."""

    address: str
    process: OurProcess

    @property
    def running(self) -> bool:
        return self.process.running

    def start(self) -> None:
        self.process.launch()
        self.process.wait_until(lambda: answers(self.address), what=f"answer of {self.address}")

    def kill(self) -> None:
        self.process.end(signal.SIGKILL)


@dataclass(slots=True)
class OurBroker:
    """A broker of ours at a fixed address; its store outlives a stop."""

    name: str
    address: str
    process: OurProcess
    properties: Mapping[str, str]
    nameservers: Sequence[RoutesFrom]

    @property
    def store(self) -> Path:
        return Path(self.properties["storePathRootDir"])

    @property
    def ha_address(self) -> str:
        return f"{self.properties['brokerIP1']}:{self.properties['haListenPort']}"

    @property
    def running(self) -> bool:
        return self.process.running

    def launch(self) -> None:
        lines = (f"{name}={value}\n" for name, value in self.properties.items())
        path = self.store.parent / "broker.conf"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(lines), encoding="utf-8")
        self.process.launch()

    def start(self) -> None:
        self.launch()
        self.wait_ready()

    def wait_ready(self) -> None:
        """Until the broker answers, and every running NameServer routes to it."""
        self.process.wait_until(self._is_ready, what=f"routes to {self.name}")

    def stop(self) -> None:
        self.process.end(signal.SIGTERM)

    def kill(self) -> None:
        self.process.end(signal.SIGKILL)

    def pause(self) -> None:
        self.process.signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.process.signal(signal.SIGCONT)

    def log_tail(self) -> str:
        return self.process.log_tail()

    def _is_ready(self) -> bool:
        live = [one.address for one in self.nameservers if one.running]
        return broker_answers(self.address) and all(
            routes_to(address, self.name, self.address) for address in live
        )


def make_secret(path: Path) -> None:
    """A new secret for brokers of ours that are to know each other."""
    command = [sys.executable, "-m", "contrail.cli", "replication", "secret", str(path)]
    subprocess.run(command, check=True, timeout=_START_TIMEOUT_S, stdout=subprocess.DEVNULL)


def our_nameserver(folder: Path, host: str, allowed: str) -> OurNameServer:
    """A NameServer that is not started yet; brokers of the networks ``allowed`` may register."""
    port = free_port(0)
    words = ["namesrv", "--folder", str(folder), "--listen", host, "--port", str(port)]
    words += ["--set", "metricsExporterType=DISABLE"]
    words += ["--set", f"contrailClusterAllowList={allowed}"]
    return OurNameServer(f"{host}:{port}", OurProcess(words, folder))


def our_broker(
    name: str,
    *,
    folder: Path,
    host: str,
    nameservers: Sequence[RoutesFrom],
    properties: Mapping[str, str],
) -> OurBroker:
    """A broker that is not started yet; ``properties`` give it a role among those of its name."""
    port = free_port(-2, 0, 1)
    own = {
        "brokerName": name,
        "brokerIP1": host,
        "listenAddress": host,
        "listenPort": str(port),
        "haListenPort": str(port + 1),
        "namesrvAddr": ";".join(one.address for one in nameservers),
        "storePathRootDir": str(folder / "store"),
    }
    process = OurProcess(["broker", "-c", str(folder / "broker.conf")], folder)
    settings = _BROKER_PROPERTIES | own | dict(properties)
    return OurBroker(name, f"{host}:{port}", process, settings, nameservers)
