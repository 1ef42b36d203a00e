"""Pulls that are answered as they are read, before anybody decodes them.

A consumer that reads on sends one request after the other that differ in four numbers. What is the
same is kept as a template, by connection; a read that begins with such pulls is answered by one
function. After a wake-up the caches are cold, and each function more costs about a microsecond.
Every other pull is left to ``fast.pulls``, which also has the templates learned.
"""

from __future__ import annotations

import logging
import re
from typing import Protocol

from contrail.broker.fast.known_pull import RECORD_BYTES_MAX, KnownPull, PullPattern
from contrail.broker.fast.known_pulls import KnownPulls
from contrail.broker.services.cold_reads import (
    ANSWER_BYTES_MIN,
    AT_ONCE_BYTES_MAX,
    BLOCK_RECORD_BYTES,
    BLOCK_ROWS,
    FarAnswer,
)
from contrail.broker.services.deriving import Deriving
from contrail.clock import monotonic_ns
from contrail.errors import StoreError
from contrail.kernels.frame_scan import Item
from contrail.kernels.pull_answer import found_answer
from contrail.kernels.pull_match import COMMIT_OFFSET, OPAQUE, QUEUE_ID, QUEUE_OFFSET, match_pull
from contrail.protocol.frames import FRAME_PREFIX_BYTES, PULL_LENGTH, Frames
from contrail.store import FAR, Reach
from contrail.wire.connection import Connection
from contrail.wire.server import Server

_log = logging.getLogger(__name__)

# Members of an enumeration are looked up each time they are named.
_WARM, _NEAR = Reach.WARM, Reach.NEAR
# A consumer has one for its pulls with an offset to commit and one for those without.
_PATTERNS_MAX = 8
# A connection whose pulls are never alike is not looked at any more after so many.
_TRIES_MAX = 64
_HEADER_BYTES_MAX = 4096
# After a longer tick it must be found out how long pulls have waited. Half of it, the time they
# have waited on average, is less than the least that can be forbidden.
_SHORT_TICK_S = 0.002
_MS_NS = 1_000_000
# What a template may hold beside its numbers: nothing that JSON would escape, no control character.
_PLAIN = re.compile(rb"[ !#-\[\]-~\"]+")
_NUMBERS = (
    (QUEUE_ID, re.compile(rb'(?<="queueId":")[0-9]+(?=")')),
    (QUEUE_OFFSET, re.compile(rb'(?<="queueOffset":")[0-9]+(?=")')),
    (COMMIT_OFFSET, re.compile(rb'(?<="commitOffset":")[0-9]+(?=")')),
    (OPAQUE, re.compile(rb'(?<="opaque":)[0-9]+(?=[,}])')),
)


class Pulls(Protocol):
    """What the templates of all connections share."""

    known: KnownPulls

    def hold(self, item: Item, peer: Connection) -> bool:
        """Hold a known pull at the end of its queue; False when it must go the general way."""
        ...


