"""The wishes of a record of the timer topic, and its delivery when its time has come.

``TIMER_OUT_MS`` is the slot it waits in; the time to the millisecond is said by the property the
producer set. Relative ones count from when the record was stored. A record that was rolled on was
stored again, so its time is carried along in ``TIMER_DELIVER_MS``.
"""

from __future__ import annotations

from typing import NamedTuple, Self

from contrail.broker.state.causes import cause_mark
from contrail.broker.state.due_timers import key_of_one
from contrail.errors import MessageIllegal
from contrail.kernels.timer_rows import read_timer
from contrail.model.message import MessageDraft
from contrail.model.properties import (
    CRC32,
    NAME_END,
    PAIR_END,
    REAL_QID,
    REAL_TOPIC,
    RECALL_NONCE,
    TIMER_DELAY_MS,
    TIMER_DELAY_SEC,
    TIMER_DELIVER_MS,
    TIMER_DEQUEUE_MS,
    TIMER_ENQUEUE_MS,
    TIMER_OUT_MS,
    TIMER_ROLL_TIMES,
    put_property,
    read_property,
    remove_property,
)
from contrail.model.topic import HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC

I64_MAX = (1 << 63) - 1
# How far behind its slot a message may ask to be delivered: slots of another precision, and a
# clock that moved between admission and storing. More is a property nobody should have set.
_BEHIND_SLOT_MS_MAX = 10_000
_TIMER_TOPIC = TIMER_TOPIC.encode()
_NOT_DELIVERED_TO = frozenset({HALF_TOPIC.encode(), SCHEDULE_TOPIC.encode(), _TIMER_TOPIC})
_ENQUEUE_NAME, _DEQUEUE_NAME = TIMER_ENQUEUE_MS.encode(), TIMER_DEQUEUE_MS.encode()
_CRC_NAME = CRC32.encode()
_QUEUE_ID_END = 1 << 31
# The cause mark has eight bytes, and the body's length four, before the body.
_MARK_BEFORE_BODY = 12
_NEGATIVE = 0x80


class TimerRecord(NamedTuple):
    """A record of the timer topic, as the kernel reads it, and its bytes."""

    physical_offset: int
    queue_offset: int
    record_bytes: int
    store_timestamp_ms: int
    flag: int
    sys_flag: int
    born_timestamp_ms: int
    born_host: bytes
    reconsume_times: int
    body_start: int
    body_end: int
    properties_start: int
    properties_end: int
    # The slot begins at or before it.
    out_ms: int
    asked_ms: int | None
    topic: bytes
    queue_id: int | None
    unique_key: bytes
    # Names the message that this one deletes: its unique key, perhaps behind its topic and a plus
    # sign; empty for none.
    deletes: bytes
    roll_count: int | None
    # Tells it apart from others with its key; of a deletion, that of the message it deletes.
    nonce: bytes
    data: bytes

    @classmethod
    def read(cls, data: bytes) -> Self:
        """The facts of the record.

        Raises:
            MessageIllegal: it says neither when nor where, or is no record.
        """
        try:
            record = cls._make((*read_timer(data), data))
        except ValueError as error:
            raise MessageIllegal(str(error)) from error
        if record[13] is None or not record.topic:
            raise MessageIllegal(
                f"the record at {record.physical_offset} has no {TIMER_OUT_MS} or no {REAL_TOPIC}"
            )
        return record

    @property
    def raw_properties(self) -> bytes:
        return self.data[self.properties_start : self.properties_end]

    @property
    def key(self) -> bytes:
        """The full name in a deletion of this message, and of all others with its key."""
        return self.topic + b"+" + self.unique_key

    @property
    def deleted_key(self) -> bytes:
        """The ``key`` of the messages that this one deletes; with a nonce, of that one alone.

        Brokers of Apache's write the unique key alone, or with the topic, as they are told; it is
        then a message of the topic that the deletion was sent to.
        """
        key = self.deletes if b"+" in self.deletes else self.topic + b"+" + self.deletes
        return key_of_one(key, self.nonce)

    def deliver_ms(self, precision_ms: int) -> int:
        """The time before which it must not be delivered."""
        out_ms = self.out_ms
        if self.asked_ms is None or self._is_asked_unsure():
            return out_ms + precision_ms
        latest_ms = out_ms + max(precision_ms, _BEHIND_SLOT_MS_MAX)
        return min(max(self.asked_ms, out_ms + 1), latest_ms)

    def _is_asked_unsure(self) -> bool:
        """Whether ``TIMER_DELIVER_MS`` was not written by a broker that rolled it on.

        Without the mark of one, the count may be a client's, or another broker's, which leaves the
        property alone: beside a relative time it means nothing.
        """
        if self.roll_count is None or self.data[self.body_start - _MARK_BEFORE_BODY] & _NEGATIVE:
            return False
        raw = self.raw_properties
        return any(read_property(raw, name) for name in (TIMER_DELAY_SEC, TIMER_DELAY_MS))


