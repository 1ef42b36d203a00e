"""Sinks: programs that write rows in batches and want each row once. Requests 30101 to 30105.

They are Contrail's own; RocketMQ answers them "not supported", which is how a sink tells the two
apart. Answers wait until the rows are as safe as the flush policy promises, also those to
repeats: a row that is answered "stored" was stored for good the first time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from contrail.broker.services.acknowledgements import Acknowledgements, doubt_fields
from contrail.broker.services.sink_sends import SinkSend, SinkSends
from contrail.broker.services.sink_transactions import Ended, SinkTransactions, Told
from contrail.broker.state.runtime_settings import RuntimeSettings
from contrail.broker.state.sink_ledger import SinkLedger
from contrail.broker.state.system_names import SystemNames
from contrail.clock import Clock
from contrail.errors import MessageIllegal, RequestRejected, StoreError, StorePoisoned
from contrail.protocol.bodies.sinks import (
    check_sink_id,
    decode_attempts,
    decode_begin,
    decode_participants,
    encode_counts,
    encode_status,
)
from contrail.protocol.codes import RequestCode, ResponseCode
from contrail.protocol.command import Request, Response
from contrail.protocol.fields import HeaderFields
from contrail.wire.peer import LATER, Answer, Handler, Peer


class FlushState(Protocol):
    """How far the log is durable, and whether it still can be."""

    poisoned: StorePoisoned | None

    @property
    def acknowledged_end(self) -> int: ...


class SinkHandlers:
    """Checks the requests of sinks, and answers once the outcome is durable."""

    def __init__(
        self,
        ledger: SinkLedger,
        sends: SinkSends,
        transactions: SinkTransactions,
        answers: Acknowledgements,
        settings: RuntimeSettings,
        store: FlushState,
        clock: Clock,
        *,
        busy_reason: Callable[[], str | None],
        names: SystemNames,
    ) -> None:
        self._names = names
        self._ledger = ledger
        self._sends = sends
        self._transactions = transactions
        self._answers = answers
        self._settings = settings
        self._store = store
        self._clock = clock
        self._busy_reason = busy_reason

    def table(self) -> dict[int, Handler]:
        return {
            RequestCode.CONTRAIL_SINK_BEGIN: self.handle_begin,
            RequestCode.CONTRAIL_SINK_SEND: self.handle_send,
            RequestCode.CONTRAIL_SINK_COMMIT: self.handle_commit,
            RequestCode.CONTRAIL_SINK_ABORT: self.handle_abort,
            RequestCode.CONTRAIL_SINK_STATUS: self.handle_status,
        }

    # Facts of a batch.

    def handle_status(self, request: Request, peer: Peer) -> Answer:
        sink_id = check_sink_id(HeaderFields(request).text("sinkId"))
        self._answer_status(request, peer, sink_id)
        return LATER

    def handle_begin(self, request: Request, peer: Peer) -> Answer:
        sink_id, batch_id = _batch_of(HeaderFields(request))
        begun = decode_begin(request.body)
        for topic in begun.topics:
            self._names.require_writable(topic, peer.address)
        status = self._ledger.plan_layout(sink_id, batch_id, begun.topics, begun.coordinator)
        if status is not None:
            with _refusals():
                self._sends.remember(sink_id, status)
        self._answer_status(request, peer, sink_id)
        return LATER

    def _answer_status(self, request: Request, peer: Peer, sink_id: str) -> None:
        if sink_id in self._ledger.sinks:
            self._ledger.heard(sink_id, self._clock.now_ms())
        body = encode_status(self._ledger.status(sink_id))
        end = self._ledger.appended_end(sink_id)
        self._when_durable(request, peer, end, Response(body=body))

    # Rows.

    def handle_send(self, request: Request, peer: Peer) -> Answer:
        busy = self._busy_reason()
        if busy is not None:
            raise RequestRejected(ResponseCode.SYSTEM_BUSY, busy)
        fields = HeaderFields(request)
        send = SinkSend(
            topic=fields.text("topic"),
            queue_id=fields.integer("queueId"),
            group=fields.text("producerGroup"),
            is_prepared=fields.boolean("prepared"),
            body=request.body,
            client=peer.address,
            born_host=peer.packed_host,
        )
        with _refusals():
            stored = self._sends.take(send)
        answer = {
            "storedCount": str(stored.stored_count),
            "droppedCount": str(stored.dropped_count),
            "queueOffset": str(stored.queue_offset),
        }
        self._when_durable(request, peer, stored.physical_end, Response(fields=answer))
        return LATER

    # Batches that become visible together.

    def handle_commit(self, request: Request, peer: Peer) -> Answer:
        fields = HeaderFields(request)
        sink_id, batch_id = _batch_of(fields)
        participants = decode_participants(request.body)
        decided = self._ledger.status(sink_id).decided
        if decided is not None and batch_id < decided.batch_id:
            self._when_durable(request, peer, self._end_of(sink_id), _counted(0, 0))
        elif fields.boolean("decide"):
            self._require_coordinator(sink_id, batch_id)
            status = self._ledger.plan_decision(sink_id, batch_id, participants)
            if status is not None:
                with _refusals():
                    self._sends.remember(sink_id, status)
            self._when_durable(request, peer, self._end_of(sink_id), _counted(0, 0))
        else:
            self._require_decided(sink_id, batch_id)
            self._ledger.require_agreement(sink_id, batch_id, participants)
            attempts = participants.get(self._settings.config.broker_name, {})
            self._transactions.commit(sink_id, batch_id, attempts, self._told(request, peer))
        return LATER

    def _coordinator(self, sink_id: str) -> str:
        """The coordinator of the batch that is known here; this broker if no other was named."""
        layout = self._ledger.status(sink_id).layout
        mine = self._settings.config.broker_name
        return mine if layout is None else layout.coordinator or mine

    def _require_coordinator(self, sink_id: str, batch_id: int) -> None:
        """A batch is decided at one place."""
        layout, name = self._ledger.status(sink_id).layout, self._coordinator(sink_id)
        is_begun = layout is not None and layout.batch_id == batch_id
        if is_begun and name != self._settings.config.broker_name:
            raise RequestRejected(
                ResponseCode.ILLEGAL_OPERATION,
                f"batch {batch_id} of sink {sink_id!r} is decided at broker {name!r}; ask there",
            )

    def _require_decided(self, sink_id: str, batch_id: int) -> None:
        """Only the coordinator can know: it must not commit a batch without its sink's decision."""
        status = self._ledger.status(sink_id)
        if self._coordinator(sink_id) != self._settings.config.broker_name:
            return
        if status.known and (status.decided is None or status.decided.batch_id < batch_id):
            raise RequestRejected(
                ResponseCode.ILLEGAL_OPERATION,
                f"batch {batch_id} of sink {sink_id!r} is not decided; "
                "send the commit with decide=true first",
            )

    def handle_abort(self, request: Request, peer: Peer) -> Answer:
        sink_id, batch_id = _batch_of(HeaderFields(request))
        attempts = decode_attempts(request.body) - self._decided_attempts(sink_id, batch_id)
        self._transactions.abort(sink_id, batch_id, attempts, self._told(request, peer))
        return LATER

    def _decided_attempts(self, sink_id: str, batch_id: int) -> frozenset[str]:
        decided = self._ledger.status(sink_id).decided
        if decided is None or decided.batch_id != batch_id:
            return frozenset()
        mine = decided.participants.get(self._settings.config.broker_name, {})
        return frozenset(mine.values())

    def _end_of(self, sink_id: str) -> int:
        return self._ledger.appended_end(sink_id)

    # Answering.

    def _told(self, request: Request, peer: Peer) -> Told:
        def told(ended: Ended | StoreError) -> None:
            if isinstance(ended, StoreError):
                peer.reply(request, Response(_code_of(ended), str(ended)))
            else:
                answer = _counted(ended.committed, ended.rolled_back)
                self._when_durable(request, peer, ended.physical_end, answer)

        return told

    def _when_durable(
        self, request: Request, peer: Peer, physical_end: int, answer: Response
    ) -> None:
        """Answer when the log is as safe as promised, which may be now."""

        def release(code: ResponseCode) -> None:
            remark = None if code is ResponseCode.SUCCESS else _UNSAFE
            fields = (answer.fields or {}) | doubt_fields(code) or answer.fields
            peer.reply(request, Response(code, remark, fields, answer.body))

        if self._store.poisoned is not None:
            release(ResponseCode.SERVICE_NOT_AVAILABLE)
        elif physical_end <= self._store.acknowledged_end:
            release(ResponseCode.SUCCESS)
        else:
            self._answers.when_safe(peer, physical_end, release)


_UNSAFE = "stored, but the log could not be made durable in time; send it again"


@contextmanager
def _refusals() -> Iterator[None]:
    """Answer with the store's refusal."""
    try:
        yield
    except StoreError as error:
        raise RequestRejected(_code_of(error), str(error)) from error


def _code_of(error: StoreError) -> int:
    if isinstance(error, MessageIllegal):
        return ResponseCode.MESSAGE_ILLEGAL
    return ResponseCode.SERVICE_NOT_AVAILABLE


def _batch_of(fields: HeaderFields) -> tuple[str, int]:
    sink_id, batch_id = check_sink_id(fields.text("sinkId")), fields.long("batchId")
    if batch_id < 0:
        raise RequestRejected(
            ResponseCode.INVALID_PARAMETER, f"batchId={batch_id}: batches are counted from 0"
        )
    return sink_id, batch_id


def _counted(committed: int, rolled_back: int) -> Response:
    return Response(body=encode_counts(committed, rolled_back))
