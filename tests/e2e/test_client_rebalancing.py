"""Members of a group join, leave and vanish: every queue always ends with exactly one of them.

The interval is an hour here, so that only notifications can have moved the queues.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Coroutine, Iterator, Sequence
from typing import Any

import pytest

from contrail.client.message import MessageQueue
from contrail.client.pull_consumer import PullConsumer
from contrail.client.state.allocation import (
    AllocationStrategy,
    MachineRoomNearby,
    sorted_client_ids,
    strategy_named,
)
from contrail.protocol.codes import RequestCode
from contrail.testing import LocalCluster, eventually, eventually_async
from tests.e2e.asking import Asker, route
from tests.e2e.raw_client import RawClient, heartbeat

DEADLINE_S = 60.0
QUEUES_PER_BROKER = 4
_numbers = itertools.count(1)


def _by_room(inner: str) -> AllocationStrategy:
    return MachineRoomNearby(
        strategy_named(inner),
        queue_room=lambda queue: queue.broker_name[-1],
        client_room=lambda client_id: "ab"[int(client_id[-1]) % 2],
    )


STRATEGIES = {
    "average": strategy_named("AVG"),
    "circle": strategy_named("AVG_BY_CIRCLE"),
    "consistent hash": strategy_named("CONSISTENT_HASH"),
    "machine room nearby": _by_room("AVG"),
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(brokers=2) as running:
        yield running


@pytest.fixture
def topic(cluster: LocalCluster) -> str:
    name = f"shared-{next(_numbers)}"
    for number in range(2):
        Asker(cluster, number).make_topic(name, read=QUEUES_PER_BROKER, write=QUEUES_PER_BROKER)
    eventually(
        lambda: len(getattr(route(cluster, name), "brokers", ())) == 2, "both brokers in the route"
    )
    return name


def run(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(scenario, 2 * DEADLINE_S))


def queues_of(topic: str) -> list[MessageQueue]:
    return [
        MessageQueue(topic, broker_name, queue_id)
        for broker_name in ("broker-a", "broker-b")
        for queue_id in range(QUEUES_PER_BROKER)
    ]


async def joined(cluster: LocalCluster, topic: str, name: str, **options: Any) -> PullConsumer:
    consumer = PullConsumer(
        f"g-{topic}",
        cluster.namesrv,
        instance_name=name,
        consume_from_where="first",
        rebalance_interval_ms=3_600_000,
        **options,
    )
    await consumer.subscribe(topic)
    await consumer.start()
    return consumer


async def shared_as(
    strategy: AllocationStrategy, topic: str, members: Sequence[PullConsumer]
) -> None:
    """Until every member has the share that the strategy gives it."""
    queues = queues_of(topic)
    client_ids = sorted_client_ids(member.client_id for member in members)
    wanted = {
        client_id: strategy.allocate(f"g-{topic}", client_id, queues, client_ids)
        for client_id in client_ids
    }
    owners = Counter(queue for share in wanted.values() for queue in share)
    assert owners == Counter(queues)

    def shares() -> dict[str, list[MessageQueue]]:
        return {member.client_id: member.assignment() for member in members}

    await eventually_async(lambda: shares() == wanted, lambda: (shares(), wanted))


@pytest.mark.proves("client.consumers.rebalance")
@pytest.mark.parametrize("name", STRATEGIES)
def test_every_queue_has_one_owner_after_each_join_and_leave(
    cluster: LocalCluster, topic: str, name: str
) -> None:
    strategy = STRATEGIES[name]

    async def scenario() -> None:
        members: list[PullConsumer] = []
        for number in range(4):
            member = await joined(cluster, topic, f"m{number}", allocate_strategy=strategy)
            members.append(member)
            await shared_as(strategy, topic, members)
        for place in (1, 2, 0, 0):
            await members.pop(place).close()
            if members:
                await shared_as(strategy, topic, members)

    run(scenario())


def test_the_queues_of_a_member_that_vanished_go_to_the_others(
    cluster: LocalCluster, topic: str
) -> None:
    """It does not unregister: its connections end, as those of a killed process do."""

    async def scenario() -> None:
        member = await joined(cluster, topic, "m1")
        await shared_as(strategy_named("AVG"), topic, [member])
        others = [RawClient(broker.port) for broker in cluster.brokers]
        for other in others:
            body = heartbeat("0.0.0.0@first", group=f"g-{topic}", topic=topic)
            await asyncio.to_thread(other.call, RequestCode.HEART_BEAT, {}, body)
        await eventually_async(
            lambda: member.assignment() == queues_of(topic)[QUEUES_PER_BROKER:],
            member.assignment,
        )
        for other in others:
            other.close()
        await shared_as(strategy_named("AVG"), topic, [member])
        await member.close()

    run(scenario())


def test_no_message_is_lost_while_members_come_and_go(cluster: LocalCluster, topic: str) -> None:
    brokers = {broker.name: Asker(cluster, number) for number, broker in enumerate(cluster.brokers)}
    sent: list[bytes] = []
    seen: Counter[bytes] = Counter()

    def send_some() -> None:
        for queue in queues_of(topic):
            body = f"{queue.broker_name} {queue.queue_id} {len(sent)}".encode()
            brokers[queue.broker_name].stored(topic, body, queue_id=queue.queue_id)
            sent.append(body)

    async def consume(member: PullConsumer) -> None:
        while True:
            messages = await member.poll(timeout_ms=1_000, count_max=3)
            seen.update(message.body for message in messages)

    async def scenario() -> None:
        members: list[tuple[PullConsumer, asyncio.Task[None]]] = []
        for number in range(9):
            await asyncio.to_thread(send_some)
            if len(members) == 3:
                await stop(*members.pop(number % 3))
            member = await joined(cluster, topic, f"m{number}")
            members.append((member, asyncio.create_task(consume(member))))
        await eventually_async(lambda: set(sent) <= seen.keys(), lambda: set(sent) - seen.keys())
        for member, task in members:
            await stop(member, task)
        # Each of the nine joins and six leaves may repeat messages that were not committed by then.
        assert seen.total() < 10 * len(sent)

    async def stop(member: PullConsumer, task: asyncio.Task[None]) -> None:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await member.close()

    run(scenario())


def test_queues_are_shared_while_a_broker_is_down(cluster: LocalCluster, topic: str) -> None:
    """A member asks any broker of the topic for the members: the other broker answers."""

    async def scenario() -> None:
        member = await joined(cluster, topic, "m1")
        await shared_as(strategy_named("AVG"), topic, [member])
        await asyncio.to_thread(cluster.brokers[1].stop)
        try:
            second = await joined(cluster, topic, "m2")
            await eventually_async(
                lambda: (
                    not set(member.assignment()) & set(second.assignment())
                    and bool(second.assignment())
                ),
                lambda: (member.assignment(), second.assignment()),
            )
            await second.close()
        finally:
            await asyncio.to_thread(cluster.brokers[1].start)
        await eventually_async(
            lambda: set(member.assignment()) >= set(queues_of(topic)[:QUEUES_PER_BROKER]),
            member.assignment,
        )
        await member.close()

    run(scenario())
