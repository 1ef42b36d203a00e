"""A single broker's folder becomes a group's, and a member's folder a single broker's again."""

from __future__ import annotations

from pathlib import Path

import pytest

from contrail import Admin, Message, Producer
from contrail.store.reader import StoreReader
from contrail.testing import LocalBroker, LocalCluster, eventually
from tests.cli.running import done


def stored_bodies(member: LocalBroker) -> set[bytes]:
    reader = StoreReader.open(member.folder / "store")
    return {one.body for one in reader.messages(topic="orders")}


def send(cluster: LocalCluster, prefix: str) -> set[bytes]:
    bodies = {f"{prefix}-{number}".encode() for number in range(10)}
    with Producer("writers", cluster.namesrv) as producer:
        for body in bodies:
            producer.send(Message("orders", body, keys="key"))
    return bodies


@pytest.mark.proves("replication.failover.migration")
@pytest.mark.proves("replication.failover.detach")
def test_a_single_broker_becomes_a_group_and_a_member_a_single_broker(tmp_path: Path) -> None:
    with LocalCluster(folder=tmp_path / "single") as cluster:
        (single,) = cluster.brokers
        with Admin(cluster.namesrv) as admin:
            admin.create_topic("empty", queues=3, broker=single.name)
        sent = send(cluster, "before")
    done("replication", "init", str(single.folder))
    (tmp_path / "group").mkdir()
    single.folder.rename(tmp_path / "group" / f"{single.name}-n0")

    with LocalCluster(members=3, folder=tmp_path / "group") as cluster:
        first = cluster.wait_for_leader()
        assert first.self_id == "n0"
        sent |= send(cluster, "in-group")
        for member in cluster.brokers:
            eventually(lambda at=member: sent <= stored_bodies(at), "every member has all of it")
        # Another member has the tables that the first one brought.
        first.stop()
        cluster.wait_for_leader(besides=first)
        with Admin(cluster.namesrv) as admin:
            assert "empty" in admin.topics()
            assert len(admin.messages_by_key("orders", "key")) == 20
        sent |= send(cluster, "without-first")
        last = cluster.wait_for_leader()

    done("replication", "detach", str(last.folder))
    (tmp_path / "alone").mkdir()
    last.folder.rename(tmp_path / "alone" / last.name)
    with LocalCluster(folder=tmp_path / "alone") as cluster:
        assert stored_bodies(cluster.brokers[0]) == sent
        with Admin(cluster.namesrv) as admin:
            assert "empty" in admin.topics()
        sent |= send(cluster, "alone")
        eventually(lambda: stored_bodies(cluster.brokers[0]) == sent, "it takes messages")
