"""The gate: everything that connections send passes here, and goes the fast or the general way.

Bytes come first (``take``): sends and pulls that the fast path knows are taken before they are
decoded. The connection decodes the rest, which comes back with the tick, as runs of many
connections (``take_runs``) or as the frames of one (``received``).

Both ways ask the same ``Guards``: an answer that is ready is given, and whatever else a guard has
against a request leaves it to the general way.
"""

from __future__ import annotations

from collections.abc import Callable

from contrail.access.state.gate import AccessGate
from contrail.broker.fast.path import FastPath
from contrail.broker.fast.rows import SEND_BEGINS, rows_of
from contrail.broker.fast.signed_sends import SignedSends
from contrail.broker.guards import ROW_CODE, SENDS, Guards, Ruling, Verdict
from contrail.broker.handlers.busy_pulls import BusyPulls
from contrail.broker.message_kinds import MessageKinds
from contrail.broker.services.acknowledgements import Acknowledgements, FlushNews
from contrail.broker.services.deriving import Deriving
from contrail.broker.services.group_changes import GroupChanges
from contrail.kernels.frame_scan import Item, is_one_send
from contrail.protocol.command import (
    FLAG_ONE_WAY,
    Frame,
    ReadyAnswer,
    ReceivedResponse,
    Request,
    Response,
)
from contrail.protocol.frames import FRAME_PREFIX_BYTES, Frames, PullFrame, SendRequest
from contrail.store import MessageStore
from contrail.wire.connection import Connection
from contrail.wire.router import RequestRouter
from contrail.wire.server import Arrived, Server


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
        self.guards = Guards(router)
        # Why a request is not signed or not allowed. While it is asked, the decoder takes no frame
        # apart for the fast path: sends that pass by their bytes never come to the decoder.
        self._access: Callable[[Request, Connection], Response | None] | None = None
        # Whether answers wait for slaves and there is none.
        self.lacks_slaves: Callable[[], bool] = lambda: False
        # The connection whose sends were read last: while it alone sends, no tick joins anything.
        self.last_sender: Connection | None = None

    def begin(self, server: Server, busy: BusyPulls, fast: FastPath) -> None:
        """Connect the gate to its parts, before the first connection comes."""
        self._server = server
        self.guards.busy = busy
        self._limits = server.limits
        self._suffix = server.property_suffix
        self._sends = fast.sends
        self._pulls = fast.pulls
        self._tickless = fast.tickless
        server.intake = self.take if fast.is_on else None

    def ask_first(self, access: Callable[[Request, Connection], Response | None]) -> None:
        """Have every request judged before any guard or handler sees it."""
        self._access = access

    def judge_first(self, gate: AccessGate) -> None:
        """Have the fast path take only what passes the gate, where there is a fast path."""
        if self._server.intake is not None:
            self._server.intake = SignedSends(gate, self._server, self._take_rows).take

    # Bytes.

    def take(self, peer: Connection, data: bytes) -> int:
        """Take sends and pulls that begin a read; returns where the decoder goes on.

        Pulls that a template knows are answered now, and fast sends, too, while one connection
        alone sends. Other fast sends wait for the tick, as rows.
        """
        templates = peer.at_hand
        if templates is not None:
            pulls_end: int = templates.take(data)
            if pulls_end:
                if not data.startswith(SEND_BEGINS, pulls_end + FRAME_PREFIX_BYTES):
                    return pulls_end
                return pulls_end + self._take_rows(peer, data[pulls_end:])
        elif self.last_sender is not peer and is_one_send(data):
            # One of many senders: nothing but the tick can be done for its send.
            self.last_sender = peer
            self._server.joins(peer, data)
            return len(data)
        if not data.startswith(SEND_BEGINS, FRAME_PREFIX_BYTES):
            return 0
        return self._take_rows(peer, data)

    def _take_rows(self, peer: Connection, data: bytes) -> int:
        """Take the fast sends that ``data`` begins with; returns where they end."""
        if self.last_sender is peer and self._tickless is not None:
            consumed = self._tickless.take(peer, data)
            if consumed:
                return consumed
        self.last_sender = peer
        if is_one_send(data):
            self._server.joins(peer, data)
            return len(data)
        rows = rows_of(data, peer.packed_host, self._limits, self._suffix)
        if rows is None:
            return 0
        self._server.joins(peer, rows)
        return rows.end

    # The tick.

    def take_runs(self, arrived: list[Arrived], at: int) -> int:
        """Fast sends of many connections join this tick's rows."""
        end = len(arrived)
        if self.guards.looks_at_sends:
            end = self._end_of_passing(arrived, at)
        return self._sends.take_runs(arrived, at, end, self._server.waited_s * 1000)

    def _end_of_passing(self, arrived: list[Arrived], at: int) -> int:
        """The first entry from ``at`` on of a connection whose sends a guard objects to."""
        verdict = self.guards.verdict
        while at < len(arrived) and verdict(arrived[at][0], ROW_CODE) is None:
            at += 1
        return at

    def take_before_tick(self, peer: Connection, frames: Frames) -> Frames:
        """Answer the first pulls of a read that need no tick; returns the frames left."""
        if not isinstance(frames[0], PullFrame):
            return frames
        return self._pulls.take_before_tick(peer, frames)

    def received(self, peer: Connection, frames: Frames, until_s: float) -> int:
        """Sends join this tick's run, requests go to handlers, answers to their callers."""
        first = index = 0
        may_look = is_late = False
        while index < len(frames) and not is_late:
            frame = frames[index]
            if isinstance(frame, SendRequest):
                index += 1
                continue
            if first < index:
                self._take_sends(peer, frames[first:index])  # type: ignore[arg-type]
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
            self._take_sends(peer, frames[first:index])  # type: ignore[arg-type]
        return index

    def _looks_at_no_queue(self, frame: Frame | SendRequest | Item) -> bool:
        """Sends need no derived queues, nor do ends of half messages stored a moment ago."""
        return isinstance(frame, Request) and (
            frame.code in SENDS or self._kinds.ends_a_recent_half(frame)
        )

    def _take_sends(self, peer: Connection, sends: list[SendRequest]) -> None:
        if self.guards.looks_at_sends or len(sends) > self.guards.room_of(peer):
            self._take_each(peer, sends)
        else:
            self._sends.take(peer, sends, waited_ms=self._server.waited_s * 1000)

    def _take_each(self, peer: Connection, sends: list[SendRequest]) -> None:
        """Sends of which a guard may refuse some, or which do not find room all.

        A one-way send is not answered, so it takes no room.
        """
        waited_ms, room = self._server.waited_s * 1000, self.guards.room_of(peer)
        for send in sends:
            verdict = self.guards.verdict(peer, send.code)
            bare = Request(send.code, send.opaque, {}, b"", send.flag, send.version)
            if verdict is not None and self._is_refused(peer, bare, verdict):
                continue
            if self._router.turns_away(send.version):
                self._router.handle(bare, peer)
            elif not send.flag & FLAG_ONE_WAY and room <= 0:
                refusal = self._router.no_room()
                peer.answer(send.opaque, Response(refusal.code, refusal.remark))
            else:
                room -= not send.flag & FLAG_ONE_WAY
                is_general = verdict is Ruling.GENERAL
                self._sends.take(peer, [send], waited_ms=waited_ms, is_general=is_general)

    def serve(self, peer: Connection, request: Request) -> None:
        """Let a request go the general way, unless it lacks a right or a guard objects."""
        if self._access is not None:
            refusal = self._access(request, peer)
            if refusal is not None:
                self._router.count_refused({(request.code, refusal.code): 1})
                peer.reply(request, refusal)
                return
        verdict = self.guards.verdict(peer, request.code)
        if verdict is not None and self._is_refused(peer, request, verdict):
            return
        if request.code in SENDS:
            # A connection's messages keep their order, whichever way each goes.
            self._sends.append_rows()
        self._router.handle(request, peer)

    def _is_refused(self, peer: Connection, request: Request, verdict: Verdict) -> bool:
        """Whether a guard keeps a request from both ways; its answer is given."""
        if isinstance(verdict, ReadyAnswer):
            verdict = verdict.response
        if isinstance(verdict, Response):
            peer.reply(request, verdict)
        return verdict is not Ruling.GENERAL

    def store_collected(self) -> None:
        """Append the sends that this tick has taken."""
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
        self._acknowledgements.reached(self._store.acknowledged_end)
        if self.lacks_slaves():
            self._acknowledgements.unreplicated(self._store.kept_end)

    # Connections.

    def connection_opened(self, peer: Connection) -> None:
        """A peer is nobody until its first heartbeat."""

    def connection_closed(self, peer: Connection, reason: str) -> None:
        if self.last_sender is peer:
            self.last_sender = None
        self._changes.connection_closed(peer)
