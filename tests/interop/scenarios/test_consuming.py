"""Push consumers: sharing, broadcasting, where they start, pausing, and the loop style."""

from __future__ import annotations

import asyncio
from datetime import datetime
from pathlib import Path

import pytest

from contrail.aio import ConsumedMessage
from contrail.model import fastjson
from tests.interop.scenarios.clusters import SEGMENT_BYTES
from tests.interop.scenarios.scene import (
    Inbox,
    Scene,
    keys_of,
    next_millisecond,
    scenario,
    until,
    until_true,
)


def numbered(word: str, count: int) -> list[str]:
    return [f"{word}-{number}" for number in range(count)]


@scenario
async def test_members_share_the_queues_and_consume_everything_once(scene: Scene) -> None:
    queues = await scene.make_topic(queues=4)
    inboxes = [Inbox(), Inbox()]
    members = [scene.consumer(name) for name in ("one", "two")]
    for member, inbox in zip(members, inboxes, strict=True):
        member.on_message(inbox.take)
        await member.subscribe(scene.topic)
        await member.start()

    def shares() -> list[list[object]]:
        return [
            [queue for queue in one.assigned_queues() if queue.topic == scene.topic]
            for one in members
        ]

    await until(lambda: sorted(sum(shares(), [])) == queues and all(shares()), "a fair share")
    keys = numbered("shared", 40)
    await scene.send(*keys)
    await until(lambda: len(inboxes[0].keys + inboxes[1].keys) >= len(keys), "all messages")
    assert sorted(inboxes[0].keys + inboxes[1].keys) == sorted(keys)
    assert inboxes[0].keys and inboxes[1].keys
    # Whoever stays takes over, and goes on where the other one stopped.
    await members[0].close()
    more = numbered("more", 8)
    await scene.send(*more)
    await inboxes[1].until_has(more)
    await members[1].close()
    assert sorted(inboxes[0].keys + inboxes[1].keys) == sorted(keys + more)


@scenario
async def test_a_loop_acknowledges_what_it_goes_on_from(scene: Scene) -> None:
    await scene.make_topic(queues=1, brokers=1)
    await scene.send(*numbered("loop", 5))
    seen: list[str] = []
    with pytest.raises(RuntimeError, match="no more"):
        async with scene.consumer() as consumer:
            await consumer.subscribe(scene.topic)
            async for message in consumer:
                seen.append(message.keys[0])
                if message.keys == ["loop-1"]:
                    await message.ack()
                if message.keys == ["loop-3"]:
                    raise RuntimeError("no more of this")
    assert seen == numbered("loop", 4)
    async with scene.consumer() as consumer:
        await consumer.subscribe(scene.topic)
        rest: dict[str, int] = {}
        async for message in consumer:
            rest[message.keys[0]] = message.reconsume_times
            if len(rest) == 2:
                break
    assert rest == {"loop-4": 0, "loop-3": 1}


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
    await consumer.start()
    await until(lambda: len(sum(lists, [])) >= len(keys), lambda: f"all messages: {lists}")
    await consumer.close()
    assert sorted(sum(lists, [])) == sorted(keys)
    assert 1 < max(map(len, lists)) <= 8


@scenario
async def test_broadcasting_gives_everything_to_everybody(scene: Scene, tmp_path: Path) -> None:
    queues = await scene.make_topic()
    keys = numbered("all", 10)
    await scene.send(*keys)
    inboxes = {name: Inbox() for name in ("one", "two")}
    for name, inbox in inboxes.items():

        async def handle(message: ConsumedMessage, inbox: Inbox = inbox) -> None:
            await inbox.take(message)
            if message.keys == ["all-3"]:
                raise RuntimeError("a broadcast message that fails is not tried again")

        member = scene.consumer(name, message_model="BROADCASTING", offset_folder=tmp_path)
        member.on_message(handle)
        await member.subscribe(scene.topic)
        await member.start()
        await inbox.until_has(keys)
        await member.close()
        assert sorted(inbox.keys) == sorted(keys)
    files = sorted(tmp_path.rglob("offsets.json"))
    assert len(files) == len(inboxes)
    for file in files:
        # In Apache's form: the keys of the table are objects.
        table = fastjson.loads(file.read_bytes())
        assert isinstance(table, dict) and isinstance(table["offsetTable"], dict)
        assert sum(map(int, table["offsetTable"].values())) == len(keys), file
    # It goes on where its own file says.
    inbox = Inbox()
    member = scene.consumer("two", message_model="BROADCASTING", offset_folder=tmp_path)
    member.on_message(inbox.take)
    await member.subscribe(scene.topic)
    await member.start()
    assert len(queues) == len(member.assigned_queues())
    await scene.send("new")
    await inbox.until_has(["new"])
    await member.close()
    assert inbox.keys == ["new"]


