"""Sends: messages in, one append per tick, answers out.

A send is checked by ``SendAdmission`` and joins the run of its tick; the run is appended when the
tick ends, or before a send that must not be stored together with those in front of it. One
connection's messages keep their order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from contrail.broker.handlers.send_answers import Part, SendAnswers
from contrail.broker.services.acknowledgements import Acknowledgements
from contrail.broker.services.send_admission import Admitted, SendAdmission
from contrail.broker.services.send_dedupe import BatchRepeat, remember_place, repeated_run
from contrail.broker.state.recent_halves import RecentHalves
from contrail.broker.state.runtime_settings import RuntimeSettings
from contrail.broker.state.send_memory import Claim, FirstSend
from contrail.broker.state.stats import BrokerStats
from contrail.broker.state.ways import Ways
from contrail.clock import Clock
from contrail.errors import MessageIllegal, RequestRejected, StoreError
from contrail.kernels.send_runs import Item
from contrail.model.batch import mark_inner_batch, split_batch
from contrail.model.message import MessageDraft
from contrail.model.topic import HALF_TOPIC, QueueType
from contrail.protocol.codes import RequestCode, ResponseCode
from contrail.protocol.command import Request
from contrail.protocol.frames import SendRequest
from contrail.protocol.sends import is_unit_send, read_send
from contrail.store import AppendedRun, MessageStore
from contrail.wire.connection import Connection
from contrail.wire.peer import LATER, Answer, Handler, Peer
from contrail.wire.request_times import RequestTimes

_HALF = HALF_TOPIC.encode()
# RocketMQ calls its page cache busy when one append takes longer than this.
_FLUSH_BUSY_MS = 1000


OnStored = Callable[[Sequence[Item], Sequence[MessageDraft], AppendedRun], None]
"""Told of every message that was stored for a producer: the send it came with, the message as it
was stored, and the places of all."""

Claimed = tuple[int, Claim, int]
"""A message's number in the run, its claim, and the queue it was sent to."""


class SendRun:
    """Sends that were taken and are not appended yet."""

    __slots__ = ("claims", "drafts", "halves", "items", "parts")

    def __init__(self) -> None:
        self.items: list[Item] = []
        self.drafts: list[MessageDraft] = []
        self.parts: list[Part] = []
        # By topic and key: messages in the run that must not be stored once more.
        self.claims: dict[tuple[str, bytes], Claimed] = {}
        # The numbers of half messages in the run.
        self.halves: list[int] = []


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
        self.run = SendRun()

    def table(self) -> dict[int, Handler]:
        return {
            RequestCode.SEND_MESSAGE: self.handle_send,
            RequestCode.SEND_MESSAGE_V2: self.handle_send,
            RequestCode.SEND_BATCH_MESSAGE: self.handle_send,
        }

    def handle_send(self, request: Request, peer: Peer) -> Answer:
        """Take a send; it is answered when its run was appended."""
        assert isinstance(peer, Connection)
        self._ways.send_general += 1
        send = read_send(request, peer.packed_host)
        busy = self.busy_reason(self._waited_ms())
        self.take(peer, send, busy, is_unit=is_unit_send(request))
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

    def take(
        self, peer: Connection, send: SendRequest, busy: str | None, *, is_unit: bool = False
    ) -> None:
        """Check a send and let it join the run; ``busy`` is why it is turned away unchecked."""
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
        run = self.run
        first = len(run.items)
        if admitted.claim is not None:
            run.claims[admitted.claim.name] = (first, admitted.claim, admitted.queue_id)
        if admitted.draft.topic == _HALF:
            run.halves.append(first)
        run.items.append(item)
        run.drafts.append(admitted.draft)
        run.parts.append((peer, first, first + 1, admitted))

    def take_admitted(self, peer: Connection, items: list[Item]) -> None:
        """Let sends of one connection join the run that need no check."""
        run = self.run
        first = len(run.items)
        run.items += items
        run.drafts += [item[11] for item in items]
        run.parts.append((peer, first, first + len(items), None))

    def _is_repeat(self, peer: Connection, item: Item, admitted: Admitted, claim: Claim) -> bool:
        """Whether the message was stored before; it is answered then as it was the first time."""
        if claim.name in self.run.claims:
            # The first of them gets its place now, or is refused and leaves it to this one.
            self.append_run()
        first = claim.memory.find(claim.key, self._clock.now_ms())
        if first is None:
            return False
        self._repeat(peer, item, admitted, [first])
        return True

    # Storing.

    def append_run(self) -> None:
        """Append everything taken so far and answer, or park the answers."""
        run = self.run
        if not run.items:
            return
        self.run = SendRun()
        items, drafts, parts = run.items, run.drafts, run.parts
        try:
            appended = self._store.append(drafts)
        except MessageIllegal:
            # One of them breaks a limit: each for itself, so that only that one is refused.
            self._append_singly(items, parts, run.claims)
            return
        except StoreError as error:
            self.answers.refuse_all(items, parts, error)
            return
        except Exception as error:
            self.answers.refuse_failed(items, parts, error)
            return
        self._count(items, drafts, appended)
        if run.halves and self._recent_halves is not None:
            _keep_halves(self._recent_halves, run.halves, drafts, appended)
        for index, claim, queue_id in run.claims.values():
            remember_place(claim, queue_id, appended, index)
        self.answers.promise(items, parts, appended)

    def _append_singly(
        self, items: list[Item], parts: list[Part], claims: Mapping[tuple[str, bytes], Claimed]
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
                    self.answers.refuse_failed([item], [alone], error)
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
            self.answers.refuse_failed([item], [part], error)
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
