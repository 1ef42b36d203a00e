"""A slave acts for its master: delayed, timed and transactional messages while that is away."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import pytest

from contrail.model.properties import encode_properties
from contrail.model.record import decode_record
from contrail.protocol.bodies.ha_status import ACTS_AS_MASTER, decode_ha_status
from contrail.protocol.bodies.routes import TopicRouteData
from contrail.protocol.codes import RequestCode, ResponseCode
from contrail.protocol.command import FLAG_ONE_WAY, Request, encode_request
from contrail.testing import LocalBroker, LocalCluster, eventually
from tests.e2e.raw_client import RawClient, heartbeat, pull_fields, send_fields
from tests.e2e.replica_waits import has_tables

TOPIC, GROUP = "orders", "payers"
COMMIT, ROLLBACK = 8, 12
REFUSED = ResponseCode.SERVICE_NOT_AVAILABLE
PLACE = {"consumerGroup": "readers", "topic": TOPIC, "queueId": "0"}
PROPERTIES = {
    "enableSlaveActingMaster": "true",
    "enableRemoteEscape": "true",
    "totalReplicas": "2",
    "slaveReadEnable": "true",
    "brokerHeartbeatInterval": "200",
    "syncBrokerMemberGroupPeriod": "200",
    "transactionTimeOut": "300",
    "transactionCheckInterval": "300",
    "messageDelayLevel": "1s 2s 4s",
    "defaultTopicQueueNums": "1",
}


class Crew(LocalCluster):
    """Two masters, ``broker-a`` and ``broker-b``, with a slave each."""

    def __init__(self, folder: Path) -> None:
        super().__init__(brokers=2, slaves=1, folder=folder, properties=PROPERTIES)
        self.sent_ms = 0

    @property
    def master(self) -> LocalBroker:
        return self.brokers[0]

    @property
    def slave(self) -> LocalBroker:
        return self.slaves[0]

    @property
    def other(self) -> LocalBroker:
        return self.brokers[1]

    def send(self, broker: LocalBroker, body: str, **properties: str) -> int:
        text = encode_properties({"UNIQ_KEY": body, **properties}).decode()
        self.sent_ms = self.clock.now_ms()
        half = {"f": "4"} if "TRAN_MSG" in properties else {}
        with RawClient(broker.port) as client:
            fields = send_fields(TOPIC, a=GROUP, i=text, g=str(self.sent_ms), **half)
            return client.call(RequestCode.SEND_MESSAGE_V2, fields, body.encode()).code

    def bodies(self, broker: LocalBroker) -> list[str]:
        """Everything that consumers of the broker can read."""
        found: list[str] = []
        with RawClient(broker.port) as client:
            while True:
                fields = pull_fields(TOPIC, len(found), sysFlag="4")
                answer = client.call(RequestCode.PULL_MESSAGE, fields)
                if answer.code != ResponseCode.SUCCESS:
                    return found
                body = answer.body
                while body:
                    size = int.from_bytes(body[:4], "big")
                    found.append(decode_record(body[:size]).body.decode())
                    body = body[size:]

    def everywhere(self) -> Counter[str]:
        """How often each message stands in the masters' queues."""
        return Counter(self.bodies(self.master)) + Counter(self.bodies(self.other))

    def slave_and_other(self) -> Counter[str]:
        return Counter(self.bodies(self.slave)) + Counter(self.bodies(self.other))

    def lock(self, broker: LocalBroker) -> int:
        """Ask for the topic's queue; the answer must list it."""
        queue = {"topic": TOPIC, "brokerName": "broker-a", "queueId": 0}
        body = {"consumerGroup": "readers", "clientId": "one@1", "mqSet": [queue]}
        with RawClient(broker.port) as client:
            client.call(RequestCode.HEART_BEAT, {}, heartbeat("one@1"))
            answer = client.call(RequestCode.LOCK_BATCH_MQ, {}, json.dumps(body).encode())
        assert answer.code or json.loads(answer.body)["lockOKMQSet"] == [queue]
        return answer.code

    def commit(self, broker: LocalBroker, consumer_offset: int) -> int:
        fields = {**PLACE, "commitOffset": str(consumer_offset)}
        with RawClient(broker.port) as client:
            return client.call(RequestCode.UPDATE_CONSUMER_OFFSET, fields).code

    def slave_offset(self) -> str:
        with RawClient(self.slave.port) as client:
            answer = client.call(RequestCode.QUERY_CONSUMER_OFFSET, PLACE)
        return answer.fields.get("offset", "")

    def route(self) -> tuple[dict[int, str], int]:
        """Where clients find ``broker-a``, and what they may do there."""
        fields = {"topic": TOPIC, "acceptStandardJsonOnly": "true"}
        server = self.nameservers[0].address
        answer = self.caller.call(server, RequestCode.GET_ROUTEINFO_BY_TOPIC, fields)
        route = TopicRouteData.decode(answer.body)
        [broker] = [one for one in route.brokers if one.broker_name == "broker-a"]
        [queues] = [one for one in route.queues if one.broker_name == "broker-a"]
        return dict(broker.addresses), queues.perm

    def slave_is_level(self) -> bool:
        answer = self.caller.call(self.master.address, RequestCode.GET_BROKER_HA_STATUS)
        return [link.lag_bytes for link in decode_ha_status(answer.body).slaves] == [0]

    def acts(self) -> bool:
        app = self.slave.app
        assert app is not None
        status = app.replicas.status()
        assert status is not None
        return status.acting == ACTS_AS_MASTER

    def away(self, *, is_killed: bool = True) -> None:
        """End the master, once the slave has everything; the slave acts then."""
        eventually(self.slave_is_level, "the slave has everything")
        if is_killed:
            self.master.kill()
        else:
            self.master.stop()
        eventually(self.acts, "the slave acts as master")


