"""The Python pop consumer against real brokers: receives, acknowledges, extends and releases."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import pytest

from contrail import Message, PopConsumer, Producer, aio
from contrail.client.popping import PoppedMessage
from contrail.errors import ClientClosed, ClientError
from contrail.testing import LocalCluster, eventually
from tests.e2e.push_setup import fresh

SETTINGS = {"contrailPopGraceMs": "100"}


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(brokers=2, properties=SETTINGS) as cluster:
        yield cluster


def fill(cluster: LocalCluster, topic: str, count: int) -> set[bytes]:
    bodies = {f"{number}".encode() for number in range(count)}
    with Producer(group="shop", namesrv=cluster.namesrv) as producer:
        for body in sorted(bodies):
            producer.send(Message(topic, body, tags="even" if int(body) % 2 == 0 else "odd"))
    return bodies


def open_count(cluster: LocalCluster, group: str, topic: str) -> int:
    apps = [broker.app for broker in cluster.brokers]
    return sum(app.kinds.pop.pops.table.in_flight(group, topic) for app in apps if app is not None)


@pytest.mark.proves("kinds.pop.client")
def test_members_receive_and_acknowledge_each_message_once(cluster: LocalCluster) -> None:
    topic, group = fresh("orders"), fresh("billing")
    sent = fill(cluster, topic, 40)
    found: list[PoppedMessage] = []
    options = {"consume_from_where": "first"}
    with (
        PopConsumer(group, cluster.namesrv, instance_name="a", **options) as one,  # type: ignore[arg-type]
        PopConsumer(group, cluster.namesrv, instance_name="b", **options) as two,  # type: ignore[arg-type]
    ):
        one.subscribe(topic)
        two.subscribe(topic)
        while len(found) < len(sent):
            for consumer in (one, two):
                batch = consumer.receive(count_max=5, timeout_ms=200)
                consumer.ack(*batch)
                found += batch
        assert one.receive(timeout_ms=50) == []
    assert sorted(message.body for message in found) == sorted(sent)
    assert {message.attempt for message in found} == {1}
    assert {message.queue.broker_name for message in found} == {"broker-a", "broker-b"}
    assert open_count(cluster, group, topic) == 0


@pytest.mark.proves("kinds.pop.client")
def test_released_messages_come_again_and_extended_ones_do_not(cluster: LocalCluster) -> None:
    topic, group = fresh("orders"), fresh("billing")
    fill(cluster, topic, 4)

    async def work() -> None:
        async with aio.PopConsumer(
            group, cluster.namesrv, consume_from_where="first", pop_invisible_time_ms=2_000
        ) as consumer:
            await consumer.subscribe(topic, "even")
            found: list[PoppedMessage] = []
            while len(found) < 2:
                found += await consumer.receive(timeout_ms=5_000)
            kept, released = found
            old = kept.receipt
            await consumer.extend(kept, 60_000)
            assert kept.receipt != old and kept.visible_ms > old.pop_time_ms + 50_000
            await consumer.release(released)
            again: list[PoppedMessage] = []
            deadline_s = time.monotonic() + 30
            while not again and time.monotonic() < deadline_s:
                again = await consumer.receive(timeout_ms=1_000)
            assert [one.body for one in again] == [released.body]
            assert (again[0].attempt, again[0].topic) == (2, topic)
            await consumer.ack(kept, *again)
            with pytest.raises(ClientError):
                await consumer.extend(kept, -1)

    asyncio.run(work())
    assert open_count(cluster, group, topic) == 0


@pytest.mark.proves("kinds.pop.client")
def test_messages_popped_ahead_are_free_again_after_the_close(cluster: LocalCluster) -> None:
    topic, group = fresh("orders"), fresh("billing")
    sent = fill(cluster, topic, 12)
    with PopConsumer(group, cluster.namesrv, consume_from_where="first") as first:
        first.subscribe(topic)
        # Both brokers are asked for three each, and one answer is kept.
        got = first.receive(count_max=3, timeout_ms=10_000)
        first.ack(*got)
        time.sleep(0.2)
        got += (more := first.receive(count_max=1, timeout_ms=10_000))
        first.ack(*more)
    eventually(lambda: open_count(cluster, group, topic) == 0, "the rest is visible again")
    with PopConsumer(group, cluster.namesrv, consume_from_where="first") as second:
        second.subscribe(topic)
        while len({one.body for one in got}) < len(sent):
            more = second.receive(timeout_ms=1_000)
            second.ack(*more)
            got += more
    assert len(got) == len(sent), "none came twice"


def test_a_consumer_says_what_is_wrong(cluster: LocalCluster) -> None:
    consumer = PopConsumer(fresh("billing"), cluster.namesrv)
    with pytest.raises(ClientClosed):
        consumer.receive()
    with consumer:
        with pytest.raises(ClientError, match="subscribe"):
            consumer.receive()
        consumer.subscribe(fresh("none"))
        with pytest.raises(ClientError):
            consumer.receive(timeout_ms=100)
