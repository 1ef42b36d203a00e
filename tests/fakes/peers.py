"""A connected peer in memory: it remembers the commands sent to it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from contrail.model.host import pack_host
from contrail.protocol.command import ANNOUNCED_VERSION, ReceivedResponse, Request, Response


class Sent(NamedTuple):
    """One request that was sent to a peer."""

    code: int
    fields: dict[str, str]
    body: bytes


class FakePeer:
    """Stands in for a connection; ``answers`` are given to calls in order."""

    is_choked = False

    def __init__(self, address: str = "127.0.0.1:50001") -> None:
        self.address = address
        self.is_this_host = True
        self.is_closed = False
        self.in_flight_count = 0
        self.close_reasons: list[str] = []
        self.replies: list[tuple[Request, Response]] = []
        self.notified: list[Sent] = []
        self.called: list[Sent] = []
        self.timeouts_ms: list[int] = []
        self.answers: list[ReceivedResponse | Exception] = []

    @property
    def packed_host(self) -> bytes:
        ip, _, port = self.address.rpartition(":")
        return pack_host(ip.strip("[]"), int(port))

    def reply(self, request: Request, response: Response) -> None:
        if not request.one_way and not self.is_closed:
            self.replies.append((request, response))

    def notify(self, code: int, fields: Mapping[str, str], body: bytes = b"") -> None:
        if not self.is_closed:
            self.notified.append(Sent(code, dict(fields), body))

    async def call(
        self, code: int, fields: Mapping[str, str], body: bytes = b"", *, timeout_ms: int
    ) -> ReceivedResponse:
        self.called.append(Sent(code, dict(fields), body))
        self.timeouts_ms.append(timeout_ms)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def close(self, reason: str) -> None:
        self.is_closed = True
        self.close_reasons.append(reason)


def received(
    code: int = 0,
    *,
    remark: str | None = None,
    fields: Mapping[str, str] | None = None,
    body: bytes = b"",
) -> ReceivedResponse:
    """An answer as if a peer had sent it."""
    return ReceivedResponse(code, 1, remark, dict(fields or {}), body, ANNOUNCED_VERSION, "JAVA")
