"""Fast sends of all connections: rows in, one append per tick.

A read that begins with fast sends becomes rows of numbers, which go to the log without an object
per message; so does a fast batch, with a row for each of its messages. Every other send goes the
general way, ``handlers.send``. Collected rows or batches are appended before a send of another kind
is collected, so one connection's messages keep their order.
"""

from __future__ import annotations

from itertools import islice
from operator import attrgetter

from contrail.broker.fast.row_answers import RowAnswers
from contrail.broker.fast.rows import SendRows, joined_rows, rows_of
from contrail.broker.fast.send_batches import SendBatch, send_batch
from contrail.broker.guards import Guards
from contrail.broker.handlers.send import SendHandler
from contrail.broker.services.send_admission import FAST_FLAGS, SendAdmission
from contrail.broker.state.stats import BrokerStats
from contrail.broker.state.ways import Ways
from contrail.errors import StoreError
from contrail.kernels.send_records import are_admitted
from contrail.protocol.frames import SendRequest
from contrail.store import MessageStore
from contrail.wire.connection import Connection
from contrail.wire.limits import Limits
from contrail.wire.server import Arrived

_IN_FLIGHT_COUNT = attrgetter("in_flight_count")

SentRows = tuple[list[Connection], SendRows]
"""Senders and their sends: one connection sent all of them, or each of several sent one."""


class FastSends:
    """Takes sends of all connections and appends them once a tick, as ``SendHandler`` does."""

    def __init__(
        self,
        handler: SendHandler,
        admission: SendAdmission,
        store: MessageStore,
        stats: BrokerStats,
        limits: Limits,
        answers: RowAnswers,
        guards: Guards,
        *,
        is_watched: bool,
        ways: Ways,
    ) -> None:
        """``is_watched`` says that every message that is stored is told of, with its draft."""
        self._handler = handler
        self._admission = admission
        self._store = store
        self._stats = stats
        self._limits = limits
        self.answers = answers
        self._room_of = guards.room_of
        self._is_watched = is_watched
        self._ways = ways
        self._suffix = admission.property_suffix
        self._body_bytes_max = store.body_bytes_max
        self._chunks: list[SentRows] = []
        # They come behind the rows: rows that follow wait for them.
        self._batches: list[SendBatch] = []

    def take_runs(self, arrived: list[Arrived], at: int, end: int, waited_ms: float) -> int:
        """Take fast sends of many connections, up to ``end``; returns the first entry left."""
        if self._handler.busy_reason(waited_ms) is not None:
            return at
        while at < end:
            peer, read, _ = arrived[at]
            if isinstance(read, bytes):
                at = self._take_singles(arrived, at, end)
                continue
            if not isinstance(read, SendRows):
                break
            if read.send_count > self._room_of(peer):
                break
            if not self._take_rows([peer], read):
                break
            at += 1
        return at

    def _take_singles(self, arrived: list[Arrived], at: int, end: int) -> int:
        """One send each of many connections, taken apart together; the first entry left alone.

        If one of them is no fast send, each is taken apart by itself.
        """
        sends: list[bytes] = []
        peers: list[Connection] = []
        for peer, read, _ in islice(arrived, at, end):
            if not isinstance(read, bytes):
                break
            sends.append(read)
            peers.append(peer)
        count = len(sends)
        # A connection may be there twice: room for all is room for each.
        room = self._room_of(max(peers, key=_IN_FLIGHT_COUNT))
        hosts = [peer.packed_host for peer in peers]
        joined = joined_rows(sends, hosts, self._limits, self._suffix)
        if count <= room and joined is not None and self._take_rows(peers, joined):
            return at + count
        for index, (peer, send) in enumerate(zip(peers, sends, strict=True), at):
            rows = rows_of(send, peer.packed_host, self._limits, self._suffix)
            arrived[index] = (peer, *peer.decoded(send)) if rows is None else (peer, rows, True)
        return at

    def _take_rows(self, peers: list[Connection], sends: SendRows) -> bool:
        """Collect rows, unless one of them must be checked."""
        if self._is_watched or not are_admitted(
            sends.chunk,
            self._admission.fast_topics,
            self._admission.fast_places,
            FAST_FLAGS,
            self._body_bytes_max,
        ):
            return False
        if self._batches:
            self.append_rows()
        if self._handler.run.taken:
            self.append_run()
        self._chunks.append((peers, sends))
        return True

    def take(
        self,
        peer: Connection,
        sends: list[SendRequest],
        *,
        waited_ms: float = 0.0,
        is_general: bool = False,
    ) -> None:
        """Sends of one connection that were decoded: fast batches, and those to be checked.

        ``is_general`` says that a guard leaves all of them to the general way.
        ``waited_ms`` is how long they have been waiting: too long is answered busy, so that the
        producer goes elsewhere instead of filling a queue that does not move.
        """
        busy = self._handler.busy_reason(waited_ms)
        must_be_checked = self._is_watched or is_general
        for send in sends:
            batch = None
            if busy is None and not must_be_checked:
                batch = send_batch(peer, send, self._admission, self._body_bytes_max)
            if batch is not None:
                if self._handler.run.taken:
                    self.append_run()
                self._batches.append(batch)
                continue
            self.append_rows()
            self._handler.take(peer, send, busy)

    # Storing.

    def append_run(self) -> None:
        """Append all collected sends and answer, or hold the answers."""
        self.append_rows()
        self._handler.append_run()

    def append_rows(self) -> None:
        """Append the collected rows and batches; the store may leave them to the run."""
        taken, batches = self._chunks, self._batches
        if not taken and not batches:
            return
        self._chunks, self._batches = [], []
        sent = [(peers, sends.chunk) for peers, sends in taken]
        chunks = [chunk for _, chunk in sent]
        if batches:
            chunks += [batch.chunk for batch in batches]
        try:
            appended = self._store.append_chunks(chunks)
        except StoreError:
            # The failure happens again on the general way, which answers every producer.
            appended = None
        except Exception as error:
            self.answers.refuse_failed(sent, error, [batch.sent for batch in batches])
            return
        if appended is None:
            for peers, sends in taken:
                self._check(peers, sends)
            for batch in batches:
                self._handler.take(batch.peer, batch.send, None)
            self._handler.append_run()
            return
        self._stats.stored_sends(chunks, appended.physical_end - appended.physical_start)
        if sent:
            self._ways.send_rows += sum(chunk[1] for _, chunk in sent)
            self.answers.promise(sent, appended.physical_end)
        if batches:
            self._ways.send_batches += len(batches)
            stored = [batch.stored() for batch in batches]
            self._handler.answers.promise(stored, appended.physical_end)

    def _check(self, peers: list[Connection], rows: SendRows) -> None:
        """Let rows go the general way."""
        sends = rows.sends()
        for index, send in enumerate(sends):
            self._handler.take(peers[0] if len(peers) == 1 else peers[index], send, None)
