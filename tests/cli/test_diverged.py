"""A slave with a record that its master does not have: it says so in each place, and is rebuilt."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from contrail import Message, Producer
from contrail.protocol.bodies.ha_status import HaStatus, decode_ha_status
from contrail.protocol.codes import RequestCode
from contrail.testing import LocalBroker, LocalCluster, eventually
from tests.cli.diagnosed import until_diagnosed
from tests.cli.running import done
from tests.e2e.metrics_scene import samples, scrape

# With the log outside of the folder, as on a disk of its own.
SHOWN = {"metricsExporterType": "PROM", "metricsPromExporterPort": "0"}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    with LocalCluster(slaves=1, folder=tmp_path / "pair", properties=SHOWN) as running:
        slave = running.slaves[0]
        slave.stop()
        slave.own_properties["storePathCommitLog"] = str(tmp_path / "slave disk" / "commitlog")
        yield running


def send(cluster: LocalCluster, body: bytes, topic: str = "orders") -> None:
    with Producer("writers", cluster.namesrv) as producer:
        producer.send(Message(topic, body))


def diverge(cluster: LocalCluster) -> None:
    """Let the slave take a message as a master would, and the master others."""
    master, slave = cluster.brokers[0], cluster.slaves[0]
    master.stop()
    role = dict(slave.own_properties)
    slave.own_properties |= {"brokerId": "0", "brokerRole": "ASYNC_MASTER"}
    slave.start()
    send(cluster, b"of the slave alone")
    slave.stop()
    slave.own_properties = role
    master.start()
    for number in range(3):
        send(cluster, b"of the master alone %d" % number)
    slave.start()


def status(cluster: LocalCluster, broker: LocalBroker) -> HaStatus:
    answer = cluster.caller.call(broker.address, RequestCode.GET_BROKER_HA_STATUS)
    return decode_ha_status(answer.body)


def written(*folders: Path) -> dict[Path, bytes]:
    """The log, what is derived from it, and the tables."""
    found = [path for folder in folders for path in sorted(folder.rglob("*")) if path.is_file()]
    kept = ("commitlog", "consumequeue", "index", "config")
    return {path: path.read_bytes() for path in found if {*kept} & {*path.parts}}


def log_of(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(folder.iterdir())).rstrip(b"\0")


@pytest.mark.proves("replication.pair.diverged")
def test_a_diverged_slave_writes_nothing_says_so_everywhere_and_is_rebuilt_by_its_command(
    cluster: LocalCluster, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    master, slave = cluster.brokers[0], cluster.slaves[0]
    disk = tmp_path / "slave disk"
    diverge(cluster)
    found = until_diagnosed(cluster, "slave-diverged")
    command = found["fix"]

    assert command.startswith("mv ")
    told = status(cluster, slave).master
    assert (told.state, told.is_active, told.rebuild_command) == ("DIVERGED", False, command)
    assert command in told.problem
    assert any(
        record.levelname == "ERROR" and "diverged" in record.message and command in record.message
        for record in caplog.records
    )
    shown = done("replication", "status", "-n", cluster.namesrv).out
    assert "DIVERGED" in shown
    assert slave.app is not None and slave.app.metrics is not None
    exported = {one.name: one.value for one in samples(scrape(slave.app.metrics.port))}
    assert exported["contrail_replication_diverged"] == 1

    before = written(slave.folder / "store", disk)
    assert log_of(disk / "commitlog") != b""
    send(cluster, b"later", topic="later")
    # Meanwhile a slave that follows would have asked for tables more than once.
    until_diagnosed(cluster, "slave-diverged")
    assert written(slave.folder / "store", disk) == before

    slave.stop()
    subprocess.run(["bash", "-c", command], check=True)
    slave.start()
    eventually(lambda: status(cluster, slave).master.state == "TRANSFER", "it follows again")
    assert master.app is not None
    logs = master.folder / "store" / "commitlog", disk / "commitlog"
    eventually(lambda: log_of(logs[0]) == log_of(logs[1]), "the logs are equal")
    aside = [Path(word) for word in shlex.split(command) if word.endswith(".diverged")]
    assert len(aside) == 2 and all(path.is_dir() for path in aside), "nothing is lost"
