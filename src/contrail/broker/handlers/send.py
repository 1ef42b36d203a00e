"""Sends: messages in, one append per tick, answers out.

A send is checked by ``SendAdmission`` and joins the run of its tick; the run is appended when the
tick ends, or before a send that must not be stored together with those in front of it. One
connection's messages keep their order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from contrail.broker.handlers.send_answers import SendAnswers, Sent, Stored, stored_run
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


OnStored = Callable[[Sequence[bytes], Sequence[MessageDraft], AppendedRun], None]
"""Told of every message that was stored for a producer: the producer group of each, the message as
it was stored, and the places of all."""


class Taken(NamedTuple):
    """A send in the run: the draft to append, and the parts that its answer and its claim need."""

    sent: Sent
    producer_group: bytes
    draft: MessageDraft
    # Of a topic that de-duplicates.
    claim: Claim | None


class SendRun:
    """Sends that were taken and are not appended yet."""

    __slots__ = ("claimed", "taken")

    def __init__(self) -> None:
        self.taken: list[Taken] = []
        # By topic and key: messages in the run that must not be stored once more.
        self.claimed: set[tuple[str, bytes]] = set()


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
        self._on_stored = on_stored
        self.answers = SendAnswers(
            settings, acknowledgements, stats, store_host=store_host, times=times
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
        send = read_send(request, peer.packed_host)
        busy = self.busy_reason(self._waited_ms())
        self.take(peer, send, busy, is_unit=is_unit_send(request))
        return LATER

    def busy_reason(self, waited_ms: float) -> str | None:
        """Why sends that waited for ``waited_ms`` are turned away now; None if they are not."""
        config = self._settings.config
        if waited_ms > config.send_wait_ms_max and config.fast_failure:
            return f"sends wait {waited_ms:.0f} ms at this broker: flow control for a while"
        if self._acknowledgements.waits:
            age_ms = self._acknowledgements.oldest_age_ms()
            if age_ms > _FLUSH_BUSY_MS:
                return f"the disk is {age_ms} ms behind: flow control for a while"
        return None

    def take(
        self, peer: Connection, send: SendRequest, busy: str | None, *, is_unit: bool = False
    ) -> None:
        """Check a send and let it join the run; ``busy`` is why it is turned away unchecked."""
        self._ways.send_general += 1
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
            self.answers.note_times([send], refusal.code, self.answers.arrived_s)
            return
        self._join(_taken(peer, send, admitted))

    def _join(self, taken: Taken) -> None:
        if taken.sent.batch is not None:
            self.append_run()
            self._append_batch(taken)
            return
        claim = taken.claim
        if claim is not None:
            if self._is_repeat(taken, claim):
                return
            self.run.claimed.add(claim.name)
        self.run.taken.append(taken)

    def _is_repeat(self, taken: Taken, claim: Claim) -> bool:
        """Whether the message was stored before; it is answered then as it was the first time."""
        if claim.name in self.run.claimed:
            # The key's first message gets its place now; if it is refused, this one is stored.
            self.append_run()
        first = claim.memory.find(claim.key, self._clock.now_ms())
        if first is None:
            return False
        self._repeat(taken, [first])
        return True

    # Storing.

    def append_run(self) -> None:
        """Append all sends of the run and answer, or hold the answers."""
        taken = self.run.taken
        if not taken:
            return
        self.run = SendRun()
        drafts = [one.draft for one in taken]
        try:
            appended = self._store.append(drafts)
        except MessageIllegal as error:
            # Retry one by one, so that only the invalid message fails.
            if len(taken) > 1:
                for one in taken:
                    self.run.taken.append(one)
                    self.append_run()
                return
            self.answers.refuse_all([taken[0].sent], error)
            return
        except StoreError as error:
            self.answers.refuse_all([one.sent for one in taken], error)
            return
        except Exception as error:
            self.answers.refuse_failed([one.sent for one in taken], error)
            return
        self._note_stored(taken, drafts, appended)
        self.answers.promise(
            stored_run([one.sent for one in taken], appended), appended.physical_end
        )

    def _note_stored(
        self, taken: list[Taken], drafts: list[MessageDraft], run: AppendedRun
    ) -> None:
        self._count([one.producer_group for one in taken], drafts, run)
        for index, one in enumerate(taken):
            if one.claim is not None:
                remember_place(one.claim, one.sent.queue_id, run, index)
            if one.draft.topic == _HALF and self._recent_halves is not None:
                self._recent_halves.put(
                    one.draft,
                    queue_offset=run.queue_offsets[index],
                    physical_offset=run.physical_offsets[index],
                    store_timestamp_ms=run.store_timestamp_ms,
                )

    def _append_batch(self, taken: Taken) -> None:
        sent, claim = taken.sent, taken.claim
        try:
            if sent.batch is QueueType.BATCH:
                if claim is not None and self._is_repeat(taken, claim):
                    return
                run = self._store.append_inner_batch(mark_inner_batch(taken.draft))
                self._count([taken.producer_group], [taken.draft], run)
                if claim is not None:
                    remember_place(claim, sent.queue_id, run, 0)
            else:
                drafts = split_batch(taken.draft)
                if claim is not None:
                    self._append_new_ones(taken, claim, drafts)
                    return
                run = self._store.append_batch(drafts)
                self._count([taken.producer_group] * len(drafts), drafts, run)
        except StoreError as error:
            self.answers.refuse_all([sent], error)
            return
        except Exception as error:
            self.answers.refuse_failed([sent], error)
            return
        self.answers.promise([_stored_batch(sent, run)], run.physical_end)

    def _append_new_ones(self, taken: Taken, claim: Claim, drafts: list[MessageDraft]) -> None:
        """Store those messages of a batch that were not stored before, and answer for all."""
        batch = BatchRepeat(claim, drafts, self._clock.now_ms())
        run = None
        if batch.fresh:
            run = self._store.append_batch(batch.fresh)
            self._count([taken.producer_group] * len(batch.fresh), batch.fresh, run)
        self._repeat(taken, batch.stored(run))

    def _count(
        self, groups: Sequence[bytes], drafts: Sequence[MessageDraft], run: AppendedRun
    ) -> None:
        """Statistics once per run, not once per message."""
        if self._on_stored is not None:
            self._on_stored(groups, drafts, run)
        self._stats.stored(drafts, run.physical_offsets, run.physical_end)

    def _end_of(self, physical_offset: int) -> int:
        """Where a record ends; of an old one, which is not looked at, any byte of it.

        A slave of Apache reports any byte: it may have the beginning of a record alone.
        """
        store = self._store
        if physical_offset + store.raw_record_bytes_max <= store.acknowledged_end:
            return physical_offset + 1
        return store.record_end(physical_offset)

    def _repeat(self, taken: Taken, firsts: list[FirstSend]) -> None:
        """Answer as the first time, once the first message is as safe as promised.

        Another producer may have sent the key and may not recall the first message: the answer
        has no recall handle.
        """
        run = repeated_run(firsts, self._end_of(max(first.physical_offset for first in firsts)))
        sent = taken.sent._replace(queue_id=firsts[0].queue_id, recall_handle=None)
        stored = [_stored_batch(sent, run)]
        if self._store.poisoned is not None:
            self.answers.refuse_all([sent], self._store.poisoned)
        elif run.physical_end <= self._store.acknowledged_end:
            self.answers.answer(stored, ResponseCode.SUCCESS, self.answers.arrived_s)
        else:
            self.answers.promise(stored, run.physical_end)


def _taken(peer: Connection, send: SendRequest, admitted: Admitted) -> Taken:
    sent = Sent(
        peer,
        send.opaque,
        send.flag,
        send.code,
        admitted.unique_key.encode("utf-8", "replace"),
        admitted.queue_id,
        admitted.batch,
        admitted.recall_handle,
        admitted.waits,
    )
    return Taken(sent, send.producer_group, admitted.draft, admitted.claim)


def _stored_batch(sent: Sent, run: AppendedRun) -> Stored:
    return Stored(sent, run.queue_offsets[0], run.physical_offsets)
