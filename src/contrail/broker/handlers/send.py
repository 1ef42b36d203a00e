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
from typing import TYPE_CHECKING

from contrail.broker.handlers.batch_sends import BatchSends, GeneralWay
from contrail.broker.services.acknowledgements import Acknowledgements
from contrail.broker.services.plain_chunks import (
    count_chunk_codes,
    is_two_way,
    run_of,
    slim_items,
)
from contrail.broker.services.send_admission import Admitted, SendAdmission
from contrail.broker.services.send_dedupe import BatchRepeat, remember_place, repeated_run
from contrail.broker.state.recent_halves import RecentHalves
from contrail.broker.state.runtime_settings import RuntimeSettings
from contrail.broker.state.send_memory import Claim, FirstSend
from contrail.broker.state.stats import BrokerStats
from contrail.clock import Clock
from contrail.errors import (
    BatchIllegal,
    MessageIllegal,
    RequestRejected,
    StoreError,
)
from contrail.kernels.answer_build import (
    batch_answer,
    part_answers,
    plain_answers,
    plain_answers_singly,
)
from contrail.kernels.plain_sends import are_admitted, two_way_count
from contrail.kernels.send_runs import Item, count_plain, gather_runs
from contrail.kernels.send_tally import count_codes
from contrail.model.batch import mark_inner_batch, split_batch
from contrail.model.message import MessageDraft
from contrail.model.message_id import encode_offset_message_id
from contrail.model.topic import HALF_TOPIC, QueueType
from contrail.protocol.codes import RequestCode, ResponseCode
from contrail.protocol.command import FLAG_ONE_WAY, Request, Response
from contrail.protocol.frames import Frames, PlainSends, SendRequest
from contrail.protocol.sends import as_send_request, is_unit_send, read_send
from contrail.store.log import MessageStore
from contrail.store.services.append import AppendedChunks, AppendedRun
from contrail.wire.connection import Connection
from contrail.wire.peer import LATER, Answer, Handler, Peer
from contrail.wire.request_times import RequestTimes
from contrail.wire.server import Arrived

if TYPE_CHECKING:
    from contrail.kernels.plain_sends import Chunk

    SentChunk = tuple[list[Connection], Chunk]
    """Who sent it, and what: one connection all of it, or each of several one message."""

_log = logging.getLogger(__name__)

# Any other bit needs a second look: transactions, inner batches.
_PLAIN_FLAGS = 0x701
_HALF = HALF_TOPIC.encode()
# RocketMQ calls its page cache busy when one append takes longer than this.
_FLUSH_BUSY_MS = 1000
# Fewer single sends than this in a tick are not worth the buffers of a chunk.
_JOINED_COUNT_MIN = 4


_Part = tuple[Connection, int, int, Admitted | None]
"""Neighbouring messages of one connection in the run that is being collected: who sent them, the
first, where they end. Tidy ones are None at last: the kernel builds their answers."""

