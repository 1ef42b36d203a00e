"""A Contrail master with Contrail slaves: log and tables copied, statuses, reads after a kill."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from contrail.protocol.bodies.ha_status import HaStatus, decode_ha_status
from contrail.protocol.codes import CODE_CLASSES, RequestCode, ResponseCode
from contrail.testing import LocalBroker, LocalCluster, eventually
from tests.e2e.raw_client import RawClient, heartbeat, pull_fields, send_fields

SEND, PULL = RequestCode.SEND_MESSAGE_V2, RequestCode.PULL_MESSAGE
FOUND = ResponseCode.SUCCESS
READS = {"slaveReadEnable": "true"}


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    folder = tmp_path_factory.mktemp("pair")
    with LocalCluster(slaves=1, folder=folder, properties=READS) as cluster:
        caught_up(cluster)
        yield cluster


def status(cluster: LocalCluster, broker: LocalBroker) -> HaStatus:
    answer = cluster.caller.call(broker.address, RequestCode.GET_BROKER_HA_STATUS)
    assert answer.code == 0, answer.remark
    return decode_ha_status(answer.body)


def caught_up(cluster: LocalCluster, *, slaves: int = 1) -> None:
    """Until all slaves have acknowledged the end of the master's log."""
    master = cluster.brokers[0]
    eventually(
        lambda: (
            [one.lag_bytes for one in status(cluster, master).slaves if one.state == "receiving"]
            == [0] * slaves
        ),
        lambda: status(cluster, master),
    )


def send(broker: LocalBroker, body: bytes, *, topic: str = "orders", **changes: str) -> int:
    with RawClient(broker.port) as client:
        return client.call(SEND, send_fields(topic, **changes), body).code


def pulled(broker: LocalBroker, queue_offset: int, **changes: str) -> tuple[int, bytes]:
    with RawClient(broker.port) as client:
        fields = pull_fields("orders", queue_offset, suspendTimeoutMillis="0", **changes)
        answer = client.call(PULL, fields)
        return answer.code, answer.body


def log_of(broker: LocalBroker) -> bytes:
    files = sorted((broker.folder / "store" / "commitlog").iterdir())
    return b"".join(path.read_bytes() for path in files).rstrip(b"\0")


def test_a_slave_has_its_masters_log_byte_for_byte_and_serves_it(pair: LocalCluster) -> None:
    master, slave = pair.brokers[0], pair.slaves[0]
    for number in range(20):
        assert send(master, b"%d" % number) == 0
    caught_up(pair)
    assert log_of(master) == log_of(slave) != b""
    eventually(lambda: pulled(slave, 0)[0] == FOUND, "the slave serves the messages")
    assert pulled(slave, 0)[1] == pulled(master, 0)[1]


def test_topics_groups_and_offsets_of_the_master_reach_its_slave(pair: LocalCluster) -> None:
    master, slave = pair.brokers[0], pair.slaves[0]
    assert send(master, b"x") == 0
    with RawClient(master.port) as client:
        client.call(RequestCode.HEART_BEAT, {}, heartbeat("one@1", group="billing"))
        fields = {"consumerGroup": "billing", "topic": "orders", "queueId": "0"}
        committed = client.call(RequestCode.UPDATE_CONSUMER_OFFSET, {**fields, "commitOffset": "1"})
        assert committed.code == 0, committed.remark
    with RawClient(slave.port) as client:

        def known() -> bool:
            return client.call(RequestCode.QUERY_CONSUMER_OFFSET, fields).fields == {"offset": "1"}

        eventually(known, "the slave knows the offset")
        for code in (
            RequestCode.GET_ALL_TOPIC_CONFIG,
            RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
        ):
            here = pair.caller.call(master.address, code).body
            eventually(partial(has_body, client, code, here), f"{code.name} is answered alike")


def has_body(client: RawClient, code: int, body: bytes) -> bool:
    return client.call(code).body == body


def test_a_slave_does_not_make_up_an_offset(pair: LocalCluster) -> None:
    fields = {"consumerGroup": "nobody", "topic": "orders", "queueId": "0"}
    with RawClient(pair.slaves[0].port) as client:
        answer = client.call(RequestCode.QUERY_CONSUMER_OFFSET, fields)
        assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE


