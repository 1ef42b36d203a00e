"""An operator's tasks: finding messages, lag, moving a group, and traces."""

from __future__ import annotations

import pytest

from contrail.aio import MessageQueue
from contrail.model.topic import TRACE_TOPIC
from contrail.protocol.bodies.trace import (
    PubTrace,
    SubAfterTrace,
    SubBeforeTrace,
    Trace,
    decode_traces,
)
from contrail.testing import eventually_async
from tests.interop.scenarios.scene import Inbox, Scene, keys_of, next_millisecond, scenario

EARLY, LATE = ["early-1", "early-2", "early-3"], ["late-1", "late-2", "late-3"]


@scenario
async def test_messages_are_found_by_key_by_id_and_by_time(scene: Scene) -> None:
    await scene.make_topic()
    async with scene.producer() as producer:
        early = await producer.send(scene.message("order-1", tags="early"))
        between_ms = await next_millisecond()
        late = await producer.send(scene.message("order-1", tags="late"))
        await producer.send(scene.message("订单-2"))
    async with scene.admin() as admin:

        async def is_indexed() -> bool:
            return len(await admin.messages_by_key(scene.topic, "订单-2")) == 1

        await eventually_async(is_indexed, "the index of the last message")
        found = await admin.messages_by_key(scene.topic, "order-1")
        assert [one.tags for one in found] == ["early", "late"]
        found = await admin.messages_by_key(scene.topic, "order-1", begin=between_ms)
        assert [one.tags for one in found] == ["late"]
        found = await admin.messages_by_key(scene.topic, "order-1", end=between_ms - 1)
        assert [one.tags for one in found] == ["early"]
        assert await admin.messages_by_key(scene.topic, "order-3") == []
        by_id = await admin.message(scene.topic, late.message_id)
        by_place = await admin.message(scene.topic, late.offset_message_id)
        assert by_id is not None and by_place is not None
        assert by_id.message_id == by_place.message_id == late.message_id
        assert by_id.body == by_place.body == b"body of order-1"
        at_place = await admin.message_at(early.queue, early.queue_offset)
        assert at_place.message_id == early.message_id
        unknown = "0" * len(late.message_id)
        assert await admin.message(scene.topic, unknown) is None


@scenario
async def test_lag_counts_messages_that_a_group_has_not_consumed(scene: Scene) -> None:
    queues = await scene.make_topic(queues=2, brokers=1)
    async with scene.producer() as producer:
        for number in range(5):
            await producer.send(scene.message(f"m-{number}"), queue=queues[number % 2])
    inbox = Inbox()
    async with scene.admin() as admin:

        async def lags() -> dict[MessageQueue, int]:
            lag = await admin.lag(scene.group, scene.topic)
            assert lag.total == sum(one.lag for one in lag.queues)
            return {one.queue: one.lag for one in lag.queues}

        async def has_none() -> bool:
            return len(inbox.keys) == 5 and await lags() == dict.fromkeys(queues, 0)

        async def has_three() -> bool:
            return await lags() == {queues[0]: 0, queues[1]: 3}

        async with scene.consuming(inbox.take):
            await eventually_async(has_none, "a lag of 0")
            assert (await admin.group_connections(scene.group)).is_online
        async with scene.producer() as producer:
            for _ in range(3):
                await producer.send(scene.message("more"), queue=queues[1])
        await eventually_async(has_three, "a lag of 3")
        whole = await admin.lag(scene.group)
        assert whole.by_topic[scene.topic] == 3
        placed = {one.queue: (one.broker_offset, one.consumer_offset) for one in whole.queues}
        assert (placed[queues[0]], placed[queues[1]]) == ((3, 3), (5, 2))


@pytest.mark.proves("client.shown.scenarios")
@scenario
async def test_a_group_is_moved_while_it_consumes_and_while_it_does_not(scene: Scene) -> None:
    queues = await scene.make_topic(queues=1)
    await scene.send(*EARLY)
    await next_millisecond()
    await scene.send(*LATE)
    since_ms = await scene.store_time_ms("late-1")
    inbox = Inbox()
    nudges = [f"nudge-{number}" for number in range(len(queues))]
    async with scene.admin() as admin:

        async def is_written() -> bool:
            return (await admin.lag(scene.group, scene.topic)).total == 0

        async with scene.consuming(inbox.take):
            await inbox.until_has(EARLY + LATE)
            await eventually_async(is_written, "the progress before the reset")
            inbox.messages.clear()
            placed = await admin.reset_to_time(scene.group, scene.topic, since_ms)
            assert sorted(placed) == queues
            # Some brokers notify members when they answer a pull, which may wait for a message.
            async with scene.producer() as producer:
                for key, queue in zip(nudges, queues, strict=True):
                    await producer.send(scene.message(key), queue=queue)
            await inbox.until_has(LATE + nudges)
            assert set(inbox.keys) == {*LATE, *nudges}
            await eventually_async(is_written, "the progress after the reset")
        inbox.messages.clear()
        await admin.reset_to_time(scene.group, scene.topic, since_ms)
        async with scene.consuming(inbox.take, "again"):
            await inbox.until_has(LATE + nudges)
            assert sorted(inbox.keys) == sorted(LATE + nudges)
        await admin.reset_to_begin(scene.group, scene.topic)
        assert (await admin.lag(scene.group, scene.topic)).total == 6 + len(nudges)
        await admin.skip_to_end(scene.group, scene.topic)
        assert (await admin.lag(scene.group, scene.topic)).total == 0


@pytest.mark.proves("client.programs.trace")
@scenario
async def test_traces_of_producer_and_consumer_are_found_by_message_id(scene: Scene) -> None:
    await scene.make_topic(queues=1, brokers=1)
    inbox = Inbox()
    async with scene.consuming(inbox.take, trace=True), scene.producer(trace=True) as producer:
        receipt = await producer.send(scene.message("traced", tags="paid"))
        await inbox.until_has(["traced"])
    async with scene.admin() as admin:
        traces: dict[type[Trace], Trace] = {}

        async def are_written() -> bool:
            for one in await admin.messages_by_key(TRACE_TOPIC, receipt.message_id):
                for trace in decode_traces(one.body):
                    traces[type(trace)] = trace
            return len(traces) == 3

        await eventually_async(are_written, lambda: f"three traces, not {traces}")
    sent, before, after = traces[PubTrace], traces[SubBeforeTrace], traces[SubAfterTrace]
    assert isinstance(sent, PubTrace)
    assert (sent.topic, sent.group, sent.tags, sent.keys) == (
        scene.topic,
        scene.producer_group,
        "paid",
        "traced",
    )
    assert sent.offset_message_id == receipt.offset_message_id and sent.success
    assert isinstance(before, SubBeforeTrace) and isinstance(after, SubAfterTrace)
    assert before.group == scene.group and before.request_id == after.request_id
    assert after.success
    assert keys_of(inbox.messages) == ["traced"]
