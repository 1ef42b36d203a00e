"""A failover group of real processes: its leader is killed, another goes on, nothing is lost."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from contrail import Admin, Message, Producer
from contrail.errors import ClientError
from contrail.protocol.codes import RequestCode, ResponseCode
from contrail.protocol.command import ReceivedResponse
from contrail.store.reader import StoreReader
from contrail.testing import LocalBroker, LocalCluster, eventually
from contrail.testing.failover import member_status

TOPIC = "orders"


class Sending:
    """A producer that sends on, whatever happens to the group, and notes what was acknowledged."""

    def __init__(self, cluster: LocalCluster, name: str) -> None:
        self.acknowledged: list[bytes] = []
        self.errors: list[ClientError] = []
        self._name = name
        self._is_over = threading.Event()
        self._producer = Producer(name, cluster.namesrv, send_timeout_ms=10_000)
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Sending:
        self._producer.start()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()
        self._producer.close()

    def _run(self) -> None:
        number = 0
        while not self._is_over.is_set():
            body = f"{self._name}-{number}".encode()
            number += 1
            try:
                self._producer.send(Message(TOPIC, body))
            except ClientError as error:
                self.errors.append(error)
            else:
                self.acknowledged.append(body)

    def goes_on(self, count: int = 20) -> None:
        """Wait until so many more messages were acknowledged."""
        wanted = len(self.acknowledged) + count
        eventually(lambda: len(self.acknowledged) >= wanted, f"{self._name} sends on")


def are_level(cluster: LocalCluster) -> bool:
    """Whether all members have and committed the same end of the log."""
    found = [member_status(cluster.caller, one) for one in cluster.brokers]
    ends = {(one.physical_end, one.acknowledged_end) for one in found if one is not None}
    return None not in found and len(ends) == 1 and len(set(*ends)) == 1


def log_files(member: LocalBroker) -> dict[str, bytes]:
    """The commit log of a member; zeros that were written ahead do not count."""
    folder = member.folder / "store" / "commitlog"
    files = {one.name: one.read_bytes().rstrip(b"\0") for one in sorted(folder.iterdir())}
    return {name: data for name, data in files.items() if data}


def stored_bodies(member: LocalBroker) -> list[bytes]:
    reader = StoreReader.open(member.folder / "store")
    return [one.body for one in reader.messages(topic=TOPIC)]


def send_to(cluster: LocalCluster, member: LocalBroker, body: bytes) -> ReceivedResponse:
    """A send to this very member; no client looks for another one."""
    fields = {"topic": TOPIC, "queueId": "0", "producerGroup": "g", "sysFlag": "0", "flag": "0"}
    fields |= {"defaultTopic": "TBW102", "defaultTopicQueueNums": "4", "properties": ""}
    fields |= {"bornTimestamp": "0"}
    return cluster.caller.call(member.address, RequestCode.SEND_MESSAGE, fields, body)


@pytest.mark.proves("replication.failover-shown.processes")
@pytest.mark.proves("replication.failover-shown.folders")
@pytest.mark.proves("replication.failover.registration")
def test_killed_leaders_lose_nothing_and_come_back_with_equal_logs(tmp_path: Path) -> None:
    properties = {"mappedFileSizeCommitLog": str(1 << 20)}
    with LocalCluster(
        members=3, in_children=True, folder=tmp_path, properties=properties
    ) as cluster:
        with Sending(cluster, "first") as first, Sending(cluster, "second") as second:
            first.goes_on()
            killed = cluster.kill_leader()
            leader = cluster.wait_for_leader(besides=killed)
            first.goes_on()
            second.goes_on()
            assert registered_id(cluster, leader) == 0
            killed.start()
            eventually(lambda: registered_id(cluster, killed) not in (None, 0), "it follows")
        eventually(lambda: are_level(cluster), "all members have the same")
        logs = [log_files(one) for one in cluster.brokers]
        assert logs[0] == logs[1] == logs[2]
        acknowledged = {*first.acknowledged, *second.acknowledged}
        for member in cluster.brokers:
            # Each second a member notes for readers of its folder how far it is committed.
            eventually(lambda at=member: acknowledged <= {*stored_bodies(at)}, "all is readable")


def registered_id(cluster: LocalCluster, member: LocalBroker) -> int | None:
    """The id under which a member is registered."""
    with Admin(cluster.namesrv) as admin:
        return next(
            (one.broker_id for one in admin.brokers() if one.address == member.address), None
        )


@pytest.mark.proves("replication.failover.gates")
def test_a_follower_stores_nothing_and_names_the_leader(tmp_path: Path) -> None:
    with LocalCluster(members=3, folder=tmp_path) as cluster:
        leader = cluster.wait_for_leader()
        follower = next(one for one in cluster.brokers if one is not leader)
        with Producer("writers", cluster.namesrv) as producer:
            producer.send(Message(TOPIC, b"stored"))
        fields = {"topic": TOPIC, "queueId": "0", "producerGroup": "g", "sysFlag": "0"}
        fields |= {"defaultTopic": "TBW102", "defaultTopicQueueNums": "4", "bornTimestamp": "0"}
        for code in (RequestCode.SEND_MESSAGE, RequestCode.UPDATE_CONSUMER_OFFSET):
            fields |= {"consumerGroup": "g", "commitOffset": "1", "flag": "0", "properties": ""}
            answer = cluster.caller.call(follower.address, code, fields, b"refused")
            assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
            assert answer.fields["contrailLeader"] == leader.address
            assert "does not lead failover group" in str(answer.remark)


@pytest.mark.proves("replication.failover.in-doubt")
@pytest.mark.proves("replication.failover.local")
def test_a_send_to_a_leader_that_is_cut_off_is_in_doubt_and_never_refused(tmp_path: Path) -> None:
    with LocalCluster(members=3, folder=tmp_path) as cluster:
        former = cluster.wait_for_leader()
        with Producer("writers", cluster.namesrv) as producer:
            producer.send(Message(TOPIC, b"kept"))
            cluster.partition(former)
            answer = send_to(cluster, former, b"in doubt")
            assert answer.code == ResponseCode.SYSTEM_ERROR
            assert answer.fields["contrailInDoubt"] == "true"
            # It leads no more: nothing is appended, which is a refusal.
            answer = send_to(cluster, former, b"refused")
            assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
            cluster.wait_for_leader(besides=former)
            cluster.heal()
            eventually(lambda: are_level(cluster), "all members have the same")
        for member in cluster.brokers:
            assert stored_bodies(member) == [b"kept"]


@pytest.mark.proves("replication.failover.apache-view")
@pytest.mark.proves("replication.failover.transfer")
def test_the_leader_plays_the_controller_and_hands_over_when_it_is_asked(tmp_path: Path) -> None:
    with LocalCluster(members=3, folder=tmp_path) as cluster:
        leader, ask = cluster.wait_for_leader(), cluster.caller.call
        follower, other = (one for one in cluster.brokers if one is not leader)
        found = ask(follower.address, RequestCode.CONTROLLER_GET_METADATA_INFO).fields
        assert found["controllerLeaderAddress"] == leader.address
        assert found["controllerLeaderId"] == leader.self_id
        assert found["isLeader"] == "false" and found["group"] == leader.name
        assert f"{other.self_id}:127.0.0.1:{other.member_port}" in found["peers"]

        names = json.dumps([leader.name, "unknown"]).encode()
        code = RequestCode.CONTROLLER_GET_SYNC_STATE_DATA
        answer = ask(follower.address, code, {}, names)
        assert answer.code == ResponseCode.CONTROLLER_NOT_LEADER

        def replicas() -> dict[str, Any]:
            found = json.loads(ask(leader.address, code, {}, names).body)["replicasInfoTable"]
            assert list(found) == [leader.name]
            return dict(found)

        def are_in_sync() -> bool:
            in_sync = {one["brokerAddress"] for one in replicas()[leader.name]["inSyncReplicas"]}
            return in_sync == {one.address for one in cluster.brokers}

        # A member may be one record behind for a moment.
        eventually(are_in_sync, "all members are in sync")
        table = replicas()
        assert table[leader.name]["masterAddress"] == leader.address
        term = table[leader.name]["masterEpoch"]

        ids = {
            one["brokerAddress"]: one["brokerId"] for one in table[leader.name]["inSyncReplicas"]
        }
        fields = {"brokerName": leader.name, "brokerId": str(ids[follower.address])}
        code = RequestCode.CONTROLLER_ELECT_MASTER
        answer = ask(leader.address, code, {**fields, "brokerId": str(ids[leader.address])})
        assert answer.code == ResponseCode.CONTROLLER_MASTER_STILL_EXIST
        answer = ask(leader.address, code, {**fields, "brokerId": "9"})
        assert answer.code == ResponseCode.CONTROLLER_ELECT_MASTER_FAILED
        answer = ask(leader.address, code, fields)
        assert (answer.code, answer.fields["masterAddress"]) == (0, follower.address)
        assert int(answer.fields["masterEpoch"]) > term
        assert cluster.wait_for_leader(besides=leader) is follower

        epochs = json.loads(ask(other.address, RequestCode.GET_BROKER_EPOCH_CACHE).body)
        assert [one["epoch"] for one in epochs["epochList"]][-1] > term
        assert epochs["epochList"][0]["startOffset"] == 0
        info = ask(follower.address, RequestCode.CONTROLLER_GET_REPLICA_INFO, fields)
        assert info.fields["masterBrokerId"] == str(ids[follower.address])


@pytest.mark.proves("replication.failover.several")
def test_groups_of_two_names_stand_under_the_same_name_servers(tmp_path: Path) -> None:
    with LocalCluster(brokers=2, members=1, nameservers=2, folder=tmp_path) as cluster:
        leaders = [cluster.wait_for_leader(number) for number in (0, 1)]
        assert len({one.name for one in leaders}) == 2
        with Admin(cluster.namesrv) as admin:
            named = {one.broker_name: one.address for one in admin.brokers()}
        assert named == {one.name: one.address for one in leaders}
        for leader in leaders:
            answer = send_to(cluster, leader, b"x")
            assert answer.code == ResponseCode.SUCCESS


@pytest.mark.proves("replication.failover.rolling-restart")
def test_a_rolling_restart_hands_over_first_and_fails_no_send(tmp_path: Path) -> None:
    with LocalCluster(members=3, folder=tmp_path) as cluster:
        with Sending(cluster, "first") as first:
            first.goes_on()
            # The leader is among them, at least once.
            for member in cluster.brokers:
                member.stop()
                cluster.wait_for_leader()
                first.goes_on()
                member.start()
                cluster.wait_for_voters()
            first.goes_on()
        assert first.errors == []
        eventually(lambda: are_level(cluster), "all members have the same")
        acknowledged = {*first.acknowledged}
        for member in cluster.brokers:
            eventually(lambda at=member: acknowledged <= {*stored_bodies(at)}, "all is readable")