@pytest.mark.proves("replication.ground.role-gate")
def test_no_request_changes_the_log_or_the_tables_of_a_slave(pair: LocalCluster) -> None:
    """Every code of the protocol, with fields that a broker would act on."""
    slave = pair.slaves[0]
    assert send(pair.brokers[0], b"before") == 0
    caught_up(pair)
    before = eventually(
        lambda: held(slave) == held(pair.brokers[0]) and held(slave), "all is there"
    )
    own = {
        RequestCode.UPDATE_BROKER_CONFIG,
        # Told by a master, and by nobody else, where it is.
        RequestCode.EXCHANGE_BROKER_HA_INFO,
    }
    with RawClient(slave.port) as client:
        for code in CODE_CLASSES:
            if code not in own:
                client.call(code, every_field(), heartbeat("stranger@1", group="strangers"))
    assert held(slave) == before
    assert send(slave, b"no") == ResponseCode.SYSTEM_BUSY


def held(broker: LocalBroker) -> tuple[object, ...]:
    """Where the log ends, and the tables that a master gives its slaves."""
    app = broker.app
    assert app is not None
    tables = app.tables
    return (
        app.store.physical_end,
        dict(tables.topics.table.topics),
        tables.topics.table.data_version,
        dict(tables.groups.table.groups),
        tables.groups.table.data_version,
        {
            key: queues
            for key, queues in tables.consumer_offsets.snapshot().offsets.items()
            # Cursors of the broker's own are each broker's.
            if not key.endswith("@CID_RMQ_SYS_TRANS")
        },
    )


def every_field() -> dict[str, str]:
    """Fields of sends, commits, topics, groups and resets together."""
    return {
        **send_fields("made-by-a-slave"),
        **pull_fields("orders", 0, sysFlag="7", commitOffset="5", suspendTimeoutMillis="0"),
        "producerGroup": "producers",
        "defaultTopic": "TBW102",
        "defaultTopicQueueNums": "4",
        "readQueueNums": "4",
        "writeQueueNums": "4",
        "perm": "6",
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": "0",
        "order": "false",
        "group": "strangers",
        "groupName": "strangers",
        "srcGroup": "billing",
        "destGroup": "strangers",
        "offline": "true",
        "offset": "0",
        "timestamp": "0",
        "isForce": "true",
        "bornTimestamp": "1700000000000",
        "flag": "0",
        "properties": "",
        "delayLevel": "0",
        "originMsgId": "none",
    }


@pytest.mark.proves("replication.ground.role-gate")
def test_a_pull_at_a_slave_commits_nothing(pair: LocalCluster) -> None:
    slave = pair.slaves[0]
    assert send(pair.brokers[0], b"x") == 0
    caught_up(pair)
    changes = {"consumerGroup": "pullers", "sysFlag": "7", "commitOffset": "1"}
    eventually(lambda: pulled(slave, 0, **changes)[0] == FOUND, "the slave serves the pull")
    app = slave.app
    assert app is not None
    assert app.tables.consumer_offsets.of_group("pullers", "orders") == {}
    assert "orders@pullers" not in app.tables.consumer_offsets.pulled()


def test_a_pull_of_a_topic_that_the_slave_does_not_know_goes_back_to_the_master(
    pair: LocalCluster,
) -> None:
    with RawClient(pair.slaves[0].port) as client:
        answer = client.call(PULL, pull_fields("not made yet", 7))
        assert answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY
        assert answer.fields["suggestWhichBrokerId"] == "0"
        assert answer.fields["nextBeginOffset"] == "7"
        asked = {"topic": "not made yet", "queueId": "0", "timestamp": "0"}
        for code in (RequestCode.GET_MAX_OFFSET, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP):
            assert client.call(code, asked).code == ResponseCode.SERVICE_NOT_AVAILABLE


def test_pulls_are_refused_while_reads_are_off(tmp_path: Path) -> None:
    with LocalCluster(slaves=1, folder=tmp_path) as cluster:
        assert pulled(cluster.slaves[0], 0)[0] == ResponseCode.SYSTEM_BUSY


def test_a_single_broker_announces_no_ha_port_and_has_no_status(tmp_path: Path) -> None:
    with LocalCluster(folder=tmp_path) as cluster:
        answer = cluster.caller.call(cluster.brokers[0].address, RequestCode.GET_BROKER_HA_STATUS)
        assert answer.code == ResponseCode.SYSTEM_ERROR
        app = cluster.brokers[0].app
        assert app is not None
        assert app.registration._ha_address == ""


