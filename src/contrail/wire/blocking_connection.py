"""A connection without an event loop, for a caller that does nothing but ask and wait.

Requests may be sent ahead: answers come with the number of their request, in any order. A
connection belongs to one thread at a time, and to the process that made it.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
from collections.abc import Mapping
from struct import Struct
from types import TracebackType
from typing import Self

from contrail.errors import CallFailed, CallTimedOut, RemoteProtocolError
from contrail.kernels.frame_scan import scan_frames
from contrail.protocol.command import (
    FLAG_RESPONSE,
    FRAME_BYTES_MAX,
    ReceivedResponse,
    Request,
    decode_frame,
    encode_request,
)
from contrail.protocol.signing import CredentialSource, current, signed_fields
from contrail.wire.addresses import split_address

CONNECT_TIMEOUT_MS = 3_000
_OPAQUE_MASK = 0x7FFFFFFF
_PREFIX = Struct(">II")
_HEADER_LENGTH_MASK = 0xFFFFFF
# Small enough to stay in the processor's caches from the arrival of bytes to their use.
_BUFFER_BYTES = 512 << 10
# A broker answers a batch with the ids of all its messages in one field.
_HEADER_BYTES_MAX = 4 << 20
# How many values the kernel tells of a frame that is neither a send nor a pull.
_RESPONSE_ITEM = 8


class BlockingConnection:
    """One socket to ``host:port``: send requests, receive answers. Use in ``with``, or close."""

    def __init__(
        self,
        address: str,
        *,
        tls: ssl.SSLContext | None = None,
        connect_timeout_ms: int = CONNECT_TIMEOUT_MS,
        credentials: CredentialSource | None = None,
    ) -> None:
        """With ``credentials`` the requests of ``send`` and ``call`` are signed.

        Raises:
            CallFailed: no peer answers at the address, or its TLS is not trusted.
        """
        self._credentials = credentials
        self.address = address
        self.is_closed = False
        self._socket = _connected(address, tls, connect_timeout_ms)
        self._timeout_s = connect_timeout_ms / 1000
        self._buffer = bytearray(_BUFFER_BYTES)
        self._view = memoryview(self._buffer)
        # Bytes that have arrived and are not taken yet.
        self._start = self._end = 0
        self._opaque = 0

    @property
    def file_number(self) -> int:
        return self._socket.fileno()

    # Asking.

    def send(self, code: int, fields: Mapping[str, str], body: bytes = b"") -> int:
        """Send a request without waiting; returns the number that its answer will carry.

        Raises:
            CallFailed: the connection is broken; it is closed now.
        """
        opaque = self.next_opaque()
        given = dict(fields)
        if self._credentials is not None:
            given = signed_fields(fields, body, current(self._credentials))
        self.send_frames(encode_request(Request(code, opaque, given, body, language="PYTHON")))
        return opaque

    def next_opaque(self) -> int:
        """A number for a request that its sender writes itself."""
        self._opaque = self._opaque + 1 & _OPAQUE_MASK
        return self._opaque

    def send_frames(self, frames: bytes) -> None:
        """Send requests that are frames already, one or several in one write.

        Raises:
            CallFailed: the connection is broken; it is closed now.
        """
        try:
            self._socket.sendall(frames)
        except OSError as error:
            raise self._broken(error) from error

    def receive(self, *, timeout_ms: int) -> ReceivedResponse:
        """The next answer; a request of the peer is passed over, for nobody here can serve it.

        Raises:
            CallTimedOut: no bytes came for the timeout; the connection is closed now.
            CallFailed: it broke, or the peer writes no frames; it is closed now.
        """
        while True:
            bounds = self._next_frame()
            if bounds is None:
                self._fill(timeout_ms)
                continue
            answer = self._decoded(*bounds)
            if answer is not None:
                return answer

    def call(
        self, code: int, fields: Mapping[str, str], body: bytes = b"", *, timeout_ms: int
    ) -> ReceivedResponse:
        """Ask and wait; only while no other answer is on its way. Any code is a normal return.

        Raises:
            CallFailed: there was no answer; the connection is closed now.
        """
        opaque = self.send(code, fields, body)
        answer = self.receive(timeout_ms=timeout_ms)
        while answer.opaque != opaque:
            answer = self.receive(timeout_ms=timeout_ms)
        return answer

    # Receiving.

    def _next_frame(self) -> tuple[int, int, int] | None:
        """Where the first whole frame begins, where its header ends, and where it ends."""
        start = self._start
        if self._end - start < _PREFIX.size:
            return None
        total, header = _PREFIX.unpack_from(self._buffer, start)
        header_end = start + _PREFIX.size + (header & _HEADER_LENGTH_MASK)
        end = start + 4 + total
        if total < 4 or total + 4 > FRAME_BYTES_MAX or header_end > end:
            raise self._broken(f"{total} bytes with a header of {header & _HEADER_LENGTH_MASK}")
        return (start, header_end, end) if end <= self._end else None

    def _decoded(self, start: int, header_end: int, end: int) -> ReceivedResponse | None:
        """The answer in a frame. The kernel sees its header alone, so that it copies no body."""
        self._start = end
        view = self._view
        header = bytes(view[start + _PREFIX.size : header_end])
        body = bytes(view[header_end:end])
        head = _PREFIX.pack(4 + len(header), len(header)) + header
        if not self._buffer[start + 4]:
            items = scan_frames(head, 0, FRAME_BYTES_MAX, _HEADER_BYTES_MAX, b"", b"")[0]
            if items and len(items[0]) == _RESPONSE_ITEM and items[0][4] & FLAG_RESPONSE:
                code, opaque, fields, _, _, version, language, remark = items[0]
                return ReceivedResponse(code, opaque, remark, fields, body, version, language)
        return self._decoded_slowly(self._buffer[start + 4], header, body)

    def _decoded_slowly(
        self, header_type: int, header: bytes, body: bytes
    ) -> ReceivedResponse | None:
        limit = _HEADER_BYTES_MAX
        try:
            frame = decode_frame(
                header_type, header, body, header_bytes_max=limit, value_bytes_max=limit
            )
        except RemoteProtocolError as error:
            raise self._broken(error) from error
        return frame if isinstance(frame, ReceivedResponse) else None

    def _fill(self, timeout_ms: int) -> None:
        """Wait for more bytes."""
        self._make_room()
        try:
            if timeout_ms / 1000 != self._timeout_s:
                self._timeout_s = timeout_ms / 1000
                self._socket.settimeout(self._timeout_s)
            count = self._socket.recv_into(self._view[self._end :])
        except TimeoutError as error:
            self.close()
            text = f"{self.address} did not answer within {timeout_ms} ms"
            raise CallTimedOut(text) from error
        except OSError as error:
            raise self._broken(error) from error
        if not count:
            raise self._broken("the peer closed the connection before it answered")
        self._end += count

    def _make_room(self) -> None:
        """Move the unfinished frame to the front, and have a buffer in which it fits."""
        rest = self._end - self._start
        wanted = 0
        if rest >= _PREFIX.size:
            wanted = 4 + _PREFIX.unpack_from(self._buffer, self._start)[0]
        if wanted > len(self._buffer):
            larger = bytearray(wanted)
            larger[:rest] = self._view[self._start : self._end]
            self._buffer, self._view = larger, memoryview(larger)
        elif self._start:
            self._view[:rest] = self._view[self._start : self._end]
        self._start, self._end = 0, rest

    # The end.

    def _broken(self, why: object) -> CallFailed:
        self.close()
        return CallFailed(f"the connection to {self.address} broke: {why}")

    def close(self) -> None:
        """Close; answers that were on their way never come."""
        if not self.is_closed:
            self.is_closed = True
            # A peer that is gone already is no problem.
            with contextlib.suppress(OSError):
                self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def _connected(address: str, tls: ssl.SSLContext | None, timeout_ms: int) -> socket.socket:
    plain: socket.socket | None = None
    try:
        host, port = split_address(address)
        plain = socket.create_connection((host, port), timeout_ms / 1000)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return plain if tls is None else tls.wrap_socket(plain, server_hostname=host)
    # A name that cannot be encoded is a ValueError of the resolver.
    except (OSError, ValueError) as error:
        if plain is not None:
            plain.close()
        raise CallFailed(f"{address} cannot be reached: {str(error) or 'timeout'}") from error
