"""Apache's proxy in cluster mode before Contrail: its gRPC clients pop through both."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from contrail.testing import LocalCluster, eventually
from tests.e2e.asking import Asker
from tests.interop.apache_cluster import free_port
from tests.interop.clients.fetched import built_once, fetch
from tests.interop.peers import java_peer, own_environment

TOPIC, GROUP = "orders", "billing"
PYTHON_CLIENT = "rocketmq-python-client==5.1.2"
PROGRAM = Path(__file__).parent / "clients" / "grpc" / "pops.py"
_TIMEOUT_S = 150


def python_with_client() -> Path:
    """An interpreter that has Apache's client for gRPC."""

    def build(folder: Path) -> None:
        fetch([sys.executable, "-m", "venv", "venv"], cwd=folder, install="python3-venv")
        pip = [str(folder / "venv" / "bin" / "python"), "-m", "pip", "install", "-q"]
        fetch([*pip, PYTHON_CLIENT], cwd=folder, install="a network with a package index")
        # The folder is moved once it is whole: the interpreter is found by its own path then.

    built = built_once("grpc-python", [PYTHON_CLIENT.encode(), sys.version.encode()], build)
    return built / "venv" / "bin" / "python"


@contextmanager
def proxy(cluster: LocalCluster, folder: Path) -> Iterator[str]:
    """Apache's proxy; gives the address that gRPC clients connect to."""
    conf = folder / "conf"
    conf.mkdir(parents=True)
    grpc_port, remoting_port = free_port(), free_port()
    settings = {
        "rocketMQClusterName": "DefaultCluster",
        "proxyMode": "CLUSTER",
        "namesrvAddr": cluster.namesrv,
        "grpcServerPort": grpc_port,
        "remotingListenPort": remoting_port,
        "localServeAddr": "127.0.0.1",
        "useEndpointPortFromRequest": True,
    }
    path = conf / "rmq-proxy.json"
    path.write_text(json.dumps(settings), encoding="utf-8")
    command = java_peer("apache-5-proxy").command(
        "org.apache.rocketmq.proxy.ProxyStartup",
        ["-pm", "cluster", "-n", cluster.namesrv, "-pc", str(path)],
        home=folder,
    )
    environment = own_environment(folder) | {"ROCKETMQ_HOME": str(folder)}
    log = folder / "proxy.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, cwd=folder, env=environment, stdout=output, stderr=output
        )
    with process:
        try:
            eventually(
                lambda: _listens(grpc_port),
                lambda: f"the proxy starts\n{log.read_text(errors='replace')[-3000:]}",
                timeout_s=_TIMEOUT_S,
                pause_s=0.5,
            )
            yield f"127.0.0.1:{grpc_port}"
        finally:
            process.kill()


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


@pytest.mark.matrix
@pytest.mark.proves("kinds.pop.grpc")
def test_pythons_grpc_client_pops_through_the_proxy(tmp_path: Path) -> None:
    interpreter = python_with_client()
    with LocalCluster(in_children=True) as cluster:
        broker = Asker(cluster)
        broker.make_topic(TOPIC)
        broker.make_group(GROUP)
        with proxy(cluster, tmp_path / "proxy") as endpoint:
            done = subprocess.run(
                [str(interpreter), str(PROGRAM), endpoint, TOPIC, GROUP],
                capture_output=True, text=True, timeout=_TIMEOUT_S, check=False,
            )  # fmt: skip
    said = done.stdout.splitlines()
    assert said and said[-1] == "done", f"{done.stdout}\n{done.stderr[-3000:]}"
    first = {line for line in said if line.startswith("first ")}
    assert first == {f"first {number} 1" for number in range(4)}, said
    assert [line for line in said if line.startswith("again")] == ["again 2 2"], said
