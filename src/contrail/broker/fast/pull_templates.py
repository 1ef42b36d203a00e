"""Templates of pulls: pulls are answered as they are read, before the frame kernel sees them.

A consumer that reads on sends one pull after the other that differ in four numbers. The rest of
their header is kept as a template, by connection; a read that begins with such pulls is answered
here, without a tick. After a wake-up the caches are cold, and each function more costs about a
microsecond. Every other pull is left to ``fast.pulls``, which also has the templates learned.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from typing import Protocol

from contrail.broker.fast.pull_answers import Parts, PullAnswers
from contrail.broker.fast.pull_forms import PullForm, PullForms
from contrail.broker.services.deriving import Deriving
from contrail.broker.state.ways import Ways
from contrail.clock import monotonic_ns
from contrail.errors import StoreError
from contrail.kernels.pull_match import COMMIT_OFFSET, OPAQUE, QUEUE_ID, QUEUE_OFFSET, match_pull
from contrail.protocol.frames import FRAME_PREFIX_BYTES, Frames, PullFrame
from contrail.store import FAR, MessageStore, Reach
from contrail.wire.connection import Connection
from contrail.wire.request_times import RequestTimes
from contrail.wire.server import Server

_log = logging.getLogger(__name__)

# Members of an enumeration are looked up each time they are named.
_WARM, _NEAR = Reach.WARM, Reach.NEAR

# A consumer has one for its pulls with an offset to commit and one for those without.
_TEMPLATES_PER_PEER_MAX = 8
_TEMPLATES_MAX = 10_000
# After this many pulls that were never alike, a connection's pulls get no more templates.
_TRIES_MAX = 64
_HEADER_BYTES_MAX = 4096
# After a longer tick it must be found out how long pulls have waited. Half of it, the time they
# have waited on average, is less than the least that can be forbidden.
_SHORT_TICK_S = 0.002
_MS_NS = 1_000_000
# A template may hold beside its numbers nothing that JSON would escape, and no control character.
_PLAIN = re.compile(rb"[ !#-\[\]-~\"]+")
_NUMBERS = (
    (QUEUE_ID, re.compile(rb'(?<="queueId":")[0-9]+(?=")')),
    (QUEUE_OFFSET, re.compile(rb'(?<="queueOffset":")[0-9]+(?=")')),
    (COMMIT_OFFSET, re.compile(rb'(?<="commitOffset":")[0-9]+(?=")')),
    (OPAQUE, re.compile(rb'(?<="opaque":)[0-9]+(?=[,}])')),
)


class PullTemplate:
    """The header of one consumer's pulls from all its queues, with marks for the numbers."""

    __slots__ = ("_begin", "asked", "code", "forms", "text", "times")

    def __init__(self, text: bytes, first: PullFrame, times: list[float] | None) -> None:
        """``first`` is a pull with this header; ``times`` count how long such pulls took."""
        self.text = text
        self._begin = (first.flag, first.version, first.code)
        self.code = first.code
        self.asked = first.count_max
        self.times = times
        # By queue id; None for a queue whose pulls take another way.
        self.forms: dict[int, PullForm | None] = {}

    def frame(
        self, opaque: int, key: bytes, queue_offset: int, consumer_offset: int, header: bytes
    ) -> PullFrame:
        """Such a pull as the frame kernel would have taken it apart."""
        numbers = (queue_offset, self.asked, consumer_offset)
        # One call less than by the type's own constructor.
        return tuple.__new__(PullFrame, (opaque, *self._begin, key, *numbers, header))


