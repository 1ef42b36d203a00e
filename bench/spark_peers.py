"""A local Kafka beside the broker, and the jars of Spark's source for it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bench.harness import BenchError
from bench.wire_parts import HOST, Server, running, wait_until_listening
from contrail.testing.cluster import free_port
from tests.interop.peers import PeerFailed, java_peer

_CLUSTER_ID = "AAAAAAAAAAAAAAAAAAAAAA"
_HEAP = "-Xmx1g"


class Absent(Exception):
    """A peer cannot be had here; the message says why."""


def spark_kafka_jars() -> str:
    try:
        return ",".join(java_peer("spark-kafka").class_path.split(os.pathsep))
    except (PeerFailed, pytest.fail.Exception, pytest.skip.Exception) as reason:
        raise Absent(str(reason)) from reason


@contextmanager
def running_kafka(folder: Path, partition_count: int) -> Iterator[str]:
    """A broker that is its own controller, on loopback; its address."""
    try:
        class_path = java_peer("kafka").class_path
    except (PeerFailed, pytest.fail.Exception, pytest.skip.Exception) as reason:
        raise Absent(str(reason)) from reason
    folder.mkdir(parents=True)
    port = free_port()
    conf = folder / "server.properties"
    conf.write_text(_conf(folder, port, free_port(), partition_count), encoding="utf-8")
    java = ["java", _HEAP, "-cp", class_path]
    _format(java, conf)
    log = folder / "kafka.log"
    with running([*java, "kafka.Kafka", str(conf)], log, is_pinned=False) as process:
        wait_until_listening(Server(port=port, process=process, log=log))
        yield f"{HOST}:{port}"


def _format(java: list[str], conf: Path) -> None:
    command = [*java, "kafka.tools.StorageTool", "format", "-t", _CLUSTER_ID, "-c", str(conf)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    if done.returncode:
        raise BenchError(f"Kafka's folder could not be formatted:\n{done.stderr[-2000:]}")


def _conf(folder: Path, port: int, controller_port: int, partition_count: int) -> str:
    settings = {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.voters": f"1@{HOST}:{controller_port}",
        "listeners": f"PLAINTEXT://{HOST}:{port},CONTROLLER://{HOST}:{controller_port}",
        "advertised.listeners": f"PLAINTEXT://{HOST}:{port}",
        "controller.listener.names": "CONTROLLER",
        "inter.broker.listener.name": "PLAINTEXT",
        "log.dirs": str(folder / "data"),
        "num.partitions": str(partition_count),
        "offsets.topic.replication.factor": "1",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
    }
    return "".join(f"{name}={value}\n" for name, value in settings.items())
