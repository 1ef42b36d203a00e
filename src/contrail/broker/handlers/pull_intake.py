"""Which way a pull goes that was read: answered or held with little ado, in line, the long way."""

from __future__ import annotations

from collections.abc import Callable

from contrail.broker.handlers.pull import PullHandler
from contrail.broker.handlers.pulls_at_once import PullsAtOnce
from contrail.broker.handlers.quick_pulls import Outcome
from contrail.broker.services.deriving import Deriving
from contrail.broker.state.runtime_settings import RuntimeSettings
from contrail.kernels.frame_scan import Item
from contrail.protocol.codes import ResponseCode
from contrail.protocol.command import ReadyAnswer, Request, Response
from contrail.protocol.frames import PULL_LENGTH, Frames, pull_request
from contrail.wire.connection import Connection
from contrail.wire.request_times import RequestTimes
from contrail.wire.router import RequestRouter
from contrail.wire.server import Server

# What is known of a peer's pulls is among its notes under this name.
_AT_ONCE = "pulls at once"
# Members of an enumeration are looked up each time they are named.
_ANSWERED, _UNUSUAL = Outcome.ANSWERED, Outcome.UNUSUAL
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


class PullIntake:
    """Takes the pulls of a read in order; belongs to the event loop's thread."""

    def __init__(
        self,
        pulls: PullHandler,
        server: Server,
        router: RequestRouter,
        deriving: Deriving,
        settings: RuntimeSettings,
        times: RequestTimes | None,
        *,
        take_the_long_way: Callable[[Connection, Request], None],
    ) -> None:
        """``take_the_long_way`` serves a pull as any other request."""
        self._pulls = pulls
        self._quick = pulls.quick
        self._server = server
        self._router = router
        self._deriving = deriving
        self._settings = settings
        self._times = times
        self._serve = take_the_long_way
        self._in_flight_count_max = server.limits.in_flight_count_max

    def take_at_once(self, peer: Connection, frames: Frames) -> Frames:
        """Pulls that nothing else is to be done before need no tick; returns what is left."""
        if self._deriving.is_behind:
            self._deriving.catch_up()
        until_s = self._server.monotonic_s() + self._server.limits.piece_handling_s
        at = self.take(peer, frames, 0, until_s)
        self.note_answered()
        self._learn(peer, frames)
        return frames[at:]

    def take(self, peer: Connection, frames: Frames, at: int, until_s: float) -> int:
        """The pulls from ``at`` on; returns where something else begins.

        Most are like the one before; the others take the long way, and are known then. Behind
        one that ends after ``until_s`` the rest is left.
        """
        end = len(frames)
        while at < end and len(frames[at]) == PULL_LENGTH:
            outcome = _UNUSUAL
            if not (peer.is_closed or peer.is_fast_port or self._router.is_going_away):
                busy = self.busy(peer)
                if busy is not None:
                    opaque, code = frames[at][0], frames[at][3]
                    peer.send_whole(self._quick.refusal(busy, opaque, code))  # type: ignore[arg-type]
                    at += 1
                    continue
                at, outcome = self._quick.answer_run(frames, at, peer)
                if (
                    outcome is _UNUSUAL
                    and peer.in_flight_count < self._in_flight_count_max
                    and self._pulls.hold_usual(frames[at], peer)
                ):
                    self._pulls.ways.pull_held += 1
                    at += 1
                    continue
            if outcome is not _ANSWERED:
                self._take_unusual(peer, frames[at], outcome)
                at += 1
            if self._server.monotonic_s() >= until_s:
                break
        return at

    def busy(self, peer: Connection) -> ReadyAnswer | None:
        """The answer to pulls that the broker cannot serve now, whatever they ask for."""
        if peer.is_choked:
            return _CHOKED
        config = self._settings.config
        if self._server.waited_s * 1000 > config.pull_wait_ms_max and config.fast_failure:
            return _WAITED_TOO_LONG
        return None

    def note_answered(self) -> None:
        """Tell of those that were answered since the last time."""
        if self._quick.answered:
            counts = self._quick.take_counts()
            if self._times is not None:
                self._times.answered_pulls(counts)
        if self._quick.refused:
            refused = self._quick.take_refused()
            self._router.count_refused(refused)
            if self._times is not None:
                self._times.refused_pulls(refused)

    def _learn(self, peer: Connection, frames: Frames) -> None:
        """Pulls like these are answered as they are read from now on."""
        known = peer.notes.get(_AT_ONCE)
        if known is None:
            known = peer.notes[_AT_ONCE] = PullsAtOnce(
                self._pulls, peer, self._server, self._deriving
            )
            if not peer.is_fast_port:
                peer.at_once = known.answer
        if known.is_missing:
            known.learn(frames)

    def _take_unusual(self, peer: Connection, pull: Item, outcome: Outcome) -> None:
        if outcome is _UNUSUAL or not self._pulls.take_far(
            pull, peer, lambda: self._take_the_long_way(peer, pull, has_committed=True)
        ):
            self._take_the_long_way(peer, pull)

    def _take_the_long_way(
        self, peer: Connection, pull: Item, *, has_committed: bool = False
    ) -> None:
        request = pull_request(pull)
        if has_committed:
            request.fields["commitOffset"] = "-1"
        self._serve(peer, request)
        self._quick.remember(pull, request)
