"""Where new groups and new queues start, while every queue still has its first message."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from contrail.client.admin import Admin
from contrail.client.message import Message, MessageQueue
from contrail.client.producer import Producer
from contrail.client.pull_consumer import PullConsumer
from contrail.client.push_consumer import PushConsumer
from contrail.testing import LocalCluster, eventually_async
from tests.e2e.push_setup import Seen, fresh, send


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster() as running:
        yield running


async def make(namesrv: str, queues: int) -> str:
    topic = fresh("orders")
    async with Admin(namesrv) as admin:
        await admin.create_topic(topic, queues=queues)
    return topic


async def send_timed(namesrv: str, topic: str, *bodies: str) -> int:
    """Messages, and the time at which the last of them was stored."""
    async with Producer(fresh("senders"), namesrv) as producer:
        for body in bodies:
            await asyncio.sleep(0.005)
            receipt = await producer.send(Message(topic, body.encode()))
    async with Admin(namesrv) as admin:
        return (await admin.message_at(receipt.queue, receipt.queue_offset)).store_timestamp_ms


def starts(since_ms: int) -> dict[str, tuple[dict[str, Any], list[str]]]:
    return {
        "unless said": ({}, ["new"]),
        "last": ({"consume_from_where": "last"}, ["new"]),
        "first": ({"consume_from_where": "first"}, ["old", "since", "new"]),
        "timestamp": (
            {"consume_from_where": "timestamp", "consume_timestamp": since_ms},
            ["since", "new"],
        ),
    }


@pytest.mark.proves("client.start.consume-from-where")
def test_a_new_group_starts_at_consume_from_where(cluster: LocalCluster) -> None:
    async def main() -> None:
        namesrv = cluster.namesrv
        topic = await make(namesrv, 1)
        wanted = starts(await send_timed(namesrv, topic, "old", "since"))
        seen = {name: Seen() for name in wanted}
        consumers = []
        for name, (options, _) in wanted.items():
            consumer = PushConsumer(fresh("readers"), namesrv, **options)
            consumer.on_message(seen[name])
            await consumer.subscribe(topic)
            await consumer.start()
            consumers.append(consumer)
        await send(namesrv, topic, ["new"])
        for name, (_, bodies) in wanted.items():
            await eventually_async(lambda name=name: "new" in seen[name].bodies, name)
            assert seen[name].bodies == bodies, name
        for consumer in consumers:
            await consumer.close()

    asyncio.run(main())


def test_a_pull_consumer_starts_at_consume_from_where_too(cluster: LocalCluster) -> None:
    async def main() -> None:
        namesrv = cluster.namesrv
        topic = await make(namesrv, 1)
        wanted = starts(await send_timed(namesrv, topic, "old", "since"))
        for name, (options, bodies) in wanted.items():
            async with PullConsumer(fresh("readers"), namesrv, **options) as consumer:
                await consumer.subscribe(topic)
                await eventually_async(lambda one=consumer: one.assignment(), "a share")
                # An empty poll has the start offset settled: messages are fetched from there on.
                polled = await consumer.poll(300)
                texts = [one.body.decode() for one in polled]
                assert texts == [body for body in bodies if body != "new"], name

    asyncio.run(main())


@pytest.mark.proves("client.start.consume-from-where")
def test_queues_that_are_added_while_a_consumer_runs_lose_no_message(cluster: LocalCluster) -> None:
    async def main() -> None:
        namesrv = cluster.namesrv
        topic, later = await make(namesrv, 1), fresh("later")
        await send(namesrv, topic, ["old"])
        seen = Seen()
        consumer = PushConsumer(
            fresh("readers"), namesrv, consume_from_where="last", poll_name_server_interval_ms=500
        )
        consumer.on_message(seen)
        await consumer.subscribe(topic)
        await consumer.subscribe(later)
        await consumer.start()
        async with Admin(namesrv) as admin:
            await admin.create_topic(topic, queues=2)
            await admin.create_topic(later, queues=1)
        async with Producer(fresh("senders"), namesrv) as producer:
            await eventually_queues(producer, topic, 2)
            for queue in await producer.publish_queues(topic):
                text = f"queue {queue.queue_id}"
                await producer.send(Message(topic, text.encode()), queue=queue)
            await producer.send(Message(later, b"later"))
        await seen.reach(3)
        assert sorted(seen.bodies) == ["later", "queue 0", "queue 1"]
        await consumer.close()

    asyncio.run(main())


@pytest.mark.proves("client.start.consume-from-where")
def test_a_pull_consumer_loses_no_message_of_added_queues_whenever_it_subscribed(
    cluster: LocalCluster,
) -> None:
    async def main() -> None:
        namesrv = cluster.namesrv
        topic, later = await make(namesrv, 1), fresh("later")
        await send(namesrv, topic, ["old"])
        options: Any = {"consume_from_where": "last", "poll_name_server_interval_ms": 500}
        async with PullConsumer(fresh("readers"), namesrv, **options) as consumer:
            await consumer.subscribe(topic)
            await consumer.subscribe(later)
            await eventually_async(consumer.assignment, "a share")
            # An empty poll has the start offset of the first queue settled.
            assert await consumer.poll(300) == []
            async with Admin(namesrv) as admin, Producer(fresh("senders"), namesrv) as producer:
                await admin.create_topic(topic, queues=2)
                await admin.create_topic(later, queues=1)
                await eventually_queues(producer, topic, 2)
                for queue in await producer.publish_queues(topic):
                    text = f"queue {queue.queue_id}"
                    await producer.send(Message(topic, text.encode()), queue=queue)
                await producer.send(Message(later, b"later"))
            texts: list[str] = []
            async with asyncio.timeout(60):
                while len(texts) < 3:
                    texts += [one.body.decode() for one in await consumer.poll(500)]
            assert sorted(texts) == ["later", "queue 0", "queue 1"]

    asyncio.run(main())


async def eventually_queues(producer: Producer, topic: str, count: int) -> list[MessageQueue]:
    instance = producer._opened().instance
    async with asyncio.timeout(60):
        while True:
            route = await instance.refresh_route(topic)
            if len(route.write_queues) == count:
                return list(route.write_queues)
            await asyncio.sleep(0.05)
