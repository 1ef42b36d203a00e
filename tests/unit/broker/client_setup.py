"""A broker's client side without its sockets and files: tables, rules and a small store."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from contrail.broker.config import BrokerConfig
from contrail.broker.services.group_changes import GroupChanges
from contrail.broker.services.groups import Groups
from contrail.broker.services.topics import Topics
from contrail.broker.state.consumer_offsets import ConsumerOffsets
from contrail.broker.state.consumers import ConsumerTable
from contrail.broker.state.filter_data import FilterTable
from contrail.broker.state.groups import GroupTable
from contrail.broker.state.producers import ProducerTable
from contrail.broker.state.queue_locks import QueueLocks
from contrail.broker.state.runtime_settings import RuntimeSettings
from contrail.broker.state.topics import TopicTable
from contrail.clock import ManualClock
from contrail.errors import FilterInvalid, RecordDamaged
from contrail.model.message import StoredMessage
from contrail.model.topic import TopicConfig
from contrail.protocol.command import ANNOUNCED_VERSION, Request
from contrail.store.services.reading import QueueRow

BROKER = "broker-a"


class Compiled:
    sieve = None

    def matches(self, properties: Mapping[str, str]) -> bool:
        return bool(properties)


def compile_sql(text: str) -> Compiled:
    """Everything compiles but ``bad``."""
    if text == "bad":
        raise FilterInvalid("it is bad")
    return Compiled()


class OnDisk(NamedTuple):
    parts: list[str]


class Read(NamedTuple):
    messages: list[StoredMessage]


@dataclass
class FakeQueues:
    """Queues as lists of store times, the first at ``first``; records by physical offset."""

    times: dict[tuple[bytes, int], list[int]] = field(default_factory=dict)
    first: dict[tuple[bytes, int], int] = field(default_factory=dict)
    records: dict[int, bytes] = field(default_factory=dict)
    # Queues that have left memory.
    cold: set[tuple[bytes, int]] = field(default_factory=set)

    def queue_offset_min(self, topic: bytes, queue_id: int) -> int:
        return self.first.get((topic, queue_id), 0)

    def queue_offset_max(self, topic: bytes, queue_id: int) -> int:
        low = self.queue_offset_min(topic, queue_id)
        return low + len(self.times.get((topic, queue_id), []))

    def queue_offset_by_time(
        self,
        topic: bytes,
        queue_id: int,
        timestamp_ms: int,
        boundary: Literal["lower", "upper"] = "lower",
    ) -> int:
        low = self.queue_offset_min(topic, queue_id)
        times = self.times.get((topic, queue_id), [])
        if boundary == "upper":
            return max(low, low + sum(time <= timestamp_ms for time in times) - 1)
        return low + sum(time < timestamp_ms for time in times)

    def get(self, topic: bytes, queue_id: int, queue_offset: int, *, count_max: int = 32) -> Read:
        low = self.queue_offset_min(topic, queue_id)
        times = self.times.get((topic, queue_id), [])
        if not low <= queue_offset < low + len(times):
            return Read([])
        found = times[queue_offset - low :][:count_max]
        return Read([_message(topic, queue_id, time) for time in found])

    def on_disk(
        self, topic: bytes, queue_id: int, queue_offset: int, *, count_max: int = 32
    ) -> OnDisk:
        return OnDisk(["a part"] if (topic, queue_id) in self.cold else [])

    def record_bytes(self, physical_offset: int) -> bytes:
        if physical_offset not in self.records:
            raise RecordDamaged("no record there", physical_offset=physical_offset)
        return self.records[physical_offset]

    def record(self, physical_offset: int) -> StoredMessage:
        self.record_bytes(physical_offset)
        return _message(b"orders", 0, physical_offset)

    def rows(self, topic: bytes, queue_id: int, queue_offset: int, count: int) -> list[QueueRow]:
        """One row for each record, in the order they were added."""
        places = list(self.records)[queue_offset : queue_offset + count]
        return [QueueRow(queue_offset + at, place, 0, 0) for at, place in enumerate(places)]


def _message(topic: bytes, queue_id: int, store_timestamp_ms: int) -> StoredMessage:
    return StoredMessage(
        topic=topic.decode(),
        queue_id=queue_id,
        queue_offset=0,
        physical_offset=0,
        record_bytes=0,
        body=b"",
        raw_properties=b"",
        flag=0,
        sys_flag=0,
        body_crc=0,
        born_timestamp_ms=0,
        born_host=b"",
        store_timestamp_ms=store_timestamp_ms,
        store_host=b"",
        reconsume_times=0,
        prepared_transaction_offset=0,
    )


class Setup:
    """The parts that the handlers of clients, offsets and relays are built from."""

    def __init__(self, **settings: bool) -> None:
        self.clock = ManualClock(1_000_000)
        self.settings = RuntimeSettings(
            BrokerConfig(broker_name=BROKER, **settings)  # type: ignore[arg-type]
        )
        self.topic_table = TopicTable({"orders": TopicConfig("orders", 2, 2)})
        self.topics = Topics(self.topic_table, self.settings)
        self.group_table = GroupTable()
        self.groups = Groups(self.group_table, self.settings)
        self.producers = ProducerTable()
        self.consumers = ConsumerTable()
        self.locks = QueueLocks(self.consumers)
        self.filters = FilterTable(compile_sql)
        self.offsets = ConsumerOffsets()
        self.store = FakeQueues()
        self.changes = GroupChanges(
            producers=self.producers,
            consumers=self.consumers,
            filters=self.filters,
            locks=self.locks,
            settings=self.settings,
            clock=self.clock,
        )


def request(
    code: int,
    fields: Mapping[str, object] | None = None,
    body: bytes = b"",
    *,
    language: str = "JAVA",
    version: int = ANNOUNCED_VERSION,
) -> Request:
    """A request with its fields as text."""
    texts = {
        name: str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in (fields or {}).items()
    }
    return Request(code, 1, texts, body, 0, version, language)