OnStored = Callable[[Sequence[Item], Sequence[MessageDraft], AppendedRun], None]
"""Told of every message that was stored for a producer: the send it came with, the message as it
was stored, and the places of all."""

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
    ) -> None:
        self._settings = settings
        self._admission = admission
        self._store = store
        self._acknowledgements = acknowledgements
        self._stats = stats
        self._clock = clock
        self._store_host = store_host
        self._host_digits = store_host.hex().upper().encode()
        self._waits_for_flush = waits_for_flush
        self._on_stored = on_stored
        self._times = times
        self._recent_halves = recent_halves
        # Their numbers in the run that is being collected.
        self._halves: list[int] = []
        self._extra = b""
        self._extra_epoch = -1
        self._items: list[Item] = []
        self._drafts: list[MessageDraft] = []
        self._parts: list[_Part] = []
        # By topic and key: those in the run that nobody may store once more.
        self._claims: dict[tuple[str, bytes], _Claimed] = {}
        self._chunks: list[tuple[list[Connection], PlainSends]] = []
        self._batches = BatchSends(
            admission,
            store,
            stats,
            acknowledgements,
            clock,
            GeneralWay(
                take=lambda peer, item: self._take_with_care(peer, as_send_request(item), None),
                answer=self._answer_parts,
                refuse=self._refuse_all,
                note_times=self._time,
                arrived_s=lambda: self._arrived_s,
                extra_fields=self._extra_fields,
            ),
            host_digits=self._host_digits,
            waits_for_flush=waits_for_flush,
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
        if self.busy_reason(waited_ms) is not None:
            return at
        end = len(arrived)
        while at < end:
            peer, frames, only_sends = arrived[at]
            if isinstance(frames, PlainSends):
                room = in_flight_count_max - peer.in_flight_count
                if frames.send_count > room or not self._take_chunk([peer], frames):
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
            sends.chunk, self._admission.plain_topics(), _PLAIN_FLAGS, self._store.body_bytes_max
        ):
            return False
        self._batches.append()
        if self._items:
            self.append_run()
        self._chunks.append((peers, sends))
        return True

    def _gather(self, arrived: list[Arrived], at: int, in_flight_count_max: int) -> int:
        self._append_chunks()
        return gather_runs(
            arrived,
            at,
            self._admission.plain_topics(),
            _PLAIN_FLAGS,
            in_flight_count_max,
            self._items,
            self._drafts,
            self._parts,
        )

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
            for item in items:
                self._take_with_care(peer, as_send_request(item), busy)
            return
        while at < len(items):
            plain = count_plain(items, at, self._admission.plain_topics(), _PLAIN_FLAGS)
            if plain:
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
            self._batches.take(peer, items[at : at + count])
        return count

    def _take_claiming(self, peer: Connection, items: list[Item], at: int) -> int:
        """Sends that are not plain: tidy ones to topics that de-duplicate, or one of any kind."""
        count = count_plain(items, at, self._admission.claiming_topics(), _PLAIN_FLAGS)
        if not count:
            self._take_with_care(peer, as_send_request(items[at]), None)
            return 1
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
        first = len(self._items)
        self._items += items
        self._drafts += [item[11] for item in items]
        self._parts.append((peer, first, first + len(items), None))

    def handle_send(self, request: Request, peer: Peer) -> Answer:
        """A send whose header took the tolerant decoder."""
        assert isinstance(peer, Connection)
        self._append_chunks()
        send = read_send(request, peer.packed_host)
        self._take_with_care(peer, send, self.busy_reason(0.0), is_unit=is_unit_send(request))
        return LATER

    def busy_reason(self, waited_ms: float) -> str | None:
        """Why sends that waited so long are turned away now; None if they are not."""
        config = self._settings.config
        if waited_ms > config.send_wait_ms_max and config.fast_failure:
            return f"sends wait {waited_ms:.0f} ms at this broker: flow control for a while"
        if self._waits_for_flush and self._acknowledgements:
            age_ms = self._acknowledgements.oldest_age_ms(self._clock.now_ms())
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
                raise RequestRejected(ResponseCode.SYSTEM_ERROR, "the message has no body")
            admitted = self._admission.admit(send, peer.address, is_unit=is_unit)
        except RequestRejected as refusal:
            self._answer(peer, send.opaque, send.flag, self._refused(refusal.code, refusal.remark))
            self._time([send], [(peer, 0, 1, None)], refusal.code, self._arrived_s)
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
            self._refuse_all(items, parts, error)
            return
        except Exception as error:
            _log.exception("a run of %d messages could not be appended", len(drafts))
            self._refuse_all(items, parts, StoreError(f"{type(error).__name__}: {error}"))
            return
        self._count(items, drafts, run)
        if halves and self._recent_halves is not None:
            _keep_halves(self._recent_halves, halves, drafts, run)
        for index, claim, queue_id in claims.values():
            remember_place(claim, queue_id, run, index)
        self._promise(items, parts, run)

    def _append_chunks(self) -> None:
        """Append the rows collected so far; those that must be looked at join the run instead."""
        self._batches.append()
        if not self._chunks:
            return
        taken, self._chunks = self._chunks, []
        chunks = [sends.chunk for _, sends in taken]
        try:
            appended = self._store.append_chunks(chunks)
        except StoreError:
            # It happens again on the general way, which tells everybody.
            appended = None
        except Exception as error:
            _log.exception("%d chunks of messages could not be appended", len(chunks))
            failure = StoreError(f"{type(error).__name__}: {error}")
            for peers, sends in taken:
                self._refuse_all(sends.items(), _parts_of(peers, sends.send_count), failure)
            return
        if appended is None:
            for peers, sends in taken:
                items = sends.items()
                for peer, first, last, _ in _parts_of(peers, sends.send_count):
                    self._take_plain(peer, items[first:last])
            self.append_run()
            return
        self._stats.stored_plain(chunks, appended.physical_end - appended.physical_start)
        self._promise_chunks([(peers, sends.chunk) for peers, sends in taken], appended)

    def _append_singly(
        self, items: list[Item], parts: list[_Part], claims: Mapping[tuple[str, bytes], _Claimed]
    ) -> None:
        claimed = {index: (claim, queue_id) for index, claim, queue_id in claims.values()}
        for peer, first, last, admitted in parts:
            for index in range(first, last):
                item = items[index]
                alone: _Part = (peer, 0, 1, admitted)
                try:
                    run = self._store.append([item[11]])
                except StoreError as error:
                    self._refuse_all([item], [alone], error)
                    continue
                self._count([item], [item[11]], run)
                if index in claimed:
                    remember_place(*claimed[index], run, 0)
                self._promise([item], [alone], run)

    def _append_batch(self, peer: Connection, item: Item, admitted: Admitted) -> None:
        claim = admitted.claim
        part: _Part = (peer, 0, 1, admitted)
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
            self._refuse_all([item], [part], error)
            return
        self._promise([item], [part], run)

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

    # Answering.

    def _promise(self, items: list[Item], parts: list[_Part], run: AppendedRun) -> None:
        """Answer at once, or when the run is durable."""
        arrived_s = self._arrived_s
        if not self._waits_for_flush:
            self._answer_parts(items, parts, run, ResponseCode.SUCCESS, arrived_s)
            return
        hurried = [part for part in parts if part[3] and not part[3].waits_for_flush]
        waiting = [part for part in parts if not (part[3] and not part[3].waits_for_flush)]
        self._answer_parts(items, hurried, run, ResponseCode.SUCCESS, arrived_s)
        if not waiting:
            return
        # Bodies are in the log; what waits keeps only what its answers need.
        items = [_slim(item) for item in items]
        counts = [_two_way_count(items, part) for part in waiting]
        for part, count in zip(waiting, counts, strict=True):
            part[0].in_flight_count += count

        def release(code: ResponseCode) -> None:
            for part, count in zip(waiting, counts, strict=True):
                part[0].in_flight_count -= count
            if code is ResponseCode.SERVICE_NOT_AVAILABLE:
                self._refuse_all(items, waiting, StoreError("the log could not be made durable"))
            else:
                self._answer_parts(items, waiting, run, code, arrived_s)

        self._acknowledgements.park(run.physical_end, self._clock.now_ms(), release)

    def _promise_chunks(self, chunks: list[SentChunk], appended: AppendedChunks) -> None:
        """As ``_promise``, for rows."""
        arrived_s = self._arrived_s
        if not self._waits_for_flush:
            self._answer_chunks(chunks, appended, ResponseCode.SUCCESS, arrived_s)
            return
        # Bodies are in the log; what waits keeps only what its answers need.
        waiting: list[SentChunk] = [(peers, (b"", *chunk[1:])) for peers, chunk in chunks]
        places = appended._replace(records=bytearray())
        counts = [count for sent in waiting for count in _two_way_counts(*sent)]
        for peer, count in counts:
            peer.in_flight_count += count

        def release(code: ResponseCode) -> None:
            for peer, count in counts:
                peer.in_flight_count -= count
            self._answer_chunks(waiting, places, code, arrived_s)

        self._acknowledgements.park(appended.physical_end, self._clock.now_ms(), release)

    def _answer_chunks(
        self,
        chunks: list[SentChunk],
        appended: AppendedChunks,
        code: ResponseCode,
        arrived_s: float,
    ) -> None:
        if code is not ResponseCode.SUCCESS:
            self._answer_rows_singly(chunks, appended, code, arrived_s)
            return
        if self._times is not None:
            counts = count_chunk_codes([chunk for _, chunk in chunks])
            self._times.answered_sends(counts, code, arrived_s)
        extra = self._extra_fields()
        for peers, (_, count, rows, texts, _, _) in chunks:
            if len(peers) == 1:
                answers = [plain_answers(count, rows, texts, self._host_digits, extra)]
            else:
                answers = plain_answers_singly(count, rows, texts, self._host_digits, extra)
            for peer, answer in zip(peers, answers, strict=True):
                if answer:
                    peer.send_whole(answer)

    def _answer_rows_singly(
        self,
        chunks: list[SentChunk],
        appended: AppendedChunks,
        code: ResponseCode,
        arrived_s: float,
    ) -> None:
        """What did not go well is told on the general way."""
        for peers, chunk in chunks:
            items, run = slim_items(chunk), run_of(chunk, appended)
            parts = _parts_of(peers, len(items))
            if code is ResponseCode.SERVICE_NOT_AVAILABLE:
                self._refuse_all(items, parts, StoreError("the log could not be made durable"))
            else:
                self._answer_parts(items, parts, run, code, arrived_s)

    def _repeat(
        self, peer: Connection, item: Item, admitted: Admitted, firsts: list[FirstSend]
    ) -> None:
        """Answer as the first time, and not before what was stored then is as safe as promised."""
        run = repeated_run(firsts)
        parts: list[_Part] = [(peer, 0, 1, self._admission.as_first(admitted, firsts[0]))]
        if self._store.poisoned is not None:
            self._refuse_all([item], parts, self._store.poisoned)
        elif run.physical_end <= self._store.flushed_end:
            self._answer_parts([item], parts, run, ResponseCode.SUCCESS, self._arrived_s)
        else:
            self._promise([item], parts, run)

    @property
    def _arrived_s(self) -> float:
        """When what this tick answers came in; only if requests are timed."""
        return 0.0 if self._times is None else self._times.arrived_s

    def _time(self, items: list[Item], parts: list[_Part], code: int, arrived_s: float) -> None:
        """One look at the clock for all of them."""
        if self._times is not None:
            counts = count_codes(items, parts)
            self._times.answered_sends(counts, code, arrived_s)

    def _answer_parts(
        self,
        items: list[Item],
        parts: list[_Part],
        run: AppendedRun,
        code: ResponseCode,
        arrived_s: float,
    ) -> None:
        self._time(items, parts, code, arrived_s)
        if code is not ResponseCode.SUCCESS:
            for part in parts:
                self._answer_singly(part, items, run, code)
            return
        answers = part_answers(
            items,
            parts,
            run.queue_offsets,
            run.physical_offsets,
            self._host_digits,
            self._extra_fields(),
        )
        for part, answer in zip(parts, answers, strict=True):
            if answer is None:
                self._answer_singly(part, items, run, code)
            elif answer:
                part[0].send_whole(answer)

    def _answer_singly(
        self, part: _Part, items: list[Item], run: AppendedRun, code: ResponseCode
    ) -> None:
        for index in range(part[1], part[2]):
            self._answer_one(part, items[index], run, index, code)

    def _answer_one(
        self, part: _Part, item: Item, run: AppendedRun, index: int, code: ResponseCode
    ) -> None:
        admitted = part[3]
        places = run.physical_offsets[index : index + 1]
        if admitted is not None and admitted.batch is not None:
            places = run.physical_offsets
        queue_id = item[11][1] if admitted is None else admitted.queue_id
        if code is ResponseCode.SUCCESS and _has_usual_answer(item, admitted):
            if not item[1] & FLAG_ONE_WAY:
                queue_offset = run.queue_offsets[index]
                digits, extra = self._host_digits, self._extra_fields()
                part[0].send_whole(
                    batch_answer(item[0], queue_id, queue_offset, places, item[10], digits, extra)
                )
            return
        fields = self._region_fields()
        if admitted is not None and admitted.batch is QueueType.BATCH:
            fields["batchUniqId"] = admitted.unique_key
        fields |= {
            "msgId": ",".join(encode_offset_message_id(self._store_host, at) for at in places),
            "queueId": str(queue_id),
            "queueOffset": str(run.queue_offsets[index]),
        }
        if item[10]:
            fields["transactionId"] = item[10].decode("utf-8", "replace")
        if admitted is not None and admitted.recall_handle is not None:
            fields["recallHandle"] = admitted.recall_handle
        self._answer(part[0], item[0], item[1], Response(code, None, fields))

    def _refuse_all(self, items: list[Item], parts: list[_Part], error: StoreError) -> None:
        self._stats.put_failed(len(items))
        response = self._refused(_code_of(error), str(error))
        self._time(items, parts, response.code, self._arrived_s)
        if isinstance(error, BatchIllegal):
            # RocketMQ fails on such a body before it has an answer to put its fields into.
            response.fields = None
        for peer, first, last, _ in parts:
            for item in items[first:last]:
                self._answer(peer, item[0], item[1], response)

    def _refused(self, code: int, remark: str) -> Response:
        return Response(code, remark, self._region_fields())

    def _answer(self, peer: Connection, opaque: int, flag: int, response: Response) -> None:
        if not flag & FLAG_ONE_WAY:
            peer.answer(opaque, response)

    def _region_fields(self) -> dict[str, str]:
        config = self._settings.config
        return {"MSG_REGION": config.region, "TRACE_ON": "true" if config.trace_on else "false"}

    def _extra_fields(self) -> bytes:
        epoch = self._settings.epoch
        if epoch != self._extra_epoch:
            self._extra_epoch = epoch
            pairs = self._region_fields().items()
            self._extra = ",".join(f'"{name}":"{value}"' for name, value in pairs).encode()
        return self._extra


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


