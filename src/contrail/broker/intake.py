"""The gate: everything that connections send passes here, and goes the fast or the general way.

Bytes come first (``take``): sends and pulls that the fast path knows are taken before they are
decoded. What it leaves is decoded by the connection and comes back with the tick, as runs of many
connections (``take_runs``) or as the frames of one (``received``).

A request is refused by the first guard of ``_GUARDS`` that has something against it, and then by
the router: a guard stands here once, for both ways. The fast path refuses nothing by itself but
what ``BusyPulls`` and the room for unanswered sends refuse; wherever another guard might have
something to say, it leaves the request to the general way.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import NamedTuple

from contrail.broker.fast.path import FastPath
from contrail.broker.fast.rows import SEND_BEGINS, rows_of
from contrail.broker.handlers.busy_pulls import BusyPulls
from contrail.broker.message_kinds import MessageKinds
from contrail.broker.services.acknowledgements import Acknowledgements, FlushNews
from contrail.broker.services.deriving import Deriving
from contrail.broker.services.group_changes import GroupChanges
from contrail.kernels.frame_scan import Item, is_one_send
from contrail.protocol.codes import RequestCode, ResponseCode
from contrail.protocol.command import FLAG_ONE_WAY, Frame, ReceivedResponse, Request, Response
from contrail.protocol.frames import FRAME_PREFIX_BYTES, PULL_LENGTH, Frames
from contrail.store import MessageStore
from contrail.wire.connection import Connection
from contrail.wire.router import GO_AWAY_VERSION, RequestRouter
from contrail.wire.server import Arrived, Server

# Sends are the longest tuples of the frame kernel.
_SEND_LENGTH = 12
_PULLS = frozenset({RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE})
_SENDS = frozenset(
    {RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE}
)
# What waits long is for the main port: the fast port is there to be quick.
_NOT_ON_THE_FAST_PORT = _PULLS | {
    RequestCode.PEEK_MESSAGE,
    RequestCode.POP_MESSAGE,
    RequestCode.NOTIFICATION,
    RequestCode.POLLING_INFO,
}
# Of a peer that is gone these would only leave something behind, or cost much for an answer that
# nobody reads; its last one-way requests count.
_FOR_THE_LIVING = _PULLS | {
    RequestCode.HEART_BEAT,
    RequestCode.QUERY_MESSAGE,
    RequestCode.VIEW_MESSAGE_BY_ID,
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
    RequestCode.GET_CONSUME_STATS,
    RequestCode.GET_BROKER_CONSUME_STATS,
    RequestCode.GET_TOPIC_STATS_INFO,
}


class Drop(Enum):
    """What a guard may say instead of an answer."""

    UNANSWERED = "unanswered"


Verdict = Response | Drop | None
"""Why a request is not served: its answer, or nobody is there to be told; None lets it pass."""


class Guard(NamedTuple):
    """One reason not to serve a request; ``codes`` are the requests that it looks at."""

    codes: frozenset[int]
    verdict: Callable[[Intake, Connection, Request], Verdict]


class Intake:
    """The gate of one broker; a ``wire.server.Service``. Belongs to the event loop's thread."""

    def __init__(
        self,
        router: RequestRouter,
        kinds: MessageKinds,
        deriving: Deriving,
        acknowledgements: Acknowledgements,
        flushes: FlushNews,
        store: MessageStore,
        changes: GroupChanges,
    ) -> None:
        self._router = router
        self._kinds = kinds
        self._deriving = deriving
        self._acknowledgements = acknowledgements
        self._flushes = flushes
        self._store = store
        self._changes = changes
        self._guards = _guards_by_code()
        # Whose sends were read last: while one connection alone sends, no tick joins anything.
        self.last_sender: Connection | None = None

    def begin(self, server: Server, busy: BusyPulls, fast: FastPath) -> None:
        """What this gate stands in front of; before the first connection comes."""
        self._server = server
        self._busy = busy
        self._limits = server.limits
        self._suffix = server.property_suffix
        self._sends = fast.sends
        self._pulls = fast.pulls
        self._lane = fast.lane
        server.intake = self.take if fast.is_on else None

    # Bytes.

    def take(self, peer: Connection, data: bytes) -> int:
        """Take sends and pulls that begin a read; returns where the decoder goes on.

        Pulls that a template knows are answered now, and so are tidy sends while one connection
        alone sends. Other tidy sends wait for the tick as they came.
        """
        templates = peer.at_hand
        if templates is not None and peer.slow_since_s is None:
            consumed: int = templates.take(data)
            if consumed:
                return consumed
        if not data.startswith(SEND_BEGINS, FRAME_PREFIX_BYTES):
            return 0
        if self.last_sender is peer and self._lane is not None:
            consumed = self._lane.take(peer, data)
            if consumed:
                return consumed
        self.last_sender = peer
        if is_one_send(data):
            self._server.arrived(peer, data, True)
            return len(data)
        rows = rows_of(data, peer.packed_host, self._limits, self._suffix)
        if rows is None:
            return 0
        self._server.arrived(peer, rows, True)
        return rows.end

    # The tick.

    def take_runs(self, arrived: list[Arrived], at: int) -> int:
        """Tidy sends of many connections join this tick's run in one go."""
        if self._router.is_going_away:
            return at
        return self._sends.take_runs(arrived, at, self._server.waited_s * 1000)

    def take_at_once(self, peer: Connection, frames: Frames) -> Frames:
        """Pulls that nothing else is to be done before need no tick; returns what is left."""
        if len(frames[0]) != PULL_LENGTH:
            return frames
        return self._pulls.take_at_once(peer, frames)

    def received(self, peer: Connection, frames: Frames, until_s: float) -> int:
        """Sends join this tick's run, requests go to handlers, answers to who waits for them."""
        first = index = 0
        may_look = is_late = False
        while index < len(frames) and not is_late:
            frame = frames[index]
            if len(frame) == _SEND_LENGTH:
                index += 1
                continue
            if first < index:
                self._take_sends(peer, frames[first:index])
            if not may_look and not self._looks_at_no_queue(frame):
                may_look = True
                if self._deriving.is_behind:
                    self._deriving.catch_up()
            if isinstance(frame, Request):
                self.serve(peer, frame)
                is_late = self._server.monotonic_s() >= until_s
                index += 1
            elif isinstance(frame, ReceivedResponse):
                peer.answered(frame)
                index += 1
            else:
                index = self._pulls.take(peer, frames, index, until_s)
                is_late = self._server.monotonic_s() >= until_s
            first = index
        if first < index:
            self._take_sends(peer, frames[first:index])
        return index

    def _looks_at_no_queue(self, frame: Frame | Item) -> bool:
        """Sends do not, nor do ends of what was stored a moment ago."""
        return isinstance(frame, Request) and (
            frame.code in _SENDS or self._kinds.ends_a_recent_half(frame)
        )

    def _take_sends(self, peer: Connection, sends: list[Frame | Item]) -> None:
        room = self._limits.in_flight_count_max - peer.in_flight_count
        if self._router.is_going_away or len(sends) > room:
            sends = self._admitted_sends(peer, sends, room)
        self._sends.take(peer, sends, waited_ms=self._server.waited_s * 1000)

    def _admitted_sends(
        self, peer: Connection, sends: list[Frame | Item], room: int
    ) -> list[Frame | Item]:
        """Sends that may pass now. A one-way send is not answered, so it takes no room."""
        admitted = []
        for send in sends:
            opaque, flag, version, code = send[:4]
            goes_away = self._router.is_going_away and version > GO_AWAY_VERSION
            if not goes_away and (flag & FLAG_ONE_WAY or room > 0):
                admitted.append(send)
                room -= not flag & FLAG_ONE_WAY
            elif goes_away:
                self._router.handle(Request(code, opaque, {}, b"", flag, version), peer)
            else:
                remark = f"{self._limits.in_flight_count_max} sends of this connection wait already"
                peer.answer(opaque, Response(ResponseCode.SYSTEM_BUSY, remark))
        return admitted

    def serve(self, peer: Connection, request: Request) -> None:
        """Let a request go the general way, unless a guard has something against it."""
        code = request.code
        for guard in self._guards.get(code, ()):
            verdict = guard(self, peer, request)
            if verdict is not None:
                if isinstance(verdict, Response):
                    peer.reply(request, verdict)
                return
        if code in _SENDS:
            # A connection's messages keep their order, whichever way each goes.
            self._sends.append_rows()
        self._router.handle(request, peer)

    def store_collected(self) -> None:
        """Append what was taken in this tick so far."""
        self._sends.append_run()
        self._kinds.append_run()

    def end_of_tick(self) -> None:
        self._sends.append_run()
        self._kinds.append_run()
        self._pulls.note_answered()
        if self._flushes.is_noted:
            self.take_flushed()
        self._deriving.after_tick()

    def take_flushed(self) -> None:
        """Answer sends that waited for the log to become durable."""
        self._flushes.is_noted = False
        self._acknowledgements.flushed(self._store.flushed_end)

    # Connections.

    def connection_opened(self, peer: Connection) -> None:
        """A peer is nobody until its first heartbeat."""

    def connection_closed(self, peer: Connection, reason: str) -> None:
        if self.last_sender is peer:
            self.last_sender = None
        self._changes.connection_closed(peer)

    # Guards.

    def gone(self, peer: Connection, request: Request) -> Verdict:
        """Nobody reads the answer of a peer that is gone."""
        return Drop.UNANSWERED if peer.is_closed else None

    def on_wrong_port(self, peer: Connection, request: Request) -> Verdict:
        if not peer.is_fast_port:
            return None
        remark = f"request {request.code} is served on the main port only"
        return Response(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark)

    def busy(self, peer: Connection, request: Request) -> Verdict:
        busy = self._busy.answer(peer)
        return None if busy is None else busy.response


# In this order. What is asked of every request (a role, rights) belongs here as well, and into the
# guards of each fast way that ``fast/README.md`` lists.
_GUARDS = (
    Guard(_FOR_THE_LIVING, Intake.gone),
    Guard(_NOT_ON_THE_FAST_PORT, Intake.on_wrong_port),
    Guard(_PULLS, Intake.busy),
)


def _guards_by_code() -> dict[int, tuple[Callable[[Intake, Connection, Request], Verdict], ...]]:
    codes = frozenset(code for guard in _GUARDS for code in guard.codes)
    return {
        int(code): tuple(guard.verdict for guard in _GUARDS if code in guard.codes)
        for code in codes
    }