@pytest.mark.proves("replication.pair.synchronous")
@pytest.mark.parametrize("flush", ["SYNC_FLUSH", "ASYNC_FLUSH"])
def test_statuses_of_a_synchronous_master(tmp_path: Path, flush: str) -> None:
    properties = {
        "brokerRole": "SYNC_MASTER",
        "flushDiskType": flush,
        "slaveTimeout": "300",
        "haHousekeepingInterval": "600000",
    }
    with LocalCluster(
        slaves=1, folder=tmp_path, properties=properties, in_children=True
    ) as cluster:
        master, slave = cluster.brokers[0], cluster.slaves[0]
        caught_up(cluster)
        assert send(master, b"both have it") == 0
        assert status(cluster, master).slaves[0].lag_bytes == 0
        slave.pause()
        try:
            assert send(master, b"late") == ResponseCode.FLUSH_SLAVE_TIMEOUT
        finally:
            slave.resume()
        caught_up(cluster)
        assert send(master, b"again") == 0
        slave.stop()
        eventually(lambda: not status(cluster, master).slaves, "the slave is gone")
        assert send(master, b"alone") == ResponseCode.SLAVE_NOT_AVAILABLE
        slave.start()
        caught_up(cluster)
        assert send(master, b"together") == 0


@pytest.mark.proves("replication.pair.slave-reads")
def test_consumers_read_on_at_a_slave_after_its_master_was_killed(tmp_path: Path) -> None:
    properties = {**READS, "brokerRole": "SYNC_MASTER"}
    with LocalCluster(
        slaves=1, folder=tmp_path, properties=properties, in_children=True
    ) as cluster:
        master, slave = cluster.brokers[0], cluster.slaves[0]
        caught_up(cluster)
        for number in range(50):
            assert send(master, b"%d" % number) == 0
        expected = pulled(master, 0)[1]
        # A slave asks for its master's topics; one that it does not know yet is not served.
        eventually(lambda: pulled(slave, 0)[0] == FOUND, "the slave serves the messages")
        master.kill()
        assert pulled(slave, 0) == (FOUND, expected)
        master.start()
        caught_up(cluster)
        assert send(master, b"back") == 0
        eventually(lambda: pulled(slave, 50)[0] == FOUND, "the slave follows again")


def test_a_slave_that_is_restarted_as_a_master_has_every_message(tmp_path: Path) -> None:
    properties = {**READS, "brokerRole": "SYNC_MASTER", "flushDiskType": "SYNC_FLUSH"}
    with LocalCluster(
        slaves=1, folder=tmp_path, properties=properties, in_children=True
    ) as cluster:
        master, slave = cluster.brokers[0], cluster.slaves[0]
        caught_up(cluster)
        for number in range(30):
            assert send(master, b"%d" % number) == 0
        expected = pulled(master, 0)[1]
        master.kill()
        slave.kill()
        slave.broker_id = 0
        cluster.properties["brokerRole"] = "ASYNC_MASTER"
        slave.start()
        assert pulled(slave, 0)[1] == expected
        assert send(slave, b"promoted") == 0


@pytest.mark.proves("replication.pair.slave-reads")
def test_a_slave_sends_readers_back_to_a_live_master_and_keeps_them_without_one(
    tmp_path: Path,
) -> None:
    with LocalCluster(slaves=1, folder=tmp_path, properties=READS) as cluster:
        master, slave = cluster.brokers[0], cluster.slaves[0]
        caught_up(cluster)
        assert send(master, b"x") == 0
        caught_up(cluster)
        eventually(lambda: answer_of(slave, 0) == (FOUND, "0"), "the slave serves the pull")
        # Its own ends prove nothing: neither "nothing new" nor "moved" is said, nor another offset.
        for queue_offset in (1, 50):
            answer = answer_of(slave, queue_offset)
            assert answer == (ResponseCode.PULL_RETRY_IMMEDIATELY, "0")
            assert next_offset_of(slave, queue_offset) == queue_offset
        master.kill()
        eventually(lambda: answer_of(slave, 0) == (FOUND, "1"), "the slave knows that it is alone")
        for queue_offset in (1, 50):
            assert answer_of(slave, queue_offset) == (ResponseCode.PULL_NOT_FOUND, "1")
            assert next_offset_of(slave, queue_offset) == queue_offset


def next_offset_of(broker: LocalBroker, queue_offset: int) -> int:
    """Where a client that asks for this offset goes on."""
    with RawClient(broker.port) as client:
        fields = pull_fields("orders", queue_offset, sysFlag="4")
        return int(client.call(PULL, fields).fields["nextBeginOffset"])


def answer_of(broker: LocalBroker, queue_offset: int) -> tuple[int, str]:
    with RawClient(broker.port) as client:
        # Bit 1 of sysFlag would have the pull held.
        fields = pull_fields("orders", queue_offset, sysFlag="4")
        answer = client.call(PULL, fields)
        return answer.code, answer.fields.get("suggestWhichBrokerId", "")
