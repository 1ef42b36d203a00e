"""Copies of stored messages: the content and topic of restored and replayed messages.

A copy keeps its body, flag, keys, tags, unique key and the application's properties. Properties
that brokers and clients set for the delivery of the original are dropped: a copy is not delayed
again, is part of no transaction, and its retries begin anew.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from contrail.client.dead_letters import origin_id, origin_topic
from contrail.model import properties as names
from contrail.protocol.json_style import MessageQueue

RESTORED_FROM = "CONTRAIL_RESTORED_FROM"
RESTORED_STORE_TIME = "CONTRAIL_RESTORED_STORE_TIMESTAMP"
REPLAYED_FROM = "CONTRAIL_REPLAYED_FROM"
REPLAYED_ORIGIN_ID = "CONTRAIL_REPLAYED_ORIGIN_MESSAGE_ID"
REPLAY_COUNT = "CONTRAIL_REPLAY_COUNT"
JOB_ID = "CONTRAIL_JOB_ID"

SINK_KEY = "SPARK_SINK_KEY"
SINK_SEQUENCE = "SPARK_SINK_SEQ"

# Properties of the original's delivery; a copy has none of them.
_OF_THE_WAY = frozenset(
    {
        names.WAIT,
        names.DELAY,
        names.REAL_TOPIC,
        names.REAL_QID,
        names.RECONSUME_TIME,
        names.MAX_RECONSUME_TIMES,
        names.TRAN_MSG,
        names.PGROUP,
        names.TRAN_PREPARED_QUEUE_OFFSET,
        names.TRANSACTION_ID,
        names.TRANSACTION_CHECK_TIMES,
        names.CHECK_IMMUNITY_TIME_IN_SECONDS,
        names.INNER_NUM,
        names.INNER_BASE,
        names.INNER_MULTI_DISPATCH,
        names.INNER_MULTI_QUEUE_OFFSET,
        names.TIMER_DELAY_SEC,
        names.TIMER_DELAY_MS,
        names.TIMER_DELIVER_MS,
        names.TIMER_DELAY_LEVEL,
        names.TIMER_OUT_MS,
        names.TIMER_ENQUEUE_MS,
        names.TIMER_DEQUEUE_MS,
        names.TIMER_ROLL_TIMES,
        names.TIMER_DEL_UNIQKEY,
        names.RECALL_NONCE,
        names.POP_CK,
        names.POP_CK_OFFSET,
        names.FIRST_POP_TIME,
        names.MIN_OFFSET,
        names.MAX_OFFSET,
        names.CONSUME_START_TIME,
        names.CLUSTER,
        names.MSG_REGION,
        names.TRACE_ON,
        names.CRC32,
        SINK_KEY,
        SINK_SEQUENCE,
        "SPARK_SINK_ATTEMPT",
    }
)
_OF_THE_DEAD = frozenset(
    {
        names.RETRY_TOPIC,
        names.ORIGIN_MESSAGE_ID,
        names.DLQ_ORIGIN_TOPIC,
        names.DLQ_ORIGIN_MESSAGE_ID,
    }
)


class Original(NamedTuple):
    """A stored message that is to be copied."""

    queue: MessageQueue
    queue_offset: int
    body: bytes
    flag: int
    properties: Mapping[str, str]
    message_id: str
    store_timestamp_ms: int


class Copy(NamedTuple):
    """The message to send, and its topic."""

    topic: str
    properties: dict[str, str]


class Skipped(NamedTuple):
    """Why a message is not sent."""

    reason: str


def place_of(original: Original) -> str:
    """A message's queue and queue offset as text: ``orders/broker-a/0/1200``."""
    queue = original.queue
    return f"{queue.topic}/{queue.broker_name}/{queue.queue_id}/{original.queue_offset}"


def restored(original: Original, to_topic: str | None, job_id: str) -> Copy:
    """The copy of an archived message for its own topic or for ``to_topic``."""
    properties = _kept(original.properties)
    properties |= {
        RESTORED_FROM: place_of(original),
        RESTORED_STORE_TIME: str(original.store_timestamp_ms),
        JOB_ID: job_id,
    }
    return Copy(to_topic or original.queue.topic, properties)


def replayed(original: Original, to_topic: str | None, job_id: str) -> Copy | Skipped:
    """The copy of a dead letter for its original topic or for ``to_topic``."""
    topic = to_topic or origin_topic(original.properties)
    if topic is None:
        return Skipped(f"it does not say where it came from ({names.RETRY_TOPIC}): give a topic")
    properties = _kept(original.properties, _OF_THE_DEAD)
    properties |= {
        REPLAYED_FROM: place_of(original),
        REPLAYED_ORIGIN_ID: origin_id(original.properties, original.message_id),
        REPLAY_COUNT: str(_count(properties.get(REPLAY_COUNT)) + 1),
        JOB_ID: job_id,
    }
    return Copy(topic, properties)


def _kept(
    properties: Mapping[str, str], also_dropped: frozenset[str] = frozenset()
) -> dict[str, str]:
    return {
        name: value
        for name, value in properties.items()
        if name not in _OF_THE_WAY
        and name not in also_dropped
        and not name.startswith(names.TRANSIENT_PREFIX)
    }


def _count(text: str | None) -> int:
    return int(text) if text is not None and text.isascii() and text.isdecimal() else 0
