"""Sends: runs of messages in, one append per tick, answers out.

Tidy messages to known topics go straight from the frame kernel to the record kernel: as rows of
numbers (``kernels.plain_sends``) when a connection sent nothing else, as tuples when it did.
Everything else is looked at by ``SendAdmission`` first. What was collected in one way is appended
before anything is collected in another, so one connection's messages keep their order. Tidy
batches have a way of their own, too (``batch_sends``).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from itertools import islice

from contrail.broker.handlers.batch_sends import BatchSends
from contrail.broker.handlers.send_answers import Part, SendAnswers, parts_of
from contrail.broker.services.acknowledgements import Acknowledgements
from contrail.broker.services.send_admission import PLAIN_FLAGS, Admitted, SendAdmission
from contrail.broker.services.send_dedupe import BatchRepeat, remember_place, repeated_run
from contrail.broker.state.recent_halves import RecentHalves
from contrail.broker.state.runtime_settings import RuntimeSettings
from contrail.broker.state.send_memory import Claim, FirstSend
from contrail.broker.state.stats import BrokerStats
from contrail.broker.state.ways import Ways
from contrail.clock import Clock
from contrail.errors import (
    MessageIllegal,
    RequestRejected,
    StoreError,
)
from contrail.kernels.plain_sends import are_admitted
from contrail.kernels.send_runs import Item, count_plain, gather_runs
from contrail.model.batch import mark_inner_batch, split_batch
from contrail.model.message import MessageDraft
from contrail.model.topic import HALF_TOPIC, QueueType
from contrail.protocol.codes import RequestCode, ResponseCode
from contrail.protocol.command import Request
from contrail.protocol.frames import Frames, PlainSends, SendRequest
from contrail.protocol.sends import as_send_request, is_unit_send, read_send
from contrail.store.log import MessageStore
from contrail.store.services.append import AppendedRun
from contrail.wire.connection import Connection
from contrail.wire.peer import LATER, Answer, Handler, Peer
from contrail.wire.request_times import RequestTimes
from contrail.wire.server import Arrived

_log = logging.getLogger(__name__)

_HALF = HALF_TOPIC.encode()
# RocketMQ calls its page cache busy when one append takes longer than this.
_FLUSH_BUSY_MS = 1000
# Fewer single sends than this in a tick are not worth the buffers of a chunk.
_JOINED_COUNT_MIN = 4


OnStored = Callable[[Sequence[Item], Sequence[MessageDraft], AppendedRun], None]
"""Told of every message that was stored for a producer: the send it came with, the message as it
was stored, and the places of all."""

SentRows = tuple[list[Connection], PlainSends]
"""Who sent it, and what: one connection all of it, or each of several one message."""

_Claimed = tuple[int, Claim, int]
"""A message's number in the run, its claim, and the queue it was sent to."""


