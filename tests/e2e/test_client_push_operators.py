"""A push consumer when operators and brokers interfere: resets, running info, restarts."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from contrail.client.admin import Admin
from contrail.client.consumed_message import ConsumedMessage
from contrail.client.message import Message
from contrail.client.producer import Producer
from contrail.errors import SendFailed
from contrail.testing import LocalCluster, eventually_async
from tests.e2e.push_setup import PATIENCE_S, Seen, consuming, fresh, send


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster() as running:
        yield running


@pytest.fixture
def namesrv(cluster: LocalCluster) -> str:
    return cluster.namesrv


@pytest.fixture
def topic() -> str:
    return fresh("orders")


@pytest.fixture
def group() -> str:
    return fresh("readers")


def numbers(count: int) -> list[str]:
    return [str(number) for number in range(count)]


@pytest.mark.parametrize("orderly", [False, True])
def test_a_group_that_is_reset_while_it_consumes_gets_all_messages_again(
    namesrv: str, topic: str, group: str, orderly: bool
) -> None:
    async def main() -> None:
        await send(namesrv, topic, numbers(12))
        seen = Seen()
        consumer = await consuming(namesrv, group, topic, seen, orderly=orderly)
        await seen.reach(12)
        async with Admin(namesrv) as admin:
            await admin.reset_to_begin(group, topic)
        await seen.reach(24)
        await consumer.close()
        assert sorted(seen.bodies) == sorted(numbers(12) * 2)

    asyncio.run(main())


def test_an_offset_beyond_the_end_is_corrected(namesrv: str, topic: str, group: str) -> None:
    async def main() -> None:
        async with Admin(namesrv) as admin:
            # A topic made by a send alone has its route a moment later.
            await admin.create_topic(topic, queues=4)
            await send(namesrv, topic, ["old"])
            queues = await admin.queues(topic)
            # The group must exist before it can have progress.
            first = await consuming(namesrv, group, topic, Seen())
            await first.close()
            for queue in queues:
                await admin.commit_offset(group, queue, 1_000)
        seen = Seen()
        consumer = await consuming(namesrv, group, topic, seen, rebalance_interval_ms=200)
        await eventually_async(lambda: all(place < 1_000 for place in places(consumer, topic)))
        await send(namesrv, topic, ["new"])
        await eventually_async(lambda: "new" in seen.bodies)
        await consumer.close()

    def places(consumer: object, topic: str) -> list[int]:
        table = consumer.consumer_status(topic)  # type: ignore[attr-defined]
        return list(table.values()) if len(table) == 4 else [1_000]

    asyncio.run(main())


def test_an_operator_sees_a_consumers_running_info_and_queues(
    namesrv: str, topic: str, group: str
) -> None:
    async def main() -> None:
        await send(namesrv, topic, numbers(4))
        seen = Seen()
        consumer = await consuming(namesrv, group, topic, seen)
        await seen.reach(4)
        # A message counts once its handler has returned.
        await eventually_async(lambda: sum(consumer.consumer_status(topic).values()) == 4)
        async with Admin(namesrv) as admin:
            info = await admin.running_info(group, consumer.client_id)
            status = await admin.consumer_status(group, topic)
        await consumer.close()
        assert {queue.topic for queue in info.queues} >= {topic}
        assert info.properties["PROP_CONSUMEORDERLY"] == "false"
        assert sum(status[consumer_id(status)].values()) == 4

    def consumer_id(status: dict[str, object]) -> str:
        (client_id,) = status
        return client_id

    asyncio.run(main())


def test_an_operator_may_hand_one_message_to_the_handler(
    namesrv: str, topic: str, group: str
) -> None:
    async def main() -> None:
        async with Producer(fresh("senders"), namesrv) as producer:
            receipt = await producer.send(Message(topic, b"x"))
        seen = Seen()
        consumer = await consuming(namesrv, group, topic, seen)
        await seen.reach(1)
        async with Admin(namesrv) as admin:
            result = await admin.consume_directly(
                group,
                consumer.client_id,
                await admin.message_by_offset_id(receipt.offset_message_id),
            )
        await consumer.close()
        assert seen.bodies == ["x", "x"]
        assert result.result == "CR_SUCCESS"

    asyncio.run(main())


def test_a_consumer_goes_on_after_its_broker_was_restarted(topic: str, group: str) -> None:
    async def main(cluster: LocalCluster) -> None:
        namesrv = cluster.namesrv
        await send(namesrv, topic, numbers(10))
        seen = Seen()

        async def handler(message: ConsumedMessage) -> None:
            await seen(message)
            await asyncio.sleep(0.001)

        consumer = await consuming(
            namesrv, group, topic, handler, pull_time_delay_ms_when_exception=100
        )
        await seen.reach(10)
        cluster.brokers[0].stop()
        cluster.brokers[0].start()
        await send_until_stored(namesrv, topic, "after")
        await eventually_async(lambda: "after" in seen.bodies)
        await consumer.close()
        assert set(seen.bodies) == {*numbers(10), "after"}

    async def send_until_stored(namesrv: str, topic: str, body: str) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while True:
                try:
                    await send(namesrv, topic, [body])
                    return
                except SendFailed:
                    await asyncio.sleep(0.1)

    with LocalCluster() as cluster:
        asyncio.run(main(cluster))