@scenario
async def test_a_paused_consumer_waits_until_it_is_resumed(scene: Scene) -> None:
    queues = await scene.make_topic(queues=2, brokers=1)
    inbox = Inbox()
    consumer = scene.consumer()
    consumer.on_message(inbox.take)
    await consumer.subscribe(scene.topic)
    await consumer.start()
    await until(lambda: set(queues) <= set(consumer.assigned_queues()), "its queues")
    consumer.pause(queues[0])
    async with scene.producer() as producer:
        # A pull that waits at the broker still brings what comes next.
        for turn in range(2):
            for number, queue in enumerate(queues):
                await producer.send(scene.message(f"{turn}-{number}"), queue=queue)
            await inbox.until_has([f"{turn}-1"])
    assert "1-0" not in inbox.keys
    assert consumer.is_paused(queues[0]) and not consumer.is_paused(queues[1])
    consumer.resume(queues[0])
    await inbox.until_has(["0-0", "1-0"])
    await consumer.close()
    assert sorted(inbox.keys) == ["0-0", "0-1", "1-0", "1-1"]


@scenario
async def test_a_new_group_starts_where_it_is_told_to(scene: Scene) -> None:
    """While a queue has its very first message, brokers start a new group there in any case."""
    (queue,) = await scene.make_topic(queues=1, brokers=1)
    await scene.send("gone-1", "gone-2")
    await trim(scene, queue.broker_name)
    await scene.send("early-1", "early-2")
    since_ms = await next_millisecond()
    # To the second, as the text has it: nothing of a second counts that has begun before.
    await scene.send("late-1", "late-2")
    starts: dict[str, tuple[dict[str, object], list[str]]] = {
        "first": (
            {"consume_from_where": "first"},
            ["early-1", "early-2", "late-1", "late-2", "new"],
        ),
        "last": ({"consume_from_where": "CONSUME_FROM_LAST_OFFSET"}, ["new"]),
        "moment": (
            {"consume_from_where": "timestamp", "consume_timestamp": since_ms},
            ["late-1", "late-2", "new"],
        ),
        "text": (
            {
                "consume_from_where": "timestamp",
                "consume_timestamp": datetime.fromtimestamp(since_ms / 1000 - 3600).strftime(
                    "%Y%m%d%H%M%S"
                ),
            },
            ["early-1", "early-2", "late-1", "late-2", "new"],
        ),
    }
    inboxes = {name: Inbox() for name in starts}
    consumers = []
    for name, (options, _) in starts.items():
        consumer = scene.consumer(group=f"{scene.group}_{name}", **options)
        consumer.on_message(inboxes[name].take)
        await consumer.subscribe(scene.topic)
        await consumer.start()
        consumers.append(consumer)
    for consumer in consumers:
        await until(lambda one=consumer: queue in one.assigned_queues(), "the queue")
    await scene.send("new")
    for name, (_, keys) in starts.items():
        await inboxes[name].until_has(["new"])
        assert sorted(inboxes[name].keys) == sorted(keys), name
    await asyncio.gather(*(consumer.close() for consumer in consumers))


async def trim(scene: Scene, broker_name: str) -> None:
    """Fill more than a file, and have the broker delete what is full."""
    filler = f"{scene.topic}_filler"
    await scene.make_topic(queues=1, brokers=1, topic=filler)
    bodies = [bytes([number]) * (1 << 20) for number in range(SEGMENT_BYTES >> 20)]
    async with scene.producer(compress_msg_body_over_howmuch=SEGMENT_BYTES) as producer:
        for number, body in enumerate(bodies):
            await producer.send(scene.message(f"f-{number}", body=body, topic=filler))
    async with scene.admin() as admin:
        (queue,) = await admin.queues(scene.topic)

        async def is_gone() -> bool:
            await admin.delete_expired_segments(broker=broker_name)
            return await admin.queue_offset_min(queue) == 2

        await admin.update_broker_config({"fileReservedTime": "0"}, broker=broker_name)
        try:
            await until_true(is_gone, "the deletion of the first messages")
        finally:
            await admin.update_broker_config({"fileReservedTime": "72"}, broker=broker_name)