def _slim(item: Item) -> Item:
    """A send without its body and properties."""
    draft = item[11]
    return (*item[:11], (draft[0], draft[1]))


def _begins_with_batch(sends: Frames) -> bool:
    """Whether the first of nothing but sends is a batch."""
    if not sends:
        return False
    first: Item = sends[0]
    return bool(first[7])


def _parts_of(peers: list[Connection], count: int) -> list[_Part]:
    """The parts of a chunk: all of it one connection's, or one message of each."""
    if len(peers) == 1:
        return [(peers[0], 0, count, None)]
    return [(peer, at, at + 1, None) for at, peer in enumerate(peers)]


def _two_way_counts(peers: list[Connection], chunk: Chunk) -> list[tuple[Connection, int]]:
    """How many messages of a chunk each connection waits for."""
    if len(peers) == 1:
        return [(peers[0], two_way_count(chunk))]
    return [(peer, int(is_two_way(chunk, at))) for at, peer in enumerate(peers)]


def _has_usual_answer(item: Item, admitted: Admitted | None) -> bool:
    """Whether the kernel can write it: no fields of its own, and a key that needs no escape."""
    is_usual = admitted is None or (
        admitted.batch is not QueueType.BATCH and admitted.recall_handle is None
    )
    return is_usual and (not item[10] or item[10].isalnum())


def _two_way_count(items: list[Item], part: _Part) -> int:
    return sum(not items[index][1] & FLAG_ONE_WAY for index in range(part[1], part[2]))


def _code_of(error: StoreError) -> int:
    if isinstance(error, BatchIllegal):
        return ResponseCode.SYSTEM_ERROR
    if isinstance(error, MessageIllegal):
        return ResponseCode.MESSAGE_ILLEGAL
    return ResponseCode.SERVICE_NOT_AVAILABLE