class TemplatePulls:
    """The templates of one connection's pulls."""

    __slots__ = (
        "_deriving",
        "_in_flight_count_max",
        "_known",
        "_patterns",
        "_peer",
        "_pulls",
        "_request_count_max",
        "_room_bytes",
        "_server",
        "_tries",
        "_turn",
        "is_missing",
    )

    def __init__(self, pulls: Pulls, peer: Connection, server: Server, deriving: Deriving) -> None:
        self._pulls = pulls
        self._known = pulls.known
        self._peer = peer
        self._server = server
        self._deriving = deriving
        self._in_flight_count_max = server.limits.in_flight_count_max
        self._request_count_max = server.limits.turn_requests_of_one_max
        self._room_bytes = server.limits.write_bytes_max
        # The one that was met last comes first.
        self._patterns: list[PullPattern] = []
        self._turn = -1
        self._tries = _TRIES_MAX
        # Whether a pull came that is like none of them: it is worth to be looked at.
        self.is_missing = True

    def take(self, data: bytes) -> int:
        """Answer the first pulls of ``data``, or hold them; returns where the first other begins.

        ``data`` must begin with a frame, and the peer must not be choked. Nothing is taken while
        anything that came earlier waits for the end of the tick.
        """
        known_pulls, server = self._known, self._server
        if (
            server.tick_is_due
            or server.took_s > _SHORT_TICK_S
            or known_pulls.pending_resets
            or not known_pulls.log_fits_memory
            or known_pulls.is_closed
            or not self._patterns
        ):
            return 0
        if known_pulls.store.underived_bytes:
            # What was stored since is told of now or, to who is held below, in a moment.
            self._deriving.hurry()
        began_ns = monotonic_ns()
        now_ms = began_ns // _MS_NS
        cold_reads = known_pulls.cold_reads
        if self._turn == cold_reads.turn:
            # A connection is read once each time that the loop has looked for something new.
            cold_reads.turn += 1
            cold_reads.at_once_bytes = 0
        self._turn = cold_reads.turn
        at_once_bytes = cold_reads.at_once_bytes
        reach = _NEAR if cold_reads.lines or at_once_bytes >= AT_ONCE_BYTES_MAX else _WARM
        parts: list[bytes | memoryview] = []
        at, end, out_bytes, room_bytes, count = 0, len(data), 0, self._room_bytes, 0
        held_count, count_max = 0, self._request_count_max
        pattern = self._patterns[0]
        try:
            while at < end and out_bytes <= room_bytes:
                if count + held_count >= count_max:
                    # The rest waits for another turn of this connection.
                    server.schedule_tick()
                    break
                found = match_pull(data, at, pattern.template)
                if found is None:
                    other = self._other(data, at)
                    if other is None or (parts and other.code != pattern.code):
                        break
                    pattern = other
                    continue
                frame_end, queue_id, queue_offset, consumer_offset, opaque = found
                known = pattern.knowns.get(queue_id)
                if known is None:
                    self.is_missing = queue_id not in pattern.knowns
                    break
                asked, allowed = pattern.asked, known.count_max
                run = known.runs.read(
                    queue_offset,
                    (asked if asked < allowed else allowed) or 1,
                    known.bytes_max,
                    reach,
                    now_ms,
                )
                if run is None and known.hold_ms is not None:
                    header = data[at + FRAME_PREFIX_BYTES : frame_end]
                    if not self._hold(
                        pattern.item(opaque, known.key, queue_offset, consumer_offset, header)
                    ):
                        break
                    at = frame_end
                    held_count += 1
                    continue
                if run is FAR or run is None or run[1] > RECORD_BYTES_MAX:
                    break
                views, byte_count, found_count, low, high, far_end = run
                next_offset = queue_offset + found_count
                known_pulls.read_on(
                    known.offsets_key,
                    queue_id,
                    consumer_offset if known.commits else -1,
                    next_offset,
                )
                tally = known.tally
                if not tally.calls:
                    known_pulls.unsettled_gets.append(tally)
                tally.calls += 1
                tally.count += found_count
                tally.byte_count += byte_count
                if not known.given_noted:
                    known_pulls.note_given(known)
                topic_flag, group_flag = known.flags
                parts.append(
                    found_answer(opaque, next_offset, low, high, topic_flag, group_flag, byte_count)
                )
                parts += views
                # It is answered: what goes wrong from here on must not have it answered twice.
                at = frame_end
                count += 1
                out_bytes += byte_count
                if far_end:
                    at_once_bytes += (
                        byte_count if byte_count > ANSWER_BYTES_MIN else ANSWER_BYTES_MIN
                    )
                    if at_once_bytes >= AT_ONCE_BYTES_MAX:
                        reach = _NEAR
                    if (
                        known.told_block != far_end // BLOCK_RECORD_BYTES
                        or known.told_row_block != queue_offset // BLOCK_ROWS
                        or known.told_epoch != cold_reads.told_epoch
                    ):
                        self._tell(known, queue_offset, far_end)
        except (StoreError, OSError) as error:
            # Whoever takes the rest meets it again, and answers for it.
            _log.debug("a pull was not answered at once: %s", error)
        except Exception:
            # Nobody else may meet it: it is told once, and this connection goes without templates.
            _log.exception("pulls are not answered at once any more: this is a bug")
            self._patterns.clear()
            self._tries, self.is_missing = 0, False
        ways = known_pulls.ways
        ways.pull_template_held += held_count
        if not parts:
            return at if at == end else self._left(data, at)
        ways.pull_template += count
        if at_once_bytes > cold_reads.at_once_bytes:
            if cold_reads.at_once_bytes and at_once_bytes >= AT_ONCE_BYTES_MAX // 2:
                # Several connections share what may be answered at once.
                cold_reads.renew_soon()
            cold_reads.at_once_bytes = at_once_bytes
        times = pattern.times
        if times is not None:
            took_ns = monotonic_ns() - began_ns
            if took_ns <= _MS_NS:
                times[0] += count
                times[-1] += took_ns / _MS_NS * count
            else:
                known_pulls.note_times(pattern.code, took_ns / _MS_NS, count)
        self._peer.write_parts(parts)
        return at if at == end else self._left(data, at)

    def _left(self, data: bytes, at: int) -> int:
        """Where the decoder goes on; the rest waits when this connection has had its share."""
        if at and at < len(data) and self._server.tick_is_due and not self._peer.is_closed:
            # Or others wait already.
            self._peer.wait_again(data[at:])
            return len(data)
        return at

    def _hold(self, item: Item) -> bool:
        """Hold a pull that has come to the end of its queue; False when it must be looked at."""
        times, peer = self._server.times, self._peer
        if peer.in_flight_count >= self._in_flight_count_max:
            return False
        if times is not None:
            times.arrived_s = self._server.monotonic_s()
        return self._pulls.hold(item, peer)

    def _other(self, data: bytes, at: int) -> PullPattern | None:
        """The pattern of a pull that is not like the one before; it comes first from now on."""
        patterns = self._patterns
        for pattern in patterns[1:]:
            if match_pull(data, at, pattern.template) is not None:
                patterns.remove(pattern)
                patterns.insert(0, pattern)
                return pattern
        self.is_missing = True
        return None

    def _tell(self, known: KnownPull, queue_offset: int, far_end: int) -> None:
        cold_reads = self._known.cold_reads
        if cold_reads.read_ahead(FarAnswer(*known.queue, queue_offset, far_end)):
            known.told_block = far_end // BLOCK_RECORD_BYTES
            known.told_row_block = queue_offset // BLOCK_ROWS
            known.told_epoch = cold_reads.told_epoch

    # Learning.

    def learn(self, frames: Frames) -> None:
        """Pulls were decoded: make templates of those that are known."""
        self.is_missing = False
        for frame in frames:
            if len(frame) != PULL_LENGTH or self._tries <= 0:
                return
            self._learn(frame)

    def _learn(self, item: Item) -> None:
        known = self._known.known_pulls.get(item[3:5])
        if known is None:
            # It was refused, or it waits: there will be others.
            self.is_missing = True
            return
        template = template_of(item)
        if template is None:
            self._tries -= 1
            return
        pattern = self._known.pattern(template, item)
        pattern.knowns[known.queue[1]] = None if known.is_filtered else known
        self._put_first(pattern)

    def _put_first(self, pattern: PullPattern) -> None:
        template = pattern.template
        kept = [one for one in self._patterns if one.template != template]
        if len(kept) >= _PATTERNS_MAX:
            kept.pop()
            self._tries -= 1
        self._patterns[:] = [pattern, *kept]


def template_of(item: Item) -> bytes | None:
    """The header of a pull with marks in place of its numbers; None when it is not plain JSON.

    Each number must be there once. With nothing escaped, what looks like a field is one.
    """
    header: bytes = item[8]
    template = header
    if len(header) > _HEADER_BYTES_MAX or not _PLAIN.fullmatch(header):
        return None
    for mark, number in _NUMBERS:
        template, count = number.subn(bytes((mark,)), template)
        if count != 1:
            return None
    size = len(header)
    frame = (size + 4).to_bytes(4, "big") + size.to_bytes(4, "big") + header
    found = match_pull(frame, 0, template)
    if found is None or (found[2], found[3], found[4]) != (item[5], item[7], item[0]):
        return None
    return template
