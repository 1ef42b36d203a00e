"""Pops in order: gives out a queue's next batch, takes its acknowledgements, wakes when it is free.

Batches are in ``consumerOrderInfo.json``, written as often as the groups' offsets. An
acknowledgement moves the group's offset, as the commit of a pulling consumer does: after a crash,
messages acknowledged since both files were written come again, in their order.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from heapq import heappop, heappush
from pathlib import Path

from contrail.broker.services.persistence import Persistence, Render
from contrail.broker.services.pop_admission import PopPlan
from contrail.broker.services.pop_reads import Read, Taken
from contrail.broker.services.pops import Given, Pops
from contrail.broker.state.consumer_offsets import ConsumerOffsets
from contrail.broker.state.order_batches import (
    FILE_NAME,
    OrderBatch,
    OrderBatches,
    Settled,
    parse_order_batches,
)
from contrail.broker.state.pop_records import Checkpoint
from contrail.broker.state.pop_table import Queue
from contrail.broker.state.shares import THIS_HOST
from contrail.clock import Clock
from contrail.errors import RequestRejected, StateFileDamaged
from contrail.model.fastjson import dumps
from contrail.protocol.codes import ResponseCode
from contrail.protocol.pop_info import ORDER_REVIVE_QUEUE
from contrail.runtime.files import FileSystem
from contrail.runtime.state_file import read_state
from contrail.runtime.turns import LaterCalls
from contrail.store import CONFIG_FOLDER

_log = logging.getLogger(__name__)

# The periodic jobs look at deadlines once a second at least; sooner ones need a timer.
_TIMER_MS_MAX = 1000


class OrderedPops:
    """The batches of this broker, their file, and the times at which queues become free."""

    def __init__(
        self,
        pops: Pops,
        offsets: ConsumerOffsets,
        clock: Clock,
        *,
        broker_name: str,
        files: FileSystem,
        root: Path,
        persistence: Persistence,
        interval_ms: int,
    ) -> None:
        self._pops = pops
        self._offsets = offsets
        self._clock = clock
        self._broker_name = broker_name
        self.batches = OrderBatches(_load(files, root / CONFIG_FOLDER / FILE_NAME))
        # Set before the first connection comes; called with a queue that is free again.
        self.on_free: Callable[[Queue], None] = lambda queue: None
        self._loop: LaterCalls | None = None
        # When to look at a queue again: one time for each, and older ones that count no more.
        self._ending: list[tuple[int, Queue]] = []
        self._noted_ms: dict[Queue, int] = {}
        for queue, _ in self.batches.items():
            self._note_end(queue)
        persistence.register(
            FILE_NAME,
            take_changed=self._take_changed,
            snapshot=self._snapshot,
            interval_ms=interval_ms,
        )

    def begin(self, loop: LaterCalls) -> None:
        """Timers can be set from now on."""
        self._loop = loop

    # Giving out.

    def is_blocked(self, plan: PopPlan, queue_id: int, consumer_offset: int) -> bool:
        """Whether a batch of a queue is in others' hands."""
        queue = (plan.group, plan.topic, queue_id)
        return self.batches.is_blocked(
            queue, plan.attempt_id, consumer_offset, self._clock.now_ms()
        )

    def take(self, plan: PopPlan, read: Read, holder: str) -> tuple[int, list[Given]]:
        """Give out what a pop has read; nothing is written before the answer."""
        for one in read.taken:
            self._offsets.admit(plan.group, one.topic, THIS_HOST, one.queue_id)
        pop_time_ms = self._clock.now_ms()
        given: list[Given] = []
        for taken in read.taken:
            queue = (plan.group, taken.topic, taken.queue_id)
            self._pops.begin_queue(queue, taken)
            if taken.result.ranges:
                self._pops.commit_in_order(queue, taken.start)
                given.append(Given(taken, self._give(plan, taken, pop_time_ms, holder)))
            else:
                end = max(taken.start, taken.result.next_queue_offset)
                self._pops.commit_in_order(queue, end)
        return pop_time_ms, given

    def _give(self, plan: PopPlan, taken: Taken, pop_time_ms: int, holder: str) -> Checkpoint:
        queue = (plan.group, taken.topic, taken.queue_id)
        batch = OrderBatch(
            attempt_id=plan.attempt_id,
            pop_time_ms=pop_time_ms,
            invisible_ms=plan.invisible_ms,
            offsets=taken.offsets,
            last_ms=pop_time_ms,
            holder=holder,
        )
        self.batches.give(queue, batch)
        self._note_end(queue)
        return Checkpoint(
            group=plan.group,
            topic=taken.topic,
            queue_id=taken.queue_id,
            start_offset=taken.start,
            pop_time_ms=pop_time_ms,
            invisible_ms=plan.invisible_ms,
            offsets=taken.offsets,
            broker_name=self._broker_name,
            revive_queue=ORDER_REVIVE_QUEUE,
            holder=holder,
        )

    # Asking.

    def of_group(self, group: str) -> list[tuple[Queue, OrderBatch]]:
        """The batches of a group that has messages in hand."""
        return [(queue, batch) for queue, batch in self.batches.items() if queue[0] == group]

    def open_offsets(self, queue: Queue) -> list[int]:
        """The messages of a queue's batch that are neither acknowledged nor visible again."""
        batch = self.batches.find(queue)
        if batch is None:
            return []
        now_ms = self._clock.now_ms()
        return [
            offset
            for offset in batch.open_offsets(self._offsets.query(*queue))
            if batch.visible_at_ms(offset) > now_ms
        ]

    # Acknowledging.

    def acknowledge(self, queue: Queue, queue_offset: int, pop_time_ms: int) -> None:
        """A message is handled: the group's offset is the first one that is not.

        One of an older batch changes nothing, and is told so no more than by RocketMQ.

        Raises:
            RequestRejected: the batch has no such message.
        """
        committed = self._offsets.query(*queue)
        if queue_offset < committed:
            return
        settled = self.batches.settle(queue, queue_offset, pop_time_ms)
        if settled is Settled.ILLEGAL:
            raise RequestRejected(
                ResponseCode.MESSAGE_ILLEGAL,
                f"message {queue_offset} of queue {queue[2]} of topic {queue[1]!r} is none of the "
                f"batch that group {queue[0]!r} popped in order at {pop_time_ms}",
            )
        batch = self.batches.find(queue)
        if settled is Settled.IGNORED or batch is None:
            return
        if self._offsets.peek_reset(*queue) is None and batch.next_offset > committed:
            self._pops.commit_in_order(queue, batch.next_offset)
        self._look_again(queue)

    def prolong(self, queue: Queue, queue_offset: int, pop_time_ms: int, invisible_ms: int) -> int:
        """Have a message of a batch visible so long from now; returns the time since its pop.

        The receipt stays as it is but for that time; 0 for a message that is acknowledged.
        """
        if queue_offset < self._offsets.query(*queue):
            return 0
        visible_ms = self._clock.now_ms() + invisible_ms
        if self.batches.prolong(queue, queue_offset, pop_time_ms, visible_ms):
            self._look_again(queue)
        return visible_ms - pop_time_ms

    def forget(self, is_gone: Callable[[Queue], bool]) -> None:
        """A topic or a group is gone, or a queue is reset."""
        self.batches.forget(is_gone)

    # Queues that become free.

    def _look_again(self, queue: Queue) -> None:
        if self._note_end(queue) <= self._clock.now_ms():
            self.on_free(queue)

    def _note_end(self, queue: Queue) -> int:
        """When the queue is free; it is looked at again then, or earlier."""
        free_ms = self._free_at_ms(queue)
        left_ms = free_ms - self._clock.now_ms()
        known_ms = self._noted_ms.get(queue)
        if left_ms > 0 and (known_ms is None or free_ms < known_ms):
            self._noted_ms[queue] = free_ms
            heappush(self._ending, (free_ms, queue))
            if self._loop is not None and left_ms < _TIMER_MS_MAX:
                self._loop.call_later(left_ms / 1000, self.run)
        return free_ms

    def _free_at_ms(self, queue: Queue) -> int:
        batch = self.batches.find(queue)
        return 0 if batch is None else batch.free_at_ms(self._offsets.query(*queue))

    def end_in_ms(self) -> int | None:
        """How long until a queue may be free; None when none is blocked."""
        return self._ending[0][0] - self._clock.now_ms() if self._ending else None

    def run(self, now_ms: int | None = None) -> None:
        """Tell of the queues whose batches' times are over."""
        now_ms = self._clock.now_ms() if now_ms is None else now_ms
        while self._ending and self._ending[0][0] <= now_ms:
            end_ms, queue = heappop(self._ending)
            if self._noted_ms.get(queue) != end_ms:
                continue
            del self._noted_ms[queue]
            free_ms = self._note_end(queue)
            if 0 < free_ms <= now_ms:
                self.on_free(queue)

    # The file.

    def _take_changed(self) -> bool:
        was, self.batches.changed = self.batches.changed, False
        return was

    def _snapshot(self) -> Render:
        self.batches.forget_old(self._clock.now_ms())
        fields = self.batches.to_fields()
        return lambda: dumps(fields)


def _load(files: FileSystem, path: Path) -> dict[Queue, OrderBatch]:
    try:
        read = read_state(files, path, sealed=False, parse=parse_order_batches)
    except StateFileDamaged as damage:
        _log.warning("%s: queues that were popped in order are free, and pops repeat them", damage)
        return {}
    if read.problem is not None:
        _log.warning("%s", read.problem)
    return read.value or {}
