"""Apache's own NameServer and brokers as processes on loopback, from its published artifacts.

The same names as ``contrail.testing.LocalCluster``, so that a test can be pointed at the original
first: a test that fails there is wrong. Every process has its own folder: HOME, store, log.
"""

from __future__ import annotations

import random
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from contrail.model import fastjson
from contrail.protocol.codes import ResponseCode
from contrail.testing import eventually
from tests.interop.differential.raw import RawConnection
from tests.interop.peers import JavaPeer, PeerFailed, java_peer, own_environment
from tests.interop.private_network import Node, PrivateNetwork

CLUSTER_NAME = "DefaultCluster"

_QUIET_LOGS = Path(__file__).parent / "java" / "quiet_logback.xml"
_SERVER_HEAP = "-Xmx512m"
_START_TIMEOUT_S = 240.0
_STOP_TIMEOUT_S = 60.0
_POLL_S = 0.1
_LOG_TAIL_CHARACTERS = 6000
# Below the ports the kernel hands out, so that a stopped server finds its port free again.
_PORTS = range(20_000, 32_000)
# A server binds its port only when it starts.
_given_ports: set[int] = set()

_GET_BROKER_RUNTIME_INFO = 28
_GET_ROUTE_INFO_BY_TOPIC = 105
_GET_BROKER_CLUSTER_INFO = 106

# Small files, because each test makes a new store; patience, because test machines are busy.
_BROKER_PROPERTIES = {
    "brokerClusterName": CLUSTER_NAME,
    "brokerId": "0",
    "brokerRole": "ASYNC_MASTER",
    "flushDiskType": "ASYNC_FLUSH",
    "autoCreateTopicEnable": "true",
    "autoCreateSubscriptionGroup": "true",
    "enablePropertyFilter": "true",
    "mappedFileSizeCommitLog": str(32 << 20),
    "mappedFileSizeConsumeQueue": str(20 * 10_000),
    "mappedFileSizeTimerLog": str(4 << 20),
    "maxHashSlotNum": "10000",
    "maxIndexNum": "40000",
    "diskMaxUsedSpaceRatio": "99",
    "brokerFastFailureEnable": "false",
    "osPageCacheBusyTimeOutMills": "60000",
    # By default an idle broker takes half a core: what flushes its metrics of transactions spins
    # for this long after the start, and the whole timer wheel is written each second.
    "transactionMetricFlushInterval": "500",
    "timerFlushIntervalMs": "10000",
}


