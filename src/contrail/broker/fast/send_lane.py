"""Sends that need no tick: tidy ones of one connection, appended and answered as they are read.

A tick joins what several connections sent. While one connection alone sends there is nothing to
join, and each function between the socket and the log that is left out saves more than the work it
does: after every sleep of the process it runs from cold caches. So this is the tick of
``FastSends`` in one function, for sends that it would store as rows. Every other send waits for the
tick; nothing was changed then.
"""

from __future__ import annotations

from contrail.broker.fast.rows import SendRows
from contrail.broker.fast.sends import FastSends
from contrail.broker.handlers.send import SendHandler
from contrail.broker.services.deriving import Deriving
from contrail.broker.services.send_admission import PLAIN_FLAGS, SendAdmission
from contrail.broker.state.runtime_settings import RuntimeSettings
from contrail.broker.state.stats import BrokerStats
from contrail.broker.state.ways import Ways
from contrail.errors import StoreError
from contrail.kernels.plain_scan import scan_plain
from contrail.kernels.plain_sends import are_admitted
from contrail.store import MessageStore
from contrail.wire.connection import Connection
from contrail.wire.router import RequestRouter
from contrail.wire.server import FOLLOWS_S, Server


class SendLane:
    """Belongs to the event loop's thread, as the tick does."""

    def __init__(
        self,
        server: Server,
        router: RequestRouter,
        handler: SendHandler,
        sends: FastSends,
        admission: SendAdmission,
        store: MessageStore,
        stats: BrokerStats,
        deriving: Deriving,
        settings: RuntimeSettings,
        *,
        waits_for_flush: bool,
        ways: Ways,
    ) -> None:
        self._server = server
        self._router = router
        self._handler = handler
        self._sends = sends
        self._admission = admission
        self._store = store
        self._stats = stats
        self._answers = sends.answers
        self._deriving = deriving
        self._settings = settings
        self._waits_for_flush = waits_for_flush
        self._ways = ways
        self._limits = server.limits
        self._suffix = server.property_suffix
        self._now_s = server.monotonic_s
        self._body_bytes_max = store.body_bytes_max

    def take(self, peer: Connection, data: bytes) -> int:
        """Store and answer the sends that ``data`` holds; returns where the last of them ends.

        0 says that the tick must have them: others wait for it already, one of them is not tidy,
        or the store has something to say about them.
        """
        server, limits = self._server, self._limits
        if server.arrivals or self._router.is_going_away:
            return 0
        began_s = self._now_s()
        # When this was sent: if a tick has just ended, half way through it on average.
        waited_s = server.took_s / 2 if began_s - server.ended_s < FOLLOWS_S else 0.0
        if waited_s * 1000 > self._settings.config.send_wait_ms_max:
            return 0
        if self._waits_for_flush and self._handler.busy_reason(0.0) is not None:
            return 0
        found = scan_plain(data, limits.frame_bytes_max, limits.header_bytes_max, self._suffix, 1)
        if found is None:
            return 0
        count, consumed, rows, texts, topics = found
        if count > limits.in_flight_count_max - peer.in_flight_count:
            return 0
        chunk = (data, count, rows, texts, [peer.packed_host] * count, topics)
        admission = self._admission
        if not are_admitted(
            chunk,
            admission.plain_topics,
            admission.plain_places,
            PLAIN_FLAGS,
            self._body_bytes_max,
        ):
            return 0
        chunks = [chunk]
        try:
            appended = self._store.append_chunks(chunks)
        except StoreError:
            # It happens again in the tick, which tells everybody.
            return 0
        except Exception as error:
            if server.times is not None:
                server.times.arrived_s = began_s - waited_s
            self._sends.refuse_rows([([peer], SendRows(chunk, self._suffix, consumed))], error)
            return consumed
        if appended is None:
            return 0
        self._ways.send_lane += count
        self._stats.stored_plain(chunks, appended[1] - appended[0])
        self._answers.answer_at_once(peer, chunk, appended, began_s - waited_s)
        self._deriving.after_tick()
        server.ended_s = ended_s = self._now_s()
        server.took_s = ended_s - began_s
        return consumed
