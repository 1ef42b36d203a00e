"""Answers to sends, held until their messages are as safe as promised; and refusals.

An answer without fields of its own is laid out by a kernel; the others, and every refusal, are
encoded from a ``Response``.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import NamedTuple

from contrail.broker.services.acknowledgements import Acknowledgements, doubt_fields
from contrail.broker.state.runtime_settings import RuntimeSettings
from contrail.broker.state.stats import BrokerStats
from contrail.errors import BatchIllegal, MessageIllegal, StoreError
from contrail.kernels.answer_build import batch_answer
from contrail.model.message_id import encode_offset_message_id
from contrail.model.topic import QueueType
from contrail.protocol.codes import ResponseCode
from contrail.protocol.command import FLAG_ONE_WAY, Response
from contrail.protocol.frames import SendRequest
from contrail.store import AppendedRun
from contrail.wire.connection import Connection
from contrail.wire.request_times import RequestTimes

_log = logging.getLogger(__name__)
_IN_DOUBT_REMARK = "no majority of the group has answered: the message may still be committed"


class Sent(NamedTuple):
    """A send that may be stored: the parts of it that its answer needs."""

    peer: Connection
    opaque: int
    flag: int
    code: int
    unique_key: bytes
    # The queue that the producer asked for; the message may wait in another one.
    queue_id: int
    # None for one message; otherwise the batch was split, or kept whole in a BatchCQ topic.
    batch: QueueType | None = None
    recall_handle: str | None = None
    # Whether the producer wants the message to be safe before it is answered.
    waits: bool = True

    @property
    def is_two_way(self) -> bool:
        return not self.flag & FLAG_ONE_WAY


class Stored(NamedTuple):
    """A send whose message, or each message of its batch, was stored at these places."""

    sent: Sent
    queue_offset: int
    physical_offsets: list[int]


def stored_run(sents: Sequence[Sent], run: AppendedRun) -> list[Stored]:
    """Single sends that were appended as one run."""
    return [
        Stored(sent, queue_offset, [physical_offset])
        for sent, queue_offset, physical_offset in zip(
            sents, run.queue_offsets, run.physical_offsets, strict=True
        )
    ]


class SendAnswers:
    """Answers sends that were stored, and those that were not."""

    def __init__(
        self,
        settings: RuntimeSettings,
        acknowledgements: Acknowledgements,
        stats: BrokerStats,
        *,
        store_host: bytes,
        times: RequestTimes | None = None,
    ) -> None:
        self._settings = settings
        self._acknowledgements = acknowledgements
        self._stats = stats
        self._store_host = store_host
        self.host_digits = store_host.hex().upper().encode()
        self._times = times
        self._extra = b""
        self._extra_epoch = -1

    def promise(self, stored: list[Stored], physical_end: int) -> None:
        """Answer now, or when the log is acknowledged up to ``physical_end``."""
        arrived_s = self.arrived_s
        if not self._acknowledgements.waits:
            self.answer(stored, ResponseCode.SUCCESS, arrived_s)
            return
        waits_for_all = self._acknowledgements.waits_for_all
        waiting = [one for one in stored if one.sent.waits or waits_for_all]
        if len(waiting) < len(stored):
            hurried = [one for one in stored if not one.sent.waits]
            self.answer(hurried, ResponseCode.SUCCESS, arrived_s)
        if not waiting:
            return

        def release(code: ResponseCode) -> None:
            self.answer(waiting, code, arrived_s)

        counts = [(one.sent.peer, int(one.sent.is_two_way)) for one in waiting]
        self._acknowledgements.hold(physical_end, counts, release)

    @property
    def arrived_s(self) -> float:
        """When the sends of this tick arrived; only if requests are timed."""
        return 0.0 if self._times is None else self._times.arrived_s

    def note_times(self, sents: Sequence[Sent | SendRequest], code: int, arrived_s: float) -> None:
        """One look at the clock for all of them."""
        if self._times is None:
            return
        counts: dict[int, int] = {}
        for sent in sents:
            # Twice the request code, and one more for those that no producer waits for.
            key = sent.code * 2 + (1 if sent.flag & FLAG_ONE_WAY else 0)
            counts[key] = counts.get(key, 0) + 1
        self._times.answered_sends(counts, code, arrived_s)

    def answer(self, stored: Sequence[Stored], code: ResponseCode, arrived_s: float) -> None:
        """Answer sends that were stored, and are now as safe as ``code`` says."""
        if code is ResponseCode.SERVICE_NOT_AVAILABLE:
            error = StoreError("the log could not be made durable")
            self.refuse_all([one.sent for one in stored], error)
            return
        self.note_times([one.sent for one in stored], code, arrived_s)
        extra = self.extra_fields()
        for sent, queue_offset, physical_offsets in stored:
            if sent.flag & FLAG_ONE_WAY:
                continue
            if code is not ResponseCode.SUCCESS or not _has_laid_out_answer(sent):
                self._answer_with_fields(sent, queue_offset, physical_offsets, code)
                continue
            sent.peer.send_whole(
                batch_answer(
                    sent.opaque,
                    sent.queue_id,
                    queue_offset,
                    physical_offsets,
                    sent.unique_key,
                    self.host_digits,
                    extra,
                )
            )

    def _answer_with_fields(
        self, sent: Sent, queue_offset: int, physical_offsets: list[int], code: ResponseCode
    ) -> None:
        fields = self._region_fields()
        if sent.batch is QueueType.BATCH:
            fields["batchUniqId"] = sent.unique_key.decode("utf-8", "replace")
        host = self._store_host
        fields |= {
            "msgId": ",".join(encode_offset_message_id(host, at) for at in physical_offsets),
            "queueId": str(sent.queue_id),
            "queueOffset": str(queue_offset),
        }
        if sent.unique_key:
            fields["transactionId"] = sent.unique_key.decode("utf-8", "replace")
        if sent.recall_handle is not None:
            fields["recallHandle"] = sent.recall_handle
        doubt = doubt_fields(code)
        remark = _IN_DOUBT_REMARK if doubt else None
        sent.peer.answer(sent.opaque, Response(code, remark, fields | doubt))

    def refuse_all(self, sents: Sequence[Sent], error: StoreError) -> None:
        self._stats.put_failed(len(sents))
        response = self.refused(_code_of(error), str(error))
        self.note_times(sents, response.code, self.arrived_s)
        if isinstance(error, BatchIllegal):
            # RocketMQ fails on such a body before it has an answer to put its fields into.
            response.fields = None
        for sent in sents:
            self.tell(sent.peer, sent.opaque, sent.flag, response)

    def refuse_failed(self, sents: Sequence[Sent], error: Exception) -> None:
        """Tell every producer of sends whose append failed by a bug."""
        _log.error("%d sends could not be appended", len(sents), exc_info=error)
        self.refuse_all(sents, StoreError(f"{type(error).__name__}: {error}"))

    def refused(self, code: int, remark: str) -> Response:
        return Response(code, remark, self._region_fields())

    def tell(self, peer: Connection, opaque: int, flag: int, response: Response) -> None:
        if not flag & FLAG_ONE_WAY:
            peer.answer(opaque, response)

    def _region_fields(self) -> dict[str, str]:
        config = self._settings.config
        return {"MSG_REGION": config.region, "TRACE_ON": "true" if config.trace_on else "false"}

    def extra_fields(self) -> bytes:
        """The fields that are the same in all answers; they change with the settings."""
        epoch = self._settings.epoch
        if epoch != self._extra_epoch:
            self._extra_epoch = epoch
            pairs = self._region_fields().items()
            self._extra = ",".join(f'"{name}":"{value}"' for name, value in pairs).encode()
        return self._extra


def _has_laid_out_answer(sent: Sent) -> bool:
    """Whether the kernel can write it: no fields of its own, and a key that needs no escape."""
    if sent.batch is QueueType.BATCH or sent.recall_handle is not None:
        return False
    return not sent.unique_key or sent.unique_key.isalnum()


def _code_of(error: StoreError) -> int:
    if isinstance(error, BatchIllegal):
        return ResponseCode.SYSTEM_ERROR
    if isinstance(error, MessageIllegal):
        return ResponseCode.MESSAGE_ILLEGAL
    return ResponseCode.SERVICE_NOT_AVAILABLE
