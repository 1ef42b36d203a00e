"""A running push consumer writes its progress periodically, and retries locally when it should."""

from __future__ import annotations

import asyncio

import pytest

from contrail.client.admin import Admin
from contrail.client.consumed_message import ConsumedMessage
from contrail.client.consuming_concurrent import LOCAL_RETRY_S, ConcurrentSupply
from contrail.client.message import MessageQueue
from contrail.client.push_consumer import PushConsumer
from contrail.testing import LocalCluster, eventually_async
from tests.e2e.push_setup import PATIENCE_S, consuming, fresh, send

QUIET_MS = 3_600_000


async def progress(namesrv: str, group: str, queue: MessageQueue) -> int | None:
    async with Admin(namesrv) as admin:
        return await admin.committed(group, queue)


class Gated:
    """A handler that ends when the test lets it."""

    def __init__(self) -> None:
        self.begun: list[ConsumedMessage] = []
        self.ended_count = 0
        self.gate = asyncio.Event()

    async def __call__(self, message: ConsumedMessage) -> None:
        self.begun.append(message)
        await self.gate.wait()
        self.ended_count += 1


async def handled_while_paused(consumer: PushConsumer, handler: Gated) -> MessageQueue:
    """One message is handled, and no later pull could carry the offset."""
    await eventually_async(lambda: handler.begun)
    [message] = handler.begun
    consumer.pause()
    handler.gate.set()
    await eventually_async(lambda: handler.ended_count == 1)
    return message.queue


@pytest.mark.proves("client.consumers.progress")
def test_progress_is_written_periodically_without_a_close() -> None:
    async def main(namesrv: str) -> None:
        topic = fresh("clocked")
        await send(namesrv, topic, ["one"])
        for interval_ms, written in ((50, 1), (QUIET_MS, None)):
            group, handler = fresh("readers"), Gated()
            consumer = await consuming(
                namesrv, group, topic, handler, persist_consumer_offset_interval_ms=interval_ms
            )
            try:
                queue = await handled_while_paused(consumer, handler)
                if written is not None:
                    async with asyncio.timeout(PATIENCE_S):
                        while await progress(namesrv, group, queue) != written:
                            await asyncio.sleep(0.02)
                assert await progress(namesrv, group, queue) == written
            finally:
                await consumer.close()
            assert await progress(namesrv, group, queue) == 1

    with LocalCluster() as cluster:
        asyncio.run(main(cluster.namesrv))


@pytest.mark.proves("client.consumers.failed-send-back")
def test_a_consumer_waits_five_seconds_before_it_retries_locally() -> None:
    async def main(namesrv: str) -> None:
        consumer = await consuming(namesrv, fresh("readers"), fresh("orders"), Gated())
        try:
            assert consumer._work is not None
            supply = consumer._work.supply
            assert isinstance(supply, ConcurrentSupply)
            assert supply._local_retry_s == LOCAL_RETRY_S == 5.0
        finally:
            await consumer.close()

    with LocalCluster() as cluster:
        asyncio.run(main(cluster.namesrv))
