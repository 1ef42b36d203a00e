"""Acknowledges popped messages, and gives them another time to become visible again."""

from __future__ import annotations

from contrail.broker.services.acknowledgements import Acknowledgements, doubt_fields
from contrail.broker.services.ordered_pops import OrderedPops
from contrail.broker.services.pops import Pops, Told
from contrail.broker.services.topics import Topics
from contrail.broker.state.pop_records import Ack, CheckpointKey
from contrail.clock import Clock
from contrail.errors import RequestRejected, StoreError
from contrail.protocol.bodies.pop import BatchAck, decode_batch_acks
from contrail.protocol.codes import RequestCode, ResponseCode
from contrail.protocol.command import Request, Response
from contrail.protocol.fields import HeaderFields
from contrail.protocol.pop_info import ORDER_REVIVE_QUEUE, PopTextInvalid, Receipt, real_topic
from contrail.store import MessageStore
from contrail.wire.peer import LATER, Answer, Handler, Peer

# The record is stored, and a consumer that asks again does no harm.
_STORED = frozenset(
    {
        ResponseCode.SUCCESS,
        ResponseCode.FLUSH_DISK_TIMEOUT,
        ResponseCode.FLUSH_SLAVE_TIMEOUT,
        ResponseCode.SLAVE_NOT_AVAILABLE,
    }
)


