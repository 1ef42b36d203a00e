"""A connection on which many requests are under way at once, for brokers that may die any time."""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Callable, Mapping

from contrail.protocol.command import (
    FLAG_ONE_WAY,
    ReceivedResponse,
    Request,
    Response,
    encode_request,
    encode_response,
)
from contrail.protocol.frames import FrameDecoder

PATIENCE_S = 60.0

OnAnswer = Callable[[ReceivedResponse | None], None]
OnRequest = Callable[[Request], None]


class WireClient:
    """One connection. Answers are handed over as they are read; None if none came."""

    def __init__(self, port: int, on_request: OnRequest) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)
        self._on_request = on_request
        self._decoder = FrameDecoder()
        self._waiting: dict[int, OnAnswer] = {}
        self._opaque = 0
        self.is_open = True

    @property
    def waiting_count(self) -> int:
        return len(self._waiting)

    def ask(self, code: int, fields: Mapping[str, str], body: bytes, on_answer: OnAnswer) -> None:
        """Send a request and return at once."""
        if not self.is_open:
            on_answer(None)
            return
        self._opaque += 1
        self._waiting[self._opaque] = on_answer
        self._send(Request(code, self._opaque, dict(fields), body))

    def notify(self, code: int, fields: Mapping[str, str], body: bytes = b"") -> None:
        """Send a request that is not answered."""
        self._opaque += 1
        self._send(Request(code, self._opaque, dict(fields), body, FLAG_ONE_WAY))

    def call(
        self, code: int, fields: Mapping[str, str], body: bytes = b""
    ) -> ReceivedResponse | None:
        """Send a request and wait for its answer; None if the broker died instead."""
        found: list[ReceivedResponse | None] = []
        self.ask(code, fields, body, found.append)
        deadline = time.monotonic() + PATIENCE_S
        while not found:
            assert time.monotonic() < deadline, f"no answer to {code} {fields}"
            self.read(0.5)
        return found[0]

    def answer(self, request: Request, code: int = 0) -> None:
        """Answer a request of the broker."""
        self._write(b"".join(encode_response(Response(code), request.opaque)))

    def _send(self, request: Request) -> None:
        self._write(encode_request(request))

    def _write(self, data: bytes) -> None:
        if not self.is_open:
            return
        try:
            self._socket.sendall(data)
        except OSError:
            self._lost()

    def read(self, timeout_s: float) -> None:
        """Handle arrived frames; waits at most this long for one."""
        if not self.is_open:
            return
        if not select.select([self._socket], [], [], timeout_s)[0]:
            return
        try:
            data = self._socket.recv(1 << 20)
        except OSError:
            data = b""
        if data:
            self._take(data)
        else:
            self._lost()

    def read_until(self, is_so: Callable[[], bool], timeout_s: float) -> bool:
        """Read until a condition holds; whether it held in time."""
        deadline = time.monotonic() + timeout_s
        while self.is_open and not is_so():
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                break
            self.read(left_s)
        return is_so()

    def read_for(self, duration_s: float) -> None:
        self.read_until(lambda: False, duration_s)

    def _take(self, data: bytes) -> None:
        for frame in self._decoder.feed(data):
            if isinstance(frame, ReceivedResponse):
                on_answer = self._waiting.pop(frame.opaque, None)
                if on_answer is not None:
                    on_answer(frame)
            elif isinstance(frame, Request):
                self._on_request(frame)
        assert self._decoder.failure is None, self._decoder.failure

    def _lost(self) -> None:
        if not self.is_open:
            return
        self.is_open = False
        self._socket.close()
        waiting, self._waiting = self._waiting, {}
        for on_answer in waiting.values():
            on_answer(None)

    def read_to_the_end(self) -> None:
        """Answers that a dead broker had sent count; the other outcomes stay unknown."""
        deadline = time.monotonic() + PATIENCE_S
        while self.is_open:
            assert time.monotonic() < deadline, "the broker is dead and its connection is not"
            self.read(1.0)

    def close(self) -> None:
        self._lost()
