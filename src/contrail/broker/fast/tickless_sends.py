"""Sends that need no tick: rows of one connection, appended and answered as they are read.

A tick joins sends of several connections. While one connection alone sends there is nothing to
join, and each function between the socket and the log that is left out saves more than the work it
does: after every sleep of the process it runs from cold caches. This file is therefore the tick of
``FastSends`` in one function, for sends that it would store as rows. Every other send waits for the
tick; nothing was changed then.
"""

from __future__ import annotations

from contrail.broker.fast.row_answers import RowAnswers
from contrail.broker.guards import ROW_CODE, Guards
from contrail.broker.handlers.send import SendHandler
from contrail.broker.services.deriving import Deriving
from contrail.broker.services.send_admission import FAST_FLAGS, SendAdmission
from contrail.broker.state.stats import BrokerStats
from contrail.broker.state.ways import Ways
from contrail.errors import StoreError
from contrail.kernels.send_records import are_admitted
from contrail.kernels.send_scan import scan_sends
from contrail.store import MessageStore
from contrail.wire.connection import Connection
from contrail.wire.server import FOLLOWS_S, Server


class TicklessSends:
    """The tick of one connection's rows. Belongs to the event loop's thread, as the tick does."""

    def __init__(
        self,
        server: Server,
        guards: Guards,
        handler: SendHandler,
        answers: RowAnswers,
        admission: SendAdmission,
        store: MessageStore,
        stats: BrokerStats,
        deriving: Deriving,
        *,
        ways: Ways,
    ) -> None:
        self._server = server
        self._guards = guards
        self._room_of = guards.room_of
        self._busy_reason = handler.busy_reason
        self._admission = admission
        self._store = store
        self._stats = stats
        self._answers = answers
        self._deriving = deriving
        self._ways = ways
        self._limits = server.limits
        self._suffix = server.property_suffix
        self._now_s = server.monotonic_s
        self._body_bytes_max = store.body_bytes_max

    def take(self, peer: Connection, data: bytes) -> int:
        """Store and answer the sends that ``data`` holds; returns where the last of them ends.

        0 says that the tick must have them: others wait for it already, a guard objects, the first
        is no fast send, or the store refuses them or leaves them to the general way.
        """
        server, limits, guards = self._server, self._limits, self._guards
        if server.arrivals or (
            guards.looks_at_sends and guards.verdict(peer, ROW_CODE) is not None
        ):
            return 0
        began_s = self._now_s()
        # When this was sent: if a tick has just ended, half way through it on average.
        waited_s = server.took_s / 2 if began_s - server.ended_s < FOLLOWS_S else 0.0
        if self._busy_reason(waited_s * 1000) is not None:
            return 0
        found = scan_sends(data, limits.frame_bytes_max, limits.header_bytes_max, self._suffix)
        if found is None:
            return 0
        count, consumed, rows, texts, topics = found
        if count > self._room_of(peer):
            return 0
        chunk = (data, count, rows, texts, [peer.packed_host] * count, topics)
        admission = self._admission
        if not are_admitted(
            chunk,
            admission.fast_topics,
            admission.fast_places,
            FAST_FLAGS,
            self._body_bytes_max,
        ):
            return 0
        chunks = [chunk]
        try:
            appended = self._store.append_chunks(chunks)
        except StoreError:
            # The failure happens again in the tick, which answers every producer.
            return 0
        except Exception as error:
            if server.times is not None:
                server.times.arrived_s = began_s - waited_s
            self._answers.refuse_failed([([peer], chunk)], error)
            return consumed
        if appended is None:
            return 0
        self._ways.send_tickless += count
        self._stats.stored_sends(chunks, appended[1] - appended[0])
        self._answers.promise_one(peer, chunk, appended[1], began_s - waited_s)
        self._deriving.after_tick()
        server.ended_s = ended_s = self._now_s()
        server.took_s = ended_s - began_s
        return consumed
