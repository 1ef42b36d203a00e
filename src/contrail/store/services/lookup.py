"""Finds messages by key and queue offsets by time."""

from __future__ import annotations

from contrail.errors import RecordDamaged
from contrail.model.message import StoredMessage
from contrail.model.properties import KEY_SEPARATOR, KEYS, UNIQ_KEY
from contrail.model.record import SYS_FLAG_BORN_HOST_V6
from contrail.store.disk.batch_queue import BatchQueue
from contrail.store.disk.consume_queue import ConsumeQueue
from contrail.store.disk.key_index import KeyIndex
from contrail.store.disk.queue_table import QueueTable
from contrail.store.disk.segments import SegmentList
from contrail.store.services.reading import QueueReading
from contrail.store.services.residency import AbsentParts
from contrail.store.state.time_search import Boundary, search

_STORE_TIME_POSITION = 56
_SYS_FLAG_LOW_BYTE = 39
_IPV6_EXTRA_BYTES = 12
_READ_BYTES = _STORE_TIME_POSITION + _IPV6_EXTRA_BYTES + 8


class Lookup:
    """Answers the questions that are not a read in queue order."""

    def __init__(
        self,
        segments: SegmentList,
        queues: QueueTable,
        index: KeyIndex | None,
        reading: QueueReading,
    ) -> None:
        self._segments = segments
        self._queues = queues
        self._index = index
        self._reading = reading
        self._residency = reading.residency

    def by_key(
        self, topic: bytes, key: bytes, *, count_max: int, begin_ms: int, end_ms: int
    ) -> list[StoredMessage]:
        """The newest messages with that key, in log order."""
        found = self._found_by_key(topic, key, count_max, begin_ms, end_ms)
        return [found[physical_offset] for physical_offset in sorted(found)]

    def places_by_key(
        self, topic: bytes, key: bytes, *, count_max: int, begin_ms: int, end_ms: int
    ) -> list[int]:
        """Where the newest messages with that key begin, in log order."""
        return sorted(self._found_by_key(topic, key, count_max, begin_ms, end_ms))

    @property
    def index_end(self) -> tuple[int, int]:
        """The store time and physical offset of the last indexed message; zeros for none."""
        if self._index is None:
            return 0, 0
        return self._index.last_timestamp_ms, self._index.physical_end

    def _found_by_key(
        self, topic: bytes, key: bytes, count_max: int, begin_ms: int, end_ms: int
    ) -> dict[int, StoredMessage]:
        """The index answers by hash and second; every candidate is read and compared whole,
        until enough were found or there are no more.
        """
        if self._index is None or count_max <= 0:
            return {}
        wanted, text = topic.decode("utf-8", "replace"), key.decode("utf-8", "replace")
        candidates = self._index.candidates(topic, key, begin_ms=begin_ms, end_ms=end_ms)
        found: dict[int, StoredMessage] = {}
        absent = AbsentParts()
        with absent:
            for physical_offset in candidates:
                if physical_offset in found:
                    continue
                with absent:
                    message = self._candidate(physical_offset, begin_ms, end_ms)
                    if message is not None and _has_key(message, wanted, text):
                        found[physical_offset] = message
                if len(found) + len(absent.parts) >= count_max:
                    break
        absent.require_none()
        return found

    def by_time(self, topic: bytes, queue_id: int, timestamp_ms: int, boundary: Boundary) -> int:
        """A queue offset by store time; 0 for a queue that does not exist."""
        queue = self._queues.get(topic, queue_id)
        if queue is None:
            return 0
        if isinstance(queue, BatchQueue):
            waits = not self._residency.waits.are_forbidden
            return queue.offset_by_time(timestamp_ms, boundary, waits=waits)
        low, high = queue.queue_offset_min, queue.queue_offset_max
        return search(low, high, lambda at: self._time_at(queue, at), timestamp_ms, boundary)

    def _time_at(self, queue: ConsumeQueue, queue_offset: int) -> int | None:
        """Only the record's store time is read: a search touches one page per step."""
        self._residency.require_rows(queue, queue_offset, 1)
        row = queue.raw_rows(queue_offset, 1)
        physical_offset = int.from_bytes(row[:8], "big", signed=True)
        segment = self._segments.at(physical_offset)
        if segment is None:
            return None
        self._residency.require_start(physical_offset, _READ_BYTES)
        record = segment.view(physical_offset, _READ_BYTES)
        position = _STORE_TIME_POSITION
        if record[_SYS_FLAG_LOW_BYTE] & SYS_FLAG_BORN_HOST_V6:
            position += _IPV6_EXTRA_BYTES
        return int.from_bytes(record[position : position + 8], "big", signed=True)

    def _candidate(self, physical_offset: int, begin_ms: int, end_ms: int) -> StoredMessage | None:
        try:
            message = self._reading.record(physical_offset)
        except RecordDamaged:
            # Retention took it, or the scrubber will report it; the index entry is only a hint.
            return None
        return message if begin_ms <= message.store_timestamp_ms <= end_ms else None


def _has_key(message: StoredMessage, topic: str, key: str) -> bool:
    if message.topic != topic:
        return False
    properties = message.properties
    return properties.get(UNIQ_KEY) == key or key in properties.get(KEYS, "").split(KEY_SEPARATOR)
