"""Our consumers pop: queues given by the broker, renewal, retries, dead letters, handlers."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections import Counter
from collections.abc import Iterator

import pytest

from contrail import Message, PopConsumer, Producer, PushConsumer, aio
from contrail.client.consumed_message import ConsumedMessage
from contrail.client.popping import PoppedMessage
from contrail.errors import ConfigError
from contrail.protocol.codes import RequestCode
from contrail.testing import LocalCluster, eventually
from tests.e2e.asking import Asker

TOPIC = "orders"


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(properties={"contrailPopGraceMs": "0"}) as cluster:
        yield cluster


@pytest.fixture
def topic(cluster: LocalCluster, request: pytest.FixtureRequest) -> str:
    name = f"orders-{abs(hash(request.node.name)) % 10**8}"
    Asker(cluster).make_topic(name)
    return name


def send(cluster: LocalCluster, topic: str, count: int) -> set[bytes]:
    bodies = {b"%d" % number for number in range(count)}
    with Producer("senders", cluster.namesrv) as producer:
        for body in sorted(bodies):
            producer.send(Message(topic, body))
    return bodies


def in_flight(cluster: LocalCluster, group: str, topic: str) -> int:
    app = cluster.brokers[0].app
    assert app is not None
    return app.kinds.pop.pops.table.in_flight(group, topic)


def set_mode(cluster: LocalCluster, topic: str, group: str, share: int) -> None:
    wanted = {"topic": topic, "consumerGroup": group, "mode": "POP", "popShareQueueNum": share}
    body = json.dumps(wanted).encode()
    Asker(cluster).done(RequestCode.SET_MESSAGE_REQUEST_MODE, {}, body)


@pytest.mark.proves("kinds.pop.push-consumer")
def test_more_members_than_queues_share_a_topic_and_each_message_comes_once(
    cluster: LocalCluster, topic: str
) -> None:
    group = f"G{topic}"
    Asker(cluster).make_group(group)
    set_mode(cluster, topic, group, 0)
    came: Counter[bytes] = Counter()
    members: list[PushConsumer] = []
    for number in range(2):
        member = PushConsumer(
            group, cluster.namesrv, pop=True, consume_from_where="first", instance_name=f"m{number}"
        )
        member.subscribe(topic)

        @member.on_message
        def handle(message: ConsumedMessage) -> None:
            came[message.body] += 1
            time.sleep(0.005)

        members.append(member)
    try:
        for member in members:
            member.start()
        assert [queue.queue_id for queue in members[0].assigned_queues()] == [-1]
        bodies = send(cluster, topic, 60)
        eventually(lambda: bodies == set(came), lambda: f"{came}")
        eventually(lambda: in_flight(cluster, group, topic) == 0, "all are acknowledged")
    finally:
        for member in members:
            member.close()
    assert set(came.values()) == {1}


@pytest.mark.proves("kinds.pop.push-consumer")
def test_a_long_handler_is_renewed_and_a_failed_one_tried_again(
    cluster: LocalCluster, topic: str
) -> None:
    async def story() -> None:
        group = f"G{topic}"
        attempts: list[int] = []
        consumer = aio.PushConsumer(
            group, cluster.namesrv, pop=True, consume_from_where="first",
            pop_invisible_time_ms=2_000, max_reconsume_times=1, consume_thread_max=1,
        )  # fmt: skip

        @consumer.on_message
        async def handle(message: aio.ConsumedMessage) -> None:
            attempts.append(message.reconsume_times)
            if message.reconsume_times == 0:
                await asyncio.sleep(3.5)
                await message.later(0.2)
                return
            raise OSError("this one fails for good")

        await consumer.subscribe(topic)
        async with consumer:
            await asyncio.to_thread(send, cluster, topic, 1)
            async with asyncio.timeout(20):
                while in_flight(cluster, group, topic) or len(attempts) < 2:
                    await asyncio.sleep(0.05)
                retry = f"%RETRY%{group}_{topic}"
                while in_flight(cluster, group, retry):
                    await asyncio.sleep(0.05)
        assert attempts == [0, 1], "while its handler works it comes to nobody"
        app = cluster.brokers[0].app
        assert app is not None
        dead = f"%DLQ%{group}".encode()
        assert app.store.queue_offset_max(dead, 0) == 1, "after its last try it is a dead letter"

    asyncio.run(story())


@pytest.mark.proves("kinds.pop.push-consumer")
def test_a_closed_consumer_leaves_its_messages_to_others(cluster: LocalCluster, topic: str) -> None:
    group = f"G{topic}"
    send(cluster, topic, 10)
    begun, end = threading.Event(), threading.Event()
    consumer = PushConsumer(
        group, cluster.namesrv, pop=True, consume_from_where="first", consume_thread_max=1
    )
    consumer.subscribe(topic)

    @consumer.on_message
    def handle(message: ConsumedMessage) -> None:
        begun.set()
        end.wait(10)

    with consumer:
        begun.wait(10)
        closing = threading.Thread(target=consumer.close)
        closing.start()
        end.set()
        closing.join()
    with PopConsumer(group, cluster.namesrv) as other:
        other.subscribe(topic)
        found: list[PoppedMessage] = []
        eventually(
            lambda: found.extend(other.receive(timeout_ms=200)) or len(found) >= 9,
            lambda: f"{len(found)} of 9 came",
        )
        other.ack(*found)
    assert len(found) == 9, "one was handled"


@pytest.mark.proves("kinds.pop.client")
@pytest.mark.parametrize("kind", ["threads", "asyncio"])
def test_handlers_of_a_pop_consumer_are_renewed_and_retried(
    cluster: LocalCluster, topic: str, kind: str
) -> None:
    group = f"G{topic}"
    bodies = send(cluster, topic, 8)
    came: Counter[bytes] = Counter()

    def handle(message: PoppedMessage) -> None:
        came[message.body] += 1
        if message.body == b"3":
            time.sleep(2.2)

    async def handle_async(message: PoppedMessage) -> None:
        came[message.body] += 1
        if message.body == b"3":
            await asyncio.sleep(2.2)

    options = {"consume_from_where": "first", "pop_invisible_time_ms": 1_000}
    if kind == "threads":
        with PopConsumer(group, cluster.namesrv, **options) as consumer:  # type: ignore[arg-type]
            consumer.subscribe(topic)
            running = threading.Thread(target=consumer.run, args=(handle,))
            running.start()
            eventually(lambda: set(came) == bodies, lambda: f"{came}")
            eventually(lambda: in_flight(cluster, group, topic) == 0, "all are acknowledged")
        running.join()
    else:

        async def story() -> None:
            async with aio.PopConsumer(group, cluster.namesrv, **options) as consumer:  # type: ignore[arg-type]
                await consumer.subscribe(topic)
                running = asyncio.create_task(consumer.run(handle_async))
                async with asyncio.timeout(20):
                    while set(came) != bodies or in_flight(cluster, group, topic):
                        await asyncio.sleep(0.05)
            await running

        asyncio.run(story())
    assert came == Counter(dict.fromkeys(bodies, 1)), "a renewed message comes to nobody else"


def test_settings_that_exclude_each_other_are_named() -> None:
    with pytest.raises(ConfigError, match="orderly"):
        PushConsumer("g", "127.0.0.1:1", pop=True, orderly=True)
    with pytest.raises(ConfigError, match="pop_batch_nums=33"):
        PushConsumer("g", "127.0.0.1:1", pop_batch_nums=33)
