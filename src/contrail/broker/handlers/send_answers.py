"""What producers are told: the answers to a run of sends, at once or when it is durable.

Answers without fields of their own are laid out by a kernel, those of a connection back to back;
the others, and every refusal, are made one by one.
"""

from __future__ import annotations

import logging

from contrail.broker.services.acknowledgements import Acknowledgements
from contrail.broker.services.send_admission import Admitted
from contrail.broker.state.runtime_settings import RuntimeSettings
from contrail.broker.state.stats import BrokerStats
from contrail.clock import Clock
from contrail.errors import BatchIllegal, MessageIllegal, StoreError
from contrail.kernels.answer_build import batch_answer, part_answers
from contrail.kernels.send_runs import Item
from contrail.kernels.send_tally import count_codes
from contrail.model.message_id import encode_offset_message_id
from contrail.model.topic import QueueType
from contrail.protocol.codes import ResponseCode
from contrail.protocol.command import FLAG_ONE_WAY, Response
from contrail.store import AppendedRun
from contrail.wire.connection import Connection
from contrail.wire.request_times import RequestTimes

_log = logging.getLogger(__name__)

Part = tuple[Connection, int, int, Admitted | None]
"""Neighbouring messages of one connection in a run: who sent them, the first, where they end. Tidy
ones are None at last: the kernel builds their answers."""


