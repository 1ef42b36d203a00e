"""Delivers again the messages that were popped and not acknowledged in time.

The record of a checkpoint waits in the timer and comes to its revive queue a second before its
messages become visible. From then on the table has it in the line of those that are due. The copy
that is delivered names the checkpoint's record and the message's place in it (``state.causes``): a
start finds in the log which messages came again already.

RocketMQ's cursor says for each revive queue which record was handled last. It may be written once
the log is durable as far as everything it speaks of.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, Protocol, TypeVar

from contrail.broker.services.pops import REVIVE_QUEUE_COUNT, Pops
from contrail.broker.state.causes import Delivered, cause_mark
from contrail.broker.state.consumer_offsets import UNKNOWN, ConsumerOffsets
from contrail.broker.state.durable_marks import DurableMarks
from contrail.broker.state.pop_records import (
    ACK_TAG,
    BATCH_ACK_TAG,
    CK_TAG,
    Ack,
    Checkpoint,
    read_ack,
    read_checkpoint,
)
from contrail.broker.state.pop_table import PopTable
from contrail.broker.state.shares import THIS_HOST
from contrail.clock import Clock, monotonic_ms
from contrail.errors import MessageIllegal, RecordDamaged, StoreError
from contrail.model.fastjson import FastJsonError
from contrail.model.group import SubscriptionGroupConfig
from contrail.model.message import MessageDraft, StoredMessage
from contrail.model.properties import (
    CRC32,
    FIRST_POP_TIME,
    ORIGIN_GROUP,
    REAL_QID,
    REAL_TOPIC,
    RETRY_TOPIC,
    TAGS,
    put_property,
    read_property,
    remove_property,
)
from contrail.model.record import TRANSACTION_MASK
from contrail.model.topic import (
    DLQ_PREFIX,
    RETRY_PREFIX,
    TIMER_TOPIC,
    TopicConfig,
    dlq_topic,
    normal_topic,
    pop_retry_topic,
    pop_retry_topic_v2,
)
from contrail.runtime.crashpoints import crashpoint
from contrail.store import AppendedRun, GetStatus, MessageStore, NotInMemory

_log = logging.getLogger(__name__)

REVIVE_GROUP = "CID_RMQ_SYS_REVIVE_GROUP"
_WORK_MS_MAX = 5
_READ_COUNT_MAX = 64
_REDELIVER_COUNT_MAX = 64
# Messages of one step: others wait for its end.
_REDELIVER_MESSAGES = 128
_BUSY_INTERVAL_MS = 50
_IDLE_INTERVAL_MS = 1000
_RECONSUME_TIMES_MAX = (1 << 31) - 1

_T = TypeVar("_T")


class Attempt(Protocol):
    """Carries out work that reads old messages, unless records have to be brought in first."""

    def __call__(self, work: Callable[[], _T], /) -> _T: ...


class Appending(Protocol):
    """The way into the log."""

    def append(self, drafts: Sequence[MessageDraft]) -> AppendedRun: ...
    @property
    def settled_end(self) -> int: ...


class ReviveTopics(Protocol):
    """The topics there are, and the making of retry topics."""

    def find(self, topic: str) -> TopicConfig | None: ...
    def ensure(self, topic: str, now_ms: int) -> None: ...
    def ensure_dead_letters(self, group: str, now_ms: int) -> None: ...


class _InLine(NamedTuple):
    """A record of a revive queue that the cursor has not passed."""

    revive_offset: int
    # None for a record that waits for nothing.
    checkpoint: Checkpoint | None


class _Delivered(NamedTuple):
    """A delivery that the log alone knows of, until the cursor has passed its checkpoint."""

    physical_start: int
    revive_queue: int
    revive_offset: int


class PopRevive:
    """The cursors in the revive queues, and the deliveries."""

    def __init__(
        self,
        pops: Pops,
        store: MessageStore,
        deliveries: Appending,
        offsets: ConsumerOffsets,
        topics: ReviveTopics,
        find_group: Callable[[str], SubscriptionGroupConfig | None],
        clock: Clock,
        *,
        revive_topic: str,
        broker_name: str,
        store_host: bytes,
        uses_v2: Callable[[], bool],
        gives_up: Callable[[], bool],
        attempt: Attempt,
    ) -> None:
        self._pops = pops
        self._store = store
        self._deliveries = deliveries
        self._offsets = offsets
        self._topics = topics
        self._find_group = find_group
        self._clock = clock
        self._revive_topic = revive_topic
        self._topic = revive_topic.encode()
        self._broker_name = broker_name
        self._store_host = store_host
        self._uses_v2 = uses_v2
        # Whether messages become dead letters after their last try.
        self._gives_up = gives_up
        self._attempt = attempt
        self._next = [0] * REVIVE_QUEUE_COUNT
        self._lines: list[deque[_InLine]] = [deque() for _ in range(REVIVE_QUEUE_COUNT)]
        self._in_line: dict[Checkpoint, _InLine] = {}
        self._marks: DurableMarks[tuple[int, ...]] = DurableMarks()
        self._noted: tuple[int, ...] = ()
        # The cursors as ``consumerOffset.json`` is to have them.
        self._kept: tuple[int, ...] = (UNKNOWN,) * REVIVE_QUEUE_COUNT
        self._delivered: deque[_Delivered] = deque()
        self._delivered_end = 0
        self._refused = False
        self._is_behind = False
        # By topic and group: deliveries since the start.
        self.redelivered_counts: Counter[tuple[str, str]] = Counter()
        self.lost_count = 0

    @property
    def _table(self) -> PopTable:
        return self._pops.table

    # Life.

    def recover(self, waiting: Iterable[int], delivered: Delivered) -> None:
        """Learn what is in flight; before anything is served, for it may take long.

        ``waiting`` are the places of the revive topic's records that are in the timer.
        """
        acks: list[Ack] = []
        for place in waiting:
            self._recover_waiting(place, acks)
        for revive_queue in range(REVIVE_QUEUE_COUNT):
            self._begin_queue(revive_queue)
            while self._read_queue(revive_queue, acks):
                pass
        for ack in acks:
            self._table.take_ack(ack, self._broker_name)
        for checkpoint in list(self._in_line):
            for index, offset in enumerate(checkpoint.offsets):
                if checkpoint.place + index in delivered.waited:
                    self._table.settle(checkpoint, offset)
        if len(self._table):
            _log.info("%d popped messages are in flight", len(self._table))

    def _recover_waiting(self, place: int, acks: list[Ack]) -> None:
        try:
            message = self._store.record(place)
        except RecordDamaged as damage:
            _log.error("a record of popped messages cannot be read: %s", damage)
            return
        raw = message.raw_properties
        queue_text = read_property(raw, REAL_QID) or ""
        if message.topic != TIMER_TOPIC or read_property(raw, REAL_TOPIC) != self._revive_topic:
            return
        revive_queue = int(queue_text) if queue_text.isdecimal() else 0
        known = self._read(message, revive_queue, acks)
        if known is not None and self._table.find(known.key) is None and not known.is_settled:
            self._table.add(known)

    def _begin_queue(self, revive_queue: int) -> None:
        cursor = self._offsets.query(REVIVE_GROUP, self._revive_topic, revive_queue)
        low = self._store.queue_offset_min(self._topic, revive_queue)
        high = self._store.queue_offset_max(self._topic, revive_queue)
        # The cursor is the record that was handled last.
        self._next[revive_queue] = min(max(cursor + 1, low), high)

    # The revive queues.

    def _read_queue(self, revive_queue: int, acks: list[Ack] | None) -> bool:
        """Take the next records in; False when there are none. ``acks`` is for recovery."""
        queue_offset = self._next[revive_queue]
        if queue_offset >= self._store.queue_offset_max(self._topic, revive_queue):
            return False
        found = self._store.get(
            self._topic, revive_queue, queue_offset, count_max=_READ_COUNT_MAX, bytes_max=1 << 20
        )
        for message in found.messages:
            self._take(message, acks)
        if found.next_queue_offset <= queue_offset:
            return False
        if not found.ranges:
            _log.error(
                "records %d to %d of revive queue %d cannot be read (%s)",
                queue_offset,
                found.next_queue_offset - 1,
                revive_queue,
                found.status.value,
            )
        self._next[revive_queue] = found.next_queue_offset
        return True

    def _take(self, message: StoredMessage, acks: list[Ack] | None) -> None:
        is_ck = read_property(message.raw_properties, TAGS) == CK_TAG
        known = self._read(message, message.queue_id, acks) if is_ck or acks is not None else None
        checkpoint = None if known is None else self._table.find(known.key)
        if checkpoint is None and known is not None and acks is not None and not known.is_settled:
            self._table.add(known)
            checkpoint = known
        entry = _InLine(message.queue_offset, checkpoint)
        self._lines[message.queue_id].append(entry)
        if checkpoint is not None:
            self._in_line[checkpoint] = entry
            self._table.came_back(checkpoint, message.physical_offset)

    def _read(
        self, message: StoredMessage, revive_queue: int, acks: list[Ack] | None
    ) -> Checkpoint | None:
        """The checkpoint of a record; acknowledgements are noted in ``acks``."""
        tag = read_property(message.raw_properties, TAGS)
        try:
            if tag == CK_TAG:
                checkpoint = read_checkpoint(message.body, revive_queue)
                mark = message.prepared_transaction_offset
                checkpoint.before = cause_mark(mark) if mark < 0 else message.physical_offset
                return checkpoint
            if tag in (ACK_TAG, BATCH_ACK_TAG) and acks is not None:
                acks.append(read_ack(message.body))
        except FastJsonError as error:
            _log.error("the record at %d is none of a pop: %s", message.physical_offset, error)
        return None

    # Periodic.

    def run(self, now_ms: int) -> None:
        """Read the revive queues on, deliver what is due, and note how far that is."""
        deadline_ms = monotonic_ms() + _WORK_MS_MAX
        self._is_behind = False
        for revive_queue in range(REVIVE_QUEUE_COUNT):
            while self._read_queue(revive_queue, None):
                if monotonic_ms() >= deadline_ms:
                    self._is_behind = True
                    break
        self._deliver_due(now_ms, deadline_ms)
        self.keep_cursors()

    @property
    def interval_ms(self) -> int:
        """How long ``run`` can wait."""
        if self._is_behind and not self._refused:
            return 0
        has_work = len(self._table) or any(self._lines) or self._marks
        return _BUSY_INTERVAL_MS if has_work else _IDLE_INTERVAL_MS

    def _deliver_due(self, now_ms: int, deadline_ms: int) -> None:
        while True:
            due = _first_of(self._table.due(now_ms, _REDELIVER_COUNT_MAX))
            if not due:
                return
            try:
                if not self._deliver(due, now_ms):
                    return
            except StoreError as error:
                self._note_refusal(error)
                return
            self._refused = False
            if monotonic_ms() >= deadline_ms:
                self._is_behind = True
                return

    def _deliver(self, due: list[Checkpoint], now_ms: int) -> int:
        """Deliver open messages of these checkpoints; returns how many checkpoints are done."""
        drafts: list[MessageDraft] = []
        of_drafts: list[tuple[Checkpoint, int]] = []
        gone: list[tuple[Checkpoint, int]] = []
        done = 0
        for checkpoint in due:
            try:
                made = self._attempt(lambda one=checkpoint: self._copies(one))  # type: ignore[misc]
            except NotInMemory:
                # A thread brings it in; the next run has it.
                continue
            done += 1
            for offset, draft in made:
                if draft is None:
                    gone.append((checkpoint, offset))
                else:
                    drafts.append(draft)
                    of_drafts.append((checkpoint, offset))
        self._append(drafts, of_drafts, now_ms)
        for checkpoint, offset in gone:
            self._table.settle(checkpoint, offset)
        return done

    def _append(
        self, drafts: list[MessageDraft], of_drafts: list[tuple[Checkpoint, int]], now_ms: int
    ) -> None:
        if not drafts:
            return
        try:
            self._append_all(drafts, of_drafts, now_ms)
        except MessageIllegal:
            for draft, one in zip(drafts, of_drafts, strict=True):
                try:
                    self._append_all([draft], [one], now_ms)
                except MessageIllegal as illegal:
                    checkpoint, offset = one
                    _log.error(
                        "message %d of queue %d of %r can never come again: %s",
                        offset,
                        checkpoint.queue_id,
                        checkpoint.topic,
                        illegal,
                    )
                    self.lost_count += 1
                    self._table.settle(checkpoint, offset)

    def _append_all(
        self, drafts: list[MessageDraft], of_drafts: list[tuple[Checkpoint, int]], now_ms: int
    ) -> None:
        for (checkpoint, _), draft in zip(of_drafts, drafts, strict=True):
            topic = draft.topic.decode()
            if topic.startswith(DLQ_PREFIX):
                self._topics.ensure_dead_letters(checkpoint.group, now_ms)
            else:
                self._ensure_retry_topic(topic, checkpoint.group, now_ms)
        crashpoint("pop.before_redelivery")
        run = self._deliveries.append(drafts)
        crashpoint("pop.redelivered")
        self._delivered_end = run.physical_end
        for (checkpoint, offset), physical_offset in zip(
            of_drafts, run.physical_offsets, strict=True
        ):
            entry = self._in_line[checkpoint]
            self._delivered.append(
                _Delivered(physical_offset, checkpoint.revive_queue, entry.revive_offset)
            )
            self._table.settle(checkpoint, offset)
            named = normal_topic(checkpoint.topic, checkpoint.group), checkpoint.group
            self.redelivered_counts[named] += 1

    def _ensure_retry_topic(self, topic: str, group: str, now_ms: int) -> None:
        if self._topics.find(topic) is None:
            self._topics.ensure(topic, now_ms)
        if self._offsets.query(group, topic, 0) == UNKNOWN:
            self._offsets.admit(group, topic, THIS_HOST, 0)
            self._offsets.commit(group, topic, 0, 0)

    def _copies(self, checkpoint: Checkpoint) -> list[tuple[int, MessageDraft | None]]:
        """The open messages as they are stored again; None for one that is gone."""
        if not self._is_wanted(checkpoint):
            return [(offset, None) for offset in checkpoint.open_offsets]
        return [(offset, self._copy(checkpoint, offset)) for offset in checkpoint.open_offsets]

    def _is_wanted(self, checkpoint: Checkpoint) -> bool:
        """Whether topic and group still exist."""
        normal = normal_topic(checkpoint.topic, checkpoint.group)
        return (
            self._topics.find(normal) is not None and self._find_group(checkpoint.group) is not None
        )

    def _copy(self, checkpoint: Checkpoint, offset: int) -> MessageDraft | None:
        topic = checkpoint.topic.encode()
        found = self._store.get(topic, checkpoint.queue_id, offset, count_max=1)
        messages = found.messages if found.status is GetStatus.FOUND else []
        if (
            not messages
            or messages[0].queue_offset != offset
            or messages[0].physical_offset >= checkpoint.before
        ):
            _log.warning(
                "message %d of queue %d of %r was popped by group %r and is gone (%s): it cannot "
                "come again",
                offset,
                checkpoint.queue_id,
                checkpoint.topic,
                checkpoint.group,
                found.status.value,
            )
            self.lost_count += 1
            return None
        index = checkpoint.offsets.index(offset)
        return self._retry_draft(messages[0], checkpoint, cause_mark(checkpoint.place + index))

    def _retry_draft(
        self, message: StoredMessage, checkpoint: Checkpoint, mark: int
    ) -> MessageDraft:
        raw = remove_property(message.raw_properties, CRC32)
        if not message.reconsume_times or read_property(raw, FIRST_POP_TIME) is None:
            raw = put_property(raw, FIRST_POP_TIME, str(checkpoint.pop_time_ms))
        raw = put_property(raw, ORIGIN_GROUP, checkpoint.group)
        tries = message.reconsume_times + (not checkpoint.is_suspended)
        topic = self._retry_topic(checkpoint)
        if self._gives_up() and tries > self._tries_max(checkpoint.group):
            raw = put_property(raw, RETRY_TOPIC, normal_topic(checkpoint.topic, checkpoint.group))
            topic = dlq_topic(checkpoint.group)
        return MessageDraft(
            topic=topic.encode(),
            queue_id=0,
            body=message.body,
            properties=raw,
            flag=message.flag,
            # A copy commits no transaction, though its original may have.
            sys_flag=message.sys_flag & ~TRANSACTION_MASK,
            born_timestamp_ms=message.born_timestamp_ms,
            born_host=self._store_host,
            reconsume_times=min(tries, _RECONSUME_TIMES_MAX),
            prepared_transaction_offset=mark,
        )

    def _tries_max(self, group: str) -> int:
        config = self._find_group(group)
        return _RECONSUME_TIMES_MAX if config is None else config.retry_count_max

    def _retry_topic(self, checkpoint: Checkpoint) -> str:
        if checkpoint.topic.startswith(RETRY_PREFIX):
            return checkpoint.topic
        name = pop_retry_topic_v2 if self._uses_v2() else pop_retry_topic
        return name(checkpoint.topic, checkpoint.group)

    def _note_refusal(self, error: StoreError) -> None:
        if not self._refused:
            _log.warning("popped messages come again once the store takes messages: %s", error)
        self._refused = True

    # Cursors.

    def keep_cursors(self) -> None:
        """Note how far the revive queues are handled, as far as the log is durable."""
        cursors = tuple(self._handled(one) for one in range(REVIVE_QUEUE_COUNT))
        if cursors != self._noted:
            self._noted = cursors
            self._marks.note(self._store.physical_end, cursors)
        newest = self._marks.take(self._deliveries.settled_end)
        if newest is not None:
            self._keep(newest[1])

    def _handled(self, revive_queue: int) -> int:
        """The last record of a queue before the first whose checkpoint is open."""
        line = self._lines[revive_queue]
        while line and (line[0].checkpoint is None or self._is_closed(line[0].checkpoint)):
            checkpoint = line.popleft().checkpoint
            if checkpoint is not None:
                self._in_line.pop(checkpoint, None)
        return (line[0].revive_offset if line else self._next[revive_queue]) - 1

    def _is_closed(self, checkpoint: Checkpoint) -> bool:
        return self._table.find(checkpoint.key) is not checkpoint

    def _keep(self, cursors: tuple[int, ...]) -> None:
        for revive_queue, cursor in enumerate(cursors):
            if cursor != self._kept[revive_queue] and cursor >= 0:
                self._offsets.keep_own(REVIVE_GROUP, self._revive_topic, revive_queue, cursor)
                crashpoint("pop.cursor_kept")
        self._kept = cursors
        while self._delivered:
            first = self._delivered[0]
            if self._kept[first.revive_queue] < first.revive_offset:
                break
            self._delivered.popleft()

    def overdue_ms(self, now_ms: int) -> int:
        """How long the first message that has not come again is late."""
        due_ms = self._table.next_due_ms
        return 0 if due_ms is None else max(0, now_ms - due_ms)

    @property
    def known_from(self) -> int | None:
        """Where the first delivery stands that no kept cursor covers; None for none."""
        return self._delivered[0].physical_start if self._delivered else None

    @property
    def delivered_end(self) -> int:
        """The end of the last append of deliveries."""
        return self._delivered_end


def _first_of(due: list[Checkpoint]) -> list[Checkpoint]:
    """As many of the first checkpoints as one step delivers, one at least."""
    count = 0
    for index, checkpoint in enumerate(due):
        if index and count + len(checkpoint.offsets) > _REDELIVER_MESSAGES:
            return due[:index]
        count += len(checkpoint.offsets)
    return due
