"""Topics that store no message twice: the memories of their keys, kept over a restart.

A topic with one of the attributes ``contrail.dedupe.window.*`` has a ``SendMemory``. The log is
all that is kept on the disk: at start the memories are read back from the end of the topic's
queues, and from the queues in which its delayed, timed and half messages wait. Messages that the
broker itself delivers carry the key of the one that waited; they pass beside the memories, and
are not part of a memory.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from heapq import merge
from types import MappingProxyType
from typing import NamedTuple, Protocol

from contrail.broker.services.topics import Topics
from contrail.broker.state.send_memory import Claim, FirstSend, SendMemory, Window
from contrail.broker.state.sent_record import SentRecord, read_sent
from contrail.clock import Clock
from contrail.errors import RecordDamaged
from contrail.kernels.frame_scan import look_over
from contrail.model.message import MessageDraft
from contrail.model.properties import (
    REAL_QID,
    REAL_TOPIC,
    TIMER_DEL_UNIQKEY,
    TIMER_OUT_MS,
    TRAN_PREPARED_QUEUE_OFFSET,
    TRANSACTION_CHECK_TIMES,
    TRANSACTION_ID,
    UNIQ_KEY,
    decode_properties,
    read_property,
)
from contrail.model.record import TRANSACTION_COMMIT, TRANSACTION_MASK
from contrail.model.topic import (
    DLQ_PREFIX,
    HALF_TOPIC,
    QUEUE_COUNT_MAX,
    RETRY_PREFIX,
    SCHEDULE_TOPIC,
    TIMER_TOPIC,
    TopicConfig,
)
from contrail.store import AppendedRun, QueueRow

_log = logging.getLogger(__name__)

_WAITING_TOPICS = (SCHEDULE_TOPIC, TIMER_TOPIC, HALF_TOPIC)
# Only a recalled timer, or a half message that was put back, has one of these.
_MADE_HERE = (TIMER_DEL_UNIQKEY, TRAN_PREPARED_QUEUE_OFFSET, TRANSACTION_CHECK_TIMES)
# A queue is read from its end until this many neighbours are all too old: after a clock was put
# back for a moment, a few old times stand among the young ones.
_CHUNK_ROW_COUNT = 256
# Messages of all topics wait in the same queues; a start reads a bounded number of them.
_WAITING_ROW_COUNT_MAX = 1_000_000
_I64_MAX = (1 << 63) - 1


class SentMessages(Protocol):
    """The store as a memory is read back from it."""

    def queues(self) -> list[tuple[bytes, int]]: ...
    def queue_offset_min(self, topic: bytes, queue_id: int) -> int: ...
    def queue_offset_max(self, topic: bytes, queue_id: int) -> int: ...
    def rows(
        self, topic: bytes, queue_id: int, queue_offset: int, count: int
    ) -> list[QueueRow]: ...
    def record_bytes(self, physical_offset: int) -> bytes: ...


class Sent(NamedTuple):
    """One message as it was first stored; of two the later one is the greater."""

    physical_offset: int
    key: bytes
    first: FirstSend


class SendDedupe:
    """Keeps one memory for each topic that has the attributes, from when it gets them on."""

    def __init__(self, topics: Topics, store: SentMessages, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._memories: dict[str, SendMemory] = {}
        self.memories: Mapping[str, SendMemory] = MappingProxyType(self._memories)
        for config in topics.table.topics.values():
            self._topic_changed(config)
        topics.on_change.append(self._topic_changed)
        topics.on_delete.append(self._topic_deleted)

    def _topic_changed(self, config: TopicConfig) -> None:
        window = _window_of(config)
        known = self._memories.get(config.topic)
        if window is None:
            self._topic_deleted(config.topic)
        elif known is None:
            self._memories[config.topic] = SendMemory(window)
            _log.info("topic %r stores no message twice: %s", config.topic, window)
        else:
            known.window = window

    def _topic_deleted(self, topic: str) -> None:
        self._memories.pop(topic, None)

    # After a start.

    def rebuild(self) -> None:
        """Read the memories back from the log; before anything is sent, for it may take long."""
        self.fill(self._memories)

    def fill(self, memories: Mapping[str, SendMemory]) -> None:
        """Read these back from the log."""
        if not memories:
            return
        waited = self._waited(memories)
        queue_ids: dict[bytes, list[int]] = {}
        for topic, queue_id in self._store.queues():
            queue_ids.setdefault(topic, []).append(queue_id)
        for name, memory in memories.items():
            walks = [
                self._sent_to(name.encode(), queue_id, self._born_ms_min(memory))
                for queue_id in queue_ids.get(name.encode(), ())
            ]
            self._fill(memory, [*walks, iter(waited[name])])
            _log.info("topic %r: %d keys were read back from the log", name, len(memory))

    def _fill(self, memory: SendMemory, walks: list[Iterator[Sent]]) -> None:
        """From the newest on, until as many are known as may be."""
        for sent in merge(*walks, reverse=True):
            if memory.is_full:
                return
            memory.remember_older(sent.key, sent.first)

    def _born_ms_min(self, memory: SendMemory) -> int:
        return self._clock.now_ms() - memory.window.age_ms_max

    def _sent_to(self, topic: bytes, queue_id: int, born_ms_min: int) -> Iterator[Sent]:
        for message in self._walk_back(topic, queue_id, born_ms_min):
            key = _key_of(message.properties)
            if key and not _was_delivered(message):
                yield _sent(message, key, message.queue_id)

    # As a member of a failover group.

    def queues_of(self, topics: Collection[str]) -> list[tuple[bytes, int]]:
        """The queues in which messages of topics are, or wait."""
        names = {*topics, *_WAITING_TOPICS} if topics else set()
        return [one for one in self._store.queues() if one[0].decode("utf-8", "replace") in names]

    def sent_in(
        self, queue: tuple[bytes, int], first: int, last: int, topics: Collection[str]
    ) -> list[tuple[str, Sent]]:
        """The messages of these topics that stand in the rows of a queue, as they were sent."""
        topic, queue_id = queue
        name = topic.decode("utf-8", "replace")
        found: list[tuple[str, Sent]] = []
        for message in self._messages(topic, queue_id, first, last):
            if name not in _WAITING_TOPICS:
                key = _key_of(message.properties)
                if key and not _was_delivered(message):
                    found.append((name, _sent(message, key, queue_id)))
                continue
            real_topic = read_property(message.properties, REAL_TOPIC)
            sent = _waiting(message) if real_topic in topics else None
            if real_topic is not None and sent is not None:
                found.append((real_topic, sent))
        return found

    def _waited(self, memories: Mapping[str, SendMemory]) -> dict[str, list[Sent]]:
        """Messages that were sent to wait, by the topic they wait for, newest first."""
        found: dict[str, list[Sent]] = {topic: [] for topic in memories}
        born_ms_min = min(self._born_ms_min(memory) for memory in memories.values())
        for topic, queue_id in self._store.queues():
            if topic.decode("utf-8", "replace") not in _WAITING_TOPICS:
                continue
            for message in self._walk_back(topic, queue_id, born_ms_min, _WAITING_ROW_COUNT_MAX):
                real_topic = read_property(message.properties, REAL_TOPIC)
                sent = _waiting(message) if real_topic in found else None
                if real_topic is not None and sent is not None:
                    found[real_topic].append(sent)
        for waiting in found.values():
            waiting.sort(reverse=True)
        return found

    def _walk_back(
        self, topic: bytes, queue_id: int, born_ms_min: int, row_count_max: int | None = None
    ) -> Iterator[SentRecord]:
        """A queue's young messages, newest first."""
        lowest = self._store.queue_offset_min(topic, queue_id)
        end = self._store.queue_offset_max(topic, queue_id)
        if row_count_max is not None and end - lowest > row_count_max:
            lowest = end - row_count_max
        while end > lowest:
            start = max(lowest, end - _CHUNK_ROW_COUNT)
            messages = self._messages(topic, queue_id, start, end)
            young = [each for each in messages if each.store_timestamp_ms >= born_ms_min]
            yield from reversed(young)
            if messages and not young:
                return
            end = start

    def _messages(self, topic: bytes, queue_id: int, start: int, end: int) -> list[SentRecord]:
        found: list[SentRecord] = []
        for row in self._store.rows(topic, queue_id, start, end - start):
            try:
                message = read_sent(self._store.record_bytes(row.physical_offset))
            except RecordDamaged as damage:
                _log.warning("%s: a message sent again may be stored again", damage)
                continue
            # A row may stand for a message that is gone, and lead to another one.
            if message[:3] == (topic, queue_id, row.queue_offset):
                found.append(message)
        return found


