"""Pulls that the broker is too busy to serve: the rule, and the answers."""

from __future__ import annotations

from typing import Protocol

from contrail.broker.state.runtime_settings import RuntimeSettings
from contrail.protocol.codes import ResponseCode
from contrail.protocol.command import ReadyAnswer, Response
from contrail.wire.peer import Peer

_CHOKED = ReadyAnswer(
    Response(
        ResponseCode.SYSTEM_BUSY, "this connection has not read what it was sent: pull again later"
    )
)
_WAITED_TOO_LONG = ReadyAnswer(
    Response(
        ResponseCode.SYSTEM_BUSY, "pulls wait too long at this broker: flow control for a while"
    )
)


class Waiting(Protocol):
    """Says how long the requests that are handled now have been waiting."""

    waited_s: float


class BusyPulls:
    """Says which pulls are turned away unread."""

    def __init__(self, settings: RuntimeSettings, waiting: Waiting) -> None:
        self._settings = settings
        self._waiting = waiting

    def answer(self, peer: Peer) -> ReadyAnswer | None:
        """The answer to a pull of this peer that cannot be served now."""
        if peer.is_choked:
            return _CHOKED
        config = self._settings.config
        if self._waiting.waited_s * 1000 > config.pull_wait_ms_max and config.fast_failure:
            return _WAITED_TOO_LONG
        return None
