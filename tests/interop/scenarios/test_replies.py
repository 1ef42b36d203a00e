"""Request and reply."""

from __future__ import annotations

import asyncio

import pytest

from contrail.aio import ConsumedMessage
from contrail.errors import ClientError, NoReply
from tests.interop.scenarios.scene import Scene, scenario

TIMEOUT_MS = 60_000


@pytest.mark.proves("client.producer.request-reply")
@scenario
async def test_a_request_gets_the_reply_of_its_consumer(scene: Scene) -> None:
    await scene.make_topic()
    refused: list[str] = []

    async def handle(message: ConsumedMessage) -> None:
        try:
            await message.reply("答:".encode() + message.body)
        except ClientError as error:
            refused.append(str(error))

    async with scene.consuming(handle, "answering"), scene.producer() as producer:
        await producer.send(scene.message("plain"))
        replies = await asyncio.gather(
            *(producer.request(scene.message(f"r-{n}"), timeout_ms=TIMEOUT_MS) for n in range(8))
        )
    assert [reply.body.decode() for reply in replies] == [f"答:body of r-{n}" for n in range(8)]
    assert len(refused) == 1 and "is no request" in refused[0]


@scenario
async def test_a_producer_may_reply_too_and_silence_is_an_error(scene: Scene) -> None:
    await scene.make_topic(queues=1, brokers=1)
    async with scene.producer() as producer, scene.consumer("answering") as consumer:
        await consumer.subscribe(scene.topic)
        asking = asyncio.create_task(
            producer.request(scene.message("heard"), timeout_ms=TIMEOUT_MS)
        )
        async for message in consumer:
            await producer.reply(message, b"heard", tags="ok", properties={"语言": "中文"})
            break
        reply = await asking
        assert (reply.body, reply.properties["TAGS"]) == (b"heard", "ok")
        assert reply.properties["语言"] == "中文"
        with pytest.raises(NoReply, match="within 300 ms"):
            await producer.request(scene.message("nobody"), timeout_ms=300)
