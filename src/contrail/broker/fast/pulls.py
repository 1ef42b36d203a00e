"""Pulls that the frame kernel takes apart: answered or held as known, in line, or general.

A pull with fields that an earlier one had is answered without a decoder or a check
(``fast.known_pulls``); one that differs from an earlier pull of its connection in four numbers does
not even wait for the tick (``fast.template_pulls``).
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from contrail.broker.fast.known_pulls import KnownPulls, Outcome
from contrail.broker.fast.template_pulls import TemplatePulls
from contrail.broker.handlers.busy_pulls import BusyPulls
from contrail.broker.handlers.held_pulls import PARKED_PER_PEER_MAX
from contrail.broker.handlers.pull import PullHandler
from contrail.broker.services.cold_reads import FastPull
from contrail.broker.services.deriving import Deriving
from contrail.broker.state.parked_pulls import ParkedPull
from contrail.broker.state.runtime_settings import RuntimeSettings
from contrail.broker.state.ways import Ways
from contrail.errors import StoreError
from contrail.kernels.frame_scan import Item
from contrail.protocol.codes import ResponseCode
from contrail.protocol.command import Request
from contrail.protocol.frames import PULL_LENGTH, Frames, pull_request
from contrail.wire.connection import Connection
from contrail.wire.request_times import RequestTimes
from contrail.wire.router import RequestRouter
from contrail.wire.server import Server

_log = logging.getLogger(__name__)

# Members of an enumeration are looked up each time they are named.
_ANSWERED, _GENERAL = Outcome.ANSWERED, Outcome.GENERAL


class FastPulls:
    """Takes the pulls of a read in order; belongs to the event loop's thread."""

    def __init__(
        self,
        handler: PullHandler,
        known: KnownPulls,
        server: Server,
        router: RequestRouter,
        deriving: Deriving,
        settings: RuntimeSettings,
        busy: BusyPulls,
        times: RequestTimes | None,
        *,
        serve: Callable[[Connection, Request], None],
        ways: Ways,
    ) -> None:
        """``serve`` serves a pull the general way."""
        self._handler = handler
        self._held = handler.held
        self.known = known
        self._server = server
        self._router = router
        self._deriving = deriving
        self._settings = settings
        self._busy = busy
        self._times = times
        self._serve = serve
        self._ways = ways
        self._in_flight_count_max = server.limits.in_flight_count_max
        known.log_fits_memory = handler.log_fits_memory
        handler.held.answer_fast = self._answer_held

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

        Most are like one before; the others go the general way, and are known then. Behind one
        that ends after ``until_s`` the rest is left.
        """
        end = len(frames)
        while at < end and len(frames[at]) == PULL_LENGTH:
            outcome = _GENERAL
            if not (peer.is_closed or peer.is_fast_port or self._router.is_going_away):
                busy = self._busy.answer(peer)
                if busy is not None:
                    opaque, code = frames[at][0], frames[at][3]
                    peer.send_whole(self.known.refusal(busy, opaque, code))  # type: ignore[arg-type]
                    at += 1
                    continue
                at, outcome = self.known.answer_run(frames, at, peer)
                if (
                    outcome is _GENERAL
                    and peer.in_flight_count < self._in_flight_count_max
                    and self.hold(frames[at], peer)
                ):
                    self._ways.pull_held += 1
                    at += 1
                    continue
            if outcome is not _ANSWERED:
                self._take_other(peer, frames[at], outcome)
                at += 1
            if self._server.monotonic_s() >= until_s:
                break
        return at

    def note_answered(self) -> None:
        """Tell of those that were answered since the last time."""
        if self.known.answered:
            counts = self.known.take_counts()
            if self._times is not None:
                self._times.answered_pulls(counts)
        if self.known.refused:
            refused = self.known.take_refused()
            self._router.count_refused(refused)
            if self._times is not None:
                self._times.refused_pulls(refused)

    def _learn(self, peer: Connection, frames: Frames) -> None:
        """Pulls like these are answered as they are read from now on."""
        templates = peer.at_hand
        if templates is None:
            if peer.is_fast_port:
                return
            templates = peer.at_hand = TemplatePulls(self, peer, self._server, self._deriving)
        if templates.is_missing:
            templates.learn(frames)

    def hold(self, item: Item, peer: Connection) -> bool:
        """Hold a known pull at the end of its queue; False when it must go the general way."""
        parked = self._held.parked
        if len(parked) >= self._settings.config.parked_pulls_max:
            return False
        if parked.count_of(peer) >= PARKED_PER_PEER_MAX:
            return False
        known = self.known.note_held(item)
        if known is None:
            return False
        plan = known.plan._replace(queue_offset=item[5], count_max=item[6])
        request = Request(item[3], item[0], {}, b"", item[1], item[2])
        self._held.park(request, peer, plan, known.hold_ms or 0, fast=item)
        peer.put_off_fast(request.opaque)
        return True

    def _answer_held(self, pull: ParkedPull) -> bool:
        """Answer a pull that was held here; False when it must be executed the general way."""
        peer = pull.peer
        assert pull.fast is not None and isinstance(peer, Connection)
        try:
            is_answered = self.known.answer_held(pull.fast, peer)
        except (StoreError, OSError) as error:
            # The general way meets it again, and answers for it.
            _log.debug("a held pull of %s was not answered the fast way: %s", peer.address, error)
            return False
        except Exception:
            _log.exception("a held pull of %s was not answered the fast way: a bug", peer.address)
            return False
        if is_answered:
            self._ways.pull_woken += 1
            peer.note_answered(pull.request, ResponseCode.SUCCESS)
        return is_answered

    def _take_other(self, peer: Connection, pull: Item, outcome: Outcome) -> None:
        if outcome is _GENERAL or not self._take_far(pull, peer):
            self._take_general(peer, pull)

    def _take_far(self, item: Item, peer: Connection) -> bool:
        """Let a known pull of old messages wait in line; False when too many wait already."""
        known = self.known
        pull = FastPull(
            peer,
            lambda: known.answer_far(item, peer),
            lambda: self._take_general(peer, item, has_committed=True),
        )
        is_taken = self._handler.cold_reads.take(
            pull,
            count_max=self._settings.config.parked_pulls_max,
            count_per_peer_max=PARKED_PER_PEER_MAX,
        )
        if is_taken:
            self._ways.pull_far += 1
            known.commit_far(item)
        return is_taken

    def _take_general(self, peer: Connection, pull: Item, *, has_committed: bool = False) -> None:
        request = pull_request(pull)
        if has_committed:
            request.fields["commitOffset"] = "-1"
        self._serve(peer, request)
        self.known.remember(pull, request)

    def sweep(self, now_ms: int) -> None:
        """Every few seconds, with that of the held pulls."""
        self._handler.sweep(now_ms)
        self.known.log_fits_memory = self._handler.log_fits_memory
        self.known.note_given_again()
