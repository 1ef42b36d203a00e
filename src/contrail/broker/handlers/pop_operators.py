"""Operators look at what is popped, and decide about a message: acknowledged, or visible again."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

from contrail.broker.services.acknowledgements import Acknowledgements, doubt_fields
from contrail.broker.services.ordered_pops import OrderedPops
from contrail.broker.services.pops import Pops, Told
from contrail.broker.state.consumers import ConsumerTable
from contrail.broker.state.pop_records import Ack, Checkpoint, CheckpointKey
from contrail.broker.state.pop_table import Queue
from contrail.errors import RequestRejected, StoreError
from contrail.model.properties import UNIQ_KEY, read_property
from contrail.model.topic import normal_topic
from contrail.protocol.bodies.in_flight import (
    InFlight,
    decode_handle,
    encode_handle,
    encode_in_flight,
)
from contrail.protocol.codes import RequestCode, ResponseCode
from contrail.protocol.command import Request, Response
from contrail.protocol.fields import HeaderFields
from contrail.protocol.pop_info import ORDER_REVIVE_QUEUE, PopTextInvalid, Receipt, retry_flag
from contrail.store import GetStatus, MessageStore
from contrail.wire.peer import LATER, Answer, Handler, Peer

_COUNT_MAX = 1000
_DEFAULT_COUNT = 100
# One answer looks at so many checkpoints, those of the first pops: a group may have a million.
_LOOKED_AT_MAX = 5_000
_FATES = ("ack", "return")


class _Popped(NamedTuple):
    """One message of the table, before its record is read."""

    queue: Queue
    receipt: Receipt
    visible_ms: int
    holder: str


class PopOperatorHandlers:
    """Serves LIST_IN_FLIGHT and DECIDE_IN_FLIGHT."""

    def __init__(
        self,
        pops: Pops,
        ordered: OrderedPops,
        consumers: ConsumerTable,
        store: MessageStore,
        answers: Acknowledgements,
        *,
        broker_name: str,
    ) -> None:
        self._pops = pops
        self._ordered = ordered
        self._consumers = consumers
        self._store = store
        self._answers = answers
        self._broker_name = broker_name

    def table(self) -> dict[int, Handler]:
        return {
            RequestCode.LIST_IN_FLIGHT: self.handle_list,
            RequestCode.DECIDE_IN_FLIGHT: self.handle_decide,
        }

    def handle_list(self, request: Request, peer: Peer) -> Response:
        """A group's messages in flight, those that become visible first; ``total`` counts all.

        Of a group with very many, those of its first pops are listed.
        """
        fields = HeaderFields(request)
        group = fields.text("consumerGroup")
        topic = fields.optional_text("topic") or None
        count_max = fields.integer("limit", _DEFAULT_COUNT)
        first = fields.integer("offset", 0)
        if not 1 <= count_max <= _COUNT_MAX or first < 0:
            raise RequestRejected(
                ResponseCode.INVALID_PARAMETER,
                f"limit={count_max} must be from 1 to {_COUNT_MAX}, offset={first} at least 0",
            )

        def is_wanted(name: str) -> bool:
            return topic is None or normal_topic(name, group) == topic

        table = self._pops.table
        checkpoints = [
            one for one in table.oldest_of_group(group, _LOOKED_AT_MAX) if is_wanted(one.topic)
        ]
        in_order = [one for one in self._in_order(group) if is_wanted(one.queue[1])]
        found = heapq.merge(
            self._not_in_order(checkpoints),
            sorted(in_order, key=_place),
            key=_place,
        )
        listed = [self._listed(one) for one in islice(found, first, first + count_max)]
        total = table.count_of_group(group, is_wanted) + len(in_order)
        return Response(fields={"total": str(total)}, body=encode_in_flight(listed))

    def _not_in_order(self, checkpoints: list[Checkpoint]) -> Iterator[_Popped]:
        for checkpoint in sorted(checkpoints, key=lambda one: (one.visible_ms, one.key)):
            queue = (checkpoint.group, checkpoint.topic, checkpoint.queue_id)
            receipt = Receipt(
                checkpoint.start_offset,
                checkpoint.pop_time_ms,
                checkpoint.invisible_ms,
                checkpoint.revive_queue,
                retry_flag(checkpoint.topic),
                checkpoint.broker_name,
                checkpoint.queue_id,
            )
            for offset in checkpoint.open_offsets:
                named = receipt._replace(queue_offset=offset)
                yield _Popped(queue, named, checkpoint.visible_ms, checkpoint.holder)

    def _in_order(self, group: str) -> Iterator[_Popped]:
        for queue, batch in self._ordered.of_group(group):
            receipt = Receipt(
                batch.offsets[0],
                batch.pop_time_ms,
                batch.invisible_ms,
                ORDER_REVIVE_QUEUE,
                retry_flag(queue[1]),
                self._broker_name,
                queue[2],
            )
            for offset in self._ordered.open_offsets(queue):
                named = receipt._replace(queue_offset=offset)
                yield _Popped(queue, named, batch.visible_at_ms(offset), batch.holder)

    def _listed(self, one: _Popped) -> InFlight:
        group, real_topic, queue_id = one.queue
        message_id, tries = self._record(real_topic, queue_id, one.receipt.queue_offset)
        in_order = one.receipt.in_order
        if in_order:
            batch = self._ordered.batches.find(one.queue)
            tries = 0 if batch is None else batch.counts.get(one.receipt.queue_offset, 0)
        topic = normal_topic(real_topic, group)
        return InFlight(
            topic=topic,
            real_topic=real_topic,
            queue_id=queue_id,
            queue_offset=one.receipt.queue_offset,
            message_id=message_id,
            pop_time_ms=one.receipt.pop_time_ms,
            visible_ms=one.visible_ms,
            attempts=tries + 1,
            holder=one.holder,
            client_id=self._consumers.client_at(group, one.holder) or "",
            in_order=in_order,
            handle=encode_handle(topic, one.receipt),
        )

    def _record(self, topic: str, queue_id: int, queue_offset: int) -> tuple[str, int]:
        """The message's id, and how often it was tried before; nothing for one that is gone."""
        found = self._store.get(topic.encode(), queue_id, queue_offset, count_max=1)
        if found.status is not GetStatus.FOUND or not found.messages:
            return "", 0
        message = found.messages[0]
        return read_property(message.raw_properties, UNIQ_KEY) or "", message.reconsume_times

    def handle_decide(self, request: Request, peer: Peer) -> Answer:
        """Acknowledge a message for its consumer, or make it visible to the others now."""
        fields = HeaderFields(request)
        group, fate = fields.text("consumerGroup"), fields.text("fate")
        if fate not in _FATES:
            raise RequestRejected(
                ResponseCode.INVALID_PARAMETER, f"fate={fate!r} must be one of {', '.join(_FATES)}"
            )
        try:
            topic, receipt = decode_handle(fields.text("handle"), group)
        except PopTextInvalid as error:
            raise RequestRejected(ResponseCode.INVALID_PARAMETER, str(error)) from error
        queue = (group, topic, receipt.queue_id)
        if receipt.in_order:
            self._decide_in_order(queue, receipt, fate)
            return Response()
        key = CheckpointKey(*queue, receipt.start_offset, receipt.pop_time_ms)
        checkpoint = self._pops.table.find(key)
        if checkpoint is None or receipt.queue_offset not in checkpoint.open_offsets:
            raise _not_in_flight(group, receipt)
        ack = Ack(key, (receipt.queue_offset,), checkpoint.broker_name)
        told = self._told(request, peer)
        if fate == "ack":
            self._pops.acknowledge(ack, told)
        else:
            self._pops.prolong(ack, 0, told, "")
        return LATER

    def _decide_in_order(self, queue: Queue, receipt: Receipt, fate: str) -> None:
        batch = self._ordered.batches.find(queue)
        is_open = receipt.queue_offset in self._ordered.open_offsets(queue)
        if batch is None or batch.pop_time_ms != receipt.pop_time_ms or not is_open:
            raise _not_in_flight(queue[0], receipt)
        if fate == "ack":
            self._ordered.acknowledge(queue, receipt.queue_offset, receipt.pop_time_ms)
        else:
            self._ordered.prolong(queue, receipt.queue_offset, receipt.pop_time_ms, 0)

    def _told(self, request: Request, peer: Peer) -> Told:
        def release(code: ResponseCode) -> None:
            peer.reply(request, Response(code, None, doubt_fields(code) or None))

        def told(physical_end: int, error: StoreError | None) -> None:
            if error is not None:
                peer.reply(request, Response(ResponseCode.SYSTEM_ERROR, str(error)))
            else:
                self._answers.when_safe(peer, physical_end, release)

        return told


def _place(one: _Popped) -> tuple[int, Queue, int, int]:
    receipt = one.receipt
    return one.visible_ms, one.queue, receipt.start_offset, receipt.pop_time_ms


def _not_in_flight(group: str, receipt: Receipt) -> RequestRejected:
    return RequestRejected(
        ResponseCode.NO_MESSAGE,
        f"message {receipt.queue_offset} of queue {receipt.queue_id} is not in flight for group "
        f"{group!r} by this handle: it was acknowledged, returned or given another time",
    )
