"""Links between brokers: a listener and a dialer of byte streams, on a port of their own.

A link moves bytes both ways and knows nothing of their meaning. Bytes go out as they were
given, views of the log without a copy; a peer that reads too slowly pauses the link at its
high-water mark, and the link's user sends on when it is told to.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import os
import socket
import ssl
from collections.abc import Sequence
from typing import Protocol, cast, runtime_checkable

from contrail.errors import CallFailed, ConfigError
from contrail.wire.addresses import is_loopback, split_address
from contrail.wire.caller import CONNECT_TIMEOUT_MS
from contrail.wire.router import Networks, is_within
from contrail.wire.server import bind

WRITE_BYTES_MAX = 4 << 20
"""How much may wait to be sent on a link before it counts as paused."""
_BACKLOG = 64
# A peer that does not read its last word, or does not end its part of TLS, is not waited for.
_LAST_WORD_S = 2.0
_TLS_HANDSHAKE_S = 10.0
# A kernel has it under every setting, and it never waits between two segments.
_UNPACED = b"reno"
_CONGESTION_NAME_BYTES = 16
_log = logging.getLogger(__name__)


class LinkWatcher(Protocol):
    """The events that a link reports to its user, on the event loop's thread."""

    def opened(self, link: Link) -> None: ...
    def resumed(self, link: Link) -> None: ...
    def lost(self, link: Link, reason: str) -> None: ...


class LinkUser(LinkWatcher, Protocol):
    """A user that is given the bytes that arrive."""

    def received(self, link: Link, data: bytes) -> None: ...


@runtime_checkable
class LinkFiller(LinkWatcher, Protocol):
    """A user that has memory of its own for the bytes that arrive."""

    def room(self, link: Link) -> memoryview:
        """The place for the next bytes; they may be fewer."""
        ...

    def filled(self, link: Link, byte_count: int) -> None:
        """The link put this many bytes into the ``room`` that it was given last."""
        ...


