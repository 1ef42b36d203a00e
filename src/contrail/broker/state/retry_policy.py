"""The fate of a message that a consumer sent back: it is tried again later, or given up.

The original stays where it is. A copy is stored in the group's retry topic, where it
waits at a delay level first, or in the group's dead letters, where it does not wait.
"""

from __future__ import annotations

from collections.abc import Sequence

from contrail.model.group import GroupRetryPolicy, SubscriptionGroupConfig
from contrail.model.message import MessageDraft, StoredMessage
from contrail.model.message_id import encode_offset_message_id
from contrail.model.properties import DELAY, ORIGIN_MESSAGE_ID, RETRY_TOPIC, WAIT
from contrail.model.record import SYS_FLAG_INNER_BATCH, SYS_FLAG_NEED_UNWRAP, TRANSACTION_MASK
from contrail.model.topic import (
    DLQ_PREFIX,
    HALF_TOPIC,
    OP_HALF_TOPIC,
    RETRY_PREFIX,
    SCHEDULE_TOPIC,
    SYSTEM_TOPIC_PREFIX,
    dlq_topic,
    retry_topic,
)

# From this client version (V3_4_9) on a request may carry its own maximum.
RECONSUME_MAX_VERSION = 121
# The first retry has always waited at the third level.
_FIRST_LEVEL = 3
_RECONSUME_TIMES_MAX = (1 << 31) - 1
_HIDDEN_TOPICS = frozenset({SCHEDULE_TOPIC, HALF_TOPIC, OP_HALF_TOPIC})


def reconsume_count_max(
    group: SubscriptionGroupConfig, *, requested: int | None, version: int
) -> int:
    """How often a message may be tried again: as the client says, or as the group is set."""
    if requested is not None and version >= RECONSUME_MAX_VERSION:
        return requested
    return group.retry_count_max


def is_given_up(retry_number: int, count_max: int) -> bool:
    """Whether a message goes to the dead letters instead of being tried for this time again."""
    return retry_number > count_max


def plan_retry(
    message: StoredMessage,
    policy: GroupRetryPolicy,
    *,
    requested_level: int,
    count_max: int,
    delay_table: Sequence[int],
) -> int | None:
    """The delay level at which the message waits for its next try; None when it is given up."""
    if requested_level < 0 or is_given_up(message.reconsume_times + 1, count_max):
        return None
    return requested_level or retry_level(policy, message.reconsume_times, delay_table)


def retry_level(policy: GroupRetryPolicy, reconsume_times: int, delay_table: Sequence[int]) -> int:
    """The level of a retry for which the consumer asks no level of its own.

    A group with a policy gets the shortest level that is not shorter than the policy's delay,
    or else the longest there is.
    """
    failed_before = max(reconsume_times, 0)
    if policy.chosen is None:
        return _FIRST_LEVEL + failed_before
    wanted_ms = policy.chosen.delay_ms(failed_before)
    levels = range(1, len(delay_table))
    long_enough = [level for level in levels if delay_table[level] >= wanted_ms]
    if long_enough:
        return min(long_enough, key=delay_table.__getitem__)
    return max(levels, key=delay_table.__getitem__)


def retry_draft(message: StoredMessage, topic: str, queue_id: int) -> MessageDraft:
    """The copy of ``message`` that is stored for another try; its properties are still to come."""
    return MessageDraft(
        topic=topic.encode(),
        queue_id=queue_id,
        body=message.body,
        flag=message.flag,
        # A copy commits no transaction, though its original may have.
        sys_flag=message.sys_flag & ~TRANSACTION_MASK,
        born_timestamp_ms=message.born_timestamp_ms,
        born_host=message.born_host,
        reconsume_times=min(message.reconsume_times + 1, _RECONSUME_TIMES_MAX),
    )


def retry_properties(message: StoredMessage, level: int) -> dict[str, str]:
    """The properties of the copy: where the message came from, and how long it waits."""
    properties = dict(message.properties)
    properties.setdefault(RETRY_TOPIC, message.topic)
    properties |= {WAIT: "false", DELAY: str(level)}
    if not properties.get(ORIGIN_MESSAGE_ID, "").strip():
        properties[ORIGIN_MESSAGE_ID] = encode_offset_message_id(
            message.store_host, message.physical_offset
        )
    return properties


def is_hidden(message: StoredMessage) -> bool:
    """Whether no consumer can have got this message as it stands in the log.

    Messages in the broker's own topics are not to be had early, and a whole batch is handed out
    in pieces.
    """
    return (
        message.topic in _HIDDEN_TOPICS
        or message.topic.startswith(SYSTEM_TOPIC_PREFIX)
        or bool(message.sys_flag & (SYS_FLAG_INNER_BATCH | SYS_FLAG_NEED_UNWRAP))
    )


def belongs_to_other_group(topic: str, group: str) -> bool:
    """Whether a topic holds the retries or dead letters of another group."""
    if topic in (retry_topic(group), dlq_topic(group)):
        return False
    return topic.startswith((RETRY_PREFIX, DLQ_PREFIX))
