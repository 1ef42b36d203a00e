"""Pulls that the frame kernel takes apart: answered by their form, held, put in line, or general.

A pull whose fields an earlier one had is answered without a decoder or a check; one that has a
template does not even wait for the tick (``fast.pull_templates``). On every way
``fast.pull_answers`` hands out the messages.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from enum import Enum

from contrail.broker.fast.pull_answers import COMMITTED, Parts, PullAnswers
from contrail.broker.fast.pull_forms import PullForm, PullForms
from contrail.broker.fast.pull_templates import PeerTemplates, PullTemplates
from contrail.broker.handlers.pull import PullHandler
from contrail.broker.services.cold_reads import FarAnswer, FastPull
from contrail.broker.services.deriving import Deriving
from contrail.broker.state.parked_pulls import ParkedPull
from contrail.broker.state.ways import Ways
from contrail.clock import monotonic_ms
from contrail.errors import StoreError
from contrail.protocol.codes import ResponseCode
from contrail.protocol.command import ReadyAnswer, Request
from contrail.protocol.frames import Frames, PullFrame, pull_request
from contrail.store import FAR, FoundRun, MessageStore, Reach
from contrail.wire.connection import Connection
from contrail.wire.router import RequestRouter
from contrail.wire.server import Server

_log = logging.getLogger(__name__)

# Filtered pulls in a row may take this long before the loop looks whether other requests wait.
_FILTERING_MS_MAX = 1


class Outcome(Enum):
    """The outcome of a fast pull."""

    ANSWERED = "answered"
    # The pull has a form, but its messages lie further back: it takes turns with others.
    FAR = "far"
    # The pull goes the general way.
    GENERAL = "general"


# Members of an enumeration are looked up each time they are named.
_WARM, _NEAR = Reach.WARM, Reach.NEAR
_ANSWERED, _GENERAL = Outcome.ANSWERED, Outcome.GENERAL
_FOUND, _NONE_MATCHED = int(ResponseCode.SUCCESS), int(ResponseCode.PULL_RETRY_IMMEDIATELY)


class FastPulls:
    """Takes the pulls of a read in order; belongs to the event loop's thread."""

    def __init__(
        self,
        handler: PullHandler,
        forms: PullForms,
        answers: PullAnswers,
        store: MessageStore,
        server: Server,
        router: RequestRouter,
        deriving: Deriving,
        *,
        verdict: Callable[[Connection, int], object],
        serve: Callable[[Connection, Request], None],
        ways: Ways,
    ) -> None:
        """``verdict`` asks the guards about a peer's pulls; ``serve`` is the general way."""
        self._handler = handler
        self._held = handler.held
        self.forms = forms
        self.answers = answers
        self.store = store
        self._server = server
        self._router = router
        self.deriving = deriving
        self.verdict = verdict
        self._serve = serve
        self.ways = ways
        self._times = server.times
        self.templates = PullTemplates(forms, server.times)
        # Since the last ``note_answered``, by request code and response code.
        self._answered: Counter[tuple[int, int]] = Counter()
        self._refused: Counter[tuple[int, int]] = Counter()
        forms.log_fits_memory = handler.log_fits_memory
        handler.held.answer_fast = self._answer_held

    def take_before_tick(self, peer: Connection, frames: Frames) -> Frames:
        """Answer the first pulls of a read that need no tick; returns the frames left."""
        if self.deriving.is_behind:
            self.deriving.catch_up()
        until_s = self._server.monotonic_s() + self._server.limits.piece_handling_s
        at = self.take(peer, frames, 0, until_s)
        self.note_answered()
        self._learn(peer, frames)
        return frames[at:]

    def take(self, peer: Connection, frames: Frames, at: int, until_s: float) -> int:
        """The pulls from ``at`` on; returns where something else begins.

        Most have a form; the others go the general way, and have one then. Behind one that ends
        after ``until_s`` the rest is left.
        """
        while at < len(frames) and isinstance(pull := frames[at], PullFrame):
            outcome = _GENERAL
            verdict = self.verdict(peer, pull.code)
            if isinstance(verdict, ReadyAnswer):
                peer.send_whole(self._refusal(verdict, pull))
                at += 1
                continue
            if verdict is None:
                at, outcome = self._give_run(peer, frames, at)
            if outcome is not _ANSWERED:
                self._take_other(peer, frames[at], outcome, may_hold=verdict is None)  # type: ignore[arg-type]
                at += 1
            if self._server.monotonic_s() >= until_s:
                break
        return at

    def _give_run(self, peer: Connection, frames: Frames, at: int) -> tuple[int, Outcome]:
        """Answer the pulls from ``at`` on that have a form, or are refused like an earlier one.

        Returns the place of the first frame that was left, and the outcome of that frame if it is a
        pull; ``ANSWERED`` says that nothing is wrong with it.
        """
        parts: Parts = []
        out_bytes, room_bytes, now_ms = 0, peer.room_bytes, monotonic_ms()
        answers, forms, reach = self.answers, self.forms, self.answers.reach
        outcome, end = _ANSWERED, len(frames)
        try:
            while at < end and out_bytes <= room_bytes:
                pull = frames[at]
                if not isinstance(pull, PullFrame):
                    break
                form = forms.find(pull)
                if form is None:
                    refusal = forms.refusal(pull)
                    if refusal is None:
                        outcome = _GENERAL
                        break
                    parts.append(self._refusal(refusal, pull))
                    at += 1
                    continue
                opaque, _, _, code, _, queue_offset, asked, consumer_offset, _ = pull
                # Old messages are filtered in line alone.
                within = _NEAR if form.is_filtered else reach
                run = answers.give(
                    form, opaque, queue_offset, asked, consumer_offset, within, now_ms, parts
                )
                if run is None or run is FAR:
                    outcome = _GENERAL if run is None else Outcome.FAR
                    break
                at += 1
                out_bytes += run[1]
                self._count(code, run[2])
                if form.is_filtered:
                    self.ways.pull_filtered += 1
                    if monotonic_ms() - now_ms >= _FILTERING_MS_MAX:
                        break
                    continue
                self.ways.pull_known += 1
                if run[6]:
                    reach = answers.note_far(form, queue_offset, run[1], run[6])
        finally:
            if parts:
                peer.send_parts(parts)
        return at, outcome

    def _take_other(
        self, peer: Connection, pull: PullFrame, outcome: Outcome, *, may_hold: bool
    ) -> None:
        if outcome is Outcome.FAR:
            if not self._take_far(pull, peer):
                self._take_general(peer, pull)
        elif may_hold and self.hold(pull, peer, self.forms.find(pull)):
            self.ways.pull_held += 1
        else:
            self._take_general(peer, pull)

    def _take_general(
        self, peer: Connection, pull: PullFrame, *, has_committed: bool = False
    ) -> None:
        request = pull_request(pull)
        if has_committed:
            request.fields["commitOffset"] = str(COMMITTED)
        self._serve(peer, request)
        self.forms.learn(pull, request)

    def _learn(self, peer: Connection, frames: Frames) -> None:
        """Pulls like these are answered as they are read from now on."""
        templates = peer.at_hand
        if templates is None:
            templates = peer.at_hand = PeerTemplates(self, peer, self._server)
        if templates.is_missing:
            templates.learn(frames)

    # At the end of a queue.

    def hold(self, pull: PullFrame, peer: Connection, form: PullForm | None) -> bool:
        """Hold a pull at the end of its queue; False when it must go the general way."""
        if (
            form is None
            or form.is_filtered
            or form.hold_ms is None
            or self._router.room_of(peer) <= 0
            or pull.queue_offset != self.store.queue_offset_max(*form.queue)
        ):
            return False
        plan = form.plan._replace(queue_offset=pull.queue_offset, count_max=pull.count_max)
        request = Request(pull.code, pull.opaque, {}, b"", pull.flag, pull.version)
        if not self._held.park(request, peer, plan, form.hold_ms, fast=pull):
            return False
        self.answers.note_held(form, pull.queue_offset, pull.consumer_offset)
        peer.put_off_fast(pull.opaque)
        return True

    def _answer_held(self, pull: ParkedPull) -> bool:
        """Answer a pull that was held here; False when it must be executed the general way."""
        peer = pull.peer
        assert pull.fast is not None and isinstance(peer, Connection)
        try:
            form = self.forms.find(pull.fast)
            run = None if form is None else self._give_late(form, pull.fast, peer, _NEAR)
        except (StoreError, OSError) as error:
            # The general way meets the error again, and answers the pull.
            _log.debug("a held pull of %s was not answered the fast way: %s", peer.address, error)
            return False
        except Exception:
            _log.exception("a held pull of %s was not answered the fast way: a bug", peer.address)
            return False
        if run is None:
            return False
        self.ways.pull_woken += 1
        peer.note_answered(pull.request, ResponseCode.SUCCESS)
        return True

    # Far behind the end.

    def _take_far(self, pull: PullFrame, peer: Connection) -> bool:
        """Let a pull of old messages wait in line; False when too many wait already."""
        waiting = FastPull(
            peer,
            lambda: self._answer_far(pull, peer),
            lambda: self._take_general(peer, pull, has_committed=True),
        )
        if not self._handler.wait_in_line(waiting):
            return False
        self.ways.pull_far += 1
        form = self.forms.find(pull)
        if form is not None:
            # Now: a later commit of the group must not be overwritten when the turn comes.
            self._handler.commit_carried(form.plan, pull.consumer_offset)
        return True

    def _answer_far(self, pull: PullFrame, peer: Connection) -> FarAnswer | None:
        """Answer a pull in its turn if its messages are in memory; where it ended."""
        form = self.forms.find(pull)
        run = None if form is None else self._give_late(form, pull, peer, _WARM)
        if form is None or run is None:
            return None
        self._count(pull.code, run[2])
        return FarAnswer(*form.queue, pull.queue_offset, run[6])

    def _give_late(
        self, form: PullForm, pull: PullFrame, peer: Connection, reach: Reach
    ) -> FoundRun | None:
        """Answer a pull whose consumer offset was committed when it came."""
        parts: Parts = []
        numbers = (pull.opaque, pull.queue_offset, pull.count_max, COMMITTED)
        run = self.answers.give(form, *numbers, reach, monotonic_ms(), parts)
        if run is None or run is FAR:
            return None
        peer.send(parts)
        return run

    # Counts.

    def _refusal(self, answer: ReadyAnswer, pull: PullFrame) -> bytes:
        """The frame that refuses a pull; it is counted."""
        self.ways.pull_refused += 1
        self._refused[pull.code, answer.code] += 1
        return answer.frame(pull.opaque)

    def _count(self, code: int, message_count: int) -> None:
        self._answered[code, _FOUND if message_count else _NONE_MATCHED] += 1

    def note_answered(self) -> None:
        """Tell of the pulls that were answered since the last time."""
        if self._refused:
            self._router.count_refused(self._refused)
        for counts in (self._answered, self._refused):
            if counts:
                if self._times is not None:
                    self._times.answered_pulls(counts)
                counts.clear()

    def sweep(self, now_ms: int) -> None:
        """Every few seconds, with that of the held pulls."""
        self._handler.sweep(now_ms)
        self.forms.log_fits_memory = self._handler.log_fits_memory
        self.forms.note_given_again()
