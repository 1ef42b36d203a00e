"""Sends that the kernels take apart: runs of many connections in, one append per tick.

Tidy sends to topics that were admitted go straight from a kernel to the log: as rows of numbers
when a connection sent nothing else, as tuples when it did, batches by themselves. Every other send
is checked by ``handlers.send``. What was collected in one way is appended before anything is
collected in another, so one connection's messages keep their order.
"""

from __future__ import annotations

from itertools import islice

from contrail.broker.fast.rows import SendRows, joined_rows
from contrail.broker.fast.send_answers import RowAnswers
from contrail.broker.fast.send_batches import SendBatches
from contrail.broker.handlers.send import SendHandler
from contrail.broker.handlers.send_answers import Part, parts_of
from contrail.broker.services.send_admission import PLAIN_FLAGS, SendAdmission
from contrail.broker.state.runtime_settings import RuntimeSettings
from contrail.broker.state.stats import BrokerStats
from contrail.broker.state.ways import Ways
from contrail.clock import Clock
from contrail.errors import StoreError
from contrail.kernels.plain_sends import are_admitted
from contrail.kernels.send_runs import Item, count_plain, gather_runs
from contrail.protocol.frames import Frames
from contrail.protocol.sends import as_send_request
from contrail.store import MessageStore
from contrail.wire.connection import Connection
from contrail.wire.limits import Limits
from contrail.wire.server import Arrived

# Fewer single sends than this in a tick are not worth the buffers of a chunk.
_JOINED_COUNT_MIN = 4

SentRows = tuple[list[Connection], SendRows]
"""Who sent it, and what: one connection all of it, or each of several one message."""


