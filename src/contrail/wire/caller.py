"""Outbound requests: one connection per address, opened when needed, shared by everybody."""

from __future__ import annotations

import asyncio
import ssl
import sys
from collections.abc import Callable, Mapping

from contrail.errors import CallFailed
from contrail.protocol.command import ReceivedResponse, Request
from contrail.protocol.frames import FrameDecoder
from contrail.protocol.signing import CredentialSource, current, signed_fields
from contrail.wire.addresses import split_address
from contrail.wire.connection import Connection, Intake, Read
from contrail.wire.limits import Limits
from contrail.wire.tls import TlsFiles, TlsMode

CONNECT_TIMEOUT_MS = 3_000
# A broker answers a batch with the ids of all its messages in one field.
_ANSWER_HEADER_BYTES_MAX = 4 << 20

RequestListener = Callable[[Connection, Request], None]


class Caller:
    """Calls peers by their address. Use within one event loop; ``close`` when done."""

    def __init__(
        self,
        *,
        limits: Limits | None = None,
        on_request: RequestListener | None = None,
        on_lost: Callable[[str], None] | None = None,
        language: str = "JAVA",
        tls: ssl.SSLContext | None = None,
        credentials: CredentialSource | None = None,
    ) -> None:
        """With ``credentials`` every request is signed."""
        self.credentials = credentials
        self.limits = limits or Limits()
        self.language = language
        self.pauses_slow_peers = False
        self.intake: Intake | None = None
        # A caller asked for every answer that it reads.
        self.request_room = self.piece_bytes_max = self.read_bytes_max = sys.maxsize
        self.tick_is_due = False
        self._client_tls = tls
        self._on_lost = on_lost
        # Of connections that peers make to us; those we make are encrypted by the event loop.
        self.tls_mode = TlsMode.DISABLED
        self.tls_files: TlsFiles | None = None
        self.now_s = 0.0
        self._on_request = on_request
        self._connections: dict[str, Connection] = {}
        self._connecting: dict[str, asyncio.Task[Connection]] = {}
        self._retired: set[Connection] = set()
        self._to_flush: list[Connection] = []
        self._flush_scheduled = False
        self._is_closed = False

    async def call(
        self,
        address: str,
        code: int,
        fields: Mapping[str, str] | None = None,
        body: bytes = b"",
        *,
        timeout_ms: int = 3_000,
    ) -> ReceivedResponse:
        """Ask the peer at ``host:port``; any response code is a normal return.

        Raises:
            CallFailed: no connection, a broken one, or no answer in time.
        """
        connection = await self.connection_to(address)
        return await connection.call(
            code, self._signed(fields or {}, body), body, timeout_ms=timeout_ms
        )

    async def notify(
        self, address: str, code: int, fields: Mapping[str, str] | None = None, body: bytes = b""
    ) -> None:
        """Send a one-way request.

        Raises:
            CallFailed: no connection could be made.
        """
        connection = await self.connection_to(address)
        connection.notify(code, self._signed(fields or {}, body), body)

    def _signed(self, fields: Mapping[str, str], body: bytes) -> Mapping[str, str]:
        if self.credentials is None:
            return fields
        return signed_fields(fields, body, current(self.credentials))

    def open_connection(self, address: str) -> Connection | None:
        """The connection to an address, if it is open."""
        connection = self._connections.get(address)
        return None if connection is None or connection.is_closed else connection

    async def connection_to(self, address: str) -> Connection:
        """The open connection to an address, made now if there is none.

        Raises:
            CallFailed: it cannot be made.
        """
        connection = self._connections.get(address)
        if connection is not None and not connection.is_closed:
            return connection
        task = self._connecting.get(address)
        if task is None:
            task = asyncio.get_running_loop().create_task(self._connect(address))
            self._connecting[address] = task
            task.add_done_callback(lambda task: self._connected(address, task))
        return await asyncio.shield(task)

    def _connected(self, address: str, task: asyncio.Task[Connection]) -> None:
        self._connecting.pop(address, None)
        if not task.cancelled():
            # The caller may have been cancelled: asyncio must not complain of an unread exception.
            task.exception()

    async def _connect(self, address: str) -> Connection:
        try:
            host, port = split_address(address)
        except ValueError as error:
            raise CallFailed(str(error)) from error
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_MS / 1000):
                _, connection = await loop.create_connection(
                    lambda: Connection(self), host, port, ssl=self._client_tls
                )
        # A name that cannot be encoded is a ValueError of the resolver.
        except (OSError, ValueError, OverflowError) as error:
            raise CallFailed(f"{address} cannot be reached: {str(error) or 'timeout'}") from error
        self._connections[address] = connection
        return connection

    # The calls of connections.

    def decoder_for(self, packed_host: bytes) -> FrameDecoder:
        return FrameDecoder(
            header_bytes_max=_ANSWER_HEADER_BYTES_MAX, value_bytes_max=_ANSWER_HEADER_BYTES_MAX
        )

    def admit(self, connection: Connection) -> str | None:
        return None

    def arrived(self, connection: Connection, read: Read, may_join: bool) -> None:
        assert isinstance(read, list), "without an intake everything is decoded"
        for frame in read:
            if isinstance(frame, ReceivedResponse):
                connection.answered(frame)
            elif isinstance(frame, Request) and self._on_request is not None:
                self._on_request(connection, frame)

    def waits(self, connection: Connection) -> None:
        raise AssertionError("a caller takes everything that it reads")

    def read_enough(self, connection: Connection) -> None:
        raise AssertionError("a caller reads as much as there is")

    def grows(self, connection: Connection, byte_count: int) -> None:
        """A peer that we ask may answer with as many bytes as a frame holds."""

    def wants_flush(self, connection: Connection) -> None:
        self._to_flush.append(connection)
        if not self._flush_scheduled:
            self._flush_scheduled = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_scheduled = False
        to_flush, self._to_flush = self._to_flush, []
        for connection in to_flush:
            connection.flush()

    def lost(self, connection: Connection, reason: str) -> None:
        self._retired.discard(connection)
        for address, known in list(self._connections.items()):
            if known is connection:
                del self._connections[address]
                if self._on_lost is not None and not self._is_closed:
                    self._on_lost(address)

    def retire(self, address: str, reason: str) -> None:
        """Let the connection to an address end with its last answer; the next call makes one."""
        connection = self._connections.pop(address, None)
        if connection is not None:
            self._retired.add(connection)
            connection.retire(reason)
            if self._on_lost is not None:
                self._on_lost(address)

    def socket_numbers(self) -> list[int]:
        """The file numbers of the open connections."""
        numbers = (known.socket_number for known in [*self._connections.values(), *self._retired])
        return [number for number in numbers if number is not None]

    async def close(self) -> None:
        """Close every connection; calls under way fail."""
        self._is_closed = True
        for task in list(self._connecting.values()):
            task.cancel()
        for connection in [*self._connections.values(), *self._retired]:
            connection.abort("closed")
        await asyncio.sleep(0)
