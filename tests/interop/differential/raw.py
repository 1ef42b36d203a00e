"""The smallest frame client: one blocking connection, one request at a time.

It shares nothing with our own wire code on purpose: both servers are judged by the same bytes.
"""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from threading import Thread
from types import TracebackType
from typing import Any, Self

# V5_3_3 as Apache counts its versions: new enough for strict JSON routes.
VERSION = 479
RESPONSE_FLAG = 1
ONE_WAY_FLAG = 2
_BINARY = 1
_LANGUAGES = ("JAVA", "CPP", "DOTNET", "PYTHON")
_BINARY_HEAD = struct.Struct(">hBhiii")


class PeerClosed(ConnectionError):
    """The server closed the connection instead of answering."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A response frame, taken apart."""

    code: int
    remark: str | None
    fields: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    # Answers to earlier requests that timed out; a one-way request has none.
    stray_count: int = 0


@dataclass(frozen=True, slots=True)
class Pushed:
    """A request that the server made of a client."""

    code: int
    fields: dict[str, str]
    body: bytes


class RawConnection:
    """Send requests and read their answers; requests the server makes of us are dropped."""

    def __init__(self, address: str, *, timeout_s: float = 60.0) -> None:
        host, port = address.rsplit(":", 1)
        self.address = address
        self._socket = socket.create_connection((host, int(port)), timeout=timeout_s)
        self._opaque = 0
        self._pushed: list[Pushed] = []
        self._is_served = False

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

    def serve(self, bodies: Mapping[int, bytes]) -> None:
        """From now on answer the server's own requests, as a client would, and ask no more."""
        if self._is_served:
            return
        self._is_served = True
        self._socket.settimeout(None)
        Thread(target=self._serve, args=(bodies,), daemon=True).start()

    def _serve(self, bodies: Mapping[int, bytes]) -> None:
        with suppress(OSError):
            while True:
                received, body = self._read()
                if not received["flag"] & (RESPONSE_FLAG | ONE_WAY_FLAG):
                    named = received.get("extFields") or {}
                    self._pushed.append(Pushed(received["code"], named, body))
                    answer = {"flag": RESPONSE_FLAG, "opaque": received["opaque"]}
                    self.tell(0, body=bodies[received["code"]], header=answer)

    def take_pushed(self) -> list[Pushed]:
        """The server's requests since the last call: they arrive before its answer."""
        taken, self._pushed = self._pushed, []
        return taken

    @contextmanager
    def waiting(self, timeout_s: float) -> Iterator[None]:
        """Wait that long for an answer, and no longer."""
        before_s = self._socket.gettimeout()
        self._socket.settimeout(timeout_s)
        try:
            yield
        finally:
            self._socket.settimeout(before_s)

    def ask(
        self,
        code: int,
        fields: Mapping[str, Any] | None = None,
        body: bytes = b"",
        *,
        header: Mapping[str, Any] | None = None,
        binary: bool = False,
    ) -> Answer:
        """Send one request and wait for the answer to it; ``header`` overrides header keys."""
        self.tell(code, fields, body, header=header, binary=binary)
        strays = 0
        while True:
            received, answer_body = self._read()
            if not received["flag"] & RESPONSE_FLAG:
                continue
            if received["opaque"] == self._opaque:
                named = received.get("extFields") or {}
                return Answer(received["code"], received.get("remark"), named, answer_body, strays)
            strays += 1

    def tell(
        self,
        code: int,
        fields: Mapping[str, Any] | None = None,
        body: bytes = b"",
        *,
        header: Mapping[str, Any] | None = None,
        binary: bool = False,
    ) -> None:
        """Send one request and read nothing."""
        self._opaque += 1
        head: dict[str, Any] = {"code": code, "language": "JAVA", "version": VERSION}
        head |= {"opaque": self._opaque, "flag": 0, "serializeTypeCurrentRPC": "JSON"}
        if fields is not None:
            head["extFields"] = dict(fields)
        head |= header or {}
        encoded = _binary(head) if binary else json.dumps(head, ensure_ascii=False).encode()
        kind = _BINARY << 24 if binary else 0
        prefix = struct.pack(">II", 4 + len(encoded) + len(body), kind | len(encoded))
        self._socket.sendall(prefix + encoded + body)

    def _read(self) -> tuple[dict[str, Any], bytes]:
        """Both servers answer in JSON, however they were asked."""
        total, header_bytes = struct.unpack(">II", self._exactly(8))
        assert header_bytes >> 24 == 0, f"{self.address} answered with a binary header"
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


def _binary(head: Mapping[str, Any]) -> bytes:
    """The header in its other form; it has no room for large codes and versions."""
    fields = b"".join(_binary_field(*named) for named in head.get("extFields", {}).items())
    remark = str(head.get("remark", "")).encode()
    language = _LANGUAGES.index(head["language"])
    numbers = (head["code"], language, head["version"], head["opaque"], head["flag"], len(remark))
    start = _BINARY_HEAD.pack(*numbers) + remark
    return start + struct.pack(">i", len(fields)) + fields


def _binary_field(name: str, value: str) -> bytes:
    named, text = name.encode(), value.encode()
    return struct.pack(">h", len(named)) + named + struct.pack(">i", len(text)) + text
