"""A failover group under Apache's NameServers, its ``mqadmin`` and its store."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from contrail import Message, Producer
from contrail.protocol.codes import RequestCode, ResponseCode
from contrail.testing import LocalBroker, LocalCluster, eventually
from tests.cli.running import done
from tests.interop.apache_cluster import ApacheCluster, ApacheNameServer
from tests.interop.mqadmin import MqAdmin
from tests.interop.peers import java_peer
from tests.interop.test_store_carried import SEED, SETTINGS, Carried

TOPIC = "orders"
# A NameServer that preferred a former leader would do so within the round of its registrations.
_WATCHED_S = 1.5


class Group(LocalCluster):
    """A group of three that registers with NameServers of Apache beside ours."""

    def __init__(self, folder: Path, others: list[ApacheNameServer]) -> None:
        super().__init__(members=3, folder=folder, properties=SETTINGS)
        self.others = others
        names = [self.namesrv, *(one.address for one in others)]
        self.properties["namesrvAddr"] = ";".join(names)

    def routed(self, other: ApacheNameServer) -> dict[str, str]:
        """The addresses of the group's members by id, as a NameServer of Apache routes to them."""
        fields = {"topic": TOPIC, "acceptStandardJsonOnly": "true"}
        code = RequestCode.GET_ROUTEINFO_BY_TOPIC
        answer = self.caller.call(other.address, code, fields)
        if answer.code != ResponseCode.SUCCESS:
            return {}
        (data,) = json.loads(answer.body)["brokerDatas"]
        found: dict[str, str] = data["brokerAddrs"]
        return found


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Group]:
    folder = tmp_path_factory.mktemp("apache-group")
    with (
        ApacheCluster(brokers=0, folder=folder / "5") as newer,
        ApacheCluster(brokers=0, folder=folder / "4", peer="apache-4-server") as older,
        Group(folder / "group", [*newer.nameservers, *older.nameservers]) as cluster,
    ):
        with Producer("writers", cluster.namesrv) as producer:
            for number in range(50):
                producer.send(Message(TOPIC, b"body-%d" % number, keys=f"k{number}", tags="t"))
        yield cluster


def others(group: Group, *members: LocalBroker) -> list[LocalBroker]:
    return [one for one in group.brokers if one not in members]


@pytest.mark.proves("replication.failover.registration")
def test_name_servers_of_apache_follow_the_leader_and_never_prefer_a_former_one(
    group: Group,
) -> None:
    former = group.wait_for_leader()
    for other in group.others:
        eventually(lambda at=other: group.routed(at).get("0") == former.address, "the leader is 0")
        found = set(group.routed(other).values())
        assert found == {one.address for one in group.brokers}
    group.partition(former)
    leader = group.wait_for_leader(besides=former)
    for other in group.others:
        eventually(lambda at=other: group.routed(at).get("0") == leader.address, "the new one is 0")
    group.heal()
    group.wait_for_voters()
    until_s = time.monotonic() + _WATCHED_S
    while time.monotonic() < until_s:
        for other in group.others:
            assert group.routed(other)["0"] == leader.address
        time.sleep(0.1)
    own_id = str(int(former.self_id[1:]) + 1)
    for other in group.others:
        eventually(lambda at=other: group.routed(at).get(own_id) == former.address, "its own id")


@pytest.mark.proves("replication.failover.apache-view")
def test_mqadmin_of_apache_shows_the_group_and_hands_over(group: Group, tmp_path: Path) -> None:
    leader = group.wait_for_leader()
    follower = others(group, leader)[0]
    with MqAdmin(group.namesrv, tmp_path) as mqadmin:
        epochs = mqadmin.run("getBrokerEpoch", "-b", leader.name)
        in_sync = mqadmin.run("getSyncStateSet", "-a", leader.address, "-b", leader.name)
        metadata = mqadmin.run("getControllerMetaData", "-a", follower.address)
        number = str(int(follower.self_id[1:]) + 1)
        words = ("-a", leader.address, "-b", number, "-bn", leader.name, "-c", "DefaultCluster")
        elected = mqadmin.run("electMaster", *words)
    for member in group.brokers:
        assert f"#brokerAddr\t{member.address}\n" in epochs
        assert f"brokerAddress='{member.address}', alive=true" in in_sync
        assert f"#Peer:\t{member.self_id}:127.0.0.1:{member.member_port}" in metadata
    assert epochs.count("EpochEntry{epoch=1, startOffset=0, ") == 3
    assert f"#MasterAddr\t{leader.address}\n" in in_sync and "#SyncStateSetNums\t3" in in_sync
    assert f"#ControllerLeaderId\t{leader.self_id}\n" in metadata
    assert f"#ControllerLeaderAddress\t{leader.address}\n" in metadata
    assert f"#BrokerMasterAddr\t{follower.address}\n" in elected
    assert group.wait_for_leader(besides=leader) is follower


@pytest.mark.proves("replication.failover.detach")
@pytest.mark.proves("replication.failover-shown.folders")
def test_apaches_store_opens_and_reads_a_detached_member(group: Group, tmp_path: Path) -> None:
    member = others(group, group.wait_for_leader())[0]
    member.stop()
    carried = Carried(tmp_path / "carried", java_peer("apache-5"), SEED)
    shutil.copytree(member.folder / "store", carried.root)
    member.start()
    slots = SETTINGS["maxHashSlotNum"]
    done("replication", "detach", str(carried.root), "--index-slots", slots)
    topics = {one.fields.topic for one in carried.records}
    assert {TOPIC, "rmq_sys_contrail_epoch", "rmq_sys_contrail_state"} <= topics
    # Every message by queue, by key and by place, compared with the log.
    carried.apache("read")
