"""The two ends of a connection, in memory: a transport and a service."""

from __future__ import annotations

import asyncio
from typing import Any

from contrail.protocol.command import Frame, Request, Response
from contrail.protocol.frames import FrameDecoder, Frames
from contrail.wire.connection import Connection
from contrail.wire.server import Arrived, Server


class FakeTransport(asyncio.Transport):
    """Remembers the bytes written; closing it loses the connection immediately."""

    def __init__(
        self,
        peer: tuple[str, int] | None = ("127.0.0.1", 50_001),
        local: tuple[str, int] = ("203.0.113.1", 10_911),
    ) -> None:
        super().__init__({"peername": peer, "sockname": local})
        self.written: list[bytes] = []
        self.is_reading_paused = False
        self.was_aborted = False
        self._closing = False
        self._protocol: asyncio.Protocol | None = None

    def connect(self, protocol: asyncio.Protocol) -> None:
        self._protocol = protocol
        protocol.connection_made(self)

    def write(self, data: Any) -> None:
        assert not self._closing, "written to after it was closed"
        self.written.append(bytes(data))

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self.write_bytes_max = high

    def pause_reading(self) -> None:
        assert not self.is_reading_paused
        self.is_reading_paused = True

    def resume_reading(self) -> None:
        assert self.is_reading_paused
        self.is_reading_paused = False

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            assert self._protocol is not None
            self._protocol.connection_lost(None)

    def abort(self) -> None:
        self.was_aborted = True
        self.close()

    def frames(self) -> list[Frame]:
        """The bytes written, as the peer reads them."""
        decoder = FrameDecoder()
        data = b"".join(self.written)
        found = list(decoder.feed(data)) if data else []
        assert decoder.failure is None and decoder.pending_bytes == 0
        return found  # type: ignore[return-value]


class EchoService:
    """Answers every request with its own body and code, and remembers the rest."""

    def __init__(self) -> None:
        self.opened: list[Connection] = []
        self.closed: list[tuple[Connection, str]] = []
        self.others: list[object] = []
        self.ticks = 0
        self.fails_for: Connection | None = None

    def take_runs(self, arrived: list[Arrived], at: int) -> int:
        return at

    def take_before_tick(self, peer: Connection, frames: Frames) -> Frames:
        """Everything waits for its tick."""
        return frames

    def received(self, peer: Connection, frames: Frames, until_s: float) -> int:
        if peer is self.fails_for:
            raise RuntimeError("this service has a bug")
        for frame in frames:
            if isinstance(frame, Request):
                peer.reply(frame, Response(0, None, {"echo": str(frame.code)}, frame.body))
            else:
                self.others.append(frame)
        return len(frames)

    def end_of_tick(self) -> None:
        self.ticks += 1

    def connection_opened(self, peer: Connection) -> None:
        self.opened.append(peer)

    def connection_closed(self, peer: Connection, reason: str) -> None:
        self.closed.append((peer, reason))


def still(server: Server) -> Server:
    """The same server with a clock that stands: none of its turns or pieces ends by time."""
    server.monotonic_s = lambda: 1000.0
    return server


def connected(
    server: Server, address: str = "127.0.0.1", port: int = 50_001, *, is_fast_port: bool = False
) -> tuple[Connection, FakeTransport]:
    """A new connection of ``server`` to a peer of this address."""
    connection = Connection(server, is_fast_port=is_fast_port)
    transport = FakeTransport((address, port))
    transport.connect(connection)
    return connection, transport