def as_delivered(record: TimerRecord, enqueued_ms: int) -> MessageDraft:
    """The message to store when its time has come; ``stamped`` adds when that was.

    Raises:
        MessageIllegal: it does not say where it belongs, or belongs nowhere.
    """
    queue_id = record.queue_id
    if queue_id is None or not 0 <= queue_id < _QUEUE_ID_END:
        raise MessageIllegal(f"it has no place to go: {REAL_QID} is missing or no queue id")
    if record.topic in _NOT_DELIVERED_TO:
        raise MessageIllegal(f"nothing is delivered to {record.topic.decode('utf-8', 'replace')}")
    properties = _enqueued(_without_nonce(record), enqueued_ms)
    return _draft(record, record.topic, queue_id, properties)


def as_rolled(record: TimerRecord, deliver_ms: int, enqueued_ms: int) -> MessageDraft:
    """The message to store when it must wait on: itself, with its time and count of rounds."""
    properties = _enqueued(record.raw_properties, enqueued_ms)
    properties = put_property(properties, TIMER_DELIVER_MS, str(deliver_ms))
    rolls = (record.roll_count or 0) + 1
    properties = put_property(properties, TIMER_ROLL_TIMES, str(rolls))
    return _draft(record, _TIMER_TOPIC, 0, properties)


def as_it_was(record: TimerRecord, draft: MessageDraft) -> MessageDraft:
    """``draft`` without the properties of delivery, for one that has no room left for them."""
    is_rolled = draft.topic == _TIMER_TOPIC
    return draft._replace(properties=record.raw_properties if is_rolled else _without_nonce(record))


def dequeue_stamp(now_ms: int) -> bytes:
    """The pair that says when a message left the timer."""
    return _DEQUEUE_NAME + NAME_END + str(now_ms).encode() + PAIR_END


def stamped(draft: MessageDraft, stamp: bytes) -> MessageDraft:
    return MessageDraft._make((*draft[:3], draft.properties + stamp, *draft[4:]))


def _without_nonce(record: TimerRecord) -> bytes:
    """The properties as a consumer gets them: once delivered, a message is not recalled."""
    raw = record.raw_properties
    return remove_property(raw, RECALL_NONCE) if record.nonce else raw


def _enqueued(raw: bytes, enqueued_ms: int) -> bytes:
    """The properties without those of an earlier round, ready for pairs to be added."""
    if _CRC_NAME in raw:
        raw = remove_property(raw, CRC32)
    if _ENQUEUE_NAME in raw:
        raw = remove_property(raw, TIMER_ENQUEUE_MS)
    if _DEQUEUE_NAME in raw:
        raw = remove_property(raw, TIMER_DEQUEUE_MS)
    if raw and not raw.endswith(PAIR_END):
        raw += PAIR_END
    return raw + _ENQUEUE_NAME + NAME_END + str(enqueued_ms).encode() + PAIR_END


def _draft(record: TimerRecord, topic: bytes, queue_id: int, properties: bytes) -> MessageDraft:
    return MessageDraft(
        topic,
        queue_id,
        record.data[record.body_start : record.body_end],
        properties,
        record.flag,
        record.sys_flag,
        record.born_timestamp_ms,
        record.born_host,
        record.reconsume_times,
        cause_mark(record.physical_offset),
    )
