"""A live tail of a topic: at most 200 rows a second, the rows beyond are counted as skipped.

Each queue is followed by long pulls of the tools' own group, which commit nothing. An event
``rows`` holds a second's messages; ``skipped`` in it is the count of those left out so far.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from http import HTTPStatus
from typing import Annotated

import msgspec

from contrail.client.message import MessageQueue, ReceivedMessage
from contrail.console.bodies import MessageTold, told
from contrail.console.calls import Call
from contrail.console.contract import EVENTS, Route
from contrail.console.problems import Problem
from contrail.console.state.roles import Role
from contrail.console.streams.events import Events, Stream
from contrail.errors import ClientError

ROWS_PER_SECOND_MAX = 200
QUEUES_MAX = 64
_BATCH = 32
_WAIT_MS = 5_000
_AGAIN_S = 1.0
_TURN_S = 1.0
_HEARTBEAT_TURNS = 15


class TailQuery(msgspec.Struct, forbid_unknown_fields=True):
    """Only these tags: ``paid || open``."""

    tags: Annotated[str, msgspec.Meta(max_length=1024)] = "*"


class TailEvent(msgspec.Struct):
    """Messages of one second, and how many were left out since the beginning."""

    rows: list[MessageTold]
    skipped: int
    error: str | None


class Tails:
    """The tails of a console; they count as event streams do."""

    def __init__(self, events: Events) -> None:
        self._events = events

    def routes(self) -> tuple[Route, ...]:
        return (
            Route(
                method="GET",
                path="/topics/{topic}/tail",
                name="tail",
                summary="New messages of a topic as they come, at most 200 a second",
                handle=self.open,
                query=TailQuery,
                answer=str,
                media_type=EVENTS,
                role=Role.VIEWER,
                problems=(
                    HTTPStatus.NOT_FOUND,
                    HTTPStatus.CONFLICT,
                    HTTPStatus.SERVICE_UNAVAILABLE,
                ),
            ),
        )

    async def open(self, call: Call) -> Stream:
        queues = await call.parts.admin.queues(call.path["topic"])
        if len(queues) > QUEUES_MAX:
            raise Problem(
                HTTPStatus.CONFLICT,
                f"the topic has {len(queues)} queues: a tail follows up to {QUEUES_MAX}",
            )
        return self._events.stream(_lines(call, queues, self._events))


class _Collected:
    """The messages of a turn; the room is bounded."""

    def __init__(self) -> None:
        self.messages: list[ReceivedMessage] = []
        self.skipped = 0
        self.error: str | None = None

    def add(self, message: ReceivedMessage) -> None:
        if len(self.messages) < ROWS_PER_SECOND_MAX:
            self.messages.append(message)
        else:
            self.skipped += 1

    def taken(self) -> list[ReceivedMessage]:
        found, self.messages = self.messages, []
        return found


async def _lines(call: Call, queues: list[MessageQueue], events: Events) -> AsyncIterator[bytes]:
    collected = _Collected()
    work = [asyncio.create_task(_follow(call, queue, collected)) for queue in queues]
    quiet_turns = 0
    told_error: str | None = None
    try:
        yield b": hello\n\n"
        while events.goes_on(call) and not await call.request.is_disconnected():
            await asyncio.sleep(_TURN_S)
            found = collected.taken()
            if not found and collected.error == told_error:
                quiet_turns += 1
                if quiet_turns % _HEARTBEAT_TURNS == 0:
                    yield b": still here\n\n"
                continue
            quiet_turns, told_error = 0, collected.error
            rows = [told(call, one, preview=True) for one in found]
            event = TailEvent(rows, collected.skipped, collected.error)
            yield b"event: rows\ndata: %s\n\n" % msgspec.json.encode(event)
    finally:
        for one in work:
            one.cancel()
        await asyncio.gather(*work, return_exceptions=True)


async def _follow(call: Call, queue: MessageQueue, collected: _Collected) -> None:
    admin = call.parts.admin
    position: int | None = None
    while True:
        try:
            if position is None:
                position = await admin.queue_offset_max(queue)
            pulled = await admin.pull(queue, position, _BATCH, call.query.tags, wait_ms=_WAIT_MS)
        except ClientError as error:
            collected.error = f"{queue.broker_name}: {error}"
            await asyncio.sleep(_AGAIN_S)
            continue
        collected.error = None
        for message in pulled.messages:
            collected.add(message)
        if pulled.next_queue_offset > position:
            position = pulled.next_queue_offset
        elif pulled.messages:
            position += len(pulled.messages)
        else:
            await asyncio.sleep(0)
