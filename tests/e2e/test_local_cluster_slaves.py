"""A test's cluster has slaves, and cuts either side of a pair off and lets it rejoin."""

from __future__ import annotations

from pathlib import Path

import pytest

from contrail import Admin, Message, Producer
from contrail.errors import ContrailError
from contrail.protocol.bodies.ha_status import HaStatus, decode_ha_status
from contrail.protocol.codes import RequestCode
from contrail.testing import LocalBroker, LocalCluster, MovedClock, eventually

SYNCHRONOUS = {"brokerRole": "SYNC_MASTER", "slaveReadEnable": "true"}


def status(cluster: LocalCluster, broker: LocalBroker) -> HaStatus:
    answer = cluster.caller.call(broker.address, RequestCode.GET_BROKER_HA_STATUS)
    return decode_ha_status(answer.body)


def level_count(cluster: LocalCluster) -> int:
    """How many slaves have all that the master has."""
    found = status(cluster, cluster.brokers[0]).slaves
    return sum(one.state == "receiving" and not one.lag_bytes for one in found)


def send(cluster: LocalCluster, body: bytes, topic: str = "orders") -> str:
    with Producer("writers", cluster.namesrv, send_timeout_ms=20_000) as producer:
        return producer.send(Message(topic, body)).status.name


def topics(cluster: LocalCluster, broker: LocalBroker) -> bytes:
    return bytes(cluster.caller.call(broker.address, RequestCode.GET_ALL_TOPIC_CONFIG).body)


@pytest.mark.proves("replication.pair.dev")
@pytest.mark.parametrize("side", ["slave", "master"])
def test_a_side_that_is_cut_off_gets_nothing_until_it_rejoins(tmp_path: Path, side: str) -> None:
    with LocalCluster(slaves=1, folder=tmp_path, properties=SYNCHRONOUS) as cluster:
        master, slave = cluster.brokers[0], cluster.slaves[0]
        cut = slave if side == "slave" else master
        eventually(lambda: level_count(cluster) == 1, "the slave is there")
        assert send(cluster, b"on both") == "SEND_OK"
        cut.cut_off()
        eventually(lambda: not status(cluster, master).slaves, "the master notices")
        assert send(cluster, b"alone", topic="made-meanwhile") == "SLAVE_NOT_AVAILABLE"
        eventually(lambda: status(cluster, slave).master.problem, "the slave says why")
        assert "cut off by the test" in status(cluster, slave).master.problem
        assert b"made-meanwhile" in topics(cluster, master)
        assert b"made-meanwhile" not in topics(cluster, slave)
        # Clients and NameServers still reach both.
        with Admin(cluster.namesrv) as admin:
            assert len(admin.brokers()) == 2
        cut.rejoin()
        cluster.wait_for_slaves()
        assert b"made-meanwhile" in topics(cluster, slave)
        assert send(cluster, b"on both again") == "SEND_OK"
        assert status(cluster, slave).master.problem == ""


@pytest.mark.proves("replication.pair.dev")
def test_a_cut_lasts_over_restarts_and_of_two_slaves_one_may_be_cut(tmp_path: Path) -> None:
    with LocalCluster(slaves=2, folder=tmp_path) as cluster:
        first, second = cluster.slaves
        eventually(lambda: level_count(cluster) == 2, "both slaves are there")
        first.cut_off()
        eventually(lambda: level_count(cluster) == 1, "one is gone")
        first.stop()
        first.start()
        send(cluster, b"x")
        eventually(lambda: status(cluster, second).physical_end > 0, "the other one follows")
        assert status(cluster, first).physical_end == 0
        first.clear_faults()
        eventually(lambda: level_count(cluster) == 2, "both are there again")


@pytest.mark.proves("replication.pair.dev")
def test_slaves_follow_over_a_move_of_the_clock(tmp_path: Path) -> None:
    with LocalCluster(slaves=1, folder=tmp_path, clock=MovedClock()) as cluster:
        eventually(lambda: level_count(cluster) == 1, "the slave is there")
        cluster.advance(hours=2)
        send(cluster, b"two hours later")
        eventually(lambda: level_count(cluster) == 1, "the slave follows")
        assert status(cluster, cluster.brokers[0]).physical_end > 0


@pytest.mark.proves("replication.pair.dev")
def test_children_are_waited_for_and_killed_on_either_side(tmp_path: Path) -> None:
    with LocalCluster(
        slaves=1, folder=tmp_path, properties=SYNCHRONOUS, in_children=True
    ) as cluster:
        assert send(cluster, b"x") in ("SEND_OK", "SLAVE_NOT_AVAILABLE")
        cluster.wait_for_slaves()
        cluster.slaves[0].kill()
        # Nobody is left to wait for.
        cluster.wait_for_slaves(timeout_s=1)
        cluster.slaves[0].start()
        cluster.wait_for_slaves()
        cluster.brokers[0].kill()
        cluster.brokers[0].start()
        cluster.wait_for_slaves()
        assert send(cluster, b"y") == "SEND_OK"


def test_a_child_is_not_cut_off_but_paused(tmp_path: Path) -> None:
    cluster = LocalCluster(slaves=1, folder=tmp_path, in_children=True)
    with pytest.raises(ContrailError, match="`pause` stops it"):
        cluster.slaves[0].cut_off()