class ApacheServer:
    """One JVM running one of Apache's start-up classes with a properties file."""

    def __init__(self, peer: JavaPeer, main: str, folder: Path, node: Node | None = None) -> None:
        self._peer = peer
        self._node = node
        self._main = main
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def launch(self, properties: Mapping[str, str]) -> None:
        """Start the process; a caller that needs it ready waits with ``wait_until``."""
        conf = self._folder / "conf"
        conf.mkdir(parents=True, exist_ok=True)
        # 4.9 does not start without these.
        for name in ("logback_namesrv.xml", "logback_broker.xml"):
            shutil.copyfile(_QUIET_LOGS, conf / name)
        settings = conf / "server.conf"
        settings.write_text("".join(f"{k}={v}\n" for k, v in properties.items()), encoding="utf-8")
        command = self._peer.command(
            self._main, ["-c", str(settings)], home=self._folder, heap=_SERVER_HEAP
        )
        if self._node is not None:
            command = self._node.command(command)
        environment = own_environment(self._folder) | {"ROCKETMQ_HOME": str(self._folder)}
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                command, cwd=self._folder, env=environment, stdout=log, stderr=log
            )

    def wait_until(self, ready: Callable[[], bool], *, what: str) -> None:
        def is_ready() -> bool:
            if ready():
                return True
            if not self.running:
                raise PeerFailed(f"{self._main} ended while it started\n{self.log_tail()}")
            return False

        eventually(
            is_ready,
            lambda: f"{what}\n{self.log_tail()}",
            timeout_s=_START_TIMEOUT_S,
            pause_s=_POLL_S,
        )

    def pause(self) -> None:
        """Take the processor away; connections stay open and nothing is answered."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def end(self, how: signal.Signals) -> None:
        """Send the signal and wait; a process that does not obey is killed."""
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(how)
        try:
            process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def log_tail(self) -> str:
        text = self._log.read_text(encoding="utf-8", errors="replace")
        return f"the end of {self._log}:\n{text[-_LOG_TAIL_CHARACTERS:]}"

    @property
    def _log(self) -> Path:
        return self._folder / "log.txt"


@dataclass(slots=True)
class ApacheNameServer:
    """A NameServer at a fixed address; it can be stopped and started again."""

    address: str
    server: ApacheServer
    folder: Path

    @property
    def running(self) -> bool:
        return self.server.running

    def start(self) -> None:
        host, port = self.address.rsplit(":", 1)
        kept = {"kvConfigPath": "kvConfig.json", "configStorePath": "namesrv.properties"}
        files = {key: str(self.folder / name) for key, name in kept.items()}
        self.server.launch({"listenPort": port, "bindAddress": host} | files)
        self.wait_ready()

    def wait_ready(self) -> None:
        self.server.wait_until(lambda: answers(self.address), what=f"answer of {self.address}")

    def stop(self) -> None:
        self.server.end(signal.SIGTERM)

    def kill(self) -> None:
        self.server.end(signal.SIGKILL)


class RoutesFrom(Protocol):
    """A NameServer as far as a broker that starts is concerned."""

    @property
    def address(self) -> str: ...

    @property
    def running(self) -> bool: ...


@dataclass(slots=True)
class ApacheBroker:
    """A broker at a fixed address; its store outlives a stop."""

    name: str
    address: str
    server: ApacheServer
    properties: Mapping[str, str]
    nameservers: Sequence[RoutesFrom]

    @property
    def store(self) -> Path:
        return Path(self.properties["storePathRootDir"])

    @property
    def ha_address(self) -> str:
        """Where its slaves connect, if it is a master."""
        return f"{self.properties['brokerIP2']}:{self.properties['haListenPort']}"

    @property
    def running(self) -> bool:
        return self.server.running

    def launch(self) -> None:
        self.server.launch(self.properties)

    def start(self) -> None:
        self.launch()
        self.wait_ready()

    def wait_ready(self) -> None:
        """Until the broker answers, and every running NameServer routes to it."""
        self.server.wait_until(self._is_ready, what=f"routes to {self.name}")

    def stop(self) -> None:
        self.server.end(signal.SIGTERM)

    def kill(self) -> None:
        self.server.end(signal.SIGKILL)

    def pause(self) -> None:
        self.server.pause()

    def resume(self) -> None:
        self.server.resume()

    def log_tail(self) -> str:
        return self.server.log_tail()

    def _is_ready(self) -> bool:
        live = [one.address for one in self.nameservers if one.running]
        return broker_answers(self.address) and all(
            routes_to(address, self.name, self.address) for address in live
        )


class ApacheCluster:
    """NameServers and brokers of Apache's; ``with`` starts them and stops them again."""

    def __init__(
        self,
        *,
        brokers: int = 2,
        nameservers: int = 1,
        folder: Path | None = None,
        properties: Mapping[str, str] | None = None,
        peer: str = "apache-5-server",
    ) -> None:
        self._peer = java_peer(peer)
        # 5.x listens on the given address, 4.9 on all addresses.
        self._network = PrivateNetwork("apache") if self._peer.major < 5 else None
        self._node = self._network["apache"] if self._network is not None else None
        self.host = self._node.address if self._node is not None else "127.0.0.1"
        self._made_folder = folder is None
        self.folder = folder or Path(tempfile.mkdtemp(prefix="apache-cluster-"))
        self.nameservers = [self._nameserver(index) for index in range(nameservers)]
        self.namesrv = ";".join(one.address for one in self.nameservers)
        self.brokers = [self._broker(index, dict(properties or {})) for index in range(brokers)]

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Start everything and wait until every broker answers and is routed to."""
        try:
            if self._network is not None:
                self._network.open()
            for nameserver in self.nameservers:
                nameserver.start()
            for broker in self.brokers:
                broker.launch()
            for broker in self.brokers:
                broker.wait_ready()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Kill every process: a test's cluster needs no graceful stop."""
        for broker in self.brokers:
            broker.kill()
        for nameserver in self.nameservers:
            nameserver.kill()
        if self._network is not None:
            self._network.close()
        if self._made_folder:
            shutil.rmtree(self.folder, ignore_errors=True)

    def _nameserver(self, index: int) -> ApacheNameServer:
        folder = self.folder / f"namesrv-{index}"
        server = ApacheServer(
            self._peer, "org.apache.rocketmq.namesrv.NamesrvStartup", folder, self._node
        )
        return ApacheNameServer(f"{self.host}:{free_port(0)}", server, folder)

    def _broker(self, index: int, extra: dict[str, str]) -> ApacheBroker:
        name = f"broker-{chr(ord('a') + index)}"
        return apache_broker(
            self._peer,
            name,
            folder=self.folder / name,
            node=self._node,
            nameservers=self.nameservers,
            properties=extra,
        )