class Decider:
    """A producer at the other broker that answers questions by the message's name."""

    def __init__(self, port: int) -> None:
        self._client = RawClient(port)
        body = {"clientID": "p1", "producerDataSet": [{"groupName": GROUP}]}
        self._client.call(RequestCode.HEART_BEAT, {}, json.dumps(body).encode())
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._is_over.is_set():
            if self._client.has_news():
                frame = self._client.next_frame()
                if isinstance(frame, Request) and frame.code == RequestCode.CHECK_TRANSACTION_STATE:
                    self._answer(frame)

    def _answer(self, question: Request) -> None:
        named = ("tranStateTableOffset", "commitLogOffset", "msgId", "transactionId")
        fate = COMMIT if question.fields["transactionId"].startswith("commit") else ROLLBACK
        fields = {
            **{name: question.fields[name] for name in named},
            "producerGroup": GROUP,
            "commitOrRollback": str(fate),
            "fromTransactionCheck": "true",
        }
        end = Request(RequestCode.END_TRANSACTION, 0, fields, flag=FLAG_ONE_WAY)
        self._client.send(encode_request(end))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()
        self._client.close()


@pytest.fixture
def crew(tmp_path: Path) -> Iterator[Crew]:
    with Crew(tmp_path) as cluster:
        for server in cluster.nameservers:
            body = b"supportActingMaster=true\n"
            answer = cluster.caller.call(
                server.address, RequestCode.UPDATE_NAMESRV_CONFIG, None, body
            )
            assert answer.code == ResponseCode.SUCCESS
        # The topic is created by its first message, on both.
        for broker in cluster.brokers:
            assert cluster.send(broker, f"first at {broker.name}") == ResponseCode.SUCCESS
        yield cluster


