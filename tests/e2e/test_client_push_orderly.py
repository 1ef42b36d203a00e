"""An ordered push consumer against a running broker: order, locks, and retries in place."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterator

import pytest

from contrail.client.consumed_message import ConsumedMessage
from contrail.client.message import Message, MessageQueue
from contrail.client.producer import Producer
from contrail.client.push_consumer import PushConsumer
from contrail.clock import ManualClock
from contrail.model.topic import DLQ_PREFIX
from contrail.testing import LocalCluster, eventually_async
from tests.e2e.push_setup import Seen, consuming, fresh


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(clock=ManualClock()) as running:
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


async def fill(namesrv: str, topic: str, count: int) -> list[MessageQueue]:
    """Messages into each queue; the body is the queue offset."""
    async with Producer(fresh("senders"), namesrv) as producer:
        queues = await producer.publish_queues(topic)
        for number in range(count):
            for queue in queues:
                await producer.send(Message(topic, str(number).encode()), queue=queue)
    return queues


class Order:
    """Notes the order of messages, and that no queue has two handlers at once.

    The first handlers wait until ``together`` queues have one.
    """

    def __init__(self, together: int = 1) -> None:
        self._together = together
        self._are_together = asyncio.Event()
        self.by_queue: dict[MessageQueue, list[int]] = defaultdict(list)
        self.busy: set[MessageQueue] = set()
        self.shared: list[MessageQueue] = []

    async def __call__(self, message: ConsumedMessage) -> None:
        if message.queue in self.busy:
            self.shared.append(message.queue)
        self.busy.add(message.queue)
        if len(self.busy) >= self._together:
            self._are_together.set()
        await self._are_together.wait()
        await asyncio.sleep(0.001)
        self.by_queue[message.queue].append(int(message.body))
        self.busy.discard(message.queue)

    def is_whole(self, queue_count: int, count: int) -> bool:
        assert not self.shared, "two handlers had one queue at once"
        return len(self.by_queue) == queue_count and all(
            own == list(range(count)) for own in self.by_queue.values()
        )


def test_each_queue_is_handled_in_order_and_queues_side_by_side(
    namesrv: str, topic: str, group: str
) -> None:
    async def main() -> None:
        await fill(namesrv, topic, 20)
        order = Order(together=2)
        consumer = await consuming(namesrv, group, topic, order, orderly=True)
        await eventually_async(lambda: order.is_whole(4, 20))
        await consumer.close()

    asyncio.run(main())


def test_a_failed_message_is_tried_again_in_place_while_other_queues_go_on(
    namesrv: str, topic: str, group: str
) -> None:
    async def main() -> None:
        queues = await fill(namesrv, topic, 5)
        seen: dict[MessageQueue, list[tuple[int, int]]] = defaultdict(list)

        def others_count() -> int:
            return sum(len(seen[queue]) for queue in queues[1:])

        async def handler(message: ConsumedMessage) -> None:
            own, number = seen[message.queue], int(message.body)
            own.append((number, message.reconsume_times))
            # It fails until the others are done: none of them can have waited for it.
            is_too_early = message.reconsume_times < 2 or others_count() < 15
            if message.queue == queues[0] and number == 2 and is_too_early:
                raise ValueError("not yet")

        consumer = await consuming(
            namesrv, group, topic, handler, orderly=True, suspend_current_queue_time_ms=200
        )
        await eventually_async(lambda: (4, 0) in seen[queues[0]])
        await consumer.close()
        tries = [(2, times) for times in range(len(seen[queues[0]]) - 4)]
        assert len(tries) >= 3
        assert seen[queues[0]] == [(0, 0), (1, 0), *tries, (3, 0), (4, 0)]
        assert others_count() == 15

    asyncio.run(main())


def test_a_message_that_failed_too_often_goes_to_the_dead_letters_and_the_queue_goes_on(
    namesrv: str, topic: str, group: str
) -> None:
    async def main() -> None:
        queues = await fill(namesrv, topic, 3)
        attempts = 0
        done, dead = Seen(), Seen()

        async def handler(message: ConsumedMessage) -> None:
            nonlocal attempts
            if message.queue == queues[0] and message.body == b"1":
                attempts += 1
                raise ValueError("never")
            await done(message)

        consumer = await consuming(
            namesrv,
            group,
            topic,
            handler,
            orderly=True,
            max_reconsume_times=2,
            suspend_current_queue_time_ms=20,
        )
        await done.reach(11)
        await consumer.close()
        undertaker = await consuming(namesrv, fresh("readers"), DLQ_PREFIX + group, dead)
        await dead.reach(1)
        await undertaker.close()
        assert attempts == 3
        assert dead.bodies == ["1"]

    asyncio.run(main())


@pytest.mark.proves("client.consumers.orderly")
def test_members_that_come_and_go_never_have_one_queue_at_the_same_time(
    namesrv: str, topic: str, group: str
) -> None:
    async def main() -> None:
        await fill(namesrv, topic, 60)
        order = Order()
        options = {"orderly": True, "pull_batch_size": 4, "rebalance_interval_ms": 300}
        one = await consuming(namesrv, group, topic, order, instance_name="one", **options)
        await eventually_async(lambda: len(order.by_queue) == 4)
        two = await consuming(namesrv, group, topic, order, instance_name="two", **options)
        await eventually_async(lambda: len(own(two)) == 2, "half of the queues for the second")
        await one.close()
        await eventually_async(lambda: len(own(two)) == 4, "all queues for the second")
        await eventually_async(lambda: order.is_whole(4, 60), "everything in order")
        await two.close()

    def own(consumer: PushConsumer) -> list[MessageQueue]:
        return [queue for queue in consumer.assigned_queues() if queue.topic == topic]

    asyncio.run(main())


def test_a_loop_gets_each_queue_in_order_and_later_keeps_the_place(
    namesrv: str, topic: str, group: str
) -> None:
    async def main() -> None:
        queues = await fill(namesrv, topic, 3)
        seen: dict[MessageQueue, list[int]] = defaultdict(list)
        async with PushConsumer(
            group, namesrv, orderly=True, consume_from_where="first"
        ) as consumer:
            await consumer.subscribe(topic)
            count = 0
            async for message in consumer:
                seen[message.queue].append(int(message.body))
                count += 1
                if message.queue == queues[1] and message.reconsume_times == 0:
                    await message.later(0.02)
                if count == 15:
                    break
        assert seen[queues[0]] == [0, 1, 2]
        assert seen[queues[1]] == [0, 0, 1, 1, 2, 2]

    asyncio.run(main())
