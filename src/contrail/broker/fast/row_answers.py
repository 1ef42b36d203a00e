"""Answers to sends that were stored as rows, laid out by kernels.

A refusal, and an answer of another code than SUCCESS, is given by ``handlers.send_answers``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from contrail.broker.handlers.send_answers import SendAnswers, Sent, Stored
from contrail.broker.services.acknowledgements import Acknowledgements
from contrail.broker.state.runtime_settings import RuntimeSettings
from contrail.kernels import send_rows
from contrail.kernels.answer_build import row_answers, row_answers_singly
from contrail.kernels.send_records import two_way_count
from contrail.protocol.codes import RequestCode, ResponseCode
from contrail.wire.connection import Connection
from contrail.wire.request_times import RequestTimes

if TYPE_CHECKING:
    from contrail.kernels.send_records import Chunk

    SentChunk = tuple[list[Connection], Chunk]
    """Senders and their sends: one connection sent all of them, or each of several sent one."""

# How request times name two-way sends of this code; those that are one-way are named one higher.
_SEND = int(RequestCode.SEND_MESSAGE_V2) * 2


class RowAnswers:
    """Answers sends that were stored as rows."""

    def __init__(
        self,
        general: SendAnswers,
        settings: RuntimeSettings,
        acknowledgements: Acknowledgements,
        *,
        times: RequestTimes | None = None,
    ) -> None:
        self._general = general
        self._settings = settings
        self._acknowledgements = acknowledgements
        self._host_digits = general.host_digits
        self._times = times
        self._extra = b""
        self._extra_epoch = -1

    def promise(self, chunks: list[SentChunk], physical_end: int) -> None:
        """Answer now, or when the log is acknowledged up to ``physical_end``."""
        arrived_s = 0.0 if self._times is None else self._times.arrived_s
        if self._acknowledgements.waits:
            self._hold(chunks, physical_end, arrived_s)
        else:
            self._answer(chunks, ResponseCode.SUCCESS, arrived_s)

    def _hold(self, chunks: list[SentChunk], physical_end: int, arrived_s: float) -> None:
        # Bodies are in the log; a held answer keeps only the numbers that it needs.
        waiting: list[SentChunk] = [(peers, (b"", *chunk[1:])) for peers, chunk in chunks]
        counts = [count for sent in waiting for count in _two_way_counts(*sent)]

        def release(code: ResponseCode) -> None:
            self._answer(waiting, code, arrived_s)

        self._acknowledgements.hold(physical_end, counts, release)

    def promise_one(
        self, peer: Connection, chunk: Chunk, physical_end: int, arrived_s: float
    ) -> None:
        """As ``promise``, for the rows of one connection while nobody else waits."""
        if self._acknowledgements.waits:
            self._hold([([peer], chunk)], physical_end, arrived_s)
            return
        _, count, rows, texts, _, _ = chunk
        if self._times is not None:
            self._times.answered_rows(count, two_way_count(chunk), arrived_s)
        extra = self._extra if self._settings.epoch == self._extra_epoch else self._fields()
        answer = row_answers(count, rows, texts, self._host_digits, extra)
        if answer:
            peer.send_now(answer)

    def _answer(self, chunks: list[SentChunk], code: ResponseCode, arrived_s: float) -> None:
        if code is not ResponseCode.SUCCESS:
            for peers, chunk in chunks:
                self._general.answer(stored_rows(peers, chunk), code, arrived_s)
            return
        if self._times is not None:
            self._times.answered_sends(_count_codes(chunks), code, arrived_s)
        extra = self._extra if self._settings.epoch == self._extra_epoch else self._fields()
        is_only_one = len(chunks) == 1
        for peers, (_, count, rows, texts, _, _) in chunks:
            if len(peers) == 1:
                answer = row_answers(count, rows, texts, self._host_digits, extra)
                if answer and is_only_one:
                    peers[0].send_now(answer)
                elif answer:
                    peers[0].send_whole(answer)
                continue
            answers = row_answers_singly(count, rows, texts, self._host_digits, extra)
            for peer, answer in zip(peers, answers, strict=True):
                if answer:
                    peer.send_now(answer)

    def refuse_failed(
        self, chunks: list[SentChunk], error: Exception, batches: Sequence[Sent] = ()
    ) -> None:
        """Tell every producer of rows, or of batches, whose append failed by a bug."""
        stored = [one for peers, chunk in chunks for one in stored_rows(peers, chunk)]
        self._general.refuse_failed([*(one.sent for one in stored), *batches], error)

    def _fields(self) -> bytes:
        """The fields that are the same in all answers; they change with the settings."""
        self._extra = self._general.extra_fields()
        self._extra_epoch = self._settings.epoch
        return self._extra


def stored_rows(peers: list[Connection], chunk: Chunk) -> list[Stored]:
    """The sends of a chunk as the general way answers them."""
    stored: list[Stored] = []
    _, count, rows, texts, _, _ = chunk
    for index in range(count):
        at = index * send_rows.ROW_NUMBERS
        sent = Sent(
            peers[0] if len(peers) == 1 else peers[index],
            rows[at + send_rows.OPAQUE],
            rows[at + send_rows.ONE_WAY],
            RequestCode.SEND_MESSAGE_V2,
            bytes(texts[rows[at + send_rows.KEY_AT] : rows[at + send_rows.KEY_END]]),
            rows[at + send_rows.QUEUE_ID],
        )
        places = [rows[at + send_rows.PHYSICAL_OFFSET]]
        stored.append(Stored(sent, rows[at + send_rows.QUEUE_OFFSET], places))
    return stored


def _two_way_counts(peers: list[Connection], chunk: Chunk) -> list[tuple[Connection, int]]:
    """How many messages of a chunk each connection waits for."""
    if len(peers) == 1:
        return [(peers[0], two_way_count(chunk))]
    rows, step = chunk[2], send_rows.ROW_NUMBERS
    return [(peer, int(not rows[at * step + send_rows.ONE_WAY])) for at, peer in enumerate(peers)]


def _count_codes(sent: Sequence[tuple[object, Chunk]]) -> dict[int, int]:
    """How many sends came with each request code; see ``RequestTimes.answered_sends``."""
    both = two_way = 0
    for _, chunk in sent:
        both += chunk[1]
        two_way += two_way_count(chunk)
    if two_way == both:
        return {_SEND: two_way}
    return {_SEND: two_way, _SEND + 1: both - two_way} if two_way else {_SEND + 1: both}
