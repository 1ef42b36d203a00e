"""Retention in a group of real brokers, and members that it leaves behind."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from contrail import Admin, Message, Producer
from contrail.protocol.codes import RequestCode, ResponseCode
from contrail.testing import LocalBroker, LocalCluster, eventually
from contrail.testing.failover import member_status

SEGMENT_BYTES = 256 << 10
# Producers compress what they can.
BODY = random.Random(1).randbytes(60_000)


def first_byte(member: LocalBroker) -> int:
    """Where the log of a member begins."""
    return min((int(one.name) for one in member.folder.glob("store/commitlog/*")), default=0)


def is_whole(cluster: LocalCluster, member: LocalBroker) -> bool:
    status = member_status(cluster.caller, member)
    return status is not None and status.master is not None and status.master.state == "voter"


def remove_old(cluster: LocalCluster, member: LocalBroker) -> bool:
    """Ask for retention; whether the log begins late by now."""
    answer = cluster.caller.call(member.address, RequestCode.DELETE_EXPIRED_COMMITLOG)
    assert answer.code == ResponseCode.SUCCESS
    return first_byte(member) > 0


@pytest.mark.proves("replication.failover.retention")
@pytest.mark.proves("replication.failover.behind-retention")
def test_a_broker_that_retention_left_behind_starts_anew_and_has_tables_and_log(
    tmp_path: Path,
) -> None:
    properties = {
        "mappedFileSizeCommitLog": str(SEGMENT_BYTES),
        "fileReservedTime": "0",
        "cleanResourceInterval": "200",
        "deleteCommitLogFilesInterval": "0",
    }
    with LocalCluster(
        members=3, in_children=True, folder=tmp_path, properties=properties
    ) as cluster:
        leader = cluster.wait_for_leader()
        cluster.wait_for_voters()
        behind = next(one for one in cluster.brokers if one is not leader)
        with Admin(cluster.namesrv) as admin:
            admin.create_topic("kept", broker=leader.name)
        with Producer("writers", cluster.namesrv) as producer:
            producer.send(Message("orders", b"first"))
            behind.stop()
            leader = cluster.wait_for_leader(besides=behind)
            for _ in range(20):
                producer.send(Message("orders", BODY))
            # Each second the tables look whether a segment lacks their snapshot.
            eventually(lambda: remove_old(cluster, leader), "retention removes segments")
            behind.start()
            eventually(lambda: first_byte(behind) > 0, "it begins where the leader's begins")
            eventually(lambda: is_whole(cluster, behind), "it votes again")
            producer.send(Message("orders", b"last"))
        log = (behind.folder / "process.log").read_text()
        assert "starts again" in log
        leader.stop()
        behind_leads = cluster.wait_for_leader(besides=leader)
        assert behind_leads is not None
        with Admin(cluster.namesrv) as admin:
            assert "kept" in admin.topics()
