"""A page or two of text over HTTP: for metrics that are scraped and health that is asked.

Only GET, one request per connection, heads and waits bounded. Text is sent in pieces as it is made,
and their source gives way to the event loop in between. A client that only keeps a connection open,
or does not read, makes room for new ones: health can be asked at any time.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

from contrail.errors import ConfigError
from contrail.protocol.prometheus_text import CONTENT_TYPE
from contrail.wire.server import bind

_log = logging.getLogger(__name__)

HEAD_BYTES_MAX = 8192
CONNECTIONS_MAX = 16
# Two scrapes at a time: one by the monitor, one by the operator.
PAGES_MAX = 2
_HEAD_TIMEOUT_S = 5.0
_ANSWER_TIMEOUT_S = 30.0
_STOP_GRACE_S = 0.5
_BACKLOG = 64
_PLAIN = "text/plain; charset=utf-8"


class Page(NamedTuple):
    """Text under a path; ``pieces`` makes it anew for every request."""

    content_type: str
    pieces: Callable[[], AsyncIterator[str]]
    # The health text costs nothing to make: no bound on how many are made at a time.
    is_cheap: bool = False


class _Refused(Exception):
    """A request that gets a status and a sentence."""

    def __init__(self, status: str, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class TextEndpoint:
    """Serves pages on a port of their own."""

    def __init__(self, pages: Mapping[str, Page]) -> None:
        self._pages = dict(pages)
        self._server: asyncio.Server | None = None
        self._serving: set[asyncio.Task[None]] = set()
        # Those of them that wait for their peer to ask or to read, the longest first.
        self._waiting: dict[asyncio.Task[None], None] = {}
        self.page_count = 0
        self.counts: Counter[str] = Counter()
        self.port = 0

    async def listen(self, address: str, port: int) -> int:
        """Open the port and return its number, which matters when ``port`` is 0.

        Raises:
            ConfigError: the address cannot be bound.
        """
        bound = bind(address, port)
        self.port = int(bound.getsockname()[1])
        try:
            self._server = await asyncio.start_server(
                self._accept, sock=bound, limit=HEAD_BYTES_MAX, backlog=_BACKLOG
            )
        except OSError as error:
            # Two sockets may be bound to a port, but only one of them can listen.
            bound.close()
            raise ConfigError(f"{address}:{port} cannot be listened on: {error}") from error
        return self.port

    async def stop(self) -> None:
        """Close the port and break off the texts that are being sent."""
        if self._server is None:
            return
        self._server.close()
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)
        await self._server.wait_closed()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        try:
            await self._serve(task, reader, writer)
        except (OSError, TimeoutError, EOFError, asyncio.CancelledError) as error:
            # A peer that went away or was too slow to ask or to read. Only ``stop`` and
            # ``_make_room`` cancel this task, and its end is all they want.
            self.counts["broken_off"] += 1
            _log.debug("a scrape was broken off: %r", error)
        finally:
            self._serving.discard(task)
            # A client that was served has closed already. A mere close would wait for its reading.
            writer.transport.abort()

    async def _serve(
        self,
        task: asyncio.Task[None],
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        try:
            self._make_room()
            with self._waits(task):
                async with asyncio.timeout(_HEAD_TIMEOUT_S):
                    head = await _read_head(reader)
            page = self._page_of(head)
            if not page.is_cheap and self.page_count >= PAGES_MAX:
                raise _Refused("503 Service Unavailable", "two scrapes are under way already")
        except _Refused as refusal:
            self.counts["refused"] += 1
            await self._refuse(writer, refusal)
            return
        async with asyncio.timeout(_ANSWER_TIMEOUT_S):
            await self._send(writer, page)
            with self._waits(task):
                await _close(writer)
        self.counts["served"] += 1

    def _make_room(self) -> None:
        """Break off the client that waits longest if there are too many."""
        if len(self._serving) <= CONNECTIONS_MAX:
            return
        longest = next(iter(self._waiting), None)
        if longest is None:
            raise _Refused("503 Service Unavailable", "too many connections: ask again later")
        # Not twice: it is gone only after a tick.
        del self._waiting[longest]
        longest.cancel()

    @contextmanager
    def _waits(self, task: asyncio.Task[None]) -> Iterator[None]:
        self._waiting[task] = None
        try:
            yield
        finally:
            self._waiting.pop(task, None)

    def _page_of(self, head: bytes) -> Page:
        words = head.partition(b"\r\n")[0].split(b" ")
        if len(words) != 3 or words[2] != b"HTTP/1.1":
            raise _Refused("400 Bad Request", "ask with: GET <path> HTTP/1.1")
        if words[0] != b"GET":
            raise _Refused("405 Method Not Allowed", "only GET is served here")
        page = self._pages.get(words[1].partition(b"?")[0].decode("latin-1"))
        if page is None:
            raise _Refused("404 Not Found", f"there is {' and '.join(self._pages)}")
        return page

    async def _send(self, writer: asyncio.StreamWriter, page: Page) -> None:
        self.page_count += not page.is_cheap
        try:
            await self._send_pieces(writer, page)
        finally:
            self.page_count -= not page.is_cheap

    async def _send_pieces(self, writer: asyncio.StreamWriter, page: Page) -> None:
        head = _head("200 OK", page.content_type, "Transfer-Encoding: chunked")
        writer.write(head)
        async for piece in page.pieces():
            data = piece.encode("utf-8", "replace")
            if data:
                writer.write(b"%x\r\n%b\r\n" % (len(data), data))
                await writer.drain()
        writer.write(b"0\r\n\r\n")
        await writer.drain()

    async def _refuse(self, writer: asyncio.StreamWriter, refusal: _Refused) -> None:
        body = f"{refusal}\n".encode()
        extra = f"Content-Length: {len(body)}"
        writer.write(_head(refusal.status, _PLAIN, extra) + body)
        async with asyncio.timeout(_STOP_GRACE_S):
            await _close(writer)


async def open_metrics(
    pieces: Callable[[], AsyncIterator[str]], *, address: str, port: int
) -> TextEndpoint | None:
    """Serve metrics, and ``/healthz`` for mere liveness; None if the port is taken.

    A server goes on without metrics: several may run on one machine, and only one has the port.
    """
    endpoint = TextEndpoint(
        {
            "/metrics": Page(CONTENT_TYPE, pieces),
            "/healthz": Page(_PLAIN, _healthy, is_cheap=True),
        }
    )
    try:
        await endpoint.listen(address, port)
    except ConfigError as error:
        _log.warning(
            "there are no metrics: %s; set metricsPromExporterPort to another port (0 takes a "
            "free one), or metricsExporterType=DISABLE",
            error,
        )
        return None
    _log.info("metrics are at http://%s:%d/metrics", address, endpoint.port)
    return endpoint


async def _healthy() -> AsyncIterator[str]:
    yield "ok\n"


async def _close(writer: asyncio.StreamWriter) -> None:
    """Return once the peer has taken everything: a closed writer keeps its socket until then."""
    writer.close()
    await writer.wait_closed()


async def _read_head(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.readuntil(b"\r\n\r\n")
    except asyncio.LimitOverrunError as error:
        reason = f"a request's head may have {HEAD_BYTES_MAX} bytes"
        raise _Refused("431 Request Header Fields Too Large", reason) from error


def _head(status: str, content_type: str, extra: str) -> bytes:
    lines = (
        f"HTTP/1.1 {status}",
        f"Content-Type: {content_type}",
        "Connection: close",
        "X-Content-Type-Options: nosniff",
        extra,
    )
    return "\r\n".join((*lines, "", "")).encode()
