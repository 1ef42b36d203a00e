"""Requests of our own over a connection: their deadlines, their end, and how they are written."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from contrail.errors import CallFailed, CallTimedOut
from contrail.protocol.command import ReceivedResponse, Request, encode_request
from contrail.wire.caller import Caller
from contrail.wire.connection import Connection
from tests.fakes.transports import FakeTransport


def connected() -> tuple[Connection, FakeTransport]:
    connection, transport = Connection(Caller()), FakeTransport()
    transport.connect(connection)
    return connection, transport


def ask(connection: Connection, timeout_ms: int = 60_000) -> asyncio.Future[ReceivedResponse]:
    opaque = connection.take_opaque()
    frame = encode_request(Request(10, opaque, {}))
    return connection.ask(opaque, frame, 10, timeout_ms)


def answer(opaque: int) -> ReceivedResponse:
    return ReceivedResponse(0, opaque, None, {}, b"", 479, "JAVA")


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(work)


def test_a_lone_request_leaves_at_once_and_others_with_the_end_of_the_tick() -> None:
    async def work() -> None:
        connection, transport = connected()
        ask(connection)
        assert len(transport.written) == 1
        ask(connection)
        ask(connection)
        assert len(transport.written) == 1
        await asyncio.sleep(0)
        assert len(transport.written) == 2
        assert len(transport.frames()) == 3

    run(work())


def test_answers_wake_their_callers_in_any_order() -> None:
    async def work() -> None:
        connection, _ = connected()
        first, second = ask(connection), ask(connection)
        assert connection.answered(answer(2))
        assert connection.answered(answer(1))
        assert [(await first).opaque, (await second).opaque] == [1, 2]
        assert not connection.is_waiting
        assert not connection.answered(answer(1))

    run(work())


def test_each_request_ends_at_its_own_time() -> None:
    async def work() -> None:
        connection, _ = connected()
        patient = ask(connection, 60_000)
        hasty, quick = ask(connection, 20), ask(connection, 1)
        with pytest.raises(CallTimedOut, match="within 1 ms"):
            await quick
        assert not patient.done()
        with pytest.raises(CallTimedOut, match="request 10 within 20 ms"):
            await hasty
        assert not patient.done()
        assert connection.answered(answer(1))
        assert (await patient).code == 0

    run(work())


def test_a_late_answer_is_dropped() -> None:
    async def work() -> None:
        connection, _ = connected()
        with pytest.raises(CallTimedOut):
            await ask(connection, 1)
        assert not connection.answered(answer(1))

    run(work())


def test_a_lost_connection_ends_all_requests() -> None:
    async def work() -> None:
        connection, transport = connected()
        futures = [ask(connection), ask(connection)]
        transport.close()
        for future in futures:
            with pytest.raises(CallFailed, match="closed the connection"):
                await future
        with pytest.raises(CallFailed, match="not connected"):
            ask(connection)

    run(work())


def test_a_request_whose_task_gave_up_is_forgotten() -> None:
    async def work() -> None:
        connection, _ = connected()
        task = asyncio.create_task(connection.call(10, {}, timeout_ms=60_000))
        await asyncio.sleep(0)
        assert connection.is_waiting
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not connection.is_waiting

    run(work())


def test_a_retired_connection_closes_with_its_last_answer() -> None:
    async def work() -> None:
        connection, transport = connected()
        first, second = ask(connection), ask(connection)
        connection.retire("going away")
        assert not transport.is_closing()
        connection.answered(answer(1))
        assert not transport.is_closing()
        connection.answered(answer(2))
        assert transport.is_closing()
        assert ((await first).code, (await second).code) == (0, 0)

    run(work())


def test_a_retired_connection_without_requests_closes_at_once() -> None:
    async def work() -> None:
        connection, transport = connected()
        connection.retire("going away")
        assert transport.is_closing()

    run(work())


def test_a_caller_goes_on_reading_from_a_server_that_does_not_read() -> None:
    async def work() -> None:
        connection, transport = connected()
        connection.pause_writing()
        assert not transport.is_reading_paused
        waiting = asyncio.create_task(connection.writable())
        await asyncio.sleep(0)
        assert not waiting.done()
        connection.resume_writing()
        await waiting
        await connection.writable()

    run(work())


def test_a_task_that_waits_to_write_hears_of_the_end() -> None:
    async def work() -> None:
        connection, transport = connected()
        connection.pause_writing()
        waiting = asyncio.create_task(connection.writable())
        await asyncio.sleep(0)
        transport.close()
        await waiting

    run(work())
