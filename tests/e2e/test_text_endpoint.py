"""The HTTP endpoint of metrics: what it serves, and what it refuses."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from contrail.errors import ConfigError
from contrail.wire import text_endpoint
from contrail.wire.text_endpoint import (
    CONNECTIONS_MAX,
    HEAD_BYTES_MAX,
    PAGES_MAX,
    Page,
    TextEndpoint,
    open_metrics,
)

Test = Callable[[TextEndpoint], Awaitable[None]]


async def greeting() -> AsyncIterator[str]:
    yield "good "
    await asyncio.sleep(0)
    yield ""
    yield "day ü\n"


def with_endpoint(test: Test) -> None:
    async def run() -> None:
        endpoint = TextEndpoint({"/metrics": Page("text/plain", greeting)})
        await endpoint.listen("127.0.0.1", 0)
        try:
            await test(endpoint)
        finally:
            await endpoint.stop()

    asyncio.run(run())


async def asked(endpoint: TextEndpoint, request: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", endpoint.port)
    try:
        writer.write(request)
        return await asyncio.wait_for(reader.read(), 100)
    finally:
        writer.close()
        await writer.wait_closed()


def test_a_page_comes_in_chunks_and_the_connection_ends() -> None:
    async def test(endpoint: TextEndpoint) -> None:
        answer = await asked(endpoint, b"GET /metrics?x=1 HTTP/1.1\r\nHost: a\r\n\r\n")
        head, _, body = answer.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 OK\r\n")
        assert b"Connection: close" in head
        assert body == "5\r\ngood \r\n7\r\nday ü\n\r\n0\r\n\r\n".encode()
        assert endpoint.counts == {"served": 1}

    with_endpoint(test)


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"GET /other HTTP/1.1\r\n\r\n", b"404"),
        (b"POST /metrics HTTP/1.1\r\n\r\n", b"405"),
        (b"GET /metrics HTTP/1.0\r\n\r\n", b"400"),
        (b"GET  /metrics HTTP/1.1\r\n\r\n", b"400"),
        (b"\x00\xff\r\n\r\n", b"400"),
        (b"GET /metrics HTTP/1.1\r\nX: " + b"x" * HEAD_BYTES_MAX * 2, b"431"),
    ],
)
def test_anything_else_is_refused_in_a_sentence(request_bytes: bytes, status: bytes) -> None:
    async def test(endpoint: TextEndpoint) -> None:
        answer = await asked(endpoint, request_bytes)
        assert answer.startswith(b"HTTP/1.1 " + status)
        assert endpoint.counts == {"refused": 1}

    with_endpoint(test)


def test_a_silent_peer_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_endpoint, "_HEAD_TIMEOUT_S", 0.05)

    async def test(endpoint: TextEndpoint) -> None:
        assert await asked(endpoint, b"GET /metr") == b""
        assert endpoint.counts == {"broken_off": 1}

    with_endpoint(test)


def test_the_peer_that_is_silent_the_longest_makes_room_for_a_new_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Nobody is sent away for the time that a stalled machine takes.
    monkeypatch.setattr(text_endpoint, "_HEAD_TIMEOUT_S", 300)

    async def test(endpoint: TextEndpoint) -> None:
        silent = [
            await asyncio.open_connection("127.0.0.1", endpoint.port)
            for _ in range(CONNECTIONS_MAX)
        ]
        for _ in range(2):
            answer = await asked(endpoint, b"GET /metrics HTTP/1.1\r\n\r\n")
            assert answer.startswith(b"HTTP/1.1 200")
        assert endpoint.counts == {"served": 2, "broken_off": 1}, "one place was enough"
        await _ended(*silent[0])
        for reader, writer in silent[1:]:
            writer.write(b"GET /metrics HTTP/1.1\r\n\r\n")
            assert (await reader.read()).startswith(b"HTTP/1.1 200")
            await _ended(reader, writer)

    with_endpoint(test)


async def _ended(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        assert await asyncio.wait_for(reader.read(), 100) == b""
    finally:
        writer.close()
        await writer.wait_closed()


def test_more_connections_than_allowed_are_refused_while_all_are_being_served() -> None:
    async def run() -> None:
        going_on = asyncio.Event()
        begun: list[None] = []

        async def slow() -> AsyncIterator[str]:
            begun.append(None)
            await going_on.wait()
            yield "a"

        endpoint = TextEndpoint({"/slow": Page("text/plain", slow, is_cheap=True)})
        await endpoint.listen("127.0.0.1", 0)
        request = b"GET /slow HTTP/1.1\r\n\r\n"
        first = [asyncio.create_task(asked(endpoint, request)) for _ in range(CONNECTIONS_MAX)]
        while len(begun) < CONNECTIONS_MAX:
            await asyncio.sleep(0.005)
        assert (await asked(endpoint, b"")).startswith(b"HTTP/1.1 503")
        going_on.set()
        assert all(b" 200 " in answer for answer in await asyncio.gather(*first))
        await endpoint.stop()

    asyncio.run(run())


def test_a_peer_that_does_not_read_loses_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    writers: list[asyncio.StreamWriter] = []

    async def drain(writer: asyncio.StreamWriter) -> None:
        # As if the rest were small enough to be left to the transport.
        writers.append(writer)

    async def long() -> AsyncIterator[str]:
        yield "x" * (32 << 20)

    async def run() -> None:
        endpoint = TextEndpoint({"/metrics": Page("text/plain", long)})
        await endpoint.listen("127.0.0.1", 0)
        with socket.create_connection(("127.0.0.1", endpoint.port)) as peer:
            peer.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
            async with asyncio.timeout(100):
                while not writers or writers[0].get_extra_info("socket").fileno() >= 0:
                    await asyncio.sleep(0.005)
        assert endpoint.counts == {"broken_off": 1}
        await endpoint.stop()

    monkeypatch.setattr(text_endpoint, "_ANSWER_TIMEOUT_S", 0.05)
    monkeypatch.setattr(asyncio.StreamWriter, "drain", drain)
    asyncio.run(run())


def test_health_is_answered_while_scrapes_take_all_they_may() -> None:
    async def run() -> None:
        async def endless() -> AsyncIterator[str]:
            while True:
                yield "more\n" * 1000

        endpoint = await open_metrics(endless, address="127.0.0.1", port=0)
        assert endpoint is not None
        scrapes = [
            await asyncio.open_connection("127.0.0.1", endpoint.port) for _ in range(PAGES_MAX)
        ]
        for _, writer in scrapes:
            writer.transport.pause_reading()  # type: ignore[attr-defined]
            writer.write(b"GET /metrics HTTP/1.1\r\n\r\n")
        while endpoint.page_count < PAGES_MAX:
            await asyncio.sleep(0.005)
        answer = await asked(endpoint, b"GET /metrics HTTP/1.1\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 503")
        answer = await asked(endpoint, b"GET /healthz HTTP/1.1\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 200") and b"ok\n" in answer
        await endpoint.stop()
        for _, writer in scrapes:
            writer.transport.abort()

    asyncio.run(run())


def test_a_bounded_number_of_pages_is_made_at_a_time() -> None:
    async def run() -> None:
        going_on = asyncio.Event()

        async def slow() -> AsyncIterator[str]:
            yield "a"
            await going_on.wait()

        endpoint = TextEndpoint({"/metrics": Page("text/plain", slow)})
        await endpoint.listen("127.0.0.1", 0)
        request = b"GET /metrics HTTP/1.1\r\n\r\n"
        first = [asyncio.create_task(asked(endpoint, request)) for _ in range(2)]
        while endpoint.page_count < 2:
            await asyncio.sleep(0.005)
        assert (await asked(endpoint, request)).startswith(b"HTTP/1.1 503")
        going_on.set()
        assert [b" 200 " in answer for answer in await asyncio.gather(*first)] == [True, True]
        await endpoint.stop()

    asyncio.run(run())


def test_stopping_breaks_off_what_is_being_sent() -> None:
    async def run() -> None:
        async def endless() -> AsyncIterator[str]:
            while True:
                yield "more\n"
                await asyncio.sleep(0.001)

        endpoint = TextEndpoint({"/metrics": Page("text/plain", endless)})
        await endpoint.listen("127.0.0.1", 0)
        asking = asyncio.create_task(asked(endpoint, b"GET /metrics HTTP/1.1\r\n\r\n"))
        while not endpoint.page_count:
            await asyncio.sleep(0.005)
        await endpoint.stop()
        try:
            answer = await asking
        except ConnectionError:
            answer = b""
        # A page that was broken off must not look like a whole one.
        assert not answer.endswith(b"0\r\n\r\n")
        assert endpoint.counts == {"broken_off": 1}

    asyncio.run(run())


def test_a_port_that_is_taken_is_refused() -> None:
    async def test(endpoint: TextEndpoint) -> None:
        other = TextEndpoint({})
        with pytest.raises(ConfigError, match=str(endpoint.port)):
            await other.listen("127.0.0.1", endpoint.port)

    with_endpoint(test)
