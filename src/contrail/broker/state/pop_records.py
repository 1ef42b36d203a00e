"""The records by which popped messages survive a crash, byte for byte as RocketMQ writes them.

They are timed messages of the revive topic: a checkpoint (``ck``) for the messages that one pop got
from one queue, due a second before they become visible again, and acknowledgements of one
(``ack``) or several (``bAck``) of its messages, due when they would have become visible. A
checkpoint and its acknowledgements have topic, group, queue, start offset and pop time in common.

=====  ========================================================================
key    in a checkpoint
=====  ========================================================================
bm     bits of messages acknowledged before it was written
bn     the broker's name
c      the group
d      offsets of the messages, less ``so``; old writers left it out
it     how long the messages are invisible, ms
n      how many messages
pt     when they were popped, ms
q      the queue's id
ro     unused
rp     how often it was written again after a failed delivery, a text; absent for 0
so     the queue offset that the pop began at
sp     whether the delivery keeps the count of tries
t      the topic, which may be a retry topic
=====  ========================================================================

An acknowledgement has ``ao``, the offset, or -1 with the offsets in ``aol``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from contrail.model.fastjson import FastJsonError, Fields, dumps, loads, whole_number
from contrail.model.message import MessageDraft
from contrail.model.properties import TAGS, TIMER_DELIVER_MS, UNIQ_KEY

CK_TAG, ACK_TAG, BATCH_ACK_TAG = "ck", "ack", "bAck"
COUNT_MAX = 32
"""How many messages one checkpoint can speak of: its bits are a number of 32."""
_EARLY_MS = 1000
_RECORD_BYTES_MAX = 64 << 10


class CheckpointKey(NamedTuple):
    """The fields that a checkpoint and its acknowledgements have in common."""

    group: str
    topic: str
    queue_id: int
    start_offset: int
    pop_time_ms: int


@dataclass(slots=True, eq=False)
class Checkpoint:
    """The messages that one pop got from one queue, and which of them are settled."""

    group: str
    # The queue's own topic: for a message that comes again, the retry topic.
    topic: str
    queue_id: int
    start_offset: int
    pop_time_ms: int
    invisible_ms: int
    offsets: tuple[int, ...]
    broker_name: str
    revive_queue: int
    # The address of the consumer that has them; empty when only the log knows of them.
    holder: str = ""
    # A bit for each of ``offsets``: acknowledged, or delivered again.
    settled: int = 0
    re_put_count: int = 0
    is_suspended: bool = False
    # Where its record stands in the revive queue; -1 until it is due there.
    place: int = -1
    # Its messages stand in the log before this: a later record at their offsets is another message,
    # of a topic that was made anew.
    before: int = (1 << 63) - 1

    @property
    def key(self) -> CheckpointKey:
        return CheckpointKey(
            self.group, self.topic, self.queue_id, self.start_offset, self.pop_time_ms
        )

    @property
    def visible_ms(self) -> int:
        """When the messages become visible again."""
        return self.pop_time_ms + self.invisible_ms

    @property
    def is_settled(self) -> bool:
        return self.settled == (1 << len(self.offsets)) - 1

    @property
    def open_offsets(self) -> list[int]:
        return [
            offset for index, offset in enumerate(self.offsets) if not self.settled >> index & 1
        ]


class Ack(NamedTuple):
    """Messages of one checkpoint that need not come again."""

    key: CheckpointKey
    offsets: tuple[int, ...]
    # Blank in some records: then it is this broker's.
    broker_name: str


def checkpoint_draft(
    checkpoint: Checkpoint, revive_topic: str, now_ms: int, host: bytes
) -> tuple[MessageDraft, dict[str, str]]:
    """The record of a checkpoint and its properties, before it is placed."""
    one, start = checkpoint, checkpoint.start_offset
    distances = ",".join([str(offset - start) for offset in one.offsets])
    again = f'"rp":"{one.re_put_count}",' if one.re_put_count else ""
    # Written out, for a pop waits for it: keys are in their order, as RocketMQ writes them.
    body = (
        f'{{"bm":0,"bn":{_quoted(one.broker_name)},"c":{_quoted(one.group)},"d":[{distances}],'
        f'"it":{one.invisible_ms},"n":{len(one.offsets)},"pt":{one.pop_time_ms},'
        f'"q":{one.queue_id},"reviveTime":{one.visible_ms},"ro":0,{again}"so":{start},'
        f'"sp":{"true" if one.is_suspended else "false"},"t":{_quoted(one.topic)}}}'
    )
    unique_key = _unique_key(checkpoint.key, checkpoint.start_offset, checkpoint.broker_name)
    return _draft(
        body,
        CK_TAG,
        f"{unique_key}@{CK_TAG}",
        checkpoint.visible_ms - _EARLY_MS,
        (revive_topic, checkpoint.revive_queue, now_ms, host),
    )


def ack_draft(
    checkpoint: Checkpoint, offsets: Sequence[int], revive_topic: str, now_ms: int, host: bytes
) -> tuple[MessageDraft, dict[str, str]]:
    """The record that acknowledges messages of a checkpoint, and its properties."""
    is_one = len(offsets) == 1
    ack_offset = offsets[0] if is_one else -1
    several = "" if is_one else f'"aol":[{",".join(map(str, offsets))}],'
    body = (
        f'{{"ao":{ack_offset},{several}"bn":{_quoted(checkpoint.broker_name)},'
        f'"c":{_quoted(checkpoint.group)},"pt":{checkpoint.pop_time_ms},'
        f'"q":{checkpoint.queue_id},"so":{checkpoint.start_offset},'
        f'"t":{_quoted(checkpoint.topic)}}}'
    )
    unique_key = _unique_key(checkpoint.key, ack_offset, checkpoint.broker_name)
    return _draft(
        body,
        ACK_TAG if is_one else BATCH_ACK_TAG,
        f"{unique_key}@{ACK_TAG}",
        checkpoint.visible_ms,
        (revive_topic, checkpoint.revive_queue, now_ms, host),
    )


def _unique_key(key: CheckpointKey, queue_offset: int, broker_name: str) -> str:
    return f"{key.topic}@{key.queue_id}@{queue_offset}@{key.group}@{key.pop_time_ms}@{broker_name}"


@lru_cache(maxsize=4096)
def _quoted(text: str) -> str:
    return dumps(text, pretty=False).decode()


def _draft(
    body: str,
    tag: str,
    unique_key: str,
    deliver_ms: int,
    where: tuple[str, int, int, bytes],
) -> tuple[MessageDraft, dict[str, str]]:
    revive_topic, revive_queue, now_ms, host = where
    properties = {TAGS: tag, UNIQ_KEY: unique_key, TIMER_DELIVER_MS: str(deliver_ms)}
    draft = MessageDraft(
        revive_topic.encode(),
        revive_queue,
        body.encode(),
        born_timestamp_ms=now_ms,
        born_host=host,
    )
    return draft, properties


def read_checkpoint(body: bytes, revive_queue: int) -> Checkpoint:
    """The checkpoint of a record.

    Raises:
        FastJsonError: the body is none.
    """
    fields = _fields(body)
    start_offset = fields.integer("so", 0)
    count = fields.integer("n", 0)
    distances = [whole_number(one, "an entry of d") for one in fields.array("d")]
    if not distances:
        # Old writers: the messages follow each other.
        distances = list(range(max(0, min(count, COUNT_MAX))))
    if len(distances) > COUNT_MAX:
        raise FastJsonError(f"a checkpoint of {len(distances)} messages")
    offsets = tuple(start_offset + distance for distance in distances)
    return Checkpoint(
        group=fields.text("c", ""),
        topic=fields.text("t", ""),
        queue_id=fields.integer("q", 0),
        start_offset=start_offset,
        pop_time_ms=fields.integer("pt", 0),
        invisible_ms=fields.integer("it", 0),
        offsets=offsets,
        broker_name=fields.text("bn", ""),
        revive_queue=revive_queue,
        settled=fields.integer("bm", 0) & (1 << len(offsets)) - 1,
        re_put_count=int(text) if (text := fields.text("rp", "0")).isdecimal() else 0,
        is_suspended=fields.boolean("sp", False),
    )


def read_ack(body: bytes) -> Ack:
    """The acknowledgement of a record, of one message or several.

    Raises:
        FastJsonError: the body is none.
    """
    fields = _fields(body)
    offsets = tuple(whole_number(one, "an entry of aol") for one in fields.array("aol"))
    return Ack(
        CheckpointKey(
            fields.text("c", ""),
            fields.text("t", ""),
            fields.integer("q", 0),
            fields.integer("so", 0),
            fields.integer("pt", 0),
        ),
        offsets or (fields.integer("ao", 0),),
        fields.text("bn", ""),
    )


def _fields(body: bytes) -> Fields:
    return Fields(loads(body, bytes_max=_RECORD_BYTES_MAX), "a record of the revive topic")
