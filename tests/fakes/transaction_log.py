"""A log in memory that transactions read and write, and that a crash can cut."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from contrail.clock import ManualClock
from contrail.errors import MessageIllegal, RecordDamaged, StoreError, StorePoisoned
from contrail.model.message import MessageDraft, StoredMessage
from contrail.model.properties import PGROUP, REAL_QID, REAL_TOPIC, UNIQ_KEY, read_property
from contrail.model.record import TRANSACTION_COMMIT, TRANSACTION_MASK
from contrail.store.services.append import AppendedRun
from contrail.store.services.reading import QueueRow

STORE_HOST = b"\x7f\x00\x00\x01\x00\x00\x2a\x9f"
# Every record has the same size: a physical offset gives its number.
RECORD_BYTES = 1000


class MemoryLog:
    """Records in a list; ``settled_end`` is moved by the test."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.records: list[StoredMessage] = []
        self.settled_end = 0
        self.physical_min = 0
        self.refusal: StoreError | None = None
        self.poisoned: StorePoisoned | None = None
        self.body_bytes_max = 1 << 20
        self.damaged: set[int] = set()
        # Bytes in bodies of messages that read like a record.
        self.forged: dict[int, StoredMessage] = {}
        self._queues: dict[tuple[bytes, int], list[StoredMessage]] = {}

    @property
    def physical_end(self) -> int:
        return len(self.records) * RECORD_BYTES

    @property
    def acknowledged_end(self) -> int:
        return self.settled_end

    @property
    def visible_end(self) -> int:
        return self.physical_end

    @property
    def dispatched_end(self) -> int:
        return self.physical_end

    # Writing.

    def row_is_damaged(self, topic: bytes, queue_id: int, queue_offset: int) -> bool:
        return False

    def repair_row(self, topic: bytes, queue_id: int, queue_offset: int) -> bool:
        return True

    def append(self, drafts: Sequence[MessageDraft]) -> AppendedRun:
        if self.refusal is not None:
            raise self.refusal
        if any(len(draft.body) > self.body_bytes_max for draft in drafts):
            raise MessageIllegal("a body is too large")
        stored = [self._store(draft) for draft in drafts]
        return AppendedRun(
            [message.queue_offset for message in stored],
            [message.physical_offset for message in stored],
            self.clock.now_ms(),
            self.physical_end,
        )

    def _store(self, draft: MessageDraft) -> StoredMessage:
        queue = self._queues.setdefault((draft.topic, draft.queue_id), [])
        message = StoredMessage(
            topic=draft.topic.decode(),
            queue_id=draft.queue_id,
            queue_offset=len(queue),
            physical_offset=self.physical_end,
            record_bytes=RECORD_BYTES,
            body=draft.body,
            raw_properties=draft.properties,
            flag=draft.flag,
            sys_flag=draft.sys_flag,
            body_crc=0,
            born_timestamp_ms=draft.born_timestamp_ms,
            born_host=draft.born_host,
            store_timestamp_ms=self.clock.now_ms(),
            store_host=STORE_HOST,
            reconsume_times=draft.reconsume_times,
            prepared_transaction_offset=draft.prepared_transaction_offset,
        )
        queue.append(message)
        self.records.append(message)
        return message

    def flush(self) -> None:
        self.settled_end = self.physical_end

    def after_crash(self, record_count: int) -> MemoryLog:
        """The log of a new process after a crash cut it behind ``record_count`` records."""
        assert record_count * RECORD_BYTES >= self.settled_end, "what is durable stays"
        log = MemoryLog(self.clock)
        for message in self.records[:record_count]:
            queue = log._queues.setdefault((message.topic.encode(), message.queue_id), [])
            queue.append(message)
            log.records.append(message)
        log.flush()
        log.physical_min = self.physical_min
        return log

    # Reading.

    def rows(self, topic: bytes, queue_id: int, queue_offset: int, count: int) -> list[QueueRow]:
        queue = self._queues.get((topic, queue_id), [])
        if not self.queue_offset_min(topic, queue_id) <= queue_offset < len(queue):
            return []
        found = queue[queue_offset : queue_offset + count]
        return [QueueRow(m.queue_offset, m.physical_offset, m.record_bytes, 0) for m in found]

    def problem_at(self, physical_offset: int) -> str | None:
        return None

    def record(self, physical_offset: int) -> StoredMessage:
        if physical_offset in self.forged:
            return replace(self.forged[physical_offset])
        index, rest = divmod(physical_offset, RECORD_BYTES)
        if rest or not self.physical_min <= physical_offset < self.physical_end:
            raise RecordDamaged("no record is there", physical_offset=physical_offset)
        if physical_offset in self.damaged:
            raise RecordDamaged("a bit has turned", physical_offset=physical_offset)
        # A copy: properties that a reader decodes must not stay with the record.
        return replace(self.records[index])

    def messages_between(self, physical_start: int, physical_end: int) -> Iterator[StoredMessage]:
        for place in range(physical_start, physical_end, RECORD_BYTES):
            yield self.record(place)

    def query(self, topic: bytes, key: bytes) -> list[StoredMessage]:
        wanted = key.decode()
        return [m for m in self.of(topic) if read_property(m.raw_properties, UNIQ_KEY) == wanted]

    def queue_offset_min(self, topic: bytes, queue_id: int) -> int:
        queue = self._queues.get((topic, queue_id), [])
        gone = [m for m in queue if m.physical_offset < self.physical_min]
        return len(gone)

    def queue_offset_max(self, topic: bytes, queue_id: int) -> int:
        return len(self._queues.get((topic, queue_id), []))

    # Asked by tests.

    def of(self, topic: bytes) -> list[StoredMessage]:
        return [message for message in self.records if message.topic.encode() == topic]

    def commits(self) -> list[StoredMessage]:
        return [m for m in self.records if m.sys_flag & TRANSACTION_MASK == TRANSACTION_COMMIT]


def half_draft(
    key: str, *, clock: ManualClock, group: str = "payers", body: bytes = b"paid", **more: str
) -> MessageDraft:
    """A transactional send to ``orders``, queue 2, as the broker stores it."""
    properties = {
        "TRAN_MSG": "true",
        PGROUP: group,
        UNIQ_KEY: key,
        "__transactionId__": key,
        REAL_TOPIC: "orders",
        REAL_QID: "2",
        **more,
    }
    text = "".join(f"{name}\x01{value}\x02" for name, value in properties.items())
    return MessageDraft(
        b"RMQ_SYS_TRANS_HALF_TOPIC", 0, body, text.encode(), born_timestamp_ms=clock.now_ms()
    )
