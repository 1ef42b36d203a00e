"""The records of a transaction: half messages, their copies, op records, commits.

A half message waits in queue 0 of the half topic. An *op record* in queue 0 of the op topic says
that half messages wait no longer: its body lists their queue offsets, each followed by a comma,
and its tag is ``d``. RocketMQ reads nothing else in an op record. A property of our own says for
each of the offsets, by one letter, the fate of the message, so that a restart knows it too.

A copy that is put back to the half queue keeps everything that makes the message itself: its
unique key, producer group, topic, birth time and birth host. These are the message's identity.
A second property of our own says when the first of them was stored: the birth time is the
producer's, and its clock may be days behind.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum

from contrail.broker.state.causes import cause_mark
from contrail.broker.state.sink_ledger import SINK_MARK, SinkRow, read_row
from contrail.model.message import MessageDraft, StoredMessage
from contrail.model.properties import (
    CHECK_IMMUNITY_TIME_IN_SECONDS,
    CRC32,
    PGROUP,
    REAL_QID,
    REAL_TOPIC,
    TAGS,
    TRAN_PREPARED_QUEUE_OFFSET,
    TRANSACTION_CHECK_TIMES,
    UNIQ_KEY,
    WAIT,
    encode_properties,
    put_property,
    remove_properties,
    remove_property,
)
from contrail.model.record import TRANSACTION_COMMIT, TRANSACTION_MASK
from contrail.model.topic import (
    HALF_TOPIC,
    OP_HALF_TOPIC,
    SEND_FORBIDDEN_TOPICS,
    TIMER_TOPIC,
    TRANSACTION_EXHAUSTED_TOPIC,
)

HALF = HALF_TOPIC.encode()
OP = OP_HALF_TOPIC.encode()
EXHAUSTED = TRANSACTION_EXHAUSTED_TOPIC.encode()
QUEUE_ID = 0

OP_TAG = "d"
FATES = "CONTRAIL_FATES"
FIRST_STORED = "CONTRAIL_FIRST_STORED_MS"
# RocketMQ's transactionOpMsgMaxSize: a longer list of offsets goes on in another record.
OP_BODY_BYTES_MAX = 4096
# Properties that a commit leaves out: the message's destination, and another record's checksum.
_REMEMBERED = (REAL_TOPIC, REAL_QID, FIRST_STORED, CRC32)
_LONG = re.compile(r"[+-]?[0-9]{1,19}")


class Fate(Enum):
    """The fate of a half message; the letters stand in op records."""

    COMMITTED = "c"
    ROLLED_BACK = "r"
    GIVEN_UP = "x"
    """Asked about too often or for too long; the message is in the exhausted topic."""
    SUPERSEDED = "s"
    """A later copy stands for it."""
    ESCAPED = "e"
    """A slave that acted as master handed it to another broker, where it goes on."""
    DECIDED = "?"
    """Another broker's op record, which does not say how it was decided."""


FATE_WORDS = {
    Fate.COMMITTED: "committed",
    Fate.ROLLED_BACK: "rolled back",
    Fate.GIVEN_UP: f"given up and moved to {TRANSACTION_EXHAUSTED_TOPIC}",
    Fate.ESCAPED: "handed to another broker while the master was away",
    Fate.DECIDED: "decided",
}

Identity = tuple[str, str, str, int, bytes]
Mark = tuple[int, Fate]
"""The queue offset of a half message, and its fate."""


@dataclass(slots=True, eq=False)
class Half:
    """One open transaction, and the newest copy of its half message."""

    key: str
    group: str
    topic: str
    born_ms: int
    born_host: bytes
    # Where the transaction began, and the copies of it that are not the newest any more.
    first_queue_offset: int
    queue_offset: int
    physical_offset: int
    stored_ms: int
    checks: int
    immunity_ms: int | None
    # The transaction began before the first record that was read: a request may name an earlier
    # copy.
    begins_unseen: bool
    # When the first copy was stored; of another broker's copy only its own time is known.
    since_ms: int
    superseded: list[int] = field(default_factory=list)
    # Kept by the schedule of checks; below 0 while there is no time for the next one.
    due_ms: int = -1
    entry: int = -1
    # False once a copy of it broke a limit.
    copyable: bool = True
    # Of a sink: it is not asked about, for the sink commits its rows together.
    sink: SinkRow | None = None

    @property
    def identity(self) -> Identity:
        return (self.key, self.group, self.topic, self.born_ms, self.born_host)