class Link(asyncio.BaseProtocol):
    """One connection to another broker."""

    def __init__(
        self,
        user: LinkWatcher,
        *,
        certificate: bytes = b"",
        links: set[Link] | None = None,
        congestion: bytes = b"",
    ) -> None:
        """``congestion`` is the system's own control, given back to a link from another host."""
        self._user = user
        self._links = links
        self._congestion = congestion
        # The server's certificate as both ends know it; empty without TLS.
        self._certificate = certificate
        self._transport: asyncio.Transport | None = None
        # The connection's own socket, for files; None where TLS stands between.
        self._socket: socket.socket | None = None
        self._sends_files = False
        self._reason = "closed_by_peer"
        self._ending: asyncio.TimerHandle | None = None
        self.address = ""
        self.is_this_host = False
        self.is_encrypted = False
        self.is_paused = False
        self.is_closed = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports have the methods of the class and are none of it.
        transport = cast(asyncio.Transport, transport)
        self._transport = transport
        transport.set_write_buffer_limits(high=WRITE_BYTES_MAX)
        host, port = _end(transport, "peername")
        self.address = f"{host}:{port}"
        self.is_this_host = is_loopback(host) or host == _end(transport, "sockname")[0]
        tls = transport.get_extra_info("ssl_object")
        self.is_encrypted = tls is not None
        connection = transport.get_extra_info("socket")
        if connection is not None and self._congestion and not self.is_this_host:
            _set_congestion(connection, self._congestion)
        if connection is not None and tls is None:
            self._socket = socket.socket(fileno=os.dup(connection.fileno()))
            self._socket.setblocking(False)
        if tls is not None and not tls.server_side:
            self._certificate = tls.getpeercert(binary_form=True) or b""
        if self._links is not None:
            self._links.add(self)
        self._user.opened(self)

    @property
    def channel(self) -> bytes:
        """The name of the encrypted channel at both ends: a hash of the server's certificate."""
        return hashlib.sha256(self._certificate).digest() if self.is_encrypted else b""

    def _failed(self) -> None:
        """A bug at the user's: end this link alone. Call it in an ``except`` clause."""
        _log.exception("bytes from %s could not be handled", self.address)
        self.close("internal_error")

    def pause_writing(self) -> None:
        self.is_paused = True

    def resume_writing(self) -> None:
        self.is_paused = False
        if not self.is_closed:
            self._user.resumed(self)

    def send(self, parts: Sequence[bytes | memoryview]) -> None:
        """Send bytes; they must not change until they have left."""
        if self._transport is not None and not self.is_closed:
            self._transport.writelines(parts)

    def send_file(self, head: bytes, body: memoryview, fd: int, position: int) -> None:
        """Send ``head`` and ``body``, which an open file has at ``position``, without touching it.

        The system takes them from the file as far as it has room; the rest waits as a view, and
        the link counts as paused meanwhile: what follows goes out of the file again.
        """
        if self._transport is None or self.is_closed:
            return
        if not self._sends_files:
            self._sends_files = True
            self._transport.set_write_buffer_limits(high=0)
        sent = 0
        # Bytes that wait in the transport go first.
        if self._socket is not None and not self._transport.get_write_buffer_size():
            sent = _sent_from_file(self._socket, head, fd, position, len(body))
        if sent < len(head):
            self._transport.writelines([head[sent:], body])
        elif sent < len(head) + len(body):
            self._transport.write(body[sent - len(head) :])

    @property
    def unsent_bytes(self) -> int:
        """How many bytes wait to leave: views of the log may be among them."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def close(self, reason: str, *, last: Sequence[bytes | memoryview] = ()) -> None:
        """End the link for ``reason``, after a ``last`` word if there is one."""
        if self.is_closed or self._transport is None:
            return
        self.is_closed = True
        self._reason = reason
        if last:
            self._transport.writelines(last)
            self._transport.close()
            loop = asyncio.get_running_loop()
            self._ending = loop.call_later(_LAST_WORD_S, self._transport.abort)
        else:
            self._transport.abort()

    def abort(self) -> None:
        """End a link at once that may be ending already."""
        self.close("stopped")
        if self._transport is not None:
            self._transport.abort()

    def connection_lost(self, error: Exception | None) -> None:
        self.is_closed = True
        if self._ending is not None:
            self._ending.cancel()
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        if self._links is not None:
            self._links.discard(self)
        self._user.lost(self, self._reason)


class ReadLink(Link, asyncio.Protocol):
    """A link that makes an object of every piece that arrives."""

    def __init__(
        self,
        user: LinkUser,
        *,
        certificate: bytes = b"",
        links: set[Link] | None = None,
        congestion: bytes = b"",
    ) -> None:
        super().__init__(user, certificate=certificate, links=links, congestion=congestion)
        self._receive = user.received

    def data_received(self, data: bytes) -> None:
        if self.is_closed:
            return
        try:
            self._receive(self, data)
        except Exception:
            self._failed()


class FilledLink(Link, asyncio.BufferedProtocol):
    """A link whose bytes arrive in its user's memory, without an object for each piece."""

    def __init__(self, user: LinkFiller) -> None:
        super().__init__(user)
        self._room, self._filled = user.room, user.filled

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._room(self)

    def buffer_updated(self, nbytes: int) -> None:
        if self.is_closed:
            return
        try:
            self._filled(self, nbytes)
        except Exception:
            self._failed()


class Dial(Protocol):
    """``dial``, or something in its place."""

    async def __call__(
        self, user: LinkUser | LinkFiller, address: str, *, tls: ssl.SSLContext | None = None
    ) -> Link: ...


