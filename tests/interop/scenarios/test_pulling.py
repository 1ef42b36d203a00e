"""Pull consumers: queues of one's own choice or shared ones, places, and progress."""

from __future__ import annotations

import pytest

from contrail.aio import MessageQueue, PullConsumer
from contrail.errors import OffsetIllegal
from contrail.testing import eventually_async
from tests.interop.scenarios.scene import Scene, keys_of, next_millisecond, scenario

# One broker of the cluster takes the fast path, the other one the general way.
pytestmark = pytest.mark.proves("broker.fast.both-ways-interop")


async def fill(scene: Scene, queues: list[MessageQueue], word: str, count: int) -> None:
    ends: dict[MessageQueue, int] = {}
    async with scene.producer() as producer:
        for at, queue in enumerate(queues):
            for number in range(count):
                sent = await producer.send(scene.message(f"{word}-{at}-{number}"), queue=queue)
                ends[queue] = sent.queue_offset + 1
    async with scene.admin() as admin:

        async def are_filled() -> bool:
            return all([await admin.queue_offset_max(queue) >= end for queue, end in ends.items()])

        # Apache's broker answers a send before its queues have the message.
        await eventually_async(are_filled, "the queues to be filled from the log")


async def polled(consumer: PullConsumer, count: int) -> list[str]:
    keys: list[str] = []

    async def more() -> bool:
        keys.extend(keys_of(await consumer.poll(timeout_ms=200)))
        return len(keys) >= count

    while not await more():
        pass
    return keys


async def polled_once(consumer: PullConsumer, count_max: int) -> list[str]:
    """The messages of the first poll that returns any."""
    while not (found := await consumer.poll(count_max=count_max)):
        pass
    return keys_of(found)


@pytest.mark.proves("client.consumers.pull")
@scenario
async def test_assigned_queues_are_read_from_any_place(scene: Scene) -> None:
    queues = await scene.make_topic(queues=2, brokers=1)
    first, second = queues
    await fill(scene, queues, "early", 3)
    await next_millisecond()
    await fill(scene, queues, "late", 2)
    since_ms = [await scene.store_time_ms(f"late-{at}-0") for at in range(2)]
    async with scene.pull_consumer(auto_commit=False) as consumer:
        assert await consumer.fetch_queues(scene.topic) == queues
        await consumer.assign(queues)
        assert consumer.assignment() == queues
        assert len(await polled(consumer, 10)) == 10
        await consumer.seek(first, 4)
        assert await polled(consumer, 1) == ["late-0-1"]
        await consumer.seek_to_time(second, since_ms[1])
        assert await polled(consumer, 2) == ["late-1-0", "late-1-1"]
        await consumer.seek_to_begin(first)
        assert (await polled(consumer, 5))[0] == "early-0-0"
        await consumer.seek_to_end(first)
        assert await consumer.poll(timeout_ms=100) == []
        with pytest.raises(OffsetIllegal, match="not 6"):
            await consumer.seek(first, 6)
        ends = await consumer.queue_offset_min(first), await consumer.queue_offset_max(first)
        assert ends == (0, 5)
        assert await consumer.search(first, since_ms[0]) == 3


@pytest.mark.proves("client.consumers.pull")
@scenario
async def test_committed_progress_is_where_the_group_goes_on(scene: Scene) -> None:
    (queue,) = await scene.make_topic(queues=1, brokers=1)
    await fill(scene, [queue], "m", 6)
    async with scene.pull_consumer(auto_commit=False) as consumer:
        await consumer.assign([queue])
        assert await polled_once(consumer, 2) == ["m-0-0", "m-0-1"]
        await consumer.commit()
        assert await consumer.committed(queue) == 2
        assert await polled_once(consumer, 1) == ["m-0-2"]
    async with scene.pull_consumer(auto_commit=False) as consumer:
        await consumer.assign([queue])
        # Uncommitted messages come again.
        assert await polled_once(consumer, 1) == ["m-0-2"]
        await consumer.commit_async({queue: 5})
    async with scene.pull_consumer() as consumer:
        await consumer.assign([queue])
        assert await polled_once(consumer, 1) == ["m-0-5"]
    async with scene.admin() as admin:
        # With auto-commit, closing commits the messages handed out.
        assert await admin.committed(scene.group, queue) == 6


@pytest.mark.proves("client.consumers.pull")
@scenario
async def test_subscribed_members_share_the_queues(scene: Scene) -> None:
    queues = await scene.make_topic(queues=2)
    async with scene.pull_consumer("one") as one, scene.pull_consumer("two") as two:
        await one.subscribe(scene.topic)
        await two.subscribe(scene.topic)

        def is_shared() -> bool:
            shares = one.assignment(), two.assignment()
            return sorted(shares[0] + shares[1]) == queues and all(shares)

        await eventually_async(is_shared, "a share for both")
        await fill(scene, queues, "shared", 2)
        half = len(one.assignment()) * 2
        keys = await polled(one, half)
        keys += await polled(two, len(queues) * 2 - half)
        assert sorted(keys) == sorted(
            f"shared-{at}-{number}" for at in range(len(queues)) for number in range(2)
        )


@scenario
async def test_one_pull_is_one_question_and_paused_queues_are_left_out(scene: Scene) -> None:
    queues = await scene.make_topic(queues=2, brokers=1)
    await fill(scene, queues, "m", 3)
    async with scene.pull_consumer(auto_commit=False) as consumer:
        pulled = await consumer.pull(queues[0], 1, count_max=1)
        assert keys_of(pulled.messages) == ["m-0-1"]
        assert (pulled.next_queue_offset, pulled.queue_offset_max) == (2, 3)
        beyond = await consumer.pull(queues[0], 3)
        assert (beyond.messages, beyond.next_queue_offset) == ([], 3)
        await consumer.assign(queues)
        await consumer.pause(queues[0])
        assert sorted(await polled(consumer, 3)) == ["m-1-0", "m-1-1", "m-1-2"]
        await consumer.resume(queues[0])
        assert await polled(consumer, 3) == ["m-0-0", "m-0-1", "m-0-2"]
