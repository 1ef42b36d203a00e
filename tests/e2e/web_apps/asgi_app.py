"""An ASGI application without a framework: clients live in its lifespan, requests use them.

``POST /send`` sends the body, ``GET /received`` lists the consumed messages. The cluster and the
topic come by the environment. The consumed messages are printed at the end.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from contrail.aio import ConsumedMessage, Message, Producer, PushConsumer

NAMESRV, TOPIC = os.environ["NAMESRV"], os.environ["TOPIC"]

Event = dict[str, Any]
Receive = Callable[[], Awaitable[Event]]
Send = Callable[[Event], Awaitable[None]]


async def app(scope: Event, receive: Receive, send: Send) -> None:
    if scope["type"] == "lifespan":
        await live(scope["state"], receive, send)
    else:
        await answer(scope, receive, send)


async def live(state: Event, receive: Receive, send: Send) -> None:
    await receive()
    async with clients(state):
        await send({"type": "lifespan.startup.complete"})
        await receive()
    print("received", json.dumps(state["received"]), flush=True)
    await send({"type": "lifespan.shutdown.complete"})


@asynccontextmanager
async def clients(state: Event) -> AsyncIterator[None]:
    state["received"] = []
    # Progress is kept by closing or not at all.
    consumer = PushConsumer(
        "asgi", NAMESRV, consume_from_where="first", persist_consumer_offset_interval_ms=3_600_000
    )

    @consumer.on_message
    async def collect(message: ConsumedMessage) -> None:
        state["received"].append(message.body.decode())

    async with Producer("asgi", NAMESRV, send_timeout_ms=60_000) as state["producer"], consumer:
        await consumer.subscribe(TOPIC)
        yield


async def answer(scope: Event, receive: Receive, send: Send) -> None:
    state = scope["state"]
    if scope["path"] == "/received":
        told: object = state["received"]
    else:
        await state["producer"].send(Message(TOPIC, await whole_body(receive)))
        told = {
            "pid": os.getpid(),
            "client_id": state["producer"].client_id,
            "loop": type(asyncio.get_running_loop()).__module__.partition(".")[0],
        }
    body = json.dumps(told).encode()
    length = str(len(body)).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", length)]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def whole_body(receive: Receive) -> bytes:
    parts: list[bytes] = []
    more = True
    while more:
        event = await receive()
        parts.append(event.get("body", b""))
        more = event.get("more_body", False)
    return b"".join(parts)
