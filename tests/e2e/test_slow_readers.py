"""Readers far behind the master's memory read at the slave that their group names, and return."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from contrail.protocol.codes import RequestCode, ResponseCode
from contrail.testing import LocalBroker, LocalCluster, eventually
from tests.e2e.push_setup import Seen, consuming, make_topic
from tests.e2e.raw_client import RawClient, pull_fields, send_fields
from tests.e2e.replica_waits import wait_for_slave

TOPIC, GROUP = "orders", "billing"
COUNT = 40
# Of this 40 % count: what lies further behind the end has probably left memory.
MEMORY_BYTES = 50_000
READS = {"slaveReadEnable": "true"}


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalCluster]:
    """Brokers with little memory, and a topic that does not fit into it."""
    monkeypatch.setattr("contrail.broker.app.memory_bytes", lambda: MEMORY_BYTES)
    with LocalCluster(slaves=1, folder=tmp_path, properties=READS) as cluster:
        asyncio.run(make_topic(cluster.namesrv, TOPIC))
        with RawClient(cluster.brokers[0].port) as client:
            for number in range(COUNT):
                body = (b"order %d" % number).ljust(2_000)
                assert client.call(RequestCode.SEND_MESSAGE_V2, send_fields(TOPIC), body).code == 0
        set_group(cluster, slave=1)
        for broker in (cluster.brokers[0], cluster.slaves[0]):
            sweep(cluster, broker)
        yield cluster


def set_group(cluster: LocalCluster, *, slave: int) -> None:
    settings = {"groupName": GROUP, "brokerId": 0, "whichBrokerWhenConsumeSlowly": slave}
    with RawClient(cluster.brokers[0].port) as client:
        code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
        assert client.call(code, {}, json.dumps(settings).encode()).code == 0
    wait_for_slave(cluster)


def sweep(cluster: LocalCluster, broker: LocalBroker) -> None:
    """Have the broker see that its log does not fit its memory; else it looks every few seconds."""
    assert broker.app is not None
    pulls = broker.app.pulls

    async def on_loop() -> None:
        pulls.sweep(0)

    cluster.run(on_loop())
    assert not pulls.log_fits_memory


def suggested(broker: LocalBroker, queue_offset: int) -> tuple[int, str]:
    """The code of an answer to a pull, and the broker that it names for the next one."""
    with RawClient(broker.port) as client:
        fields = pull_fields(TOPIC, queue_offset, consumerGroup=GROUP, sysFlag="4")
        answer = client.call(RequestCode.PULL_MESSAGE, fields)
        return answer.code, answer.fields["suggestWhichBrokerId"]


@pytest.mark.proves("replication.pair.slave-reads")
def test_the_group_names_where_its_slow_readers_go_and_those_at_the_end_return(
    pair: LocalCluster,
) -> None:
    master, slave = pair.brokers[0], pair.slaves[0]
    found = ResponseCode.SUCCESS
    assert suggested(master, 0) == (found, "1")
    assert suggested(master, COUNT - 1) == (found, "0")
    eventually(lambda: suggested(slave, 0)[0] == found, "the slave serves the topic")
    assert suggested(slave, 0) == (found, "1"), "a slow reader stays although the master is alive"
    assert suggested(slave, COUNT - 1) == (found, "0")
    set_group(pair, slave=2)
    assert suggested(master, 0) == (found, "2")


@pytest.mark.proves("replication.pair.slave-reads")
def test_without_slave_reads_everything_is_read_at_the_master(pair: LocalCluster) -> None:
    master, slave = pair.brokers[0], pair.slaves[0]
    off = b"slaveReadEnable=false"
    for broker in (master, slave):
        with RawClient(broker.port) as client:
            assert client.call(RequestCode.UPDATE_BROKER_CONFIG, {}, off).code == 0
    assert suggested(master, 0) == (ResponseCode.SUCCESS, "0")
    with RawClient(slave.port) as client:
        fields = pull_fields(TOPIC, 0, consumerGroup=GROUP, sysFlag="4")
        assert client.call(RequestCode.PULL_MESSAGE, fields).code == ResponseCode.SYSTEM_BUSY


@pytest.mark.proves("replication.pair.slave-reads")
def test_our_consumer_reads_the_backlog_at_the_slave_and_what_is_new_at_the_master(
    pair: LocalCluster,
) -> None:
    slave = pair.slaves[0]
    assert slave.app is not None
    ways = slave.app.ways

    async def story() -> None:
        seen = Seen()
        # In small parts: the first answer is still the master's.
        consumer = await consuming(pair.namesrv, GROUP, TOPIC, seen, pull_batch_size=2)
        try:
            await seen.reach(COUNT)
            assert ways.pull_general > 0, "the slave was read"
            assert len(seen.bodies) == COUNT
            # Without a slave only the master can serve the rest.
            await asyncio.to_thread(slave.stop)
            with RawClient(pair.brokers[0].port) as client:
                assert (
                    client.call(RequestCode.SEND_MESSAGE_V2, send_fields(TOPIC), b"new").code == 0
                )
            await seen.reach(COUNT + 1)
        finally:
            await consumer.close()

    asyncio.run(asyncio.wait_for(story(), 100))
