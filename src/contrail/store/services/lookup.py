"""Finds messages by key and queue offsets by time."""

from __future__ import annotations

from typing import NamedTuple

from contrail.errors import RecordDamaged
from contrail.kernels.record_layout import IPV6_EXTRA_BYTES, STORE_TIME_AT, store_time
from contrail.model.message import StoredMessage
from contrail.model.properties import KEY_SEPARATOR, KEYS, UNIQ_KEY
from contrail.model.replaced_record import read_replacement
from contrail.store.disk.batch_queue import BatchQueue
from contrail.store.disk.consume_queue import ConsumeQueue
from contrail.store.disk.key_index import KeyIndex
from contrail.store.disk.queue_table import QueueTable
from contrail.store.disk.segments import SegmentList
from contrail.store.services.damage import DamageWatch
from contrail.store.services.reading import QueueReading
from contrail.store.services.residency import AbsentParts
from contrail.store.state.time_search import Boundary, search

# A record's bytes up to the end of its store time.
_READ_BYTES = STORE_TIME_AT + IPV6_EXTRA_BYTES + 8


class PlacesByKey(NamedTuple):
    """Physical offsets of messages with a key, in log order, and text about damaged ones."""

    places: list[int]
    damage: str | None


class Lookup:
    """Answers the questions that are not a read in queue order."""

    def __init__(
        self,
        segments: SegmentList,
        queues: QueueTable,
        index: KeyIndex | None,
        reading: QueueReading,
        damage: DamageWatch,
    ) -> None:
        self._damage = damage
        self._segments = segments
        self._queues = queues
        self._index = index
        self._reading = reading
        self._residency = reading.residency

    def by_key(
        self, topic: bytes, key: bytes, *, count_max: int, begin_ms: int, end_ms: int
    ) -> list[StoredMessage]:
        """The newest sound messages with that key, in log order."""
        found, _ = self._found_by_key(topic, key, count_max, begin_ms, end_ms)
        return [found[physical_offset] for physical_offset in sorted(found)]

    def places_by_key(
        self, topic: bytes, key: bytes, *, count_max: int, begin_ms: int, end_ms: int
    ) -> PlacesByKey:
        """The physical offsets of the newest messages with that key, and text about damage."""
        found, damage = self._found_by_key(topic, key, count_max, begin_ms, end_ms)
        return PlacesByKey(sorted(found), damage)

    @property
    def index_end(self) -> tuple[int, int]:
        """The store time and physical offset of the last indexed message; zeros for none."""
        if self._index is None:
            return 0, 0
        return self._index.last_timestamp_ms, self._index.physical_end

    def _found_by_key(
        self, topic: bytes, key: bytes, count_max: int, begin_ms: int, end_ms: int
    ) -> tuple[dict[int, StoredMessage], str | None]:
        """The index finds candidates by hash and second; each is read and its key compared whole.

        Raises:
            RecordDamaged: no message with the key is sound, but one is damaged or was replaced.
        """
        if self._index is None or count_max <= 0:
            return {}, None
        wanted, text = topic.decode("utf-8", "replace"), key.decode("utf-8", "replace")
        candidates = self._index.candidates(topic, key, begin_ms=begin_ms, end_ms=end_ms)
        found: dict[int, StoredMessage] = {}
        problems: dict[int, str] = {}
        absent = AbsentParts()
        with absent:
            for physical_offset in candidates:
                if physical_offset in found:
                    continue
                with absent:
                    message = self._candidate(physical_offset, begin_ms, end_ms)
                    told = self._problem(message, physical_offset, wanted, text)
                    if told is None and message is not None and _has_key(message, wanted, text):
                        found[physical_offset] = message
                    elif told is not None:
                        problems[physical_offset] = told
                if len(found) + len(absent.parts) >= count_max:
                    break
        absent.require_none()
        if not problems:
            return found, None
        told_of = f"with key {text!r} of topic {wanted!r}"
        damage = self._damage.summary(told_of, [problems[place] for place in sorted(problems)])
        if not found:
            raise RecordDamaged(damage, physical_offset=min(problems), is_record=True)
        return found, damage

    def _problem(
        self, message: StoredMessage | None, physical_offset: int, topic: str, key: str
    ) -> str | None:
        """Text about a candidate with the key that is damaged or was replaced; else None."""
        if message is not None:
            return self._problem_of(message, topic) if _keeps(message, key) else None
        damaged = self._damage.message_at(physical_offset)
        if damaged is not None and not _has_key(damaged, topic, key):
            return None
        if physical_offset >= self._segments.physical_min:
            self._damage.look_at(physical_offset)
        return self._damage.problem_at(physical_offset)

    def _problem_of(self, message: StoredMessage, topic: str) -> str | None:
        """Text about a whole record that replaces a message of ``topic`` or is misplaced."""
        lost = read_replacement(message)
        if lost is not None:
            is_meant = lost.topic.decode("utf-8", "replace") == topic
            return f"was damaged, and was replaced: {lost}" if is_meant else None
        misplaced = self._damage.misplaced_at(message.physical_offset)
        if misplaced is None or misplaced.place.topic.decode("utf-8", "replace") != topic:
            return None
        return self._damage.problem_at(message.physical_offset)

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
        """The record's store time; reads only that, so a search touches one page per step."""
        self._residency.require_rows(queue, queue_offset, 1)
        row = queue.raw_rows(queue_offset, 1)
        physical_offset = int.from_bytes(row[:8], "big", signed=True)
        segment = self._segments.at(physical_offset)
        if segment is None:
            return None
        self._residency.require_start(physical_offset, _READ_BYTES)
        return store_time(segment.view(physical_offset, _READ_BYTES), 0)

    def _candidate(self, physical_offset: int, begin_ms: int, end_ms: int) -> StoredMessage | None:
        try:
            message = self._reading.record(physical_offset)
        except RecordDamaged:
            # Retention removed the record, or it is damaged; the index entry is only a hint.
            return None
        return message if begin_ms <= message.store_timestamp_ms <= end_ms else None


def _has_key(message: StoredMessage, topic: str, key: str) -> bool:
    return message.topic == topic and _keeps(message, key)


def _keeps(message: StoredMessage, key: str) -> bool:
    properties = message.properties
    return properties.get(UNIQ_KEY) == key or key in properties.get(KEYS, "").split(KEY_SEPARATOR)
