"""The client's rules where the master of a broker's name may change while it runs.

A name has other ids where a failover group or a slave stands behind it. There a failure may only
mean that another broker leads by now, or will in a moment: the client waits a little, asks for the
route and goes on until its deadline.
"""

from __future__ import annotations

from contrail.errors import BrokerRefused, BrokerUnknown, CallFailed, CallTimedOut
from contrail.protocol.codes import ResponseCode

WAIT_MS_FIRST = 50
WAIT_MS_MAX = 400
PULL_PAUSE_S = 0.1
SILENT_S = 1.5
"""A master that leaves requests unanswered for so long may be stopped or cut off."""

_NOT_HERE = frozenset({ResponseCode.SERVICE_NOT_AVAILABLE, ResponseCode.GO_AWAY})


def may_have_moved(failure: BaseException) -> bool:
    """Whether a failure may come from a change of the master."""
    if isinstance(failure, BrokerRefused):
        return failure.is_in_doubt or failure.code in _NOT_HERE
    return isinstance(failure, CallFailed | BrokerUnknown) or isinstance(
        failure.__cause__, CallFailed
    )


def is_in_doubt(failure: BaseException) -> bool:
    """Whether the request may have been carried out, or may still be."""
    if isinstance(failure, BrokerRefused):
        return failure.is_in_doubt
    return isinstance(failure, CallTimedOut)


class Waits:
    """The pauses of one request before its next attempts: 50 ms, then twice as long each."""

    __slots__ = ("_has_followed", "_next_ms")

    def __init__(self) -> None:
        self._next_ms = WAIT_MS_FIRST
        self._has_followed = False

    def next_s(self, *, knows_leader: bool = False) -> float:
        """The next pause; none, once, after an answer that names a leader of the route.

        Two members that name each other must not keep a client running between them.
        """
        if knows_leader and not self._has_followed:
            self._has_followed = True
            return 0.0
        wait_ms, self._next_ms = self._next_ms, min(2 * self._next_ms, WAIT_MS_MAX)
        return wait_ms / 1000


class ShortPauses:
    """The pauses of a reader whose master is gone: 100 ms, then twice as long up to the usual."""

    __slots__ = ("_next_s",)

    def __init__(self) -> None:
        self._next_s = PULL_PAUSE_S

    def next_s(self, usual_s: float) -> float:
        pause_s = min(self._next_s, usual_s)
        self._next_s = 2 * pause_s
        return pause_s

    def reset(self) -> None:
        self._next_s = PULL_PAUSE_S