class PullTemplates:
    """The templates of all connections: consumers with the same header share one."""

    def __init__(self, forms: PullForms, times: RequestTimes | None) -> None:
        self._times = times
        self._by_text: dict[bytes, PullTemplate] = {}
        forms.on_dropped.append(self._drop_forms)

    def __len__(self) -> int:
        return len(self._by_text)

    def _drop_forms(self) -> None:
        for template in self._by_text.values():
            template.forms.clear()

    def of(self, text: bytes, pull: PullFrame) -> PullTemplate:
        """The template with this text; ``pull`` is one of its pulls."""
        template = self._by_text.get(text)
        if template is None:
            if len(self._by_text) >= _TEMPLATES_MAX:
                # Connections that keep hold of one find nothing in it, and learn another.
                self._drop_forms()
                self._by_text.clear()
            times = None if self._times is None else self._times.row_of_pulls(pull.code)
            template = self._by_text[text] = PullTemplate(text, pull, times)
        return template

    def note_times(self, template: PullTemplate, took_ns: int, count: int) -> None:
        """Note that ``count`` pulls of a template were answered in ``took_ns``."""
        times = template.times
        if times is None or self._times is None:
            return
        if took_ns <= _MS_NS:
            times[0] += count
            times[-1] += took_ns / _MS_NS * count
        else:
            self._times.note_pulls(template.code, took_ns / _MS_NS, count)


class Pulls(Protocol):
    """The parts that the templates of all connections share."""

    forms: PullForms
    answers: PullAnswers
    templates: PullTemplates
    deriving: Deriving
    store: MessageStore
    ways: Ways
    # The guards' verdict on a peer's requests of a code; None lets them pass.
    verdict: Callable[[Connection, int], object]

    def hold(self, pull: PullFrame, peer: Connection, form: PullForm | None) -> bool:
        """Hold a pull at the end of its queue; False when it must go the general way."""
        ...


