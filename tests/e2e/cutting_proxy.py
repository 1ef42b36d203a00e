"""A way to a broker that can be cut for one client, as a network does it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Self

PROXY_HOST = "127.0.0.2"
"""Where brokers say they are, with the port they have on 127.0.0.1."""


class _Way:
    """One connection of a client through the proxy."""

    def __init__(self, client: asyncio.StreamWriter) -> None:
        self.client = client
        self.broker: asyncio.StreamWriter | None = None
        self.seen = b""
        self.is_swallowed = False

    def carries(self, mark: bytes) -> bool:
        return mark in self.seen

    def close_at_broker(self) -> None:
        if self.broker is not None:
            self.broker.close()


class CuttingProxy:
    """Passes everything on until it is told to cut."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._ways: list[_Way] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_swallowing_new = False
        self._server: asyncio.Server | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        self._run(self._open())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._run(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        done: Future[None] = asyncio.run_coroutine_threadsafe(work, self._loop)
        done.result(30)

    async def _open(self) -> None:
        self._server = await asyncio.start_server(self._accepted, PROXY_HOST, self._port)

    async def _close(self) -> None:
        assert self._server is not None
        self._server.close()
        for way in self._ways:
            way.client.close()
            way.close_at_broker()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # Cutting.

    def cut(self, mark: bytes, *, tells_client: bool) -> None:
        """Close the connections over which ``mark`` came, as the broker sees it.

        Unless the client is told, it sees connections that are open and silent; what it opens
        anew is silent too.
        """
        self._run(self._cut(mark, tells_client))

    async def _cut(self, mark: bytes, tells_client: bool) -> None:
        self._is_swallowing_new = not tells_client
        for way in self._ways:
            if way.carries(mark):
                way.is_swallowed = True
                way.close_at_broker()
                if tells_client:
                    way.client.close()

    def mend(self) -> None:
        """New connections work again, and those that were cut are closed at both ends."""
        self._run(self._mend())

    async def _mend(self) -> None:
        self._is_swallowing_new = False
        for way in self._ways:
            if way.is_swallowed:
                way.client.close()

    # Passing on.

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        way = _Way(writer)
        self._ways.append(way)
        if self._is_swallowing_new:
            way.is_swallowed = True
            return
        from_broker, way.broker = await asyncio.open_connection("127.0.0.1", self._port)
        for work in (self._to_broker(way, reader), self._to_client(way, from_broker)):
            task = asyncio.get_running_loop().create_task(work)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _to_broker(self, way: _Way, reader: asyncio.StreamReader) -> None:
        assert way.broker is not None
        try:
            while data := await reader.read(1 << 16):
                if len(way.seen) < 1 << 20:
                    way.seen += data
                if not way.is_swallowed:
                    way.broker.write(data)
        except OSError:
            pass  # The client has broken it off.
        way.close_at_broker()

    async def _to_client(self, way: _Way, reader: asyncio.StreamReader) -> None:
        try:
            while data := await reader.read(1 << 16):
                if not way.is_swallowed:
                    way.client.write(data)
        except OSError:
            pass  # The broker has.
        if not way.is_swallowed:
            way.client.close()
