"""The client takes timer messages back from a running broker."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from contrail.client.message import Message
from contrail.client.producer import Producer
from contrail.clock import ManualClock, SystemClock
from contrail.errors import BrokerRefused, MessageInvalid
from contrail.protocol.codes import ResponseCode
from contrail.testing import LocalCluster, eventually
from tests.e2e.asking import Asker, route

TOPIC = "timed"


@pytest.fixture
def cluster() -> Iterator[LocalCluster]:
    # The client's own clock is the machine's: the broker's starts there and is moved on.
    with LocalCluster(clock=ManualClock(SystemClock().now_ms())) as running:
        Asker(running).make_topic(TOPIC, read=1, write=1)
        eventually(lambda: route(running, TOPIC) is not None, "the topic's route")
        yield running


@pytest.mark.proves("client.producer.waiting")
def test_a_recalled_message_is_not_delivered_and_the_others_are(cluster: LocalCluster) -> None:
    async def scenario() -> None:
        async with Producer("p", cluster.namesrv) as producer:
            by_receipt, by_handle, _ = [
                await producer.send(Message(TOPIC, body, delay=60)) for body in (b"1", b"2", b"3")
            ]
            assert await producer.recall(by_receipt) == by_receipt.message_id
            recalled = await producer.recall(TOPIC, by_handle.recall_handle)
            assert recalled == by_handle.message_id

    asyncio.run(scenario())
    asker = Asker(cluster)

    def delivered() -> list[bytes]:
        cluster.advance(ms=1_000)
        return asker.bodies(TOPIC)

    eventually(delivered, "the one that was not recalled")
    for _ in range(5):
        assert delivered() == [b"3"]


def test_a_message_without_a_handle_or_one_that_is_due_cannot_be_recalled(
    cluster: LocalCluster,
) -> None:
    async def scenario() -> None:
        async with Producer("p", cluster.namesrv) as producer:
            plain = await producer.send(Message(TOPIC, b"now"))
            by_level = await producer.send(Message(TOPIC, b"soon", delay_level=3))
            for receipt in (plain, by_level):
                with pytest.raises(MessageInvalid, match="no recall handle for topic 'timed'"):
                    await producer.recall(receipt)
            timed = await producer.send(Message(TOPIC, b"later", delay=60))
            with pytest.raises(MessageInvalid, match="for topic 'timed', not 'other'"):
                await producer.recall("other", timed.recall_handle)
            await asyncio.to_thread(cluster.advance, ms=120_000)
            with pytest.raises(BrokerRefused, match="too late") as caught:
                await producer.recall(timed)
            assert caught.value.code == ResponseCode.ILLEGAL_OPERATION

    asyncio.run(scenario())


def test_a_broker_with_recall_off_names_the_setting() -> None:
    async def scenario() -> None:
        async with Producer("p", closed.namesrv) as producer:
            timed = await producer.send(Message(TOPIC, b"later", delay=60))
            with pytest.raises(BrokerRefused, match="set recallMessageEnable=true") as caught:
                await producer.recall(timed)
            assert caught.value.code == ResponseCode.NO_PERMISSION

    with LocalCluster(properties={"recallMessageEnable": "false"}) as closed:
        asyncio.run(scenario())