class ClusterPort:
    """Accepts links of other brokers."""

    def __init__(
        self,
        user: LinkUser,
        *,
        tls: ssl.SSLContext | None = None,
        certificate: bytes = b"",
    ) -> None:
        """``certificate`` is the one that ``tls`` shows, in DER form."""
        self._user = user
        self._tls = tls
        self._certificate = certificate
        self._server: asyncio.Server | None = None
        self._links: set[Link] = set()
        # The system's own congestion control, for links from other hosts.
        self._congestion = b""
        self.port = 0

    async def listen(self, address: str, port: int) -> int:
        """Open the port and return its number, which matters when ``port`` is 0.

        Raises:
            ConfigError: the address cannot be bound.
        """
        bound = bind(address, port)
        self._congestion = unpace(bound)
        self.port = int(bound.getsockname()[1])
        try:
            self._server = await asyncio.get_running_loop().create_server(
                lambda: ReadLink(
                    self._user,
                    certificate=self._certificate,
                    links=self._links,
                    congestion=self._congestion,
                ),
                sock=bound,
                backlog=_BACKLOG,
                ssl=self._tls,
                ssl_handshake_timeout=_TLS_HANDSHAKE_S if self._tls is not None else None,
            )
        except OSError as error:
            bound.close()
            raise ConfigError(f"{address}:{port} cannot be listened on: {error}") from error
        return self.port

    async def close(self) -> None:
        """Close the port and every link that came in by it."""
        if self._server is None:
            return
        self._server.close()
        for link in list(self._links):
            link.abort()
        await asyncio.sleep(0)
        await self._server.wait_closed()
        self._server = None


async def dial(
    user: LinkUser | LinkFiller,
    address: str,
    *,
    tls: ssl.SSLContext | None = None,
    timeout_ms: int = 0,
) -> Link:
    """A link to the broker whose HA port is at ``host:port``.

    Raises:
        CallFailed: it cannot be reached.
    """
    loop = asyncio.get_running_loop()
    try:
        host, port = split_address(address)
        async with asyncio.timeout((timeout_ms or CONNECT_TIMEOUT_MS) / 1000):
            _, link = await loop.create_connection(lambda: _link_of(user), host, port, ssl=tls)
    # A name that cannot be encoded is a ValueError of the resolver.
    except (OSError, ValueError, OverflowError) as error:
        raise CallFailed(f"{address} cannot be reached: {str(error) or 'timeout'}") from error
    return link


def _link_of(user: LinkUser | LinkFiller) -> ReadLink | FilledLink:
    return FilledLink(user) if isinstance(user, LinkFiller) else ReadLink(user)


def unpace(listener: socket.socket) -> bytes:
    """Have links that come in begin without pacing; returns the control that the system has.

    BBR sets a timer for each segment that it sends, which doubles a push within one host. It has
    to be left out from the first packet on: a socket that began with it stays paced.
    """
    try:
        found = listener.getsockopt(
            socket.IPPROTO_TCP, socket.TCP_CONGESTION, _CONGESTION_NAME_BYTES
        )
    except (AttributeError, OSError):
        return b""
    _set_congestion(listener, _UNPACED)
    return found.rstrip(b"\0")


def is_listed(link: Link, networks: Networks) -> bool:
    """Whether a link's other end is this host, or in one of the networks."""
    return link.is_this_host or is_within(networks, link.address)


def _set_congestion(end: socket.socket, name: bytes) -> None:
    with contextlib.suppress(OSError):
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, name)


def _sent_from_file(
    connection: socket.socket, head: bytes, fd: int, position: int, byte_count: int
) -> int:
    """How many bytes of head and file the system took; it never waits."""
    sent = 0
    try:
        sent = connection.send(head, socket.MSG_MORE)
        if sent < len(head):
            return sent
        end = len(head) + byte_count
        while sent < end:
            taken = os.sendfile(connection.fileno(), fd, position + sent - len(head), end - sent)
            if not taken:
                break
            sent += taken
    except OSError:
        # The socket has no room now; or the connection is broken, and the transport will say so.
        pass
    return sent


def _end(transport: asyncio.Transport, name: str) -> tuple[str, int]:
    found = transport.get_extra_info(name) or ("", 0)
    return str(found[0]), int(found[1])
