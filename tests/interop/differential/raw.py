"""The smallest frame client: one blocking connection, JSON headers, one request at a time.

It shares nothing with our own wire code on purpose: both servers are judged by the same bytes.
"""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

# V5_3_3 as Apache counts its versions: new enough for strict JSON routes.
VERSION = 479
RESPONSE_FLAG = 1
ONE_WAY_FLAG = 2


class PeerClosed(ConnectionError):
    """The server closed the connection instead of answering."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A response frame, taken apart."""

    code: int
    remark: str | None
    fields: dict[str, str] = field(default_factory=dict)
    body: bytes = b""


class RawConnection:
    """Send requests and read their answers; requests the server makes of us are dropped."""

    def __init__(self, address: str, *, timeout_s: float = 10.0) -> None:
        host, port = address.rsplit(":", 1)
        self.address = address
        self._socket = socket.create_connection((host, int(port)), timeout=timeout_s)
        self._opaque = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()

    def ask(
        self,
        code: int,
        fields: Mapping[str, Any] | None = None,
        body: bytes = b"",
        *,
        header: Mapping[str, Any] | None = None,
    ) -> Answer:
        """Send one request and wait for the answer to it; ``header`` overrides header keys."""
        self.tell(code, fields, body, header=header)
        while True:
            received, answer_body = self._read()
            if received["flag"] & RESPONSE_FLAG and received["opaque"] == self._opaque:
                named = received.get("extFields") or {}
                return Answer(received["code"], received.get("remark"), named, answer_body)

    def tell(
        self,
        code: int,
        fields: Mapping[str, Any] | None = None,
        body: bytes = b"",
        *,
        header: Mapping[str, Any] | None = None,
    ) -> None:
        """Send one request and read nothing."""
        self._opaque += 1
        head: dict[str, Any] = {"code": code, "language": "JAVA", "version": VERSION}
        head |= {"opaque": self._opaque, "flag": 0, "serializeTypeCurrentRPC": "JSON"}
        if fields is not None:
            head["extFields"] = dict(fields)
        head |= header or {}
        encoded = json.dumps(head, ensure_ascii=False).encode()
        prefix = struct.pack(">II", 4 + len(encoded) + len(body), len(encoded))
        self._socket.sendall(prefix + encoded + body)

    def _read(self) -> tuple[dict[str, Any], bytes]:
        total, header_bytes = struct.unpack(">II", self._exactly(8))
        header_bytes &= 0xFFFFFF
        payload = self._exactly(total - 4)
        return json.loads(payload[:header_bytes]), payload[header_bytes:]

    def _exactly(self, count: int) -> bytes:
        received = bytearray()
        while len(received) < count:
            piece = self._socket.recv(count - len(received))
            if not piece:
                raise PeerClosed(f"{self.address} closed the connection")
            received += piece
        return bytes(received)