class SendAnswers:
    """Answers sends that were stored, and those that were not."""

    def __init__(
        self,
        settings: RuntimeSettings,
        acknowledgements: Acknowledgements,
        stats: BrokerStats,
        clock: Clock,
        *,
        store_host: bytes,
        waits_for_flush: bool,
        times: RequestTimes | None = None,
    ) -> None:
        self._settings = settings
        self._acknowledgements = acknowledgements
        self._stats = stats
        self._clock = clock
        self._store_host = store_host
        self.host_digits = store_host.hex().upper().encode()
        self._waits_for_flush = waits_for_flush
        self._times = times
        self._extra = b""
        self._extra_epoch = -1

    def promise(self, items: list[Item], parts: list[Part], run: AppendedRun) -> None:
        """Answer at once, or when the run is durable."""
        arrived_s = self.arrived_s
        if not self._waits_for_flush:
            self.answer_parts(items, parts, run, ResponseCode.SUCCESS, arrived_s)
            return
        hurried = [part for part in parts if part[3] and not part[3].waits_for_flush]
        waiting = [part for part in parts if not (part[3] and not part[3].waits_for_flush)]
        self.answer_parts(items, hurried, run, ResponseCode.SUCCESS, arrived_s)
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
                self.refuse_unflushed(items, waiting)
            else:
                self.answer_parts(items, waiting, run, code, arrived_s)

        self._acknowledgements.park(run.physical_end, self._clock.elapsed_ms(), release)

    @property
    def arrived_s(self) -> float:
        """When what this tick answers came in; only if requests are timed."""
        return 0.0 if self._times is None else self._times.arrived_s

    def note_times(self, items: list[Item], parts: list[Part], code: int, arrived_s: float) -> None:
        """One look at the clock for all of them."""
        if self._times is not None:
            counts = count_codes(items, parts)
            self._times.answered_sends(counts, code, arrived_s)

    def answer_parts(
        self,
        items: list[Item],
        parts: list[Part],
        run: AppendedRun,
        code: ResponseCode,
        arrived_s: float,
    ) -> None:
        self.note_times(items, parts, code, arrived_s)
        if code is not ResponseCode.SUCCESS:
            for part in parts:
                self._answer_singly(part, items, run, code)
            return
        answers = part_answers(
            items,
            parts,
            run.queue_offsets,
            run.physical_offsets,
            self.host_digits,
            self.extra_fields(),
        )
        for part, answer in zip(parts, answers, strict=True):
            if answer is None:
                self._answer_singly(part, items, run, code)
            elif answer:
                part[0].send_whole(answer)

    def _answer_singly(
        self, part: Part, items: list[Item], run: AppendedRun, code: ResponseCode
    ) -> None:
        for index in range(part[1], part[2]):
            self._answer_one(part, items[index], run, index, code)

    def _answer_one(
        self, part: Part, item: Item, run: AppendedRun, index: int, code: ResponseCode
    ) -> None:
        admitted = part[3]
        places = run.physical_offsets[index : index + 1]
        if admitted is not None and admitted.batch is not None:
            places = run.physical_offsets
        queue_id = item[11][1] if admitted is None else admitted.queue_id
        if code is ResponseCode.SUCCESS and _has_laid_out_answer(item, admitted):
            if not item[1] & FLAG_ONE_WAY:
                queue_offset = run.queue_offsets[index]
                digits, extra = self.host_digits, self.extra_fields()
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
        self.tell(part[0], item[0], item[1], Response(code, None, fields))

    def refuse_all(self, items: list[Item], parts: list[Part], error: StoreError) -> None:
        self._stats.put_failed(len(items))
        response = self.refused(_code_of(error), str(error))
        self.note_times(items, parts, response.code, self.arrived_s)
        if isinstance(error, BatchIllegal):
            # RocketMQ fails on such a body before it has an answer to put its fields into.
            response.fields = None
        for peer, first, last, _ in parts:
            for item in items[first:last]:
                self.tell(peer, item[0], item[1], response)

    def refuse_failed(self, items: list[Item], parts: list[Part], error: Exception) -> None:
        """Tell every producer of sends whose append failed by a bug."""
        _log.error("%d sends could not be appended", len(items), exc_info=error)
        self.refuse_all(items, parts, StoreError(f"{type(error).__name__}: {error}"))

    def refuse_unflushed(self, items: list[Item], parts: list[Part]) -> None:
        """Tell every producer of sends that were written and may be lost."""
        self.refuse_all(items, parts, StoreError("the log could not be made durable"))

    def refused(self, code: int, remark: str) -> Response:
        return Response(code, remark, self._region_fields())

    def tell(self, peer: Connection, opaque: int, flag: int, response: Response) -> None:
        if not flag & FLAG_ONE_WAY:
            peer.answer(opaque, response)

    def _region_fields(self) -> dict[str, str]:
        config = self._settings.config
        return {"MSG_REGION": config.region, "TRACE_ON": "true" if config.trace_on else "false"}

    def extra_fields(self) -> bytes:
        epoch = self._settings.epoch
        if epoch != self._extra_epoch:
            self._extra_epoch = epoch
            pairs = self._region_fields().items()
            self._extra = ",".join(f'"{name}":"{value}"' for name, value in pairs).encode()
        return self._extra


def _slim(item: Item) -> Item:
    """A send without its body and properties."""
    draft = item[11]
    return (*item[:11], (draft[0], draft[1]))


def parts_of(peers: list[Connection], count: int, first: int = 0) -> list[Part]:
    """The parts of a chunk that begins there: all of it one connection's, or a message of each."""
    if len(peers) == 1:
        return [(peers[0], first, first + count, None)]
    return [(peer, at, at + 1, None) for at, peer in enumerate(peers, first)]


def _has_laid_out_answer(item: Item, admitted: Admitted | None) -> bool:
    """Whether the kernel can write it: no fields of its own, and a key that needs no escape."""
    is_laid_out = admitted is None or (
        admitted.batch is not QueueType.BATCH and admitted.recall_handle is None
    )
    return is_laid_out and (not item[10] or item[10].isalnum())


def _two_way_count(items: list[Item], part: Part) -> int:
    return sum(not items[index][1] & FLAG_ONE_WAY for index in range(part[1], part[2]))


def _code_of(error: StoreError) -> int:
    if isinstance(error, BatchIllegal):
        return ResponseCode.SYSTEM_ERROR
    if isinstance(error, MessageIllegal):
        return ResponseCode.MESSAGE_ILLEGAL
    return ResponseCode.SERVICE_NOT_AVAILABLE
