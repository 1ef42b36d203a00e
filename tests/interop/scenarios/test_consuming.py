"""Push consumers: sharing, broadcasting, pausing, and the loop style."""

from __future__ import annotations

from itertools import chain
from pathlib import Path

import pytest

from contrail.aio import ConsumedMessage, MessageQueue
from contrail.model import fastjson
from contrail.testing import eventually_async
from tests.interop.scenarios.scene import Inbox, Scene, keys_of, scenario

# One broker of the cluster takes the fast path, the other one the general way.
pytestmark = pytest.mark.proves("broker.fast.both-ways-interop")


def numbered(word: str, count: int) -> list[str]:
    return [f"{word}-{number}" for number in range(count)]


@pytest.mark.proves("client.consumers.clustering", "client.shown.scenarios")
@scenario
async def test_members_share_the_queues_and_consume_everything_once(scene: Scene) -> None:
    queues = await scene.make_topic(queues=4)
    inboxes = [Inbox(), Inbox()]
    keys, more = numbered("shared", 40), numbered("more", 8)
    async with scene.consuming(inboxes[1].take, "two") as two:
        async with scene.consuming(inboxes[0].take, "one") as one:

            def shares() -> list[list[MessageQueue]]:
                return [
                    [queue for queue in member.assigned_queues() if queue.topic == scene.topic]
                    for member in (one, two)
                ]

            await eventually_async(
                lambda: all(shares()) and sorted(chain(*shares())) == queues, "a fair share"
            )
            await scene.send(*keys)
            await eventually_async(
                lambda: len(inboxes[0].keys + inboxes[1].keys) >= len(keys), "all of it"
            )
            assert sorted(inboxes[0].keys + inboxes[1].keys) == sorted(keys)
            assert inboxes[0].keys and inboxes[1].keys
        # The member that stays takes over, and goes on where the other stopped.
        await scene.send(*more)
        await inboxes[1].until_has(more)
    assert sorted(inboxes[0].keys + inboxes[1].keys) == sorted(keys + more)


@pytest.mark.proves("client.consumers.async-for")
@scenario
async def test_asking_for_the_next_message_acknowledges_the_one_before(scene: Scene) -> None:
    await scene.make_topic(queues=1, brokers=1)
    await scene.send(*numbered("loop", 5))
    seen: list[str] = []

    async def loop() -> None:
        async with scene.consumer() as consumer:
            await consumer.subscribe(scene.topic)
            async for message in consumer:
                seen.append(message.keys[0])
                if message.keys == ["loop-1"]:
                    await message.ack()
                if message.keys == ["loop-3"]:
                    raise RuntimeError("no more of this")

    with pytest.raises(RuntimeError, match="no more"):
        await loop()
    assert seen == numbered("loop", 4)
    async with scene.consumer() as consumer:
        await consumer.subscribe(scene.topic)
        rest: dict[str, int] = {}
        async for message in consumer:
            rest[message.keys[0]] = message.reconsume_times
            if len(rest) == 2:
                break
    assert rest == {"loop-4": 0, "loop-3": 1}


@pytest.mark.proves("client.consumers.batches")
@scenario
async def test_messages_are_handled_in_lists(scene: Scene) -> None:
    await scene.make_topic(queues=1, brokers=1)
    keys = numbered("list", 20)
    await scene.send(*keys)
    lists: list[list[str]] = []
    consumer = scene.consumer(consume_message_batch_max_size=8)

    @consumer.on_messages
    async def handle(messages: list[ConsumedMessage]) -> None:
        lists.append(keys_of(messages))

    await consumer.subscribe(scene.topic)
    async with consumer:
        await eventually_async(
            lambda: sum(map(len, lists)) >= len(keys), lambda: f"all messages: {lists}"
        )
    assert sorted(chain(*lists)) == sorted(keys)
    assert 1 < max(map(len, lists)) <= 8


@pytest.mark.proves("client.consumers.broadcasting")
@scenario
async def test_broadcasting_gives_all_messages_to_all_members(scene: Scene, tmp_path: Path) -> None:
    queues = await scene.make_topic()
    keys = numbered("all", 10)
    await scene.send(*keys)
    inboxes = {name: Inbox() for name in ("one", "two")}
    for name, inbox in inboxes.items():

        async def handle(message: ConsumedMessage, inbox: Inbox = inbox) -> None:
            await inbox.take(message)
            if message.keys == ["all-3"]:
                raise RuntimeError("a broadcast message that fails is not tried again")

        async with scene.consuming(
            handle, name, message_model="BROADCASTING", offset_folder=tmp_path
        ):
            await inbox.until_has(keys)
        assert sorted(inbox.keys) == sorted(keys)
    files = sorted(tmp_path.rglob("offsets.json"))
    assert len(files) == len(inboxes)
    for file in files:
        # In Apache's form: the keys of the table are objects.
        table = fastjson.loads(file.read_bytes())
        assert isinstance(table, dict) and isinstance(table["offsetTable"], dict)
        assert sum(map(_number, table["offsetTable"].values())) == len(keys), file
    # It goes on where its own file says.
    inbox = Inbox()
    async with scene.consuming(
        inbox.take, "two", message_model="BROADCASTING", offset_folder=tmp_path
    ) as member:
        await eventually_async(lambda: len(queues) == len(member.assigned_queues()), "its queues")
        await scene.send("new")
        await inbox.until_has(["new"])
    assert inbox.keys == ["new"]


@pytest.mark.proves("client.consumers.pause")
@scenario
async def test_a_paused_consumer_waits_until_it_is_resumed(scene: Scene) -> None:
    queues = await scene.make_topic(queues=2, brokers=1)
    inbox = Inbox()
    async with scene.consuming(inbox.take) as consumer:
        await eventually_async(lambda: set(queues) <= set(consumer.assigned_queues()), "its queues")
        async with scene.producer() as producer:
            # When this one is handled the next pull is on its way, and waits at the broker.
            await producer.send(scene.message("before"), queue=queues[0])
            await inbox.until_has(["before"])
            consumer.pause(queues[0])
            # That pull still brings the next message, and is the last.
            for turn, brought in enumerate([["0-0", "0-1"], ["1-1"]]):
                for number, queue in enumerate(queues):
                    await producer.send(scene.message(f"{turn}-{number}"), queue=queue)
                await inbox.until_has(brought)
        assert "1-0" not in inbox.keys
        assert consumer.is_paused(queues[0]) and not consumer.is_paused(queues[1])
        consumer.resume(queues[0])
        await inbox.until_has(["1-0"])
    assert sorted(inbox.keys) == ["0-0", "0-1", "1-0", "1-1", "before"]


def _number(value: object) -> int:
    assert isinstance(value, int), value
    return value
