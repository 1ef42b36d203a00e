"""The guards of the gate: every reason not to serve a request, in one table for both ways.

A request is refused by the first guard that has something against it, and then by the router. The
general way asks ``verdict`` for each request, fast pulls for each read, templates too. Sends are
too many for that: ``looks_at_sends`` is worked out from the table whenever something changes that
a guard stands for, and while it is False, no guard can object to a send and the fast ways do not
ask. Otherwise they ask ``verdict`` for each connection.

A role or an access check is one more row of ``GUARDS``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import Enum
from typing import NamedTuple

from contrail.broker.handlers.busy_pulls import BusyPulls
from contrail.protocol.codes import RequestCode, ResponseCode
from contrail.protocol.command import ReadyAnswer, Response
from contrail.wire.connection import Connection
from contrail.wire.router import RequestRouter

PULLS = frozenset({RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE})
SENDS = frozenset(
    {RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE}
)
ROW_CODE = int(RequestCode.SEND_MESSAGE_V2)
"""The request code of every send that becomes a row."""

# Requests that wait long belong to the main port: the fast port must answer soon.
_NOT_ON_THE_FAST_PORT = PULLS | {
    RequestCode.PEEK_MESSAGE,
    RequestCode.POP_MESSAGE,
    RequestCode.NOTIFICATION,
    RequestCode.POLLING_INFO,
}
# Of a peer that is gone these would only leave something behind, or cost much for an answer that
# nobody reads; its last one-way requests count.
_FOR_THE_LIVING = PULLS | {
    RequestCode.HEART_BEAT,
    RequestCode.QUERY_MESSAGE,
    RequestCode.VIEW_MESSAGE_BY_ID,
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
    RequestCode.GET_CONSUME_STATS,
    RequestCode.GET_BROKER_CONSUME_STATS,
    RequestCode.GET_TOPIC_STATS_INFO,
}


class Ruling(Enum):
    """A guard's verdict in place of an answer."""

    # Nobody is there to be told.
    DROP = "drop"
    # The fast path leaves the request; the general way has its own answer to it.
    GENERAL = "general"


Verdict = ReadyAnswer | Response | Ruling | None
"""Why a request is not served: its answer, or a ruling; None lets it pass."""


def _always(guards: Guards) -> bool:
    return True


class Guard(NamedTuple):
    """One reason not to serve a request; ``codes`` are the requests that it looks at."""

    codes: frozenset[int]
    verdict: Callable[[Guards, Connection, int], Verdict]
    # Whether it can object to any request at all now: asked when a state has changed
    # (``Guards.begin_anew``) and not for each request.
    stands: Callable[[Guards], bool] = _always


class Guards:
    """The table of one broker, and the state that its rows look at."""

    def __init__(self, router: RequestRouter, table: Iterable[Guard] | None = None) -> None:
        self._router = router
        self._table = tuple(GUARDS if table is None else table)
        # How many more requests of a connection may be unanswered; the router refuses others.
        self.room_of = router.room_of
        self.busy: BusyPulls | None = None
        self._by_code: dict[int, tuple[Callable[[Guards, Connection, int], Verdict], ...]] = {}
        # Whether a guard may object to a send now; if so, ``verdict`` is asked.
        self.looks_at_sends = False
        # The refusal of sends by a member of a failover group that does not lead.
        self.not_leading: Callable[[], Response] | None = None
        # Of such a member: whether it may note consumers' progress, which fast pulls do.
        self.has_lease: Callable[[], bool] | None = None
        self.begin_anew()

    def begin_anew(self) -> None:
        """Something has changed that decides which guards stand."""
        standing = [guard for guard in self._table if guard.stands(self)]
        codes = frozenset(code for guard in standing for code in guard.codes)
        self._by_code = {
            int(code): tuple(guard.verdict for guard in standing if code in guard.codes)
            for code in codes
        }
        self.looks_at_sends = not SENDS.isdisjoint(codes)

    def go_away(self) -> None:
        """The broker stops: sends and pulls are the router's from now on."""
        self._router.is_going_away = True
        self.begin_anew()

    def verdict(self, peer: Connection, code: int) -> Verdict:
        """The verdict of the first guard that objects to a peer's requests of this code."""
        for ask in self._by_code.get(code, ()):
            verdict = ask(self, peer, code)
            if verdict is not None:
                return verdict
        return None

    # The rows.

    def gone(self, peer: Connection, code: int) -> Verdict:
        """Nobody reads the answer of a peer that is gone."""
        return Ruling.DROP if peer.is_closed else None

    def on_wrong_port(self, peer: Connection, code: int) -> Verdict:
        if not peer.is_fast_port:
            return None
        remark = f"request {code} is served on the main port only"
        return Response(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark)

    def too_busy(self, peer: Connection, code: int) -> Verdict:
        return None if self.busy is None else self.busy.answer(peer)

    def led_elsewhere(self, peer: Connection, code: int) -> Verdict:
        """Another member of the group takes sends."""
        return None if self.not_leading is None else self.not_leading()

    def without_lease(self, peer: Connection, code: int) -> Verdict:
        """The general way reads on and notes no progress."""
        return None if self.has_lease is None or self.has_lease() else Ruling.GENERAL

    def leaving(self, peer: Connection, code: int) -> Verdict:
        """The router answers by the version of each client."""
        return Ruling.GENERAL

    @property
    def is_leaving(self) -> bool:
        return self._router.is_going_away


# In this order.
GUARDS = (
    Guard(_FOR_THE_LIVING, Guards.gone),
    Guard(_NOT_ON_THE_FAST_PORT, Guards.on_wrong_port),
    Guard(PULLS, Guards.too_busy),
    Guard(SENDS, Guards.led_elsewhere, stands=lambda guards: guards.not_leading is not None),
    Guard(PULLS, Guards.without_lease, stands=lambda guards: guards.has_lease is not None),
    Guard(PULLS | SENDS, Guards.leaving, stands=lambda guards: guards.is_leaving),
)