class PopAckHandlers:
    """Serves ACK_MESSAGE, BATCH_ACK_MESSAGE and CHANGE_MESSAGE_INVISIBLETIME."""

    def __init__(
        self,
        pops: Pops,
        ordered: OrderedPops,
        topics: Topics,
        store: MessageStore,
        answers: Acknowledgements,
        clock: Clock,
    ) -> None:
        self._pops = pops
        self._ordered = ordered
        self._topics = topics
        self._store = store
        self._answers = answers
        self._clock = clock

    def table(self) -> dict[int, Handler]:
        return {
            RequestCode.ACK_MESSAGE: self.handle_ack,
            RequestCode.BATCH_ACK_MESSAGE: self.handle_batch,
            RequestCode.CHANGE_MESSAGE_INVISIBLETIME: self.handle_change,
        }

    def handle_ack(self, request: Request, peer: Peer) -> Answer:
        """One message need not come again; a late or repeated acknowledgement succeeds too."""
        fields = HeaderFields(request)
        ack, receipt = self._named(fields, is_ack=True)
        if receipt.in_order:
            self._ordered.acknowledge(ack.key[:3], ack.offsets[0], receipt.pop_time_ms)
            return Response()
        self._pops.acknowledge(ack, self._told(request, peer, Response()))
        return LATER

    def handle_change(self, request: Request, peer: Peer) -> Answer:
        """A message is to become visible after another time, from now on; its receipt is new."""
        fields = HeaderFields(request)
        invisible_ms = fields.long("invisibleTime")
        ack, receipt = self._named(fields, is_ack=False)
        self._pops.require_keepable(invisible_ms)
        if receipt.in_order:
            return self._change_in_order(ack, receipt, invisible_ms)
        response = Response(
            fields={
                "popTime": str(self._clock.now_ms()),
                "invisibleTime": str(invisible_ms),
                "reviveQid": str(receipt.revive_queue),
            }
        )
        told = self._told(request, peer, response)
        pop_time_ms = self._pops.prolong(
            ack, invisible_ms, told, peer.address, is_suspended=fields.boolean("suspend")
        )
        if pop_time_ms is None:
            # The receipt is dead; RocketMQ does not tell the consumer.
            return response
        assert response.fields is not None
        response.fields["popTime"] = str(pop_time_ms)
        return LATER

    def _change_in_order(self, ack: Ack, receipt: Receipt, invisible_ms: int) -> Response:
        """The batch's pop time stays; its receipt tells the time from then on."""
        visible_ms = self._ordered.prolong(
            ack.key[:3], ack.offsets[0], receipt.pop_time_ms, invisible_ms
        )
        is_open = visible_ms != 0
        return Response(
            fields={
                "popTime": str(receipt.pop_time_ms if is_open else 0),
                "invisibleTime": str(visible_ms),
                "reviveQid": str(receipt.revive_queue if is_open else 0),
            }
        )

    def _named(self, fields: HeaderFields, *, is_ack: bool) -> tuple[Ack, Receipt]:
        """The message that a request's header names."""
        group, topic = fields.text("consumerGroup"), fields.text("topic")
        queue_id, offset = fields.integer("queueId"), fields.long("offset")
        text = fields.text("extraInfo")
        self._check_place(topic, queue_id, offset, is_ack=is_ack)
        receipt = _receipt(text)
        key = CheckpointKey(group, topic, queue_id, receipt.start_offset, receipt.pop_time_ms)
        return Ack(key, (offset,), receipt.broker_name), receipt

    def _check_place(self, topic: str, queue_id: int, offset: int, *, is_ack: bool) -> None:
        config = self._topics.table.get(topic)
        if config is None:
            raise RequestRejected(
                ResponseCode.TOPIC_NOT_EXIST, f"topic {topic!r} does not exist; create it first"
            )
        if not 0 <= queue_id < config.read_queue_count:
            raise RequestRejected(
                ResponseCode.MESSAGE_ILLEGAL,
                f"queue {queue_id} of topic {topic!r} does not exist: "
                f"{config.read_queue_count} may be read",
            )
        low = self._store.queue_offset_min(topic.encode(), queue_id)
        # RocketMQ takes the offset behind the last message as well, but only for an ack.
        high = self._store.queue_offset_max(topic.encode(), queue_id) + is_ack
        if not low <= offset < high:
            raise RequestRejected(
                ResponseCode.NO_MESSAGE,
                f"message {offset} of queue {queue_id} of topic {topic!r} does not exist: it has "
                f"those from {low} to below {high - is_ack}",
            )

    def handle_batch(self, request: Request, peer: Peer) -> Answer:
        """Several messages of several checkpoints; those that no longer exist are passed over."""
        if not request.body:
            raise RequestRejected(ResponseCode.NO_MESSAGE, "the batch has no acknowledgements")
        batch = decode_batch_acks(request.body)
        if not batch.acks:
            raise RequestRejected(ResponseCode.NO_MESSAGE, "the batch has no acknowledgements")
        for one in batch.acks:
            self._topics.names.require_readable(one.topic)
            self._topics.names.require_group(one.group)
        acks = [
            (self._of_batch(one, batch.broker_name), one.revive_queue == ORDER_REVIVE_QUEUE)
            for one in batch.acks
        ]
        response = self._acknowledge_in_order([ack for ack, in_order in acks if in_order])
        others = [ack for ack, in_order in acks if not in_order]
        if not others:
            return response
        last = _AfterAll(len(others), self._told(request, peer, response))
        for ack in others:
            self._pops.acknowledge(ack, last.told)
        return LATER

    def _acknowledge_in_order(self, acks: list[Ack]) -> Response:
        """All of them, also behind one that is refused; the answer tells of the last refusal."""
        response = Response()
        for ack in acks:
            for offset in ack.offsets:
                try:
                    self._ordered.acknowledge(ack.key[:3], offset, ack.key.pop_time_ms)
                except RequestRejected as refusal:
                    response = Response(refusal.code, refusal.remark)
        return response

    def _of_batch(self, one: BatchAck, broker_name: str) -> Ack:
        topic = real_topic(one.topic, one.group, one.retry_flag)
        key = CheckpointKey(one.group, topic, one.queue_id, one.start_offset, one.pop_time_ms)
        if self._topics.table.get(topic) is None:
            return Ack(key, (), broker_name)
        name = topic.encode()
        low = self._store.queue_offset_min(name, one.queue_id)
        high = self._store.queue_offset_max(name, one.queue_id)
        kept = tuple(offset for offset in one.offsets if low <= offset <= high)
        return Ack(key, kept, broker_name)

    def _told(self, request: Request, peer: Peer, response: Response) -> Told:
        """Answers once the acknowledgement is as safe as the flush policy promises."""

        def release(code: ResponseCode) -> None:
            if code in _STORED:
                peer.reply(request, response)
            else:
                failed = Response(ResponseCode.SYSTEM_ERROR, code.name, doubt_fields(code) or None)
                peer.reply(request, failed)

        def told(physical_end: int, error: StoreError | None) -> None:
            if error is not None:
                peer.reply(request, Response(ResponseCode.SYSTEM_ERROR, str(error)))
            else:
                self._answers.when_safe(peer, physical_end, release)

        return told


class _AfterAll:
    """Tells once of many: of the last, or of the first that failed."""

    def __init__(self, count: int, told: Told) -> None:
        self._left = count
        self._told = told

    def told(self, physical_end: int, error: StoreError | None) -> None:
        if self._left <= 0:
            return
        self._left = 0 if error is not None else self._left - 1
        if self._left <= 0:
            self._told(physical_end, error)


def _receipt(text: str) -> Receipt:
    try:
        return Receipt.decode(text)
    except PopTextInvalid as error:
        raise RequestRejected(ResponseCode.SYSTEM_ERROR, str(error)) from error
