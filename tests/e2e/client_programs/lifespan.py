"""Run an application with clients as an ASGI server does. Usage: LOOP NAMESRV TOPIC.

Startup opens them, requests use them side by side, SIGTERM ends it all; some requests are given up
by their callers.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from contrail.aio import ConsumedMessage, Message, Producer, PushConsumer

REQUESTS = 200
loop_name, namesrv, topic = sys.argv[1:]


class State:
    producer: Producer
    received: set[bytes]


@asynccontextmanager
async def lifespan(state: State) -> AsyncIterator[None]:
    state.received = set()
    consumer = PushConsumer("app", namesrv, consume_from_where="first")

    @consumer.on_message
    async def handle(message: ConsumedMessage) -> None:
        state.received.add(message.body)

    async with Producer("app", namesrv, send_timeout_ms=60_000) as state.producer, consumer:
        await consumer.subscribe(topic)
        yield


async def endpoint(state: State, number: int) -> None:
    await state.producer.send(Message(topic, b"%d" % number))


async def serve(requests: Any) -> None:
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    state = State()
    async with lifespan(state):
        under_way = [asyncio.create_task(endpoint(state, number)) for number in requests]
        await asyncio.sleep(0)
        given_up = under_way[::5]
        for task in given_up:
            task.cancel()
        await asyncio.gather(*under_way, return_exceptions=True)
        wanted = {b"%d" % number for number in requests if number % 5}
        while not wanted <= state.received:
            await asyncio.sleep(0.02)
        os.kill(os.getpid(), signal.SIGTERM)
        await stopping.wait()
    assert len(asyncio.all_tasks()) == 1, asyncio.all_tasks()
    print("done")


factory = None
if loop_name == "uvloop":
    import uvloop

    factory = uvloop.new_event_loop
with asyncio.Runner(loop_factory=factory) as runner:
    runner.run(serve(range(REQUESTS)))
