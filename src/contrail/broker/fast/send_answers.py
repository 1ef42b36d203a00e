"""The answers to sends that were stored as rows or as batches, laid out by kernels.

What did not go well is told by ``handlers.send_answers``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from contrail.broker.fast.stored_rows import (
    count_chunk_codes,
    is_two_way,
    run_of,
    slim_items,
)
from contrail.broker.handlers.send_answers import Part, SendAnswers, parts_of
from contrail.broker.services.acknowledgements import Acknowledgements
from contrail.broker.services.send_admission import Admitted
from contrail.broker.state.runtime_settings import RuntimeSettings
from contrail.clock import Clock
from contrail.kernels.answer_build import batch_answer, plain_answers, plain_answers_singly
from contrail.kernels.plain_sends import two_way_count
from contrail.kernels.send_runs import Item
from contrail.model.topic import QueueType
from contrail.protocol.codes import ResponseCode
from contrail.protocol.command import FLAG_ONE_WAY
from contrail.store import AppendedBatches, AppendedChunks, AppendedRun
from contrail.wire.connection import Connection
from contrail.wire.request_times import RequestTimes

if TYPE_CHECKING:
    from contrail.kernels.batch_sends import Place
    from contrail.kernels.plain_sends import Chunk

    SentChunk = tuple[list[Connection], Chunk]
    """Who sent it, and what: one connection all of it, or each of several one message."""

StoredBatch = tuple[Connection, Item, "Place"]
"""Who sent a batch, the batch without its body, and where it landed."""


class RowAnswers:
    """Answers sends that were stored as rows or as batches."""

    def __init__(
        self,
        general: SendAnswers,
        settings: RuntimeSettings,
        acknowledgements: Acknowledgements,
        clock: Clock,
        *,
        waits_for_flush: bool,
        times: RequestTimes | None = None,
    ) -> None:
        self._general = general
        self._settings = settings
        self._acknowledgements = acknowledgements
        self._clock = clock
        self._host_digits = general.host_digits
        self._waits_for_flush = waits_for_flush
        self._times = times
        self._extra = b""
        self._extra_epoch = -1

    def promise_rows(self, chunks: list[SentChunk], appended: AppendedChunks) -> None:
        """Answer rows at once, or when they are durable."""
        arrived_s = 0.0 if self._times is None else self._times.arrived_s
        if self._waits_for_flush:
            self._promise_rows(chunks, appended, arrived_s)
        else:
            self._answer_rows(chunks, appended, ResponseCode.SUCCESS, arrived_s)

    def _promise_rows(
        self, chunks: list[SentChunk], appended: AppendedChunks, arrived_s: float
    ) -> None:
        # Bodies are in the log; what waits keeps only what its answers need.
        waiting: list[SentChunk] = [(peers, (b"", *chunk[1:])) for peers, chunk in chunks]
        counts = [count for sent in waiting for count in _two_way_counts(*sent)]
        for peer, count in counts:
            peer.in_flight_count += count

        def release(code: ResponseCode) -> None:
            for peer, count in counts:
                peer.in_flight_count -= count
            self._answer_rows(waiting, appended, code, arrived_s)

        self._acknowledgements.park(appended.physical_end, self._clock.elapsed_ms(), release)

    def answer_at_once(
        self, peer: Connection, chunk: Chunk, appended: AppendedChunks, arrived_s: float
    ) -> None:
        """As ``promise_rows``, for the rows of one connection while nobody else waits."""
        if self._waits_for_flush:
            self._promise_rows([([peer], chunk)], appended, arrived_s)
            return
        _, count, rows, texts, _, _ = chunk
        if self._times is not None:
            self._times.answered_plain(count, two_way_count(chunk), arrived_s)
        extra = self._extra if self._settings.epoch == self._extra_epoch else self._fields()
        answer = plain_answers(count, rows, texts, self._host_digits, extra)
        if answer:
            peer.send_at_once(answer)

    def _answer_rows(
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
            self._times.answered_sends(count_chunk_codes(chunks), code, arrived_s)
        extra = self._extra if self._settings.epoch == self._extra_epoch else self._fields()
        is_only_one = len(chunks) == 1
        for peers, (_, count, rows, texts, _, _) in chunks:
            if len(peers) == 1:
                answer = plain_answers(count, rows, texts, self._host_digits, extra)
                if answer and is_only_one:
                    peers[0].send_at_once(answer)
                elif answer:
                    peers[0].send_whole(answer)
                continue
            answers = plain_answers_singly(count, rows, texts, self._host_digits, extra)
            for peer, answer in zip(peers, answers, strict=True):
                if answer:
                    peer.send_at_once(answer)

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
            parts = parts_of(peers, len(items))
            if code is ResponseCode.SERVICE_NOT_AVAILABLE:
                self._general.refuse_unflushed(items, parts)
            else:
                self._general.answer_parts(items, parts, run, code, arrived_s)

    def promise_batches(
        self, sent: list[tuple[Connection, Item]], appended: AppendedBatches
    ) -> None:
        """As ``promise_rows``, for split batches."""
        arrived_s = self._general.arrived_s
        # Bodies are in the log; what waits keeps only what its answers need.
        stored = [
            (peer, (*item[:11], item[11][:2]), place)
            for (peer, item), place in zip(sent, appended.places, strict=True)
        ]
        if not self._waits_for_flush:
            self._answer_batches(stored, arrived_s)
            return
        for peer, item, _ in stored:
            peer.in_flight_count += not item[1] & FLAG_ONE_WAY
        store_timestamp_ms, physical_end = appended.store_timestamp_ms, appended.physical_end

        def release(code: ResponseCode) -> None:
            for peer, item, _ in stored:
                peer.in_flight_count -= not item[1] & FLAG_ONE_WAY
            if code is ResponseCode.SUCCESS:
                self._answer_batches(stored, arrived_s)
            elif code is ResponseCode.SERVICE_NOT_AVAILABLE:
                items, parts = _batch_parts([(peer, item) for peer, item, _ in stored])
                self._general.refuse_unflushed(items, parts)
            else:
                for peer, item, (queue_offset, starts, _) in stored:
                    run = AppendedRun([queue_offset], starts, store_timestamp_ms, physical_end)
                    self._general.answer_parts([item], [_part_of(peer, item)], run, code, arrived_s)

        self._acknowledgements.park(physical_end, self._clock.elapsed_ms(), release)

    def _answer_batches(self, stored: list[StoredBatch], arrived_s: float) -> None:
        items = [item for _, item, _ in stored]
        parts: list[Part] = [(stored[0][0], 0, len(items), None)]
        self._general.note_times(items, parts, ResponseCode.SUCCESS, arrived_s)
        extra = self._fields()
        for peer, item, (queue_offset, starts, _) in stored:
            if not item[1] & FLAG_ONE_WAY:
                peer.send_whole(
                    batch_answer(
                        item[0],
                        item[11][1],
                        queue_offset,
                        starts,
                        item[10],
                        self._host_digits,
                        extra,
                    )
                )

    def refuse_failed_batches(self, sent: list[tuple[Connection, Item]], error: Exception) -> None:
        """Tell every producer of batches whose append failed by a bug."""
        self._general.refuse_failed(*_batch_parts(sent), error)

    def _fields(self) -> bytes:
        """The fields that are the same in all answers; they change with the settings."""
        self._extra = self._general.extra_fields()
        self._extra_epoch = self._settings.epoch
        return self._extra


def _two_way_counts(peers: list[Connection], chunk: Chunk) -> list[tuple[Connection, int]]:
    """How many messages of a chunk each connection waits for."""
    if len(peers) == 1:
        return [(peers[0], two_way_count(chunk))]
    return [(peer, int(is_two_way(chunk, at))) for at, peer in enumerate(peers)]


def _batch_parts(sent: list[tuple[Connection, Item]]) -> tuple[list[Item], list[Part]]:
    """Batches as the general way of refusing wants to see them."""
    return [item for _, item in sent], parts_of([peer for peer, _ in sent], len(sent))


def _part_of(peer: Connection, item: Item) -> Part:
    """A batch as the general way of answering wants to see it."""
    admitted = Admitted(
        draft=item[11],
        unique_key=item[10].decode(),
        waits_for_flush=True,
        queue_id=item[11][1],
        batch=QueueType.SIMPLE,
    )
    return (peer, 0, 1, admitted)
