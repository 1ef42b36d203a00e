"""Messages that wait: delay levels, timers to the millisecond, and taking a timer back."""

from __future__ import annotations

import time
from datetime import datetime, timedelta

import pytest

from contrail.aio import Message
from contrail.errors import MessageInvalid
from tests.interop.scenarios.scene import Inbox, Scene, scenario

# The wheel of the original turns once a second.
PRECISION_MS = 1_000


@pytest.mark.proves("client.producer.waiting")
@scenario
async def test_delay_levels_hold_messages_back(scene: Scene) -> None:
    await scene.make_topic(queues=1, brokers=1)
    inbox = Inbox()
    async with scene.consuming(inbox.take):
        async with scene.producer() as producer:
            for key, level in [("two", 2), ("one", 1), ("none", 0)]:
                await producer.send(scene.message(key, delay_level=level))
        await inbox.until_has(["none", "one", "two"])
    # Level 1 is one second, level 2 is two: on a busy machine more may pass between two sends.
    delays_ms = {"none": 0, "one": 1_000, "two": 2_000}
    due_ms = {one.keys[0]: one.born_timestamp_ms + delays_ms[one.keys[0]] for one in inbox.messages}
    assert inbox.keys == sorted(delays_ms, key=due_ms.__getitem__)
    waited_ms = {
        one.keys[0]: one.store_timestamp_ms - one.born_timestamp_ms for one in inbox.messages
    }
    assert waited_ms["one"] >= 990 and waited_ms["two"] >= 1_990


@pytest.mark.proves("client.producer.waiting")
@scenario
async def test_timers_deliver_at_their_time_and_a_recalled_one_never(scene: Scene) -> None:
    if scene.cluster.is_old:
        await check_that_old_brokers_are_not_trusted(scene)
        return
    await scene.make_topic(queues=1, brokers=1)
    inbox = Inbox()
    async with scene.consuming(inbox.take):
        start_ms = int(time.time() * 1000)
        moment = datetime.fromtimestamp(start_ms / 1000 + 10)
        async with scene.producer() as producer:
            messages = [
                scene.message("recalled", delay=timedelta(seconds=8)),
                scene.message("seconds", delay=2.0),
                scene.message("moment", deliver_at=moment),
            ]
            receipts = [await producer.send(message) for message in messages]
            assert all(receipt.recall_handle for receipt in receipts)
            recalled_id = await producer.recall(receipts[0])
            with pytest.raises(MessageInvalid, match="is for topic"):
                await producer.recall("another", receipts[1].recall_handle)
        assert recalled_id == receipts[0].message_id
        await inbox.until_has(["moment"])
    assert inbox.keys == ["seconds", "moment"]
    due_ms = {"seconds": start_ms + 2_000, "moment": int(moment.timestamp() * 1000)}
    for one in inbox.messages:
        assert one.store_timestamp_ms >= due_ms[one.keys[0]] - PRECISION_MS


async def check_that_old_brokers_are_not_trusted(scene: Scene) -> None:
    """They would deliver at once, so that the client sends them no timer at all."""
    await scene.make_topic(queues=1, brokers=1)
    async with scene.producer() as producer:
        timers: list[Message] = [
            scene.message("later", delay=60.0),
            scene.message("then", deliver_at=datetime.now() + timedelta(minutes=1)),
        ]
        for message in timers:
            with pytest.raises(MessageInvalid, match=r"older than RocketMQ 5\.0"):
                await producer.send(message)
        plain = await producer.send(scene.message("plain", delay_level=1))
        with pytest.raises(MessageInvalid, match="no recall handle"):
            await producer.recall(plain)
    (found,) = await scene.stored(1)
    assert found.keys == ["plain"]
