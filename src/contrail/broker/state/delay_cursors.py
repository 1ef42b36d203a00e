"""Delay levels: how far each has been delivered, and the form of a delivery.

A level is one queue of the schedule topic; its messages become due in the order they were stored,
so one cursor per level is enough: the queue offset of the next message to deliver.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from contrail.broker.state.causes import cause_mark
from contrail.errors import MessageIllegal
from contrail.kernels.delivered_draft import delivered_draft
from contrail.model.data_version import DataVersion
from contrail.model.fastjson import JsonValue
from contrail.model.message import MessageDraft, StoredMessage
from contrail.model.properties import REAL_QID, REAL_TOPIC, read_property
from contrail.model.record import decode_record
from contrail.model.topic import HALF_TOPIC, SCHEDULE_TOPIC

# RocketMQ gives the table a new version once in this many deliveries; slaves poll it.
_DELIVERIES_PER_VERSION = 200
_QUEUE_ID = re.compile(r"\+?[0-9]{1,10}")
# A half message is not to be seen, and in the schedule topic it would come back for ever.
_NOT_DELIVERED_TO = frozenset({HALF_TOPIC, SCHEDULE_TOPIC})
_NOT_DELIVERED_TO_BYTES = frozenset(topic.encode() for topic in _NOT_DELIVERED_TO)


class CursorsSnapshot(NamedTuple):
    """The fields of ``delayOffset.json``, in the order its table type takes them."""

    queue_offsets: Mapping[int, int]
    data_version: DataVersion
    unknown: Mapping[str, JsonValue]


class DelayCursors:
    """The cursors of all levels, those of levels that are not configured now included."""

    def __init__(
        self,
        delay_table: Sequence[int],
        queue_offsets: Mapping[int, int] | None = None,
        *,
        data_version: DataVersion | None = None,
        unknown: Mapping[str, JsonValue] | None = None,
        are_newest: bool = True,
    ) -> None:
        """``delay_table`` holds milliseconds per level; index 0 is unused.

        ``are_newest`` is False when these are not the cursors that were written last.
        """
        self.are_newest = are_newest
        self._delay_table = tuple(delay_table)
        self._queue_offsets = dict(queue_offsets or {})
        self._deliveries = 0
        self._data_version = data_version or DataVersion()
        self._unknown = dict(unknown or {})

    @property
    def levels(self) -> tuple[int, ...]:
        """The levels that are configured now."""
        return tuple(range(1, len(self._delay_table)))

    def delay_ms(self, level: int) -> int:
        """The delay of a level; 0 for one that is not configured now."""
        return self._delay_table[level] if level < len(self._delay_table) else 0

    def at(self, level: int) -> int:
        """The queue offset of the level's next message."""
        return self._queue_offsets.get(level, 0)

    def knows(self, level: int) -> bool:
        """Whether the level has had a message to wait for."""
        return level in self._queue_offsets

    def snapshot(self) -> CursorsSnapshot:
        return CursorsSnapshot(dict(self._queue_offsets), self._data_version, self._unknown)

    def correct(self, level: int, *, queue_offset_min: int, queue_offset_max: int) -> int | None:
        """Move a cursor outside its queue to the nearer end; returns where a stored one was."""
        before = self._queue_offsets.get(level)
        inside = min(max(before or 0, queue_offset_min), queue_offset_max)
        if inside == (before or 0):
            return None
        self._queue_offsets[level] = inside
        return before

    def put(self, level: int, queue_offset: int) -> None:
        """Set a cursor that nothing was delivered for."""
        self._queue_offsets[level] = queue_offset

    def assign(self, queue_offsets: Mapping[int, int]) -> None:
        """Hold these cursors, and no others."""
        self._queue_offsets = dict(queue_offsets)

    def replace(self, queue_offsets: Mapping[int, int], data_version: DataVersion) -> bool:
        """Take the master's cursors where they are further; False if nothing is new.

        No cursor moves back: a restarted master may have forgotten what it had delivered.
        """
        changed = dict(self._queue_offsets)
        for level, queue_offset in queue_offsets.items():
            changed[level] = max(queue_offset, self.at(level))
        if changed == self._queue_offsets and data_version == self._data_version:
            return False
        self._queue_offsets = changed
        self._data_version = data_version
        return True

    def delivered_to(self, level: int, queue_offset: int, now_ms: int) -> None:
        """Everything before ``queue_offset`` has been delivered."""
        versions = self._deliveries // _DELIVERIES_PER_VERSION
        self._deliveries += queue_offset - self.at(level)
        self._queue_offsets[level] = queue_offset
        if self._deliveries // _DELIVERIES_PER_VERSION != versions:
            self._data_version = self._data_version.bump(now_ms)


def delivery_of(record: bytes) -> MessageDraft:
    """The message to store when a record is due; the record's body was checked before.

    Raises:
        RecordDamaged: it is no whole record.
        MessageIllegal: the message does not say where it belongs, or belongs nowhere.
    """
    found = delivered_draft(record)
    if found is not None and found[0] not in _NOT_DELIVERED_TO_BYTES:
        return MessageDraft._make(found)
    return as_delivered(decode_record(record, check_body_crc=False))


def as_delivered(message: StoredMessage) -> MessageDraft:
    """The message to store when a delayed message is due; it names the record that waited.

    Raises:
        MessageIllegal: it does not say where it belongs, or belongs nowhere.
    """
    topic = read_property(message.raw_properties, REAL_TOPIC)
    queue_id = read_property(message.raw_properties, REAL_QID)
    if topic is None or queue_id is None or not _QUEUE_ID.fullmatch(queue_id):
        raise MessageIllegal(f"it has no place to go: {REAL_TOPIC}={topic}, {REAL_QID}={queue_id}")
    if topic in _NOT_DELIVERED_TO:
        raise MessageIllegal(f"nothing is delivered to {topic}")
    return MessageDraft(
        topic.encode(),
        int(queue_id),
        message.body,
        message.raw_properties,
        message.flag,
        message.sys_flag,
        message.born_timestamp_ms,
        message.born_host,
        message.reconsume_times,
        cause_mark(message.physical_offset),
    )
