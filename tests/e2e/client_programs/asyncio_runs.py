"""Several ``asyncio.run`` in one process, each with its own clients. Usage: LOOP NAMESRV TOPIC."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Coroutine
from typing import Any, TypeVar

from contrail.aio import Message, Producer, PullConsumer, PushConsumer
from contrail.client import instances
from contrail.errors import ClientError

T = TypeVar("T")


def run(work: Coroutine[Any, Any, T], loop_name: str) -> T:
    factory = None
    if loop_name == "uvloop":
        import uvloop

        factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(work)


async def send(producer: Producer, topic: str, body: bytes) -> str:
    async with producer:
        await producer.send(Message(topic, body))
        return producer.client_id


async def consume(namesrv: str, topic: str, wanted: set[bytes]) -> None:
    async with PushConsumer("reads", namesrv, consume_from_where="first") as consumer:
        await consumer.subscribe(topic)
        async for message in consumer:
            wanted.discard(message.body)
            if not wanted:
                return


def expect_refusal(work: Coroutine[Any, Any, object], loop_name: str) -> None:
    try:
        run(work, loop_name)
    except ClientError as error:
        told = str(error)
    else:
        raise AssertionError("a client worked in another loop")
    assert "belongs to another event loop" in told, told
    assert "make the client inside the coroutine that is run" in told, told


def main() -> None:
    loop_name, namesrv, topic = sys.argv[1:]
    # A producer that is made once and opened in each run is fine.
    producer = Producer("calls", namesrv, send_timeout_ms=60_000)
    bodies = {b"%d" % number for number in range(5)}
    ids = {run(send(producer, topic, body), loop_name) for body in bodies}
    assert len(ids) == 5, ids
    run(consume(namesrv, topic, set(bodies)), loop_name)
    assert instances._by_loop == {}

    # One that is left open by a run cannot be used in the next.
    producer = Producer("forgetful", namesrv, send_timeout_ms=60_000)
    puller = PullConsumer("forgetful", namesrv)
    pusher = PushConsumer("forgetful-too", namesrv)

    async def open_all() -> None:
        await producer.start()
        await producer.send(Message(topic, b"x"))
        await puller.start()
        await puller.fetch_queues(topic)
        await pusher.__aenter__()
        await pusher.subscribe(topic)

    run(open_all(), loop_name)
    expect_refusal(producer.send(Message(topic, b"x")), loop_name)
    expect_refusal(puller.fetch_queues(topic), loop_name)
    expect_refusal(pusher.subscribe(topic), loop_name)
    for client in (producer, puller, pusher):
        expect_refusal(client.close(), loop_name)
    # The next client lets go of forgotten ones.
    run(send(Producer("calls", namesrv, send_timeout_ms=60_000), topic, b"x"), loop_name)
    assert instances._by_loop == {}
    print("done")


main()
