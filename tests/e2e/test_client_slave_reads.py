"""Our consumers go on at a slave when its master is gone, and return to the master."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from contrail.client.admin import Admin
from contrail.client.message import MessageQueue
from contrail.client.pull_consumer import PullConsumer
from contrail.errors import ClientError
from contrail.protocol.codes import RequestCode
from contrail.testing import LocalCluster, eventually_async
from tests.e2e.asking import offset_fields
from tests.e2e.push_setup import Seen, consuming, make_topic, send
from tests.e2e.replica_waits import wait_for_slave

TOPIC, GROUP = "orders", "billing"
FIRST, WAITING, LATER = 10, 30, 5
DEADLINE_S = 200
QUICK = {"poll_name_server_interval_ms": 100, "heartbeat_broker_interval_ms": 500}
PROPERTIES = {"brokerRole": "SYNC_MASTER", "slaveReadEnable": "true"}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    with LocalCluster(slaves=1, folder=tmp_path, properties=PROPERTIES) as running:
        yield running


def bodies(first: int, count: int) -> list[str]:
    return [f"order {number}" for number in range(first, first + count)]


async def committed(cluster: LocalCluster) -> int:
    """The group's progress at the master, over all queues."""
    async with Admin(cluster.namesrv) as admin:
        found = await admin.committed_offsets(GROUP, TOPIC)
    return sum(each or 0 for each in found.values())


def known_to_slave(cluster: LocalCluster, queue_id: int) -> int:
    answer = cluster.caller.call(
        cluster.slaves[0].address,
        RequestCode.QUERY_CONSUMER_OFFSET,
        {**offset_fields(GROUP, TOPIC), "queueId": str(queue_id)},
    )
    return int(answer.fields.get("offset", "0"))


async def slave_knows(cluster: LocalCluster, count: int) -> None:
    """Until the group's progress has reached the slave."""
    await eventually_async(
        lambda: sum(known_to_slave(cluster, queue_id) for queue_id in range(4)) == count,
        "the slave knows the group's progress",
    )


@pytest.mark.proves("replication.pair.slave-reads")
def test_a_push_consumer_starts_at_the_slave_and_returns_to_the_master(
    cluster: LocalCluster,
) -> None:
    async def story() -> None:
        namesrv, master = cluster.namesrv, cluster.brokers[0]
        await make_topic(namesrv, TOPIC)
        await send(namesrv, TOPIC, bodies(0, FIRST))
        before = Seen()
        consumer = await consuming(namesrv, GROUP, TOPIC, before, **QUICK)
        await before.reach(FIRST)
        await consumer.close()
        await slave_knows(cluster, FIRST)
        await send(namesrv, TOPIC, bodies(FIRST, WAITING))
        await asyncio.to_thread(wait_for_slave, cluster)
        await asyncio.to_thread(master.kill)

        seen = Seen()
        consumer = await consuming(namesrv, GROUP, TOPIC, seen, **QUICK)
        try:
            await seen.reach(WAITING)
            assert sorted(seen.bodies) == sorted(bodies(FIRST, WAITING))
            await asyncio.to_thread(master.start)
            await send(namesrv, TOPIC, bodies(FIRST + WAITING, LATER))
            await seen.reach(WAITING + LATER)
            # Without a slave only the master can serve the rest.
            await asyncio.to_thread(cluster.slaves[0].stop)
            await send(namesrv, TOPIC, bodies(FIRST + WAITING + LATER, LATER))
            await seen.reach(WAITING + 2 * LATER)
        finally:
            await consumer.close()
        assert sorted(seen.bodies) == sorted(bodies(FIRST, WAITING + 2 * LATER))
        # Messages read at the slave count at the master.
        assert await committed(cluster) == FIRST + WAITING + 2 * LATER

    asyncio.run(asyncio.wait_for(story(), DEADLINE_S))


async def begun_again(consumer: PullConsumer, queues: list[MessageQueue]) -> bool:
    """Seek to the first message; not possible until the client knows that the master is gone."""
    try:
        for queue in queues:
            await consumer.seek(queue, 0)
    except ClientError:
        return False
    return True


async def polled(consumer: PullConsumer, count: int) -> list[str]:
    found: list[str] = []
    while len(found) < count:
        found.extend(one.body.decode() for one in await consumer.poll(timeout_ms=200))
    return found


@pytest.mark.proves("replication.pair.slave-reads")
def test_a_running_pull_consumer_reads_again_at_the_slave(cluster: LocalCluster) -> None:
    async def story() -> None:
        namesrv, master = cluster.namesrv, cluster.brokers[0]
        await make_topic(namesrv, TOPIC)
        await send(namesrv, TOPIC, bodies(0, WAITING))
        async with PullConsumer(GROUP, namesrv, **QUICK) as consumer:
            queues = await consumer.fetch_queues(TOPIC)
            await consumer.assign(queues)
            for queue in queues:
                await consumer.seek(queue, 0)
            assert sorted(await polled(consumer, WAITING)) == sorted(bodies(0, WAITING))
            await asyncio.to_thread(wait_for_slave, cluster)
            await asyncio.to_thread(master.kill)
            await eventually_async(lambda: begun_again(consumer, queues), "the slave is asked")
            assert sorted(await polled(consumer, WAITING)) == sorted(bodies(0, WAITING))
            await asyncio.to_thread(master.start)
            await asyncio.to_thread(cluster.slaves[0].stop)
            await send(namesrv, TOPIC, bodies(WAITING, LATER))
            assert sorted(await polled(consumer, LATER)) == sorted(bodies(WAITING, LATER))
            await consumer.commit()
        assert await committed(cluster) == WAITING + LATER

    asyncio.run(asyncio.wait_for(story(), DEADLINE_S))
