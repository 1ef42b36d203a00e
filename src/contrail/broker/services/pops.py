"""Popped messages: given out, acknowledged, prolonged. The table is the truth, the log its memory.

Everything that one tick changes is one append: a checkpoint for each queue that a pop got messages
from, and one acknowledgement for all messages of a checkpoint that were acknowledged. A message
that is not acknowledged in time comes again (``services.pop_revive``).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from contrail.broker.services.pop_admission import PopPlan
from contrail.broker.services.pop_reads import Read, Taken
from contrail.broker.state.consumer_offsets import UNKNOWN, ConsumerOffsets
from contrail.broker.state.placement import TimerRules, place, slot_time_ms
from contrail.broker.state.pop_offsets import PopOffsets
from contrail.broker.state.pop_records import (
    Ack,
    Checkpoint,
    ack_draft,
    checkpoint_draft,
)
from contrail.broker.state.pop_table import PopTable, Queue
from contrail.broker.state.shares import THIS_HOST
from contrail.clock import Clock
from contrail.errors import MessageIllegal, RequestRejected, StoreError
from contrail.model.message import MessageDraft
from contrail.model.properties import (
    REAL_QID,
    REAL_TOPIC,
    TAGS,
    TIMER_DELIVER_MS,
    TIMER_OUT_MS,
    UNIQ_KEY,
    encode_properties,
)
from contrail.model.topic import TIMER_TOPIC
from contrail.protocol.codes import ResponseCode
from contrail.runtime.crashpoints import crashpoint
from contrail.store import AppendedRun

_log = logging.getLogger(__name__)

REVIVE_QUEUE_COUNT = 8
_TIMER_TOPIC = TIMER_TOPIC.encode()

Told = Callable[[int, StoreError | None], None]
"""Learns how far the log must be durable for a change to hold, or why it could not be made."""


class Appending(Protocol):
    """The way into the log."""

    def append(self, drafts: Sequence[MessageDraft]) -> AppendedRun: ...
    @property
    def settled_end(self) -> int: ...


class Advance(NamedTuple):
    """A queue's next pop begins further on."""

    queue: Queue
    start: int
    end: int


class Given(NamedTuple):
    """One checkpoint's part of a pop's answer."""

    taken: Taken
    checkpoint: Checkpoint


@dataclass(slots=True)
class _Change:
    """The changes of one request; ``told`` learns how they went."""

    told: Told
    checkpoints: list[Checkpoint] = field(default_factory=list)
    advances: list[Advance] = field(default_factory=list)


@dataclass(slots=True)
class _Acks:
    """Messages of one checkpoint that this tick acknowledges."""

    offsets: list[int] = field(default_factory=list)
    told: list[Told] = field(default_factory=list)