def apache_broker(
    peer: JavaPeer,
    name: str,
    *,
    folder: Path,
    node: Node | None,
    nameservers: Sequence[RoutesFrom],
    properties: Mapping[str, str],
) -> ApacheBroker:
    """A broker that is not started yet, on loopback or in the namespace of ``node``.

    ``properties`` come over the defaults: ``brokerRole`` and ``brokerId`` make it one of several
    brokers of that name. Each of these needs a node of its own, because the HA port of every
    release listens on every address.
    """
    host = node.address if node is not None else "127.0.0.1"
    port = free_port(-2, 0, 1)
    own = {
        "brokerName": name,
        "brokerIP1": host,
        "brokerIP2": host,
        # 5.x listens on the given address, 4.9 on all addresses.
        "bindAddress": host,
        "listenPort": str(port),
        "haListenPort": str(port + 1),
        "namesrvAddr": ";".join(one.address for one in nameservers),
        "storePathRootDir": str(folder / "store"),
        "storePathCommitLog": str(folder / "store" / "commitlog"),
    }
    server = ApacheServer(peer, "org.apache.rocketmq.broker.BrokerStartup", folder, node)
    settings = _BROKER_PROPERTIES | own | dict(properties)
    return ApacheBroker(name, f"{host}:{port}", server, settings, nameservers)


def free_port(*shifts: int) -> int:
    """A port that is free now at every shift from it, and that was not given before."""
    choose = random.SystemRandom()
    for _ in range(200):
        port = choose.choice(_PORTS)
        wanted = {port + shift for shift in shifts}
        if not wanted & _given_ports and all(map(_is_free, wanted)):
            _given_ports.update(wanted)
            return port
    raise PeerFailed(f"no free port in {_PORTS} with its neighbours {shifts} free too")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def answers(nameserver: str) -> bool:
    try:
        with RawConnection(nameserver) as connection:
            return connection.ask(_GET_BROKER_CLUSTER_INFO).code == 0
    except OSError:
        return False


def broker_answers(address: str) -> bool:
    try:
        with RawConnection(address) as connection:
            # With access control it refuses what is not signed, and is ready.
            return connection.ask(_GET_BROKER_RUNTIME_INFO).code in (0, ResponseCode.NO_PERMISSION)
    except OSError:
        return False


def routes_to(nameserver: str, name: str, address: str) -> bool:
    """Whether new topics would be made on that broker: it is in the route of ``TBW102``."""
    try:
        with RawConnection(nameserver) as connection:
            answer = connection.ask(_GET_ROUTE_INFO_BY_TOPIC, {"topic": "TBW102"})
    except OSError:
        return False
    if answer.code != 0:
        return False
    route: Any = fastjson.loads(answer.body)
    return any(
        one["brokerName"] == name and address in one["brokerAddrs"].values()
        for one in route["brokerDatas"]
    )
