"""The event stream of a tab: it says that there is a new sample, and the page asks for its rows.

An event's id is the time of its sample. A tab that comes back with the id of an older one (its
``Last-Event-ID``) is told of the newest at once. A stream ends with its session.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from http import HTTPStatus

import msgspec
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from contrail.console.calls import Call
from contrail.console.contract import EVENTS, Route
from contrail.console.problems import Problem
from contrail.console.services.sampler import Sample
from contrail.console.state.roles import Role

HEARTBEAT_S = 15.0
STREAMS_MAX = 100


class SampleEvent(msgspec.Struct):
    """The data of an event ``sample``; ``error`` while no NameServer answers."""

    sampled_ms: int
    missing_count: int
    error: str | None


class Events:
    """All event streams of a console."""

    def __init__(self, *, heartbeat_s: float = HEARTBEAT_S) -> None:
        self.open_count = 0
        self._heartbeat_s = heartbeat_s

    def routes(self) -> tuple[Route, ...]:
        return (
            Route(
                method="GET",
                path="/events",
                name="events",
                summary="An event after each sample",
                handle=self.open,
                answer=str,
                media_type=EVENTS,
                role=Role.VIEWER,
                problems=(HTTPStatus.SERVICE_UNAVAILABLE,),
            ),
        )

    async def open(self, call: Call) -> Stream:
        return self.stream(self._lines(call))

    def stream(self, lines: AsyncIterator[bytes]) -> Stream:
        """An answer of these lines, counted among all streams of the console while it is open."""
        if self.open_count >= STREAMS_MAX:
            raise Problem(
                HTTPStatus.SERVICE_UNAVAILABLE,
                f"{STREAMS_MAX} event streams are open: close a tab",
                headers={"Retry-After": "30"},
            )
        self.open_count += 1
        headers = {"X-Accel-Buffering": "no"}
        return Stream(lines, self._closed, headers)

    def _closed(self) -> None:
        self.open_count -= 1

    async def _lines(self, call: Call) -> AsyncIterator[bytes]:
        sampler = call.parts.sampler
        text = call.request.headers.get("last-event-id", "")
        seen_ms = int(text) if text.isascii() and text.isdecimal() else 0
        yield b": hello\n\n"
        while self.goes_on(call) and not await call.request.is_disconnected():
            try:
                sample = await asyncio.wait_for(sampler.after(seen_ms), self._heartbeat_s)
            except TimeoutError:
                yield b": still here\n\n"
                continue
            seen_ms = sample.sampled_ms
            yield _event(sample)

    def goes_on(self, call: Call) -> bool:
        """Whether the caller is still logged in; the stream itself does not keep it so."""
        caller, parts = call.known_caller, call.parts
        if parts.accounts.role_of(caller.account) is None:
            return False
        token = caller.session_token
        return token is None or parts.sessions.is_open(token, parts.clock.now_ms())


class Stream(StreamingResponse):
    """Counts as open until it has ended, in whichever way."""

    def __init__(
        self, lines: AsyncIterator[bytes], closed: Callable[[], None], headers: dict[str, str]
    ) -> None:
        super().__init__(lines, media_type=EVENTS, headers=headers)
        self._closed = closed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._closed()


def _event(sample: Sample) -> bytes:
    data = SampleEvent(sample.sampled_ms, len(sample.partial), sample.error)
    text = msgspec.json.encode(data)
    return b"event: sample\nid: %d\ndata: %s\n\n" % (sample.sampled_ms, text)
