"""How a message leaves a log that takes none: as a send to a broker of another name.

Delivered messages go without the delay that they have served, or the other broker would have them
wait again. A timed message that is only rolled on keeps its time and waits there. Half messages
become half messages there, and that broker asks their producers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from contrail.broker.state.transaction_records import FIRST_STORED, Half, question_draft
from contrail.errors import MessageIllegal
from contrail.model.message import MessageDraft, StoredMessage
from contrail.model.properties import (
    CRC32,
    DELAY,
    PGROUP,
    REAL_QID,
    REAL_TOPIC,
    TIMER_DELAY_MS,
    TIMER_DELAY_SEC,
    TIMER_DELIVER_MS,
    TIMER_DEQUEUE_MS,
    TIMER_ENQUEUE_MS,
    TIMER_OUT_MS,
    TIMER_ROLL_TIMES,
    TRAN_MSG,
    TRAN_PREPARED_QUEUE_OFFSET,
    TRANSACTION_CHECK_TIMES,
    put_property,
    read_property,
    remove_properties,
)
from contrail.model.topic import AUTO_CREATE_TOPIC, TIMER_TOPIC, Perm
from contrail.protocol.bodies.routes import MASTER_ID, TopicRouteData
from contrail.protocol.codes import ResponseCode

_TIMER = TIMER_TOPIC.encode()
# The forms of the hosts in a record; a broker sets them for its own.
_HOST_FLAGS = 0x30
_PLACES = (REAL_TOPIC, REAL_QID, CRC32)
_DELIVERED = (*_PLACES, DELAY, TIMER_DELAY_SEC, TIMER_DELAY_MS, TIMER_DELIVER_MS)
_ROLLED = (
    *_PLACES,
    TIMER_DELAY_SEC,
    TIMER_DELAY_MS,
    TIMER_OUT_MS,
    TIMER_ENQUEUE_MS,
    TIMER_DEQUEUE_MS,
    TIMER_ROLL_TIMES,
)
_HALF = (*_PLACES, TRANSACTION_CHECK_TIMES, TRAN_PREPARED_QUEUE_OFFSET, FIRST_STORED)

STORED_CODES = frozenset(
    {
        ResponseCode.SUCCESS,
        ResponseCode.FLUSH_DISK_TIMEOUT,
        ResponseCode.SLAVE_NOT_AVAILABLE,
        ResponseCode.FLUSH_SLAVE_TIMEOUT,
    }
)
"""Answers of a broker that has the message, however safe it is there."""


class Target(NamedTuple):
    """A queue of another broker that takes sends."""

    address: str
    broker_name: str
    queue_id: int


def targets(route: TopicRouteData, own_name: str) -> list[Target]:
    """The queues of other brokers that a message of the topic may be sent to."""
    masters = {
        broker.broker_name: broker.addresses[MASTER_ID]
        for broker in route.brokers
        if broker.broker_name != own_name and MASTER_ID in broker.addresses
    }
    return [
        Target(masters[queues.broker_name], queues.broker_name, queue_id)
        for queues in route.queues
        if queues.broker_name in masters and queues.perm & Perm.WRITE
        for queue_id in range(queues.write_queue_count)
    ]


def escape_of(draft: MessageDraft) -> MessageDraft:
    """A delivered, or rolled on, message as it is sent to another broker.

    Raises:
        MessageIllegal: it does not say where it belongs.
    """
    if draft.topic != _TIMER:
        return draft._replace(properties=remove_properties(draft.properties, _DELIVERED))
    topic = read_property(draft.properties, REAL_TOPIC)
    if not topic:
        raise MessageIllegal(f"a timed message has no {REAL_TOPIC}")
    return draft._replace(
        topic=topic.encode(), properties=remove_properties(draft.properties, _ROLLED)
    )


def half_escape(message: StoredMessage, half: Half) -> MessageDraft:
    """A half message as its producer sent it; ``half`` says when that was.

    Raises:
        MessageIllegal: it does not say where it belongs.
    """
    try:
        draft = question_draft(message)
    except ValueError as error:
        raise MessageIllegal(str(error)) from error
    properties = remove_properties(draft.properties, _HALF)
    return draft._replace(
        properties=put_property(properties, TRAN_MSG, "true"),
        born_timestamp_ms=half.born_ms,
    )


def send_fields(draft: MessageDraft, target: Target, own_group: str) -> Mapping[str, str]:
    """The fields of the send, for brokers of every version."""
    return {
        "producerGroup": read_property(draft.properties, PGROUP) or own_group,
        "topic": draft.topic.decode(),
        "defaultTopic": AUTO_CREATE_TOPIC,
        "defaultTopicQueueNums": "4",
        "queueId": str(target.queue_id),
        "sysFlag": str(draft.sys_flag & ~_HOST_FLAGS),
        "bornTimestamp": str(draft.born_timestamp_ms),
        "flag": str(draft.flag),
        "properties": draft.properties.decode("utf-8", "replace"),
        "reconsumeTimes": str(draft.reconsume_times),
        "unitMode": "false",
        "batch": "false",
    }
