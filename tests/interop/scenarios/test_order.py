"""Ordered consumption: order per key, and a message that fails holds up its own queue alone."""

from __future__ import annotations

import time
from contextlib import AsyncExitStack
from itertools import groupby, pairwise

import pytest

from contrail.aio import ConsumedMessage, PushConsumer, ReceivedMessage
from contrail.testing import eventually_async
from tests.interop.scenarios.scene import Inbox, Scene, scenario

SHARDS = ["a", "b", "c", "d", "e", "f"]
SUSPEND_MS = 400


async def send_round(scene: Scene, numbers: range) -> list[str]:
    """A message of each shard for each number; all that was sent, in order."""
    sent = []
    async with scene.producer() as producer:
        for number in numbers:
            for shard in SHARDS:
                key = f"{shard}#{number:03}"
                await producer.send(scene.message(key, sharding_key=shard))
                sent.append(key)
    return sent


def of_shard(keys: list[str], shard: str) -> list[str]:
    return [key for key in keys if key.startswith(shard)]


@pytest.mark.proves("client.consumers.orderly")
@scenario
async def test_a_failing_message_is_tried_in_place_while_other_queues_go_on(scene: Scene) -> None:
    queues = await scene.make_topic(queues=4)
    attempts: list[tuple[str, float, int]] = []

    async def handle(message: ConsumedMessage) -> None:
        key = message.keys[0]
        tried = [one for one, _, _ in attempts].count(key)
        attempts.append((key, time.monotonic(), message.reconsume_times))
        # It fails until all other queues are through: none of them may wait for it.
        if key == "bad" and (tried < 2 or free_count() < 3 * (len(queues) - 1)):
            raise RuntimeError("not yet")

    def free_count() -> int:
        return sum(key.startswith("free") for key, _, _ in attempts)

    async with scene.producer() as producer:
        for number in range(3):
            key = "bad" if number == 1 else f"held-{number}"
            await producer.send(scene.message(key), queue=queues[0])
            for at, queue in enumerate(queues[1:]):
                await producer.send(scene.message(f"free-{at}-{number}"), queue=queue)
    async with scene.consuming(handle, orderly=True, suspend_current_queue_time_ms=SUSPEND_MS):
        await eventually_async(
            lambda: "held-2" in [key for key, _, _ in attempts], lambda: f"all of it: {attempts}"
        )
    keys = [key for key, _, _ in attempts]
    held = [key for key in keys if not key.startswith("free")]
    bad_count = held.count("bad")
    assert bad_count >= 3
    assert held == ["held-0", *["bad"] * bad_count, "held-2"]
    for at in range(len(queues) - 1):
        free = [key for key in keys if key.startswith(f"free-{at}")]
        assert free == [f"free-{at}-{number}" for number in range(3)]
    moments = [moment for key, moment, _ in attempts if key == "bad"]
    assert min(b - a for a, b in pairwise(moments)) >= SUSPEND_MS / 1000 * 0.9
    assert [times for key, _, times in attempts if key == "bad"] == list(range(bad_count))
    assert max(at for at, key in enumerate(keys) if key.startswith("free")) < keys.index("held-2")


@pytest.mark.proves("client.consumers.orderly")
@scenario
async def test_order_is_kept_while_members_join_and_leave(scene: Scene) -> None:
    queues = set(await scene.make_topic(queues=3))
    inbox = Inbox()

    async def owned(*members: PushConsumer) -> None:
        def is_so() -> bool:
            shares = [queues & set(one.assigned_queues()) for one in members]
            return all(shares) and sorted(q for share in shares for q in share) == sorted(queues)

        await eventually_async(is_so, "every queue to have one owner")

    async with AsyncExitStack() as rest:
        async with scene.consuming(inbox.take, "one", orderly=True) as one:
            await owned(one)
            sent = await send_round(scene, range(5))
            joining = scene.consuming(inbox.take, "two", orderly=True)
            two = await rest.enter_async_context(joining)
            sent += await send_round(scene, range(5, 10))
            await owned(one, two)
            sent += await send_round(scene, range(10, 15))
        await owned(two)
        sent += await send_round(scene, range(15, 18))
        await inbox.until_has(sent)
    # A queue that changes hands may be handled again from where its owner had written it down.
    firsts = list(dict.fromkeys(inbox.keys))
    for shard in SHARDS:
        assert of_shard(firsts, shard) == of_shard(sent, shard)
        again = [key for key, _ in groupby(of_shard(inbox.keys, shard))]
        assert len(again) < 2 * len(of_shard(sent, shard))


@scenario
async def test_an_ordered_message_that_fails_too_often_becomes_a_dead_letter(scene: Scene) -> None:
    (queue,) = await scene.make_topic(queues=1, brokers=1)
    await scene.send("first", "bad", "last")
    inbox = Inbox()

    async def handle(message: ConsumedMessage) -> None:
        await inbox.take(message)
        if message.keys == ["bad"]:
            raise RuntimeError("never")

    async with scene.consuming(
        handle, orderly=True, max_reconsume_times=1, suspend_current_queue_time_ms=50
    ):
        await inbox.until_has(["last"])
    assert inbox.keys == ["first", "bad", "bad", "last"]
    assert {one.queue for one in inbox.messages} == {queue}
    async with scene.admin() as admin:
        dead: list[ReceivedMessage] = []

        async def is_there() -> bool:
            topic = await admin.dead_letter_topic(scene.group)
            dead[:] = await admin.messages_by_key(topic, "bad") if topic is not None else []
            return bool(dead)

        await eventually_async(is_there, "the dead letter")
    assert [one.body for one in dead] == [b"body of bad"]