def read_half(message: StoredMessage) -> Half:
    """The transaction of a record of the half topic."""
    properties = message.properties
    link = _number(properties.get(TRAN_PREPARED_QUEUE_OFFSET), -1)
    linked = 0 <= link <= message.queue_offset
    checks = max(0, _number(properties.get(TRANSACTION_CHECK_TIMES), 0))
    return Half(
        key=properties.get(UNIQ_KEY, ""),
        group=properties.get(PGROUP, ""),
        topic=properties.get(REAL_TOPIC, ""),
        born_ms=message.born_timestamp_ms,
        born_host=message.born_host,
        first_queue_offset=link if linked else message.queue_offset,
        queue_offset=message.queue_offset,
        physical_offset=message.physical_offset,
        stored_ms=message.store_timestamp_ms,
        checks=checks,
        immunity_ms=immunity_ms(message),
        begins_unseen=checks > 0 and not linked,
        since_ms=_first_stored_ms(message) if linked or checks else message.store_timestamp_ms,
        sink=_sink_row(message),
    )


def _sink_row(message: StoredMessage) -> SinkRow | None:
    """The row that a half message is; others may carry the properties, but not the mark."""
    is_marked = message.prepared_transaction_offset == SINK_MARK
    return read_row(message.raw_properties) if is_marked else None


def _first_stored_ms(copy: StoredMessage) -> int:
    stored_ms = copy.store_timestamp_ms
    first_ms = _number(copy.properties.get(FIRST_STORED), -1)
    return first_ms if 0 <= first_ms <= stored_ms else stored_ms


def identity_of(message: StoredMessage) -> Identity:
    properties = message.properties
    return (
        properties.get(UNIQ_KEY, ""),
        properties.get(PGROUP, ""),
        properties.get(REAL_TOPIC, ""),
        message.born_timestamp_ms,
        message.born_host,
    )


def is_copy(message: StoredMessage) -> bool:
    """Whether a record may be a copy that was put back: every copy of that kind is marked."""
    properties = message.properties
    return TRANSACTION_CHECK_TIMES in properties or TRAN_PREPARED_QUEUE_OFFSET in properties


def immunity_ms(message: StoredMessage) -> int | None:
    """How long the message asks not to be checked; None if it does not say."""
    text = message.properties.get(CHECK_IMMUNITY_TIME_IN_SECONDS)
    return None if text is None else max(0, _number(text, 0)) * 1000


# Op records.


def op_drafts(marks: Sequence[Mark], *, now_ms: int, store_host: bytes) -> list[MessageDraft]:
    """The records that name the fates of half messages."""
    return [_op_draft(part, now_ms, store_host) for part in _op_parts(marks)]


def _op_parts(marks: Sequence[Mark]) -> Iterator[list[Mark]]:
    part: list[Mark] = []
    byte_count = 0
    for mark in marks:
        mark_bytes = len(str(mark[0])) + 1
        if byte_count + mark_bytes > OP_BODY_BYTES_MAX:
            yield part
            part, byte_count = [], 0
        part.append(mark)
        byte_count += mark_bytes
    if part:
        yield part


def _op_draft(marks: list[Mark], now_ms: int, store_host: bytes) -> MessageDraft:
    fates = "".join(fate.value for _, fate in marks)
    return MessageDraft(
        OP,
        QUEUE_ID,
        "".join(f"{queue_offset}," for queue_offset, _ in marks).encode(),
        encode_properties({TAGS: OP_TAG, WAIT: "true", FATES: fates}),
        born_timestamp_ms=now_ms,
        born_host=store_host,
    )


def read_op(message: StoredMessage) -> list[Mark]:
    """The half messages that an op record speaks of; one of another kind speaks of none."""
    if message.properties.get(TAGS) != OP_TAG:
        return []
    texts = [text for text in message.body.decode("utf-8", "replace").split(",") if text]
    letters = message.properties.get(FATES, "")
    if len(letters) != len(texts):
        letters = Fate.DECIDED.value * len(texts)
    marks = ((_number(text, -1), letter) for text, letter in zip(texts, letters, strict=True))
    return [(number, _fate(letter)) for number, letter in marks if number >= 0]