class FastSends:
    """Takes sends of all connections and appends them once a tick, as ``SendHandler`` does."""

    def __init__(
        self,
        handler: SendHandler,
        settings: RuntimeSettings,
        admission: SendAdmission,
        store: MessageStore,
        stats: BrokerStats,
        clock: Clock,
        limits: Limits,
        answers: RowAnswers,
        *,
        waits_for_flush: bool,
        is_watched: bool,
        ways: Ways,
    ) -> None:
        """``is_watched`` says that every message that is stored is told of, with its draft."""
        self._handler = handler
        self._settings = settings
        self._admission = admission
        self._store = store
        self._stats = stats
        self._clock = clock
        self._limits = limits
        self.answers = answers
        self._waits_for_flush = waits_for_flush
        self._is_watched = is_watched
        self._ways = ways
        self._suffix = admission.property_suffix
        self._in_flight_count_max = limits.in_flight_count_max
        self._body_bytes_max = store.body_bytes_max
        self._chunks: list[SentRows] = []
        self._batches = SendBatches(
            admission,
            store,
            stats,
            answers,
            take_singly=lambda peer, item: handler.take(peer, as_send_request(item), None),
        )

    def take_runs(self, arrived: list[Arrived], at: int, waited_ms: float) -> int:
        """Tidy sends of many connections; returns the first entry that needs a second look."""
        if (
            self._waits_for_flush or waited_ms > self._settings.config.send_wait_ms_max
        ) and self._handler.busy_reason(waited_ms) is not None:
            return at
        end = len(arrived)
        while at < end:
            peer, read, may_join = arrived[at]
            if isinstance(read, SendRows):
                if read.send_count > self._in_flight_count_max - peer.in_flight_count:
                    break
                if not self._take_rows([peer], read):
                    break
                at += 1
                continue
            if isinstance(read, bytes):
                at = self._take_singles(arrived, at)
                continue
            if may_join and _begins_with_batch(read):  # type: ignore[arg-type]
                # Not for this run: ``take`` lets batches of several entries join one of their own.
                break
            left_at = self._gather(arrived, at)
            if left_at == at:
                break
            at = left_at
        return at

    def _take_singles(self, arrived: list[Arrived], at: int) -> int:
        """One send each of many connections, taken apart together; the first entry left alone.

        Otherwise each is decoded by itself, and replaced by what it is.
        """
        sends: list[bytes] = []
        peers: list[Connection] = []
        for peer, read, _ in islice(arrived, at, None):
            if not isinstance(read, bytes):
                break
            sends.append(read)
            peers.append(peer)
        count = len(sends)
        if count >= _JOINED_COUNT_MIN:
            # A connection may be there twice: room for all is room for each.
            room = self._in_flight_count_max - max(peer.in_flight_count for peer in peers)
            hosts = [peer.packed_host for peer in peers]
            joined = joined_rows(sends, hosts, self._limits, self._suffix)
            if count <= room and joined is not None and self._take_rows(peers, joined):
                return at + count
        for index, (peer, send) in enumerate(zip(peers, sends, strict=True), at):
            arrived[index] = (peer, *peer.decoded(send))
        return at

    def _take_rows(self, peers: list[Connection], sends: SendRows) -> bool:
        """Collect sends that are still rows, unless one of them needs a second look."""
        if self._is_watched or not are_admitted(
            sends.chunk,
            self._admission.plain_topics,
            self._admission.plain_places,
            PLAIN_FLAGS,
            self._body_bytes_max,
        ):
            return False
        if self._batches.sent:
            self._batches.append()
        if self._handler.run.items:
            self.append_run()
        self._chunks.append((peers, sends))
        if len(peers) == 1:
            self._ways.send_rows += sends.send_count
        else:
            self._ways.send_joined += sends.send_count
        return True

    def _gather(self, arrived: list[Arrived], at: int) -> int:
        self.append_rows()
        run = self._handler.run
        before = len(run.items)
        left_at = gather_runs(
            arrived,
            at,
            self._admission.plain_topics,
            PLAIN_FLAGS,
            self._in_flight_count_max,
            run.items,
            run.drafts,
            run.parts,
        )
        self._ways.send_gathered += len(run.items) - before
        return left_at

    def take(self, peer: Connection, items: list[Item], *, waited_ms: float = 0.0) -> None:
        """Sends of one connection, as the frame kernel returns them.

        ``waited_ms`` is how long they have been waiting: too long is answered busy, so that the
        producer goes elsewhere instead of filling a queue that does not move.
        """
        busy = self._handler.busy_reason(waited_ms)
        at = self._take_batches(peer, items, 0) if busy is None else 0
        if at == len(items):
            return
        self.append_rows()
        if busy is not None:
            self._ways.send_checked += len(items)
            for item in items:
                self._handler.take(peer, as_send_request(item), busy)
            return
        while at < len(items):
            plain = count_plain(items, at, self._admission.plain_topics, PLAIN_FLAGS)
            if plain:
                self._ways.send_tuples += plain
                self._take_admitted(peer, items[at : at + plain] if plain < len(items) else items)
                at += plain
            if at < len(items):
                at += self._take_batches(peer, items, at) or self._take_claiming(peer, items, at)

    def _take_batches(self, peer: Connection, items: list[Item], at: int) -> int:
        """How many sends from there on are tidy batches; they are collected."""
        count = 0 if self._is_watched else self._batches.count(items, at)
        if count:
            if self._handler.run.items or self._chunks:
                self.append_run()
            self._ways.send_batches += count
            self._batches.take(peer, items[at : at + count])
        return count

    def _take_claiming(self, peer: Connection, items: list[Item], at: int) -> int:
        """Sends that are not plain: tidy ones to topics that de-duplicate, or one of any kind."""
        count = count_plain(items, at, self._admission.claiming_topics, PLAIN_FLAGS)
        if not count:
            self._ways.send_checked += 1
            self._take_general(peer, items[at])
            return 1
        self._ways.send_claiming += count
        now_ms = self._clock.now_ms()
        fresh: list[Item] = []
        for item in items[at : at + count]:
            claim = self._admission.claim_of(item[11][0], item[10])
            run = self._handler.run
            if claim.name in run.claims or claim.memory.find(claim.key, now_ms) is not None:
                self._take_admitted(peer, fresh)
                fresh = []
                self._take_general(peer, item)
                continue
            run.claims[claim.name] = (len(run.items) + len(fresh), claim, item[11][1])
            fresh.append(item)
        self._take_admitted(peer, fresh)
        return count

    def _take_general(self, peer: Connection, item: Item) -> None:
        self._batches.append()
        self._handler.take(peer, as_send_request(item), None)

    def _take_admitted(self, peer: Connection, items: list[Item]) -> None:
        if items:
            self._batches.append()
            self._handler.take_admitted(peer, items)

    # Storing.

    def append_run(self) -> None:
        """Append everything collected so far and answer, or park the answers."""
        if self._chunks or self._batches.sent:
            self.append_rows()
        if self._handler.run.items:
            self._handler.append_run()

    def append_rows(self) -> None:
        """Append the rows and batches collected so far; the store may leave them to the run."""
        if self._batches.sent:
            self._batches.append()
        if not self._chunks:
            return
        taken, self._chunks = self._chunks, []
        sent = [(peers, sends.chunk) for peers, sends in taken]
        chunks = [chunk for _, chunk in sent]
        try:
            appended = self._store.append_chunks(chunks)
        except StoreError:
            # It happens again on the general way, which tells everybody.
            appended = None
        except Exception as error:
            self.refuse_rows(taken, error)
            return
        if appended is None:
            for peers, sends in taken:
                items = sends.items()
                for peer, first, last, _ in parts_of(peers, sends.send_count):
                    self._take_admitted(peer, items[first:last])
            self.append_run()
            return
        self._stats.stored_plain(chunks, appended.physical_end - appended.physical_start)
        self.answers.promise_rows(sent, appended)

    def refuse_rows(self, taken: list[SentRows], error: Exception) -> None:
        """Tell every producer of rows whose append failed by a bug."""
        items: list[Item] = []
        parts: list[Part] = []
        for peers, sends in taken:
            parts += parts_of(peers, sends.send_count, len(items))
            items += sends.items()
        self._handler.answers.refuse_failed(items, parts, error)


def _begins_with_batch(sends: Frames) -> bool:
    """Whether the first of nothing but sends is a batch."""
    if not sends:
        return False
    first: Item = sends[0]
    return bool(first[7])
