"""The event stream: the newest sample at once, then each new one, while the login lives."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from contrail.console.calls import Call, Caller
from contrail.console.problems import Problem
from contrail.console.services.sampler import Sample
from contrail.console.state.roles import Role
from contrail.console.streams.events import STREAMS_MAX, Events
from tests.unit.console.asking import NOW_MS, Desk


class FakeRequest:
    def __init__(self, **headers: str) -> None:
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}
        self.is_gone = False

    async def is_disconnected(self) -> bool:
        return self.is_gone


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def call(desk: Desk, request: FakeRequest) -> Call:
    desk.parts.sessions.begin("t", "viewer", Role.VIEWER, "c", NOW_MS)
    caller = Caller("viewer", Role.VIEWER, None, "t")
    given: Any = request
    return Call(parts=desk.parts, request=given, caller=caller, address="10.0.0.1", path={})


async def lines(events: Events, one: Call, count: int) -> list[bytes]:
    stream = await events.open(one)
    found: list[bytes] = []
    async for line in stream.body_iterator:
        found.append(bytes(line))  # type: ignore[arg-type]
        if len(found) == count:
            break
    return found


@pytest.mark.proves("console.api.events")
def test_a_tab_is_told_of_the_newest_sample_and_of_a_heartbeat(desk: Desk) -> None:
    found = asyncio.run(lines(Events(heartbeat_s=0.02), call(desk, FakeRequest()), 3))
    newest = NOW_MS - 4_000
    assert found[0] == b": hello\n\n" and found[2] == b": still here\n\n"
    assert found[1].startswith(b"event: sample\nid: %d\ndata: {" % newest)
    assert b'"missing_count":1' in found[1]


@pytest.mark.proves("console.api.events")
def test_a_tab_that_comes_back_is_not_told_the_same_twice(desk: Desk) -> None:
    seen = FakeRequest(last_event_id=str(NOW_MS - 4_000))
    found = asyncio.run(lines(Events(heartbeat_s=0.02), call(desk, seen), 2))
    assert found == [b": hello\n\n", b": still here\n\n"]
    older = FakeRequest(last_event_id="17")
    found = asyncio.run(lines(Events(heartbeat_s=0.02), call(desk, older), 2))
    assert found[1].startswith(b"event: sample")


def test_a_stream_wakes_with_a_new_sample(desk: Desk) -> None:
    async def run() -> list[bytes]:
        seen = FakeRequest(last_event_id=str(NOW_MS - 4_000))
        waiting = asyncio.create_task(lines(Events(), call(desk, seen), 2))
        await asyncio.sleep(0)
        await desk.parts.sampler.publish(Sample(NOW_MS, ("n",)))
        return await waiting

    assert asyncio.run(run())[1].startswith(b"event: sample\nid: %d\n" % NOW_MS)


@pytest.mark.proves("console.api.events")
def test_a_stream_ends_with_its_session_account_or_tab(desk: Desk) -> None:
    def ended(one: Call) -> bool:
        return len(asyncio.run(lines(Events(heartbeat_s=0.02), one, 9))) == 1

    request = FakeRequest()
    request.is_gone = True
    assert ended(call(desk, request))
    one = call(desk, FakeRequest())
    desk.parts.sessions.end("t")
    assert ended(one)
    one = call(desk, FakeRequest())
    desk.parts.accounts.remove("viewer")
    assert ended(one)


@pytest.mark.proves("console.api.events")
def test_there_are_a_hundred_streams_at_most(desk: Desk) -> None:
    async def run() -> None:
        events = Events()
        streams = [await events.open(call(desk, FakeRequest())) for _ in range(STREAMS_MAX)]
        with pytest.raises(Problem, match="100 event streams"):
            await events.open(call(desk, FakeRequest()))
        scope: Any = {"type": "http", "asgi": {"spec_version": "2.3"}}

        async def receive() -> Any:
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            return None

        await streams[0](scope, receive, send)
        assert events.open_count == STREAMS_MAX - 1

    asyncio.run(run())