class PeerTemplates:
    """The templates of one connection's pulls."""

    __slots__ = (
        "_answers",
        "_forms",
        "_peer",
        "_pulls",
        "_request_count_max",
        "_room_bytes",
        "_server",
        "_templates",
        "_tries",
        "_turn",
        "is_missing",
    )

    def __init__(self, pulls: Pulls, peer: Connection, server: Server) -> None:
        self._pulls = pulls
        self._forms = pulls.forms
        self._answers = pulls.answers
        self._peer = peer
        self._server = server
        self._request_count_max = server.limits.turn_requests_of_one_max
        self._room_bytes = server.limits.write_bytes_max
        # The one that was met last comes first.
        self._templates: list[PullTemplate] = []
        self._turn = -1
        self._tries = _TRIES_MAX
        # Whether a pull came that has no template: the next ones are worth to be learned.
        self.is_missing = True

    def take(self, data: bytes) -> int:
        """Answer the first pulls of ``data``, or hold them; returns where the first other begins.

        ``data`` must begin with a frame. Nothing is taken while anything that came earlier waits
        for the end of the tick.
        """
        server, pulls, forms = self._server, self._pulls, self._forms
        if (
            server.tick_is_due
            or server.took_s > _SHORT_TICK_S
            or not self._templates
            or not forms.log_fits_memory
            or forms.pending_resets
            or pulls.verdict(self._peer, self._templates[0].code) is not None
        ):
            return 0
        if pulls.store.underived_bytes:
            # Messages stored since are seen now or, by pulls that are held below, in a moment.
            pulls.deriving.hurry()
        began_ns = monotonic_ns()
        now_ms = began_ns // _MS_NS
        cold_reads, give = self._answers.cold_reads, self._answers.give
        self._turn = cold_reads.begin_turn(self._turn)
        reach = _WARM if cold_reads.may_skip_line else _NEAR
        parts: Parts = []
        at, end, out_bytes, given_count, held_count = 0, len(data), 0, 0, 0
        template = self._templates[0]
        try:
            while at < end and out_bytes <= self._room_bytes:
                if given_count + held_count >= self._request_count_max:
                    # The rest waits for another turn of this connection.
                    server.schedule_tick()
                    break
                found = match_pull(data, at, template.text)
                if found is None:
                    other = self._other(data, at)
                    if other is None or (parts and other.code != template.code):
                        break
                    template = other
                    continue
                frame_end, queue_id, queue_offset, consumer_offset, opaque = found
                form = template.forms.get(queue_id)
                if form is None:
                    self.is_missing = queue_id not in template.forms
                    break
                asked = template.asked
                run = give(form, opaque, queue_offset, asked, consumer_offset, reach, now_ms, parts)
                if run is None and form.hold_ms is not None:
                    header = data[at + FRAME_PREFIX_BYTES : frame_end]
                    numbers = (opaque, form.key, queue_offset, consumer_offset)
                    if not self._hold(template.frame(*numbers, header), form):
                        break
                    at = frame_end
                    held_count += 1
                    continue
                if run is None or run is FAR:
                    break
                # The pull is answered: an error from here on must not answer it twice.
                at = frame_end
                given_count += 1
                byte_count, physical_end = run[1], run[6]
                out_bytes += byte_count
                if physical_end:
                    reach = self._answers.note_far(form, queue_offset, byte_count, physical_end)
        except (StoreError, OSError) as error:
            # The general way meets the error again, and answers the pull.
            _log.debug("a pull was not answered by its template: %s", error)
        except Exception:
            # The bug is logged once; this connection goes on without templates.
            _log.exception("pulls are not answered by templates any more: this is a bug")
            self._templates.clear()
            self._tries, self.is_missing = 0, False
        pulls.ways.pull_template_held += held_count
        if parts:
            pulls.ways.pull_template += given_count
            pulls.templates.note_times(template, monotonic_ns() - began_ns, given_count)
            self._peer.write_parts(parts)
        return at if at == end else self._left(data, at)

    def _left(self, data: bytes, at: int) -> int:
        """Where the decoder goes on; the rest waits when this connection has had its share."""
        if at and self._server.tick_is_due and not self._peer.is_closed:
            # Or others wait already.
            self._peer.wait_again(data[at:])
            return len(data)
        return at

    def _hold(self, pull: PullFrame, form: PullForm) -> bool:
        """Hold a pull that has come to the end of its queue; False when it must be looked at."""
        times = self._server.times
        if times is not None:
            times.arrived_s = self._server.monotonic_s()
        return self._pulls.hold(pull, self._peer, form)

    def _other(self, data: bytes, at: int) -> PullTemplate | None:
        """The template of a pull that is not like the one before; it comes first from now on."""
        templates = self._templates
        for template in templates[1:]:
            if match_pull(data, at, template.text) is not None:
                templates.remove(template)
                templates.insert(0, template)
                return template
        self.is_missing = True
        return None

    # Learning.

    def learn(self, frames: Frames) -> None:
        """Pulls were decoded: make templates of those that have a form."""
        self.is_missing = False
        for frame in frames:
            if not isinstance(frame, PullFrame) or self._tries <= 0:
                return
            self._learn(frame)

    def _learn(self, pull: PullFrame) -> None:
        form = self._forms.by_key.get((pull.code, pull.key))
        if form is None:
            # The pull was refused, or it waits: more pulls of this connection will come.
            self.is_missing = True
            return
        text = template_of(pull)
        if text is None:
            self._tries -= 1
            return
        template = self._pulls.templates.of(text, pull)
        template.forms[form.queue_id] = None if form.is_filtered else form
        self._put_first(template)

    def _put_first(self, template: PullTemplate) -> None:
        kept = [one for one in self._templates if one.text != template.text]
        if len(kept) >= _TEMPLATES_PER_PEER_MAX:
            kept.pop()
            self._tries -= 1
        self._templates[:] = [template, *kept]


def template_of(pull: PullFrame) -> bytes | None:
    """The header of a pull with marks in place of its numbers; None when it is not plain JSON.

    Each number must be there once. With nothing escaped, what looks like a field is one.
    """
    header = template = pull.header
    if len(header) > _HEADER_BYTES_MAX or not _PLAIN.fullmatch(header):
        return None
    for mark, number in _NUMBERS:
        template, count = number.subn(bytes((mark,)), template)
        if count != 1:
            return None
    size = len(header)
    frame = (size + 4).to_bytes(4, "big") + size.to_bytes(4, "big") + header
    found = match_pull(frame, 0, template)
    numbers = (pull.queue_offset, pull.consumer_offset, pull.opaque)
    return template if found is not None and found[2:] == numbers else None