def _window_of(config: TopicConfig) -> Window | None:
    """Retries and dead letters repeat the key of one message, and each of them is stored."""
    if config.topic.startswith((RETRY_PREFIX, DLQ_PREFIX)):
        return None
    return Window.of(config.attributes)


def _was_delivered(message: SentRecord) -> bool:
    """Whether the broker delivered the message: it was first stored where it waited."""
    if message.prepared_transaction_offset:
        return True
    # The half message may have been the first of all records, at 0.
    is_commit = message.sys_flag & TRANSACTION_MASK == TRANSACTION_COMMIT
    return is_commit and read_property(message.properties, TRANSACTION_ID) is not None


def _waiting(message: SentRecord) -> Sent | None:
    """A waiting message as its producer sent it; None for one that the broker put back."""
    properties = decode_properties(message.properties)
    made_here = any(name in properties for name in _MADE_HERE)
    key = properties.get(UNIQ_KEY, "").encode()
    if message.prepared_transaction_offset or made_here or not key:
        return None
    try:
        if message.topic == TIMER_TOPIC.encode():
            _bounded(properties[TIMER_OUT_MS], _I64_MAX)
        return _sent(message, key, _bounded(properties[REAL_QID], QUEUE_COUNT_MAX))
    except (KeyError, ValueError):
        # Another broker's: its producer got no answer that could be given once more.
        return None