class SendHandler:
    """Takes sends of all connections and appends them once a tick."""

    def __init__(
        self,
        settings: RuntimeSettings,
        admission: SendAdmission,
        store: MessageStore,
        acknowledgements: Acknowledgements,
        stats: BrokerStats,
        clock: Clock,
        *,
        store_host: bytes,
        waits_for_flush: bool,
        on_stored: OnStored | None = None,
        times: RequestTimes | None = None,
        recent_halves: RecentHalves | None = None,
        waited_ms: Callable[[], float] = lambda: 0.0,
        ways: Ways | None = None,
    ) -> None:
        """``waited_ms`` says how long the requests of this tick have been waiting."""
        self._settings = settings
        self._admission = admission
        self._store = store
        self._acknowledgements = acknowledgements
        self._stats = stats
        self._clock = clock
        self._body_bytes_max = store.body_bytes_max
        self._waits_for_flush = waits_for_flush
        self._on_stored = on_stored
        self.answers = SendAnswers(
            settings,
            acknowledgements,
            stats,
            clock,
            store_host=store_host,
            waits_for_flush=waits_for_flush,
            times=times,
        )
        self._recent_halves = recent_halves
        self._waited_ms = waited_ms
        self._ways = ways or Ways()
        # Their numbers in the run that is being collected.
        self._halves: list[int] = []
        self._items: list[Item] = []
        self._drafts: list[MessageDraft] = []
        self._parts: list[Part] = []
        # By topic and key: those in the run that nobody may store once more.
        self._claims: dict[tuple[str, bytes], _Claimed] = {}
        self._chunks: list[SentRows] = []
        self._batches = BatchSends(
            admission,
            store,
            stats,
            self.answers,
            take_singly=lambda peer, item: self._take_with_care(peer, as_send_request(item), None),
        )

    def table(self) -> dict[int, Handler]:
        return {
            RequestCode.SEND_MESSAGE: self.handle_send,
            RequestCode.SEND_MESSAGE_V2: self.handle_send,
            RequestCode.SEND_BATCH_MESSAGE: self.handle_send,
        }

    def take_runs(
        self, arrived: list[Arrived], at: int, *, in_flight_count_max: int, waited_ms: float
    ) -> int:
        """Tidy sends of many connections; returns the first entry that needs a second look."""
        if (
            self._waits_for_flush or waited_ms > self._settings.config.send_wait_ms_max
        ) and self.busy_reason(waited_ms) is not None:
            return at
        end = len(arrived)
        while at < end:
            peer, frames, only_sends = arrived[at]
            if isinstance(frames, PlainSends):
                if frames.send_count > in_flight_count_max - peer.in_flight_count:
                    break
                if not self._take_chunk([peer], frames):
                    break
                at += 1
                continue
            if isinstance(frames, bytes):
                at = self._take_singles(arrived, at, in_flight_count_max)
                continue
            if only_sends and _begins_with_batch(frames):
                # Not for this run: ``take`` lets batches of several entries join one of their own.
                break
            left_at = self._gather(arrived, at, in_flight_count_max)
            if left_at == at:
                break
            at = left_at
        return at

    def _take_singles(self, arrived: list[Arrived], at: int, in_flight_count_max: int) -> int:
        """One send each of many connections, taken apart together; the first entry left alone.

        If that is not to be, they are replaced by what they are, each for itself.
        """
        sends: list[bytes] = []
        peers: list[Connection] = []
        for peer, frames, _ in islice(arrived, at, None):
            if not isinstance(frames, bytes):
                break
            sends.append(frames)
            peers.append(peer)
        count = len(sends)
        if count >= _JOINED_COUNT_MIN:
            # A connection may be there twice: room for all is room for each.
            room = in_flight_count_max - max(peer.in_flight_count for peer in peers)
            joined = peers[0].joined(sends, [peer.packed_host for peer in peers])
            if count <= room and joined is not None and self._take_chunk(peers, joined):
                return at + count
        for index, (peer, send) in enumerate(zip(peers, sends, strict=True), at):
            arrived[index] = (peer, *peer.decoded(send))
        return at

    def _take_chunk(self, peers: list[Connection], sends: PlainSends) -> bool:
        """Collect sends that are still rows, unless one of them needs a second look."""
        if self._on_stored is not None or not are_admitted(
            sends.chunk,
            self._admission.plain_topics,
            self._admission.plain_places,
            PLAIN_FLAGS,
            self._body_bytes_max,
        ):
            return False
        if self._batches.sent:
            self._batches.append()
        if self._items:
            self.append_run()
        self._chunks.append((peers, sends))
        if len(peers) == 1:
            self._ways.send_rows += sends.send_count
        else:
            self._ways.send_joined += sends.send_count
        return True

    def _gather(self, arrived: list[Arrived], at: int, in_flight_count_max: int) -> int:
        self._append_chunks()
        before = len(self._items)
        left_at = gather_runs(
            arrived,
            at,
            self._admission.plain_topics,
            PLAIN_FLAGS,
            in_flight_count_max,
            self._items,
            self._drafts,
            self._parts,
        )
        self._ways.send_gathered += len(self._items) - before
        return left_at

    def take(self, peer: Connection, items: list[Item], *, waited_ms: float = 0.0) -> None:
        """Sends of one connection, as the frame kernel returns them.

        ``waited_ms`` is how long they have been waiting: too long is answered busy, so that the
        producer goes elsewhere instead of filling a queue that does not move.
        """
        busy = self.busy_reason(waited_ms)
        at = self._take_batches(peer, items, 0) if busy is None else 0
        if at == len(items):
            return
        self._append_chunks()
        if busy is not None:
            self._ways.send_checked += len(items)
            for item in items:
                self._take_with_care(peer, as_send_request(item), busy)
            return
        while at < len(items):
            plain = count_plain(items, at, self._admission.plain_topics, PLAIN_FLAGS)
            if plain:
                self._ways.send_tuples += plain
                self._take_plain(peer, items[at : at + plain] if plain < len(items) else items)
                at += plain
            if at < len(items):
                at += self._take_batches(peer, items, at) or self._take_claiming(peer, items, at)

    def _take_batches(self, peer: Connection, items: list[Item], at: int) -> int:
        """How many sends from there on are tidy batches; they are collected."""
        count = self._batches.count(items, at) if self._on_stored is None else 0
        if count:
            if self._items or self._chunks:
                self.append_run()
            self._ways.send_batches += count
            self._batches.take(peer, items[at : at + count])
        return count

    def _take_claiming(self, peer: Connection, items: list[Item], at: int) -> int:
        """Sends that are not plain: tidy ones to topics that de-duplicate, or one of any kind."""
        count = count_plain(items, at, self._admission.claiming_topics, PLAIN_FLAGS)
        if not count:
            self._ways.send_checked += 1
            self._take_with_care(peer, as_send_request(items[at]), None)
            return 1
        self._ways.send_claiming += count
        now_ms = self._clock.now_ms()
        fresh: list[Item] = []
        for item in items[at : at + count]:
            claim = self._admission.claim_of(item[11][0], item[10])
            if claim.name in self._claims or claim.memory.find(claim.key, now_ms) is not None:
                self._take_plain(peer, fresh)
                fresh = []
                self._take_with_care(peer, as_send_request(item), None)
                continue
            self._claims[claim.name] = (len(self._items) + len(fresh), claim, item[11][1])
            fresh.append(item)
        self._take_plain(peer, fresh)
        return count

    def _take_plain(self, peer: Connection, items: list[Item]) -> None:
        if not items:
            return
        self._batches.append()
        drafts = [item[11] for item in items]
        first = len(self._items)
        self._items += items
        self._drafts += drafts
        self._parts.append((peer, first, first + len(items), None))

    def handle_send(self, request: Request, peer: Peer) -> Answer:
        """A send whose header took the tolerant decoder."""
        assert isinstance(peer, Connection)
        self._append_chunks()
        self._ways.send_general += 1
        send = read_send(request, peer.packed_host)
        self._take_with_care(
            peer, send, self.busy_reason(self._waited_ms()), is_unit=is_unit_send(request)
        )
        return LATER

    def busy_reason(self, waited_ms: float) -> str | None:
        """Why sends that waited so long are turned away now; None if they are not."""
        config = self._settings.config
        if waited_ms > config.send_wait_ms_max and config.fast_failure:
            return f"sends wait {waited_ms:.0f} ms at this broker: flow control for a while"
        if self._waits_for_flush and self._acknowledgements:
            age_ms = self._acknowledgements.oldest_age_ms(self._clock.elapsed_ms())
            if age_ms > _FLUSH_BUSY_MS:
                return f"the disk is {age_ms} ms behind: flow control for a while"
        return None

    def _take_with_care(
        self, peer: Connection, send: SendRequest, busy: str | None, *, is_unit: bool = False
    ) -> None:
        self._batches.append()
        try:
            if busy is not None:
                raise RequestRejected(ResponseCode.SYSTEM_BUSY, busy)
            if not send.draft.body:
                raise RequestRejected(
                    ResponseCode.SYSTEM_ERROR, "the message has no body; send one"
                )
            admitted = self._admission.admit(send, peer.address, is_unit=is_unit)
        except RequestRejected as refusal:
            answer = self.answers.refused(refusal.code, refusal.remark)
            if busy is None and not send.draft.body:
                # RocketMQ fails over it, and its answer has no fields.
                answer.fields = None
            self.answers.tell(peer, send.opaque, send.flag, answer)
            self.answers.note_times(
                [send], [(peer, 0, 1, None)], refusal.code, self.answers.arrived_s
            )
            return
        item = (*send[:9], 0, admitted.unique_key.encode(), admitted.draft)
        if admitted.batch is not None:
            self.append_run()
            self._append_batch(peer, item, admitted)
            return
        if admitted.claim is not None and self._is_repeat(peer, item, admitted, admitted.claim):
            return
        first = len(self._items)
        if admitted.claim is not None:
            self._claims[admitted.claim.name] = (first, admitted.claim, admitted.queue_id)
        if admitted.draft.topic == _HALF:
            self._halves.append(first)
        self._items.append(item)
        self._drafts.append(admitted.draft)
        self._parts.append((peer, first, first + 1, admitted))

    def _is_repeat(self, peer: Connection, item: Item, admitted: Admitted, claim: Claim) -> bool:
        """Whether the message was stored before; it is answered then as it was the first time."""
        if claim.name in self._claims:
            # The first of them gets its place now, or is refused and leaves it to this one.
            self.append_run()
        first = claim.memory.find(claim.key, self._clock.now_ms())
        if first is None:
            return False
        self._repeat(peer, item, admitted, [first])
        return True

    # Storing.

    def append_run(self) -> None:
        """Append everything collected so far and answer, or park the answers."""
        if self._chunks or self._batches.sent:
            self._append_chunks()
        if not self._items:
            return
        items, drafts, parts, claims = self._items, self._drafts, self._parts, self._claims
        self._items, self._drafts, self._parts, self._claims = [], [], [], {}
        halves, self._halves = self._halves, []
        try:
            run = self._store.append(drafts)
        except MessageIllegal:
            # One of them breaks a limit: each for itself, so that only that one is refused.
            self._append_singly(items, parts, claims)
            return
        except StoreError as error:
            self.answers.refuse_all(items, parts, error)
            return
        except Exception as error:
            self._refuse_failed(items, parts, error)
            return
        self._count(items, drafts, run)
        if halves and self._recent_halves is not None:
            _keep_halves(self._recent_halves, halves, drafts, run)
        for index, claim, queue_id in claims.values():
            remember_place(claim, queue_id, run, index)
        self.answers.promise(items, parts, run)

    def _append_chunks(self) -> None:
        """Append the rows collected so far; those that must be looked at join the run instead."""
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
                    self._take_plain(peer, items[first:last])
            self.append_run()
            return
        self._stats.stored_plain(chunks, appended.physical_end - appended.physical_start)
        self.answers.promise_chunks(sent, appended)

    def refuse_rows(self, taken: list[SentRows], error: Exception) -> None:
        """Tell everybody of a failure that nobody foresaw."""
        _log.error("%d chunks of messages could not be appended", len(taken), exc_info=error)
        failure = StoreError(f"{type(error).__name__}: {error}")
        for peers, sends in taken:
            self.answers.refuse_all(sends.items(), parts_of(peers, sends.send_count), failure)

    def _refuse_failed(self, items: list[Item], parts: list[Part], error: Exception) -> None:
        """Tell every producer of a run or batch whose append failed by a bug."""
        _log.error("%d sends could not be appended", len(items), exc_info=error)
        self.answers.refuse_all(items, parts, StoreError(f"{type(error).__name__}: {error}"))

    def _append_singly(
        self, items: list[Item], parts: list[Part], claims: Mapping[tuple[str, bytes], _Claimed]
    ) -> None:
        claimed = {index: (claim, queue_id) for index, claim, queue_id in claims.values()}
        for peer, first, last, admitted in parts:
            for index in range(first, last):
                item = items[index]
                alone: Part = (peer, 0, 1, admitted)
                try:
                    run = self._store.append([item[11]])
                except StoreError as error:
                    self.answers.refuse_all([item], [alone], error)
                    continue
                except Exception as error:
                    self._refuse_failed([item], [alone], error)
                    continue
                self._count([item], [item[11]], run)
                if index in claimed:
                    remember_place(*claimed[index], run, 0)
                self.answers.promise([item], [alone], run)

    def _append_batch(self, peer: Connection, item: Item, admitted: Admitted) -> None:
        claim = admitted.claim
        part: Part = (peer, 0, 1, admitted)
        try:
            if admitted.batch is QueueType.BATCH:
                if claim is not None and self._is_repeat(peer, item, admitted, claim):
                    return
                run = self._store.append_inner_batch(mark_inner_batch(admitted.draft))
                self._count([item], [admitted.draft], run)
                if claim is not None:
                    remember_place(claim, admitted.queue_id, run, 0)
            else:
                drafts = split_batch(admitted.draft)
                if claim is not None:
                    self._append_new_ones(peer, item, admitted, claim, drafts)
                    return
                run = self._store.append_batch(drafts)
                self._count([item] * len(drafts), drafts, run)
        except StoreError as error:
            self.answers.refuse_all([item], [part], error)
            return
        except Exception as error:
            self._refuse_failed([item], [part], error)
            return
        self.answers.promise([item], [part], run)

    def _append_new_ones(
        self,
        peer: Connection,
        item: Item,
        admitted: Admitted,
        claim: Claim,
        drafts: list[MessageDraft],
    ) -> None:
        """Store those messages of a batch that were not stored before, and answer for all."""
        batch = BatchRepeat(claim, drafts, self._clock.now_ms())
        run = None
        if batch.fresh:
            run = self._store.append_batch(batch.fresh)
            self._count([item] * len(batch.fresh), batch.fresh, run)
        firsts = batch.stored(run)
        self._repeat(peer, item, admitted, firsts)

    def _count(
        self, items: Sequence[Item], drafts: Sequence[MessageDraft], run: AppendedRun
    ) -> None:
        """Statistics once per run, not once per message."""
        if self._on_stored is not None:
            self._on_stored(items, drafts, run)
        self._stats.stored(drafts, run.physical_offsets, run.physical_end)

    def _repeat(
        self, peer: Connection, item: Item, admitted: Admitted, firsts: list[FirstSend]
    ) -> None:
        """Answer as the first time, and not before what was stored then is as safe as promised."""
        run = repeated_run(firsts)
        parts: list[Part] = [(peer, 0, 1, self._admission.as_first(admitted, firsts[0]))]
        if self._store.poisoned is not None:
            self.answers.refuse_all([item], parts, self._store.poisoned)
        elif run.physical_end <= self._store.flushed_end:
            self.answers.answer_parts(
                [item], parts, run, ResponseCode.SUCCESS, self.answers.arrived_s
            )
        else:
            self.answers.promise([item], parts, run)


def _keep_halves(
    recent: RecentHalves, halves: list[int], drafts: list[MessageDraft], run: AppendedRun
) -> None:
    for index in halves:
        recent.put(
            drafts[index],
            queue_offset=run.queue_offsets[index],
            physical_offset=run.physical_offsets[index],
            store_timestamp_ms=run.store_timestamp_ms,
        )


def _begins_with_batch(sends: Frames) -> bool:
    """Whether the first of nothing but sends is a batch."""
    if not sends:
        return False
    first: Item = sends[0]
    return bool(first[7])
