"""Answers of a failover group's leader that wait until all changes so far are committed.

For changes that act on the tables at once, as resets of offsets do: the operator hears of success
when no change of leaders can take it back.
"""

from __future__ import annotations

from collections.abc import Mapping

from contrail.errors import RequestRejected
from contrail.protocol.codes import ResponseCode
from contrail.protocol.command import ReceivedResponse, Request, Response
from contrail.runtime.durable_changes import WhenWritten
from contrail.wire.peer import LATER, Answer, Handler, Peer


def answered_when_committed(handler: Handler, when_committed: WhenWritten) -> Handler:
    """The handler, whose success is answered once ``when_committed`` calls back."""

    def handle(request: Request, peer: Peer) -> Answer:
        waiting = _WaitingPeer(peer, when_committed)
        answer = handler(request, waiting)
        if isinstance(answer, Response):
            waiting.reply(request, answer)
        return LATER

    return handle


class _WaitingPeer:
    """The peer, as a handler sees it that may answer later."""

    def __init__(self, peer: Peer, when_committed: WhenWritten) -> None:
        self._peer = peer
        self._when_committed = when_committed

    def reply(self, request: Request, response: Response) -> None:
        if response.code != ResponseCode.SUCCESS:
            self._peer.reply(request, response)
            return
        try:
            self._when_committed(lambda problem: self._end(request, response, problem))
        except RequestRejected as refusal:
            self._end(request, response, refusal)

    def _end(self, request: Request, response: Response, problem: Exception | None) -> None:
        if isinstance(problem, RequestRejected):
            response = Response(problem.code, problem.remark, dict(problem.fields or {}))
        elif problem is not None:
            response = Response(ResponseCode.SYSTEM_ERROR, f"nothing is committed: {problem}")
        self._peer.reply(request, response)

    # Everything else is the peer's.

    @property
    def address(self) -> str:
        return self._peer.address

    @property
    def packed_host(self) -> bytes:
        return self._peer.packed_host

    @property
    def is_this_host(self) -> bool:
        return self._peer.is_this_host

    @property
    def is_closed(self) -> bool:
        return self._peer.is_closed

    @property
    def in_flight_count(self) -> int:
        return self._peer.in_flight_count

    @in_flight_count.setter
    def in_flight_count(self, count: int) -> None:
        self._peer.in_flight_count = count

    @property
    def is_choked(self) -> bool:
        return self._peer.is_choked

    def close(self, reason: str) -> None:
        self._peer.close(reason)

    def notify(self, code: int, fields: Mapping[str, str], body: bytes = b"") -> None:
        self._peer.notify(code, fields, body)

    async def call(
        self, code: int, fields: Mapping[str, str], body: bytes = b"", *, timeout_ms: int
    ) -> ReceivedResponse:
        return await self._peer.call(code, fields, body, timeout_ms=timeout_ms)