def _bounded(text: str, maximum: int) -> int:
    """Raises ``ValueError`` for text that is no number up to ``maximum``."""
    number = int(text)
    if not 0 <= number <= maximum:
        raise ValueError(text)
    return number


def _key_of(properties: bytes) -> bytes:
    """The unique key, or nothing."""
    _, start, end = look_over(properties)
    return properties[start:end]


def _sent(message: SentRecord, key: bytes, queue_id: int) -> Sent:
    first = FirstSend(
        queue_id,
        message.queue_offset,
        message.physical_offset,
        message.store_timestamp_ms,
    )
    return Sent(message.physical_offset, key, first)


# Calls of the sends' handler.


def remember_place(claim: Claim, queue_id: int, run: AppendedRun, index: int) -> None:
    """Note where message number ``index`` of a run went."""
    first = FirstSend(
        queue_id,
        run.queue_offsets[index],
        run.physical_offsets[index],
        run.store_timestamp_ms,
    )
    claim.memory.remember(claim.key, first)


def repeated_run(firsts: Sequence[FirstSend], physical_end: int) -> AppendedRun:
    """The run that messages stored before would be in, had they been appended just now.

    ``physical_end`` is the end of the last of their records.
    """
    return AppendedRun(
        [first.queue_offset for first in firsts],
        [first.physical_offset for first in firsts],
        firsts[-1].store_timestamp_ms,
        physical_end,
    )


class BatchRepeat:
    """A split batch, some of whose messages may have been stored before.

    Each message is looked up by its own key: repeats keep their first place, the others are stored.
    A message without a key is no repeat.
    """

    def __init__(self, claim: Claim, drafts: Sequence[MessageDraft], now_ms: int) -> None:
        self._memory = claim.memory
        self.fresh: list[MessageDraft] = []
        # For each message its first send, or its number among the fresh ones.
        self._places: list[FirstSend | int] = []
        self._numbers: dict[bytes, int] = {}
        for draft in drafts:
            self._places.append(self._place(draft, now_ms))

    def _place(self, draft: MessageDraft, now_ms: int) -> FirstSend | int:
        key = _key_of(draft.properties)
        number = len(self.fresh)
        if key:
            first = self._memory.find(key, now_ms)
            if first is not None:
                return first
            if key in self._numbers:
                return self._numbers[key]
            self._numbers[key] = number
        self.fresh.append(draft)
        return number

    def stored(self, run: AppendedRun | None) -> list[FirstSend]:
        """The place of each message once ``fresh`` is appended as ``run``; all are known then."""
        added: list[FirstSend] = []
        if run is not None:
            places = zip(self.fresh, run.queue_offsets, run.physical_offsets, strict=True)
            added = [
                FirstSend(draft.queue_id, queue_offset, physical_offset, run.store_timestamp_ms)
                for draft, queue_offset, physical_offset in places
            ]
        for key, number in self._numbers.items():
            self._memory.remember(key, added[number])
        return [added[place] if isinstance(place, int) else place for place in self._places]