@pytest.mark.proves("replication.pair.acting-master")
@pytest.mark.parametrize("is_killed", [True, False], ids=["killed", "stopped"])
def test_waiting_messages_are_delivered_once_while_the_master_is_away_and_after_its_return(
    crew: Crew, *, is_killed: bool
) -> None:
    due_ms = crew.clock.now_ms() + 2000
    for number in range(5):
        assert crew.send(crew.master, f"delayed {number}", DELAY="2") == 0
        assert crew.send(crew.master, f"timed {number}", TIMER_DELIVER_MS=str(due_ms)) == 0
    for half in ("commit 0", "back 0", "commit 1", "back 1"):
        assert crew.send(crew.master, half, TRAN_MSG="true", PGROUP=GROUP) == 0
    assert crew.send(crew.master, "later", DELAY="3") == 0
    crew.away(is_killed=is_killed)
    waited = {f"{kind} {number}" for kind in ("delayed", "timed") for number in range(5)}
    escaped = {*waited, "commit 0", "commit 1"}
    with Decider(crew.other.port):
        eventually(lambda: set(crew.bodies(crew.other)) >= escaped, lambda: crew.bodies(crew.other))
        delayed = [name for name in crew.bodies(crew.other) if name.startswith("delayed")]
        assert delayed == sorted(delayed), "the order of a level is kept"
        crew.master.start()
        assert not crew.acts()
        assert crew.send(crew.master, "after", DELAY="1") == 0
        eventually(lambda: {"after", "later"} <= set(crew.everywhere()), crew.everywhere)
    assert crew.everywhere() == Counter(
        {*escaped, "first at broker-a", "first at broker-b", "later", "after"}
    )


@pytest.mark.proves("replication.pair.acting-master")
def test_nothing_comes_twice_over_a_restart_of_the_slave_and_a_second_absence(crew: Crew) -> None:
    for number in range(3):
        assert crew.send(crew.master, f"delayed {number}", DELAY="1") == 0
    assert crew.send(crew.master, "commit 0", TRAN_MSG="true", PGROUP=GROUP) == 0
    expected = {"first at broker-b", "commit 0", *(f"delayed {number}" for number in range(3))}
    with Decider(crew.other.port):
        crew.away()
        eventually(lambda: set(crew.bodies(crew.other)) >= expected, "the other broker has all")
        crew.slave.stop()
        crew.slave.start()
        eventually(crew.acts, "the slave acts again")
        crew.master.start()
        assert crew.send(crew.master, "second", DELAY="1") == 0
        crew.away()
        expected.add("second")
        eventually(lambda: "second" in crew.slave_and_other(), crew.slave_and_other)
        crew.master.start()
    assert crew.everywhere() == Counter({*expected, "first at broker-a"})


@pytest.mark.proves("replication.pair.acting-master")
def test_consumers_find_their_locks_and_offsets_at_the_slave_and_again_at_the_master(
    crew: Crew,
) -> None:
    assert [crew.lock(crew.slave), crew.commit(crew.slave, 1)] == [REFUSED, REFUSED]
    assert crew.lock(crew.master) == crew.commit(crew.master, 1) == 0
    eventually(
        lambda: crew.slave_offset() == "1" and has_tables(crew.caller, crew.master, crew.slave),
        "the slave knows the group and its offset",
    )
    crew.away()
    eventually(lambda: crew.route() == ({0: crew.slave.address}, 4), crew.route)
    assert crew.lock(crew.slave) == crew.commit(crew.slave, 3) == 0
    assert crew.send(crew.slave, "no") == REFUSED
    crew.master.start()
    with RawClient(crew.master.port) as client:
        found = client.call(RequestCode.QUERY_CONSUMER_OFFSET, PLACE)
    assert found.fields == {"offset": "3"}
    whole = {0: crew.master.address, 1: crew.slave.address}
    eventually(lambda: crew.route() == (whole, 6), crew.route)
    eventually(lambda: crew.lock(crew.slave) == REFUSED, "the slave lends no queue any more")


@pytest.mark.proves("replication.pair.acting-master")
def test_without_remote_escape_what_is_due_waits_for_the_master(crew: Crew) -> None:
    crew.slave.stop()
    crew.slave.own_properties["enableRemoteEscape"] = "false"
    crew.slave.start()
    assert crew.send(crew.master, "delayed", DELAY="1") == 0
    crew.away()
    eventually(lambda: crew.clock.now_ms() > crew.sent_ms + 1200, "the message is due")
    assert "delayed" not in crew.bodies(crew.other)
    crew.master.start()
    eventually(lambda: "delayed" in crew.bodies(crew.master), "the master delivers it")
    assert crew.everywhere()["delayed"] == 1
