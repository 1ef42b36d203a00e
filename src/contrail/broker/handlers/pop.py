"""Pops: messages that nobody else gets until they are acknowledged or their time is over.

A pop that finds nothing waits (``services.pop_waits``) and is carried out again from its
beginning.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from contrail.broker.services.acknowledgements import Acknowledgements, doubt_fields
from contrail.broker.services.ordered_pops import OrderedPops
from contrail.broker.services.pop_admission import PopAdmission, PopPlan
from contrail.broker.services.pop_reads import PopReads, Read, Taken
from contrail.broker.services.pop_waits import PopWaits
from contrail.broker.services.pops import Given, Pops
from contrail.broker.state.pop_waiting import Source, Waiter, WaitKey
from contrail.broker.state.runtime_settings import RuntimeSettings
from contrail.broker.state.stats import BrokerStats
from contrail.clock import Clock
from contrail.errors import StoreError
from contrail.model.properties import POP_CK, put_property, read_property
from contrail.model.record import decode_record, readdressed
from contrail.model.topic import RETRY_PREFIX
from contrail.protocol.codes import RequestCode, ResponseCode
from contrail.protocol.command import Request, Response
from contrail.protocol.pop_info import (
    ORDER_REVIVE_QUEUE,
    Receipt,
    join_entries,
    offsets_entry,
    order_count_entries,
    retry_flag,
    start_offset_entry,
)
from contrail.store import GetStatus
from contrail.wire.peer import LATER, Answer, Handler, Peer

# A waiter's time ends this much before the client's.
_EARLY_MS = 50
# Messages whose checkpoint may not be durable yet are handed out all the same: after a power cut
# they are popped again, which is no loss.
_GIVEN = frozenset(
    {
        ResponseCode.SUCCESS,
        ResponseCode.FLUSH_DISK_TIMEOUT,
        ResponseCode.FLUSH_SLAVE_TIMEOUT,
        ResponseCode.SLAVE_NOT_AVAILABLE,
    }
)


class PopHandlers:
    """Serves POP_MESSAGE and POP_ROLLBACK."""

    def __init__(
        self,
        settings: RuntimeSettings,
        admission: PopAdmission,
        reads: PopReads,
        pops: Pops,
        ordered: OrderedPops,
        waits: PopWaits,
        answers: Acknowledgements,
        stats: BrokerStats,
        clock: Clock,
        *,
        chance: Callable[[], int] = lambda: random.randrange(100),
    ) -> None:
        self._settings = settings
        self._admission = admission
        self._reads = reads
        self._pops = pops
        self._ordered = ordered
        self._waits = waits
        self._answers = answers
        self._stats = stats
        self._clock = clock
        self._chance = chance
        # Told how many messages and bytes a pop was given; None while nobody counts them.
        self.on_given: Callable[[Request, Peer, int, int], None] | None = None

    def table(self) -> dict[int, Handler]:
        return {
            RequestCode.POP_MESSAGE: self.handle_pop,
            RequestCode.POP_ROLLBACK: self.handle_rollback,
        }

    def handle_pop(self, request: Request, peer: Peer) -> Answer:
        """Messages now or when some arrive."""
        plan = self._admission.plan(request, peer.address)
        self._pops.require_keepable(plan.invisible_ms)
        read = self._reads.collect(plan, self._chance())
        if not read.taken:
            return self._nothing(request, peer, plan, read)
        has_messages = read.message_count > 0
        if plan.in_order:
            pop_time_ms, given = self._ordered.take(plan, read, peer.address)
            if not has_messages:
                return self._nothing(request, peer, plan, read)
            return self._found_in_order(plan, read, given, pop_time_ms)
        pending = _PendingAnswer()

        def told(physical_end: int, error: StoreError | None) -> None:
            if has_messages:
                self._when_stored(request, peer, pending, physical_end, error)

        pop_time_ms, revive_queue, given = self._pops.take(plan, read, peer.address, told)
        if not has_messages:
            # Offsets moved past messages that the filter does not want.
            return self._nothing(request, peer, plan, read)
        pending.response = self._found(plan, read, given, pop_time_ms, revive_queue)
        if self.on_given is not None:
            byte_count = sum(one.result.byte_count for one, _ in given)
            self.on_given(request, peer, read.message_count, byte_count)
        if read.rest_count > 0:
            self._waits.wake_next(_key_of(plan))
        return LATER

    def _when_stored(
        self,
        request: Request,
        peer: Peer,
        pending: _PendingAnswer,
        physical_end: int,
        error: StoreError | None,
    ) -> None:
        if error is not None:
            peer.reply(request, Response(ResponseCode.SYSTEM_ERROR, str(error)))
            return

        def release(code: ResponseCode) -> None:
            if code in _GIVEN:
                peer.reply(request, pending.response)
            else:
                peer.reply(request, Response(code, code.name, doubt_fields(code) or None))

        self._answers.when_safe(peer, physical_end, release)

    # Nothing there.

    def _nothing(self, request: Request, peer: Peer, plan: PopPlan, read: Read) -> Answer:
        wait_ms = plan.born_ms + plan.poll_ms - _EARLY_MS - self._clock.now_ms()
        if plan.poll_ms <= 0 or wait_ms <= 0:
            return self._empty(plan, read, ResponseCode.POLLING_TIMEOUT)
        key = _key_of(plan)
        if not self._waits.park(request, peer, key, wait_ms, self._sources(plan)):
            return self._empty(plan, read, ResponseCode.POLLING_FULL)
        if read.rest_count > 0:
            self._waits.wake_next(key)
        return LATER

    def _sources(self, plan: PopPlan) -> list[Source]:
        """The queues whose arrivals wake the pop."""
        return self._reads.sources(plan, with_retries=not plan.in_order)

    def _empty(self, plan: PopPlan, read: Read, code: ResponseCode) -> Response:
        revive_queue = ORDER_REVIVE_QUEUE if plan.in_order else 0
        fields = _answer_fields(plan, self._clock.now_ms(), revive_queue, read.rest_count)
        return Response(code, GetStatus.NO_MESSAGE_IN_QUEUE.value, fields)

    # Messages there.

    def _found_in_order(
        self, plan: PopPlan, read: Read, given: list[Given], pop_time_ms: int
    ) -> Response:
        response = self._found(plan, read, given, pop_time_ms, ORDER_REVIVE_QUEUE)
        assert response.fields is not None
        batches = self._ordered.batches
        response.fields["orderCountInfo"] = join_entries(
            entry
            for one, checkpoint in given
            if (batch := batches.find((plan.group, one.topic, one.queue_id))) is not None
            for entry in order_count_entries(
                retry_flag(one.topic), one.queue_id, batch.counts, batch.count_of_all
            )
        )
        if read.rest_count > 0:
            self._waits.wake_next(_key_of(plan))
        return response

    def _found(
        self, plan: PopPlan, read: Read, given: list[Given], pop_time_ms: int, revive_queue: int
    ) -> Response:
        fields = _answer_fields(plan, pop_time_ms, revive_queue, read.rest_count)
        fields["startOffsetInfo"] = join_entries(
            start_offset_entry(retry_flag(one.topic), one.queue_id, one.start) for one, _ in given
        )
        fields["msgOffsetInfo"] = join_entries(
            offsets_entry(retry_flag(one.topic), one.queue_id, checkpoint.offsets)
            for one, checkpoint in given
        )
        body: list[bytes | memoryview] = []
        for one, checkpoint in given:
            names = (one.topic, plan.group)
            self._stats.pulled(names, one.result.message_count, one.result.byte_count)
            body += self._records(
                plan,
                one,
                Receipt(
                    checkpoint.start_offset,
                    pop_time_ms,
                    plan.invisible_ms,
                    revive_queue,
                    retry_flag(one.topic),
                    checkpoint.broker_name,
                    one.queue_id,
                ),
            )
        return Response(ResponseCode.SUCCESS, GetStatus.FOUND.value, fields, body)

    def _records(
        self, plan: PopPlan, taken: Taken, receipt: Receipt
    ) -> list[memoryview] | list[bytes]:
        """The records of a body; retried messages carry their receipt and their first topic."""
        is_retry = taken.topic.startswith(RETRY_PREFIX)
        if not is_retry or self._settings.config.pop_returns_retry_topic:
            return taken.result.ranges
        return [_readdressed(record, plan.topic, receipt) for record in taken.records]

    def handle_rollback(self, request: Request, peer: Peer) -> Response:
        """Nothing is kept in ``kvStore/``, so nothing has to be moved from there to the log."""
        return Response()

    # The end.

    def stop(self) -> None:
        """Answer everybody who waits: the broker stops."""
        for waiter in self._waits.take_all():
            _answer_stopped(waiter)


class _PendingAnswer:
    """The answer of a pop while its checkpoints are written."""

    __slots__ = ("response",)

    def __init__(self) -> None:
        self.response = Response()


def _answer_stopped(waiter: Waiter) -> None:
    answer = Response(ResponseCode.POLLING_TIMEOUT, "the broker stops")
    waiter.peer.reply(waiter.request, answer)


def _key_of(plan: PopPlan) -> WaitKey:
    return WaitKey(plan.topic, plan.group, plan.queue_id)


def _answer_fields(
    plan: PopPlan, pop_time_ms: int, revive_queue: int, rest_count: int
) -> dict[str, str]:
    return {
        "popTime": str(pop_time_ms),
        "invisibleTime": str(plan.invisible_ms),
        "reviveQid": str(revive_queue),
        "restNum": str(rest_count),
        "startOffsetInfo": "",
        "msgOffsetInfo": "",
    }


def _readdressed(record: memoryview, topic: str, receipt: Receipt) -> bytes:
    """A message of a retry topic as consumers of ``topic`` get it."""
    message = decode_record(record, check_body_crc=False)
    raw = message.raw_properties
    if read_property(raw, POP_CK) is None:
        text = receipt._replace(queue_offset=message.queue_offset).encode()
        raw = put_property(raw, POP_CK, text)
    return readdressed(message, record, topic.encode(), raw)
