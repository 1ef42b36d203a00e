"""Takes rows of sinks: the same checks as any send, and each row once.

A request holds rows of one task for one queue. Rows that the ledger knows are dropped and count as
stored; the others are appended in one run. The log keeps a prefix of a run that a crash cuts off,
and each message is its own entry of the ledger, so rows that were cut off are not in the ledger.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from contrail.broker.services.send_admission import SendAdmission
from contrail.broker.services.sink_ledger import SinkLedgerFile, note_draft
from contrail.broker.state.sink_ledger import SINK_MARK, Reached, same_task
from contrail.clock import Clock
from contrail.errors import MessageIllegal, RequestRejected
from contrail.kernels.frame_scan import FEATURE_SPECIAL, look_over
from contrail.model.batch import split_batch
from contrail.model.message import MessageDraft
from contrail.model.properties import (
    CLUSTER,
    MSG_REGION,
    NAME_END,
    PAIR_END,
    PGROUP,
    REAL_QID,
    REAL_TOPIC,
    TRACE_ON,
    TRAN_MSG,
    TRANSACTION_ID,
    decode_properties,
    encode_properties,
    put_property,
    read_property,
)
from contrail.model.topic import QueueType
from contrail.protocol.bodies.sinks import SINK_ATTEMPT, SinkKey, SinkStatus, check_attempt
from contrail.protocol.codes import RequestCode, ResponseCode
from contrail.protocol.frames import SendRequest
from contrail.store import AppendedRun

_SHARED = (MSG_REGION, TRACE_ON, CLUSTER, TRAN_MSG, PGROUP, REAL_TOPIC, REAL_QID)
# Properties that the broker itself writes into half messages begin like this; clients' are removed.
_TRANSACTION_WORDS = b"TRAN"


class SinkSend(NamedTuple):
    """A request as it came."""

    topic: str
    queue_id: int
    group: str
    is_prepared: bool
    body: bytes
    client: str
    born_host: bytes


class SinkStored(NamedTuple):
    """The outcome for the rows of a request."""

    stored_count: int
    dropped_count: int
    # Of the first that was stored, where it waits or is; -1 if none was.
    queue_offset: int
    # How far the log must be durable for all of them to be.
    physical_end: int


class Appending(Protocol):
    """The way into the log."""

    def append(self, drafts: list[MessageDraft]) -> AppendedRun: ...


class SinkSends:
    """Appends new rows and notes them in the ledger."""

    def __init__(
        self,
        file: SinkLedgerFile,
        admission: SendAdmission,
        deliveries: Appending,
        clock: Clock,
        *,
        body_bytes_max: int,
        store_host: bytes,
        ensure_topic: Callable[[int], object],
    ) -> None:
        """``ensure_topic(now_ms)`` makes the topic of layouts and decisions."""
        self._file = file
        self._ledger = file.ledger
        self._admission = admission
        self._deliveries = deliveries
        self._clock = clock
        self._body_bytes_max = body_bytes_max
        self._store_host = store_host
        self._ensure_topic = ensure_topic

    def take(self, send: SinkSend) -> SinkStored:
        """Store the rows that are new.

        Raises:
            RequestRejected: they may not be stored, and none is.
            StoreError: the store takes nothing now, and none is stored.
        """
        units = self._units(send)
        key, seqs = same_task([unit[3] for unit in units])
        if send.is_prepared:
            self._require_open(key)
            first_new = 0
        else:
            reached = self._ledger.reached(key, send.topic, send.queue_id)
            first_new = _first_new(key, seqs, reached)
        if first_new == len(units):
            self._ledger.heard(key.sink_id, self._clock.now_ms())
            return SinkStored(0, first_new, -1, self._ledger.appended_end(key.sink_id))
        self._ledger.require_room(key.sink_id, (send.topic, send.queue_id, key.partition))
        drafts = self._placed(send, units[first_new:])
        run = self._append(drafts)
        return self._note(send, key, seqs[-1], run, first_new)

    def _note(
        self, send: SinkSend, key: SinkKey, seq: int, run: AppendedRun, dropped_count: int
    ) -> SinkStored:
        now_ms = self._clock.now_ms()
        if not send.is_prepared:
            self._ledger.reach(key, send.topic, send.queue_id, seq, now_ms)
        self._ledger.heard(key.sink_id, now_ms).appended_end = run.physical_end
        stored_count = len(run.queue_offsets)
        return SinkStored(stored_count, dropped_count, run.queue_offsets[0], run.physical_end)

    def remember(self, sink_id: str, status: SinkStatus) -> None:
        """Write down a sink's layout and decision.

        Raises:
            RequestRejected: there are too many sinks, or it is too large to be written down.
            StoreError: the store takes nothing now.
        """
        self._ledger.require_room(sink_id)
        self._ledger.require_bytes(sink_id, status)
        now_ms = self._clock.now_ms()
        self._ensure_topic(now_ms)
        draft = note_draft(sink_id, status, now_ms=now_ms, store_host=self._store_host)
        try:
            run = self._append([draft])
        except MessageIllegal as error:
            raise RequestRejected(ResponseCode.MESSAGE_ILLEGAL, str(error)) from error
        self._ledger.told(sink_id, status, now_ms)
        self._ledger.heard(sink_id, now_ms).appended_end = run.physical_end

    def _append(self, drafts: list[MessageDraft]) -> AppendedRun:
        self._file.changing()
        return self._deliveries.append(drafts)

    # Checking.

    def _units(self, send: SinkSend) -> list[MessageDraft]:
        """The messages of the request, checked as those of any batch."""
        if send.queue_id < 0:
            raise _illegal(f"queueId={send.queue_id}: rows of a sink go to a queue that it names")
        if len(send.body) > self._body_bytes_max:
            raise _illegal(
                f"the batch has {len(send.body)} bytes, maxMessageSize is "
                f"{self._body_bytes_max}: send it in parts"
            )
        whole = self._draft(send, send.body, b"")
        admitted = self._admission.admit(_request(send, whole, is_batch=True), send.client)
        if admitted.batch is not QueueType.SIMPLE:
            raise _illegal(
                f"topic {send.topic!r} keeps batches whole (queue.type=BatchCQ): "
                "rows of a sink cannot be told apart there"
            )
        return split_batch(admitted.draft)

    def _placed(self, send: SinkSend, units: list[MessageDraft]) -> list[MessageDraft]:
        """The drafts to append: in their queue, or where delayed and prepared ones wait."""
        if send.is_prepared:
            return self._prepared(send, units)
        return [
            self._admitted(send, unit)
            if look_over(unit[3])[0] & FEATURE_SPECIAL
            else MessageDraft._make((*unit[:9], SINK_MARK))
            for unit in units
        ]

    def _prepared(self, send: SinkSend, units: list[MessageDraft]) -> list[MessageDraft]:
        """Half messages: the first by all rules, fast rows behind it after its pattern."""
        attempt = _attempt_of(units[0].properties)
        named = f"\x02{SINK_ATTEMPT}\x01{attempt}\x02".encode()
        first = self._half(send, units[0])
        pattern = _pattern_of(first)
        halves = [first]
        for unit in units[1:]:
            if named not in unit.properties and _attempt_of(unit.properties) != attempt:
                raise _illegal(f"the batch holds rows of several attempts ({SINK_ATTEMPT})")
            halves.append(_after_pattern(first, pattern, unit) or self._half(send, unit))
        return halves

    def _half(self, send: SinkSend, unit: MessageDraft) -> MessageDraft:
        properties = put_property(unit.properties, TRAN_MSG, "true")
        properties = put_property(properties, PGROUP, send.group)
        return self._admitted(send, unit._replace(properties=properties))

    def _admitted(self, send: SinkSend, unit: MessageDraft) -> MessageDraft:
        if not send.is_prepared and read_property(unit.properties, TRAN_MSG) is not None:
            raise _illegal(f"{TRAN_MSG} is not taken from a sink; send prepared=true instead")
        admitted = self._admission.admit(_request(send, unit, is_batch=False), send.client)
        return admitted.draft._replace(prepared_transaction_offset=SINK_MARK)

    def _require_open(self, key: SinkKey) -> None:
        """An attempt that comes too late would leave its rows behind."""
        decided = self._ledger.status(key.sink_id).decided
        if decided is not None and key.batch_id <= decided.batch_id:
            raise RequestRejected(
                ResponseCode.ILLEGAL_OPERATION,
                f"batch {key.batch_id} of sink {key.sink_id!r} is decided: "
                f"batch {decided.batch_id} was the last",
            )

    def _draft(self, send: SinkSend, body: bytes, properties: bytes) -> MessageDraft:
        return MessageDraft(
            topic=send.topic.encode("utf-8", "replace"),
            queue_id=send.queue_id,
            body=body,
            properties=properties,
            born_timestamp_ms=self._clock.now_ms(),
            born_host=send.born_host,
        )


def _first_new(key: SinkKey, seqs: list[int], reached: Reached) -> int:
    """How many of the rows are stored already: they are the first ones, for the numbers grow."""
    batch_id, last_seq = reached
    if key.batch_id != batch_id:
        return len(seqs) if key.batch_id < batch_id else 0
    return sum(seq <= last_seq for seq in seqs)


def _attempt_of(properties: bytes) -> str:
    return check_attempt(read_property(properties, SINK_ATTEMPT) or "")


def _pattern_of(half: MessageDraft) -> bytes:
    """The properties that half messages of one request have in common."""
    properties = decode_properties(half.properties)
    return encode_properties({name: properties[name] for name in _SHARED if name in properties})


def _after_pattern(first: MessageDraft, pattern: bytes, unit: MessageDraft) -> MessageDraft | None:
    """A fast row as a half message like the first; None if it needs a closer look."""
    properties = unit.properties
    features, key_start, key_end = look_over(properties)
    if features or not properties.endswith(PAIR_END) or _TRANSACTION_WORDS in properties:
        return None
    name = TRANSACTION_ID.encode() + NAME_END
    properties += pattern + name + properties[key_start:key_end] + PAIR_END
    return first._replace(body=unit.body, properties=properties, flag=unit.flag)


def _request(send: SinkSend, draft: MessageDraft, *, is_batch: bool) -> SendRequest:
    """The send that the rules for producers know. A sink makes no topics: it has no template."""
    return SendRequest(
        opaque=0,
        flag=0,
        version=0,
        code=RequestCode.SEND_BATCH_MESSAGE,
        producer_group=send.group.encode("utf-8", "replace"),
        default_topic=b"",
        default_queue_count=0,
        is_batch=is_batch,
        reconsume_max=-1,
        features=0,
        unique_key=b"",
        draft=draft,
    )


def _illegal(remark: str) -> RequestRejected:
    return RequestRejected(ResponseCode.MESSAGE_ILLEGAL, remark)
