"""Quotas in front of sends, pulls and pops.

A send over its quota is answered SYSTEM_BUSY with the wait in its remark, a pull is held for the
wait, and a pop is answered POLLING_FULL. Nobody else waits for any of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from contrail.access.state.quotas import Party, Quotas, Wait
from contrail.broker.state.roles import PULLS
from contrail.clock import Clock
from contrail.errors import RequestRejected
from contrail.protocol.codes import RequestCode, ResponseCode
from contrail.protocol.command import Request
from contrail.protocol.signing import ACCESS_KEY
from contrail.runtime.turns import LaterCalls
from contrail.wire.peer import LATER, Answer, Handler, Peer

_SENDS = frozenset(
    {RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE}
)
_SIZE_BYTES = 4
HELD_MAX = 100_000
"""Bound of the pulls that wait for their quotas."""

Finish = Callable[[Request, Peer, Callable[[], Answer]], None]


class QuotaGate:
    """The quotas of one broker, around its handlers."""

    def __init__(self, quotas: Quotas, clock: Clock, loop: LaterCalls, *, has_users: bool) -> None:
        """``has_users`` says that the name in a request is proven."""
        self._quotas = quotas
        self._clock = clock
        self._loop = loop
        self._has_users = has_users
        self._held_count = 0
        # Answers a pull that was held; set before the first connection comes.
        self.finish: Finish = lambda request, peer, work: None

    def guarded(self, handlers: Mapping[int, Handler]) -> dict[int, Handler]:
        guarded = dict(handlers)
        for codes, wrap in ((_SENDS, self._send), (PULLS, self._pull)):
            for code in codes & handlers.keys():
                guarded[code] = wrap(handlers[code])
        pop = int(RequestCode.POP_MESSAGE)
        if pop in handlers:
            guarded[pop] = self._pop(handlers[pop])
        return guarded

    def given(self, request: Request, peer: Peer, messages: int, byte_count: int) -> None:
        """Messages were handed out by a pull or a pop."""
        self._quotas.charge(self._party(request, peer), messages, byte_count, self._now_ms())

    def _send(self, handler: Handler) -> Handler:
        def handle(request: Request, peer: Peer) -> Answer:
            party = self._party(request, peer)
            wait = self._quotas.wait(party, self._now_ms())
            if wait is not None:
                raise RequestRejected(ResponseCode.SYSTEM_BUSY, _remark(wait))
            self._quotas.charge(party, _count_of(request), len(request.body), self._now_ms())
            return handler(request, peer)

        return handle

    def _pull(self, handler: Handler) -> Handler:
        def handle(request: Request, peer: Peer) -> Answer:
            wait = self._quotas.wait(self._party(request, peer), self._now_ms())
            if wait is None:
                return handler(request, peer)
            if self._held_count >= HELD_MAX:
                raise RequestRejected(ResponseCode.SYSTEM_BUSY, _remark(wait))
            self._held_count += 1
            self._loop.call_later(wait.ms / 1000, lambda: again(request, peer))
            return LATER

        def again(request: Request, peer: Peer) -> None:
            self._held_count -= 1
            if not peer.is_closed:
                self.finish(request, peer, lambda: handle(request, peer))

        return handle

    def _pop(self, handler: Handler) -> Handler:
        def handle(request: Request, peer: Peer) -> Answer:
            wait = self._quotas.wait(self._party(request, peer), self._now_ms())
            if wait is not None:
                raise RequestRejected(ResponseCode.POLLING_FULL, _remark(wait))
            return handler(request, peer)

        return handle

    def _party(self, request: Request, peer: Peer) -> Party:
        fields = request.fields
        name = (
            "b" if request.code != RequestCode.SEND_MESSAGE and request.code in _SENDS else "topic"
        )
        user = fields.get(ACCESS_KEY, "") if self._has_users else ""
        return Party(user, fields.get(name, ""), peer.address.rpartition(":")[0])

    def _now_ms(self) -> int:
        return self._clock.elapsed_ms()


def _remark(wait: Wait) -> str:
    return f"the quota of {wait.quota} is used up: wait {wait.ms} ms"


def _count_of(request: Request) -> int:
    """The messages of a send; a batch whose lengths lie counts up to the lie, and is refused."""
    fields = request.fields
    is_batch = (
        request.code == RequestCode.SEND_BATCH_MESSAGE
        or fields.get("m", fields.get("batch", "")).lower() == "true"
    )
    if not is_batch:
        return 1
    body, at, count = request.body, 0, 0
    while len(body) - at >= _SIZE_BYTES:
        size = int.from_bytes(body[at : at + _SIZE_BYTES], "big")
        count += 1
        if size <= 0:
            break
        at += size
    return max(1, count)
