"""Apache's NameServer, and its broker and proxy in one process, in a network of their own."""

from __future__ import annotations

import json
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.client_peers import java_command, proxy_peer
from bench.harness import BenchError
from bench.wire_parts import pinned, tail
from tests.interop.differential.raw import RawConnection
from tests.interop.peers import own_environment
from tests.interop.private_network import Node, PrivateNetwork

# No other process is in that network.
_NAMESRV_PORT = 9876
_BROKER_PORT = 10911
_GRPC_PORT = 8081
_REMOTING_PORT = 8080

_BROKER_NAME = "broker-a"
_CLUSTER_NAME = "DefaultCluster"
_NAMESRV_HEAP = "-Xmx256m"
_BROKER_HEAP = "-Xmx1g"
_START_TIMEOUT_S = 240
_POLL_S = 0.2
_GET_BROKER_CLUSTER_INFO = 106

# Smaller files than it would make; and no send is turned away on a busy machine.
_BROKER_PROPERTIES = {
    "brokerClusterName": _CLUSTER_NAME,
    "brokerName": _BROKER_NAME,
    "brokerId": "0",
    "brokerRole": "ASYNC_MASTER",
    "flushDiskType": "ASYNC_FLUSH",
    "listenPort": str(_BROKER_PORT),
    "haListenPort": str(_BROKER_PORT + 1),
    "mappedFileSizeCommitLog": str(256 << 20),
    "mappedFileSizeTimerLog": str(4 << 20),
    "maxHashSlotNum": "500000",
    "maxIndexNum": "2000000",
    "diskMaxUsedSpaceRatio": "99",
    "brokerFastFailureEnable": "false",
    "osPageCacheBusyTimeOutMills": "60000",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ApacheEnds:
    """Where a running Apache is reached: by remoting and by gRPC."""

    namesrv: str
    broker: str
    proxy: str


@contextmanager
def apache_with_proxy(folder: Path) -> Iterator[ApacheEnds]:
    """Started, and ended with all it wrote elsewhere than in ``folder``."""
    network = PrivateNetwork("apache")
    network.open()
    node = network["apache"]
    try:
        ends = ApacheEnds(
            namesrv=f"{node.address}:{_NAMESRV_PORT}",
            broker=f"{node.address}:{_BROKER_PORT}",
            proxy=f"{node.address}:{_GRPC_PORT}",
        )
        _write_settings(folder, node.address, ends)
        with _running_namesrv(node, folder, ends), _running_proxy(node, folder, ends):
            yield ends
    finally:
        network.close()


def _write_settings(folder: Path, host: str, ends: ApacheEnds) -> None:
    conf = folder / "conf"
    conf.mkdir(parents=True)
    store = folder / "store"
    broker = {
        **_BROKER_PROPERTIES,
        "brokerIP1": host,
        "brokerIP2": host,
        "namesrvAddr": ends.namesrv,
        "storePathRootDir": store,
        "storePathCommitLog": store / "commitlog",
    }
    proxy = {
        "rocketMQClusterName": _CLUSTER_NAME,
        "localServeAddr": host,
        "namesrvAddr": ends.namesrv,
        "grpcServerPort": _GRPC_PORT,
        "remotingListenPort": _REMOTING_PORT,
    }
    _write(conf / "namesrv.conf", f"listenPort={_NAMESRV_PORT}\n")
    _write(conf / "broker.conf", "".join(f"{name}={value}\n" for name, value in broker.items()))
    _write(conf / "rmq-proxy.json", json.dumps(proxy))


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")


@contextmanager
def _running_namesrv(node: Node, folder: Path, ends: ApacheEnds) -> Iterator[None]:
    main, arguments = "namesrv.NamesrvStartup", ["-c", str(folder / "conf" / "namesrv.conf")]
    with _running(node, main, arguments, folder, _NAMESRV_HEAP) as wait_until:
        wait_until(lambda: b"clusterAddrTable" in _cluster_info(ends.namesrv))
        yield


@contextmanager
def _running_proxy(node: Node, folder: Path, ends: ApacheEnds) -> Iterator[None]:
    conf = folder / "conf"
    arguments = ["-pm", "local", "-n", ends.namesrv]
    arguments += ["-bc", str(conf / "broker.conf"), "-pc", str(conf / "rmq-proxy.json")]
    with _running(node, "proxy.ProxyStartup", arguments, folder, _BROKER_HEAP) as wait_until:
        wait_until(lambda: _BROKER_NAME.encode() in _cluster_info(ends.namesrv))
        wait_until(lambda: _listens(ends.proxy))
        yield


@contextmanager
def _running(
    node: Node, main: str, arguments: list[str], folder: Path, heap: str
) -> Iterator[Callable[[Callable[[], bool]], None]]:
    """Run one of Apache's start-up classes; returns the function that waits for it."""
    command = java_command(proxy_peer(), f"org.apache.rocketmq.{main}", arguments, folder, heap)
    environment = own_environment(folder) | {"ROCKETMQ_HOME": str(folder)}
    log = folder / f"{main}.log"
    with log.open("wb") as output, pinned("server"):
        process = subprocess.Popen(
            node.command(command), cwd=folder, env=environment, stdout=output, stderr=output
        )

    def wait_until(ready: Callable[[], bool]) -> None:
        deadline = time.monotonic() + _START_TIMEOUT_S
        while not ready():
            if process.poll() is not None or time.monotonic() > deadline:
                raise BenchError(f"{main} did not start:\n{tail(log)}")
            time.sleep(_POLL_S)

    with process:
        try:
            yield wait_until
        finally:
            # Nothing of it is worth a graceful stop.
            process.kill()


def _cluster_info(namesrv: str) -> bytes:
    try:
        with RawConnection(namesrv) as connection:
            return connection.ask(_GET_BROKER_CLUSTER_INFO).body
    except OSError:
        return b""


def _listens(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=1).close()
    except OSError:
        return False
    return True