def _fate(letter: str) -> Fate:
    try:
        return Fate(letter)
    except ValueError:
        return Fate.DECIDED


# Messages made from a half message.


def commit_draft(message: StoredMessage, half: Half) -> MessageDraft:
    """The message as consumers get it, without the properties that only a half message has.

    Raises:
        ValueError: the record does not say where the message was going, or nobody may send there.
    """
    topic = _real_topic(message)
    if topic in SEND_FORBIDDEN_TOPICS or topic == TIMER_TOPIC:
        raise ValueError(f"{REAL_TOPIC}={topic!r}: nobody may send to a system topic")
    return MessageDraft(
        topic.encode(),
        _real_queue_id(message),
        message.body,
        remove_properties(message.raw_properties, _REMEMBERED),
        message.flag,
        message.sys_flag & ~TRANSACTION_MASK | TRANSACTION_COMMIT,
        message.born_timestamp_ms,
        message.born_host,
        message.reconsume_times,
        half.physical_offset,
    )


def copy_draft(message: StoredMessage, half: Half, *, checks: int) -> MessageDraft:
    """The half message once more, at the end of its queue."""
    draft = _again(message)
    properties = draft.properties
    if checks or TRANSACTION_CHECK_TIMES in message.properties:
        properties = put_property(properties, TRANSACTION_CHECK_TIMES, str(checks))
    if not half.begins_unseen:
        first = str(half.first_queue_offset)
        properties = put_property(properties, TRAN_PREPARED_QUEUE_OFFSET, first)
    properties = put_property(properties, FIRST_STORED, str(half.since_ms))
    return draft._replace(
        topic=HALF,
        queue_id=QUEUE_ID,
        properties=properties,
        prepared_transaction_offset=0 if half.sink is None else SINK_MARK,
    )


def resumed_draft(message: StoredMessage) -> MessageDraft:
    """A message that was given up, as the beginning of a new transaction."""
    draft = _again(message)
    properties = remove_property(draft.properties, TRAN_PREPARED_QUEUE_OFFSET)
    properties = remove_property(properties, FIRST_STORED)
    properties = put_property(properties, TRANSACTION_CHECK_TIMES, "0")
    return draft._replace(topic=HALF, queue_id=QUEUE_ID, properties=properties)


def exhausted_draft(message: StoredMessage) -> MessageDraft:
    """The half message where operators find those that nobody decided."""
    return _again(message)._replace(
        topic=EXHAUSTED,
        queue_id=QUEUE_ID,
        prepared_transaction_offset=cause_mark(message.physical_offset),
    )


def question_draft(message: StoredMessage) -> MessageDraft:
    """The half message as a producer is shown it: with the topic and queue it was sent to.

    Raises:
        ValueError: the record does not say them.
    """
    topic, queue_id = _real_topic(message).encode(), _real_queue_id(message)
    return _again(message)._replace(topic=topic, queue_id=queue_id)


def _again(message: StoredMessage) -> MessageDraft:
    return MessageDraft(
        topic=message.topic.encode(),
        queue_id=message.queue_id,
        body=message.body,
        properties=remove_property(message.raw_properties, CRC32),
        flag=message.flag,
        sys_flag=message.sys_flag,
        born_timestamp_ms=message.born_timestamp_ms,
        born_host=message.born_host,
        reconsume_times=message.reconsume_times,
    )


def _real_topic(message: StoredMessage) -> str:
    topic = message.properties.get(REAL_TOPIC)
    if not topic:
        raise ValueError(f"the half message at {message.physical_offset} has no {REAL_TOPIC}")
    return topic


def _real_queue_id(message: StoredMessage) -> int:
    text = message.properties.get(REAL_QID)
    queue_id = _number(text, -1)
    if queue_id < 0:
        raise ValueError(
            f"the half message at {message.physical_offset} has no queue: {REAL_QID}={text!r}"
        )
    return queue_id


def _number(text: str | None, default: int) -> int:
    """A number as Java's parseLong takes it, else the default."""
    if text is None or not _LONG.fullmatch(text):
        return default
    value = int(text)
    return value if -(1 << 63) <= value < 1 << 63 else default
