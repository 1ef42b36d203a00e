"""Tidy batches: those of one tick are split, written, counted and answered together.

A batch is tidy when nothing has to be decided about it (``SendAdmission.splitting_topics``) and its
messages can be stored as they came (``kernels.batch_sends``). Anything else, and whatever goes
wrong on the way, is for the general way of ``SendHandler``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from contrail.broker.services.acknowledgements import Acknowledgements
from contrail.broker.services.send_admission import Admitted, SendAdmission
from contrail.broker.state.stats import BrokerStats
from contrail.clock import Clock
from contrail.errors import StoreError
from contrail.kernels.answer_build import batch_answer
from contrail.kernels.batch_sends import count_batches
from contrail.kernels.send_runs import Item
from contrail.model.topic import QueueType
from contrail.protocol.codes import ResponseCode
from contrail.protocol.command import FLAG_ONE_WAY
from contrail.store.log import MessageStore
from contrail.store.services.append import AppendedBatches, AppendedRun
from contrail.wire.connection import Connection

if TYPE_CHECKING:
    from contrail.kernels.batch_sends import Place

_log = logging.getLogger(__name__)

# Compressed bodies; any other bit needs a second look: transactions, inner batches.
_PLAIN_FLAGS = 0x701

_Part = tuple[Connection, int, int, Admitted | None]
_Stored = tuple[Connection, Item, "Place"]
"""Who sent a batch, the batch without its body, and where it landed."""


class GeneralWay(NamedTuple):
    """What ``SendHandler`` does for batches that are not tidy, or not any more."""

    take: Callable[[Connection, Item], None]
    answer: Callable[[list[Item], list[_Part], AppendedRun, ResponseCode, float], None]
    refuse: Callable[[list[Item], list[_Part], StoreError], None]
    note_times: Callable[[list[Item], list[_Part], int, float], None]
    arrived_s: Callable[[], float]
    extra_fields: Callable[[], bytes]


class BatchSends:
    """The tidy batches of a tick."""

    def __init__(
        self,
        admission: SendAdmission,
        store: MessageStore,
        stats: BrokerStats,
        acknowledgements: Acknowledgements,
        clock: Clock,
        general: GeneralWay,
        *,
        host_digits: bytes,
        waits_for_flush: bool,
    ) -> None:
        self._admission = admission
        self._store = store
        self._stats = stats
        self._acknowledgements = acknowledgements
        self._clock = clock
        self._general = general
        self._host_digits = host_digits
        self._waits_for_flush = waits_for_flush
        self._sent: list[tuple[Connection, Item]] = []

    def count(self, items: list[Item], at: int) -> int:
        """How many sends from there on are batches that may be collected."""
        return count_batches(items, at, self._admission.splitting_topics(), _PLAIN_FLAGS)

    def take(self, peer: Connection, items: list[Item]) -> None:
        """Collect batches of one connection."""
        self._sent += [(peer, item) for item in items]

    def append(self) -> None:
        """Append everything collected so far and answer, or park the answers."""
        if not self._sent:
            return
        sent, self._sent = self._sent, []
        drafts = [item[11] for _, item in sent]
        try:
            appended = self._store.append_batches(drafts)
        except StoreError:
            # It happens again on the general way, which tells everybody.
            appended = None
        except Exception as error:
            _log.exception("%d batches could not be appended", len(sent))
            self._refuse(sent, StoreError(f"{type(error).__name__}: {error}"))
            return
        if appended is None:
            for peer, item in sent:
                self._general.take(peer, item)
            return
        self._stats.stored_batches(drafts, appended.places, appended.physical_end)
        self._promise(sent, appended)

    def _promise(self, sent: list[tuple[Connection, Item]], appended: AppendedBatches) -> None:
        """Answer at once, or when the batches are durable."""
        arrived_s = self._general.arrived_s()
        # Bodies are in the log; what waits keeps only what its answers need.
        stored = [
            (peer, (*item[:11], item[11][:2]), place)
            for (peer, item), place in zip(sent, appended.places, strict=True)
        ]
        if not self._waits_for_flush:
            self._answer(stored, arrived_s)
            return
        for peer, item, _ in stored:
            peer.in_flight_count += not item[1] & FLAG_ONE_WAY
        store_timestamp_ms, physical_end = appended.store_timestamp_ms, appended.physical_end

        def release(code: ResponseCode) -> None:
            for peer, item, _ in stored:
                peer.in_flight_count -= not item[1] & FLAG_ONE_WAY
            if code is ResponseCode.SUCCESS:
                self._answer(stored, arrived_s)
            elif code is ResponseCode.SERVICE_NOT_AVAILABLE:
                failure = StoreError("the log could not be made durable")
                self._refuse([(peer, item) for peer, item, _ in stored], failure)
            else:
                for peer, item, (queue_offset, starts, _) in stored:
                    run = AppendedRun([queue_offset], starts, store_timestamp_ms, physical_end)
                    self._general.answer([item], [_part_of(peer, item)], run, code, arrived_s)

        self._acknowledgements.park(physical_end, self._clock.now_ms(), release)

    def _answer(self, stored: list[_Stored], arrived_s: float) -> None:
        items = [item for _, item, _ in stored]
        parts: list[_Part] = [(stored[0][0], 0, len(items), None)]
        self._general.note_times(items, parts, ResponseCode.SUCCESS, arrived_s)
        extra = self._general.extra_fields()
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

    def _refuse(self, sent: list[tuple[Connection, Item]], error: StoreError) -> None:
        for peer, item in sent:
            self._general.refuse([item], [_part_of(peer, item)], error)


def _part_of(peer: Connection, item: Item) -> _Part:
    """A batch as the general way of answering wants to see it."""
    admitted = Admitted(
        draft=item[11],
        unique_key=item[10].decode(),
        waits_for_flush=True,
        queue_id=item[11][1],
        batch=QueueType.SIMPLE,
    )
    return (peer, 0, 1, admitted)