class Pops:
    """Changes what is in flight, and has the log remember it."""

    def __init__(
        self,
        table: PopTable,
        next_offsets: PopOffsets,
        offsets: ConsumerOffsets,
        deliveries: Appending,
        clock: Clock,
        *,
        broker_name: str,
        revive_topic: str,
        store_host: bytes,
        timers: TimerRules,
    ) -> None:
        self.table = table
        self._next_offsets = next_offsets
        self._offsets = offsets
        self._deliveries = deliveries
        self._clock = clock
        self._broker_name = broker_name
        self._revive_topic = revive_topic
        self._store_host = store_host
        self._timers = timers
        # Called with a queue that an operator has moved.
        self.on_reset: Callable[[Queue], None] = lambda queue: None
        self._turn = 0
        self._changes: list[_Change] = []
        self._acks: dict[Checkpoint, _Acks] = {}
        # The end of the last append that changed what is in flight.
        self.appended_end = 0

    def require_keepable(self, invisible_ms: int) -> None:
        """Raises ``RequestRejected`` for a time that the timers cannot keep."""
        if invisible_ms > self._timers.delay_ms_max:
            raise RequestRejected(
                ResponseCode.MESSAGE_ILLEGAL,
                f"invisibleTime={invisible_ms} is above the limit of {self._timers.delay_limit}",
            )

    # Giving out.

    def take(
        self, plan: PopPlan, read: Read, holder: str, told: Told
    ) -> tuple[int, int, list[Given]]:
        """Take what a pop has read: its pop time, revive queue and checkpoints.

        ``told`` learns when the messages may be handed out.
        """
        for one in read.taken:
            # First of all: it may be refused, and then nothing has happened.
            self._offsets.admit(plan.group, one.topic, THIS_HOST, one.queue_id)
        revive_queue = self._turn % REVIVE_QUEUE_COUNT
        self._turn += 1
        pop_time_ms = self._free_time(plan, read.taken)
        change = _Change(told)
        given: list[Given] = []
        for taken in read.taken:
            queue = (plan.group, taken.topic, taken.queue_id)
            self.begin_queue(queue, taken)
            if taken.result.ranges:
                checkpoint = self._checkpoint(plan, taken, pop_time_ms, revive_queue, holder)
                change.checkpoints.append(checkpoint)
                self.table.add(checkpoint)
                given.append(Given(taken, checkpoint))
            end = max(taken.start, taken.result.next_queue_offset)
            if end > taken.start:
                self._next_offsets.advance(queue, end)
                change.advances.append(Advance(queue, taken.start, end))
        self._changes.append(change)
        return pop_time_ms, revive_queue, given

    def _free_time(self, plan: PopPlan, taken: Iterable[Taken]) -> int:
        """Now, or the first millisecond for which no checkpoint has the same names."""
        pop_time_ms = self._clock.now_ms()
        places = [((plan.group, one.topic, one.queue_id), one.start) for one in taken]
        while any(self.table.has_key(queue, start, pop_time_ms) for queue, start in places):
            pop_time_ms += 1
        return pop_time_ms

    def begin_queue(self, queue: Queue, taken: Taken) -> None:
        """Note where a queue's pops begin, if that is new."""
        group, topic, queue_id = queue
        if taken.is_reset:
            self._offsets.take_reset(group, topic, queue_id)
            self._next_offsets.reset(queue)
            self._forget_behind(queue, taken.start)
            self.on_reset(queue)
        if taken.is_new_start or taken.is_reset:
            self._offsets.commit(group, topic, queue_id, taken.start)

    def _forget_behind(self, queue: Queue, start: int) -> None:
        """Messages from a reset on are popped anew: what is in flight there must not come again."""
        for checkpoint in self.table.of_queue(queue):
            for offset in checkpoint.open_offsets:
                if offset >= start:
                    self._acknowledge(checkpoint, offset, _nobody)

    def _checkpoint(
        self, plan: PopPlan, taken: Taken, pop_time_ms: int, revive_queue: int, holder: str
    ) -> Checkpoint:
        return Checkpoint(
            group=plan.group,
            topic=taken.topic,
            queue_id=taken.queue_id,
            start_offset=taken.start,
            pop_time_ms=pop_time_ms,
            invisible_ms=plan.invisible_ms,
            offsets=taken.offsets,
            broker_name=self._broker_name,
            revive_queue=revive_queue,
            holder=holder,
        )

    # Acknowledging.

    def acknowledge(self, ack: Ack, told: Told) -> int:
        """Settle messages at the end of this tick; returns how many were open.

        ``told`` is called once, also when nothing was open: an earlier acknowledgement of the
        same messages may not be durable yet.
        """
        checkpoint = self._named(ack)
        taken = [] if checkpoint is None else self.table.settle_all(checkpoint, ack.offsets)
        if checkpoint is None or not taken:
            self._changes.append(_Change(told))
        else:
            acks = self._acks.setdefault(checkpoint, _Acks())
            acks.offsets += taken
            acks.told.append(told)
        return len(taken)

    def _named(self, ack: Ack) -> Checkpoint | None:
        checkpoint = self.table.find(ack.key)
        if checkpoint is None or ack.broker_name != checkpoint.broker_name:
            return None
        return checkpoint

    def _acknowledge(self, checkpoint: Checkpoint, offset: int, told: Told) -> bool:
        if not self.table.settle(checkpoint, offset):
            return False
        acks = self._acks.setdefault(checkpoint, _Acks())
        acks.offsets.append(offset)
        acks.told.append(told)
        return True

    def prolong(
        self, ack: Ack, invisible_ms: int, told: Told, holder: str, *, is_suspended: bool = False
    ) -> int | None:
        """Give a message another time to become visible again; its pop time from now on.

        With ``is_suspended`` it comes with the same count of tries as now.

        None if its receipt is dead: it was acknowledged, prolonged, or comes again already. Then
        ``told`` is not called.
        """
        old = self._named(ack)
        offset = ack.offsets[0]
        if old is None or offset not in old.open_offsets:
            return None
        queue = (old.group, old.topic, old.queue_id)
        pop_time_ms = self._clock.now_ms()
        while self.table.has_key(queue, offset, pop_time_ms):
            pop_time_ms += 1
        checkpoint = Checkpoint(
            group=old.group,
            topic=old.topic,
            queue_id=old.queue_id,
            start_offset=offset,
            pop_time_ms=pop_time_ms,
            invisible_ms=invisible_ms,
            offsets=(offset,),
            broker_name=old.broker_name,
            revive_queue=old.revive_queue,
            holder=holder,
            is_suspended=is_suspended,
        )
        self.table.add(checkpoint)
        self._changes.append(_Change(told, [checkpoint]))
        self._acknowledge(old, offset, _nobody)
        return pop_time_ms

    # The tick.

    @property
    def has_work(self) -> bool:
        """Whether ``append_run`` has something to do at the end of a tick."""
        return bool(self._changes or self._acks or self._next_offsets)

    def append_run(self) -> None:
        """Write everything that this tick changed, and tell the requests."""
        if self._next_offsets:
            self.commit_durable()
        if not (self._changes or self._acks):
            return
        changes, self._changes = self._changes, []
        acks, self._acks = self._acks, {}
        try:
            self._append(changes, acks)
        except MessageIllegal:
            # One of them breaks a limit: retry one by one, so that only that one is refused.
            for change in changes:
                self._append_alone([change], {})
            for checkpoint, of_checkpoint in acks.items():
                self._append_alone([], {checkpoint: of_checkpoint})
        except StoreError as error:
            self._undo(changes, acks, error)

    def _append_alone(self, changes: list[_Change], acks: dict[Checkpoint, _Acks]) -> None:
        try:
            self._append(changes, acks)
        except StoreError as error:
            self._undo(changes, acks, error)

    def _append(self, changes: list[_Change], acks: dict[Checkpoint, _Acks]) -> None:
        now_ms = self._clock.now_ms()
        checkpoints = [checkpoint for change in changes for checkpoint in change.checkpoints]
        drafts = [self._placed(self._ck_draft(one, now_ms), now_ms) for one in checkpoints]
        drafts += [
            self._placed(
                ack_draft(one, sorted(of.offsets), self._revive_topic, now_ms, self._store_host),
                now_ms,
            )
            for one, of in acks.items()
        ]
        start = end = self.appended_end
        if drafts:
            crashpoint("pop.before_write")
            run = self._deliveries.append(drafts)
            crashpoint("pop.written")
            start, end = run.physical_offsets[0], run.physical_end
            self.appended_end = end
            for checkpoint, physical_offset in zip(checkpoints, run.physical_offsets, strict=False):
                checkpoint.before = physical_offset
        for change in changes:
            for advance in change.advances:
                self._next_offsets.note(advance.queue, advance.end, end, start)
        for told in [change.told for change in changes]:
            told(end, None)
        for told in [told for of in acks.values() for told in of.told]:
            told(end, None)

    def _ck_draft(self, one: Checkpoint, now_ms: int) -> tuple[MessageDraft, dict[str, str]]:
        return checkpoint_draft(one, self._revive_topic, now_ms, self._store_host)

    def _placed(self, made: tuple[MessageDraft, dict[str, str]], now_ms: int) -> MessageDraft:
        draft, properties = made
        deliver_ms = int(properties[TIMER_DELIVER_MS])
        timers = self._timers
        if timers.enabled and now_ms < deliver_ms <= now_ms + timers.delay_ms_max:
            # As ``place`` would do it: a pop and an ack each wait for one such record.
            slot_ms = slot_time_ms(deliver_ms, timers.precision_ms)
            text = (
                f"{TAGS}\x01{properties[TAGS]}\x02{UNIQ_KEY}\x01{properties[UNIQ_KEY]}\x02"
                f"{TIMER_DELIVER_MS}\x01{deliver_ms}\x02{TIMER_OUT_MS}\x01{slot_ms}\x02"
                f"{REAL_TOPIC}\x01{self._revive_topic}\x02{REAL_QID}\x01{draft.queue_id}\x02"
            )
            return MessageDraft(
                _TIMER_TOPIC,
                0,
                draft.body,
                text.encode(),
                born_timestamp_ms=draft.born_timestamp_ms,
                born_host=draft.born_host,
            )
        placed = place(draft, properties, level_max=0, timers=self._timers, now_ms=now_ms)
        return placed._replace(properties=encode_properties(properties))

    def _undo(
        self, changes: list[_Change], acks: dict[Checkpoint, _Acks], error: StoreError
    ) -> None:
        """The store takes nothing: nothing has happened, and the requests are told that."""
        for change in reversed(changes):
            for checkpoint in change.checkpoints:
                self.table.drop(checkpoint)
            for advance in reversed(change.advances):
                self._next_offsets.take_back(advance.queue, advance.start)
            change.told(0, error)
        for checkpoint, of_checkpoint in acks.items():
            self.table.reopen(checkpoint, of_checkpoint.offsets)
            for told in of_checkpoint.told:
                told(0, error)

    # Offsets.

    def commit_durable(self) -> None:
        """Commit the offsets whose checkpoints are durable."""
        for (group, topic, queue_id), offset in self._next_offsets.settle(
            self._deliveries.settled_end
        ):
            if offset > self._offsets.query(group, topic, queue_id):
                self._commit(group, topic, queue_id, offset)
                crashpoint("pop.committed")

    def _commit(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        if self._offsets.query(group, topic, queue_id) == UNKNOWN:
            # The group or its topic was deleted meanwhile.
            return
        self._offsets.commit(group, topic, queue_id, offset)

    def commit_in_order(self, queue: Queue, offset: int) -> None:
        """Commit the offset of a pop in order, unless checkpoints before it are not durable yet."""
        if self._next_offsets.next_of(queue) is None:
            self._commit(*queue, offset)

    # Operators.

    def forget_topic(self, topic: str) -> None:
        """A topic was deleted: its messages do not come again."""
        for checkpoint in list(self.table.of_topic(topic)):
            self.table.drop(checkpoint)
        self._next_offsets.forget(lambda queue: queue[1] == topic)

    def forget_group(self, group: str) -> None:
        """A group was deleted: nothing is in flight for it."""
        for checkpoint in list(self.table.of_group(group)):
            self.table.drop(checkpoint)
        self._next_offsets.forget(lambda queue: queue[0] == group)


def _nobody(physical_end: int, error: StoreError | None) -> None:
    """Told when the broker itself settles a message."""
