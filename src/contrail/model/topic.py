"""Topics: which names are allowed, which belong to the system, and a topic's settings."""

from __future__ import annotations

import re
from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from enum import Enum, IntFlag
from typing import Self

from contrail.errors import TopicMissing, TopicNameIllegal, TopicTooLong
from contrail.model.fastjson import Fields, JsonValue
from contrail.model.shown import shown

TOPIC_LENGTH_MAX = 127
RETRY_TOPIC_LENGTH_MAX = 255
QUEUE_COUNT_MAX = 65_535
RETRY_PREFIX = "%RETRY%"
DLQ_PREFIX = "%DLQ%"
LMQ_PREFIX = "%LMQ%"

AUTO_CREATE_TOPIC = "TBW102"
SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
BENCHMARK_TOPIC = "BenchmarkTest"
HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"
OP_HALF_TOPIC = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
TRANSACTION_EXHAUSTED_TOPIC = "TRANS_CHECK_MAX_TIME_TOPIC"
TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC"
SELF_TEST_TOPIC = "SELF_TEST_TOPIC"
OFFSET_MOVED_TOPIC = "OFFSET_MOVED_EVENT"
CHECKPOINT_TOPIC = "CHECKPOINT_TOPIC"
SYSTEM_TOPIC_PREFIX = "rmq_sys_"
TIMER_TOPIC = SYSTEM_TOPIC_PREFIX + "wheel_timer"
SINK_TOPIC = SYSTEM_TOPIC_PREFIX + "CONTRAIL_SINKS"
REPLACED_TOPIC = SYSTEM_TOPIC_PREFIX + "CONTRAIL_REPLACED"
REVIVE_TOPIC_PREFIX = SYSTEM_TOPIC_PREFIX + "REVIVE_LOG_"
SYNC_BROKER_MEMBER_PREFIX = SYSTEM_TOPIC_PREFIX + "SYNC_BROKER_MEMBER_"
TRACE_DATA_PREFIX = SYSTEM_TOPIC_PREFIX + "TRACE_DATA_"

SYSTEM_GROUP_PREFIX = "CID_RMQ_SYS_"

SYSTEM_TOPICS = frozenset(
    {
        AUTO_CREATE_TOPIC,
        SCHEDULE_TOPIC,
        BENCHMARK_TOPIC,
        HALF_TOPIC,
        OP_HALF_TOPIC,
        TRANSACTION_EXHAUSTED_TOPIC,
        TRACE_TOPIC,
        SELF_TEST_TOPIC,
        OFFSET_MOVED_TOPIC,
        CHECKPOINT_TOPIC,
    }
)
SEND_FORBIDDEN_TOPICS = frozenset(
    {
        SCHEDULE_TOPIC,
        HALF_TOPIC,
        OP_HALF_TOPIC,
        TRANSACTION_EXHAUSTED_TOPIC,
        SELF_TEST_TOPIC,
        OFFSET_MOVED_TOPIC,
    }
)

QUEUE_TYPE_ATTRIBUTE = "queue.type"
CLEANUP_POLICY_ATTRIBUTE = "cleanup.policy"
MESSAGE_TYPE_ATTRIBUTE = "message.type"
RESERVE_TIME_ATTRIBUTE = "reserve.time"

NAME_PATTERN = re.compile(r"[%|a-zA-Z0-9_-]+")
# The longest folder name on Linux file systems.
_FOLDER_NAME_BYTES_MAX = 255


class Perm(IntFlag):
    """The permissions of a topic's queues."""

    INHERIT = 1
    WRITE = 2
    READ = 4
    PRIORITY = 8


class QueueType(Enum):
    """The kind of files that index a topic's queues."""

    SIMPLE = "SimpleCQ"
    BATCH = "BatchCQ"


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """A topic's settings; ``unknown`` keeps fields of newer writers for the next rewrite."""

    topic: str
    read_queue_count: int = 16
    write_queue_count: int = 16
    perm: int = Perm.READ | Perm.WRITE
    filter_type: str = "SINGLE_TAG"
    sys_flag: int = 0
    order: bool = False
    attributes: Mapping[str, str] = field(default_factory=dict)
    unknown: Mapping[str, JsonValue] = field(default_factory=dict)

    @property
    def readable(self) -> bool:
        return bool(self.perm & Perm.READ)

    @property
    def writable(self) -> bool:
        return bool(self.perm & Perm.WRITE)

    @property
    def queue_type(self) -> QueueType:
        """Raises ``ValueError`` for a type that no release knows."""
        return QueueType(self.attributes.get(QUEUE_TYPE_ATTRIBUTE, QueueType.SIMPLE.value))

    @classmethod
    def from_fields(cls, fields: Fields, topic: str) -> Self:
        """Read RocketMQ's field names; raises ``FastJsonError`` for a field of another type."""
        return cls(
            topic=fields.text("topicName", topic),
            read_queue_count=fields.integer("readQueueNums", 16),
            write_queue_count=fields.integer("writeQueueNums", 16),
            perm=fields.integer("perm", Perm.READ | Perm.WRITE),
            filter_type=fields.text("topicFilterType", "SINGLE_TAG"),
            sys_flag=fields.integer("topicSysFlag", 0),
            order=fields.boolean("order", False),
            attributes=fields.texts("attributes"),
            unknown=fields.unknown(_KNOWN_FIELDS),
        )

    def to_fields(self) -> dict[str, object]:
        return {
            **self.unknown,
            "topicName": self.topic,
            "readQueueNums": self.read_queue_count,
            "writeQueueNums": self.write_queue_count,
            "perm": int(self.perm),
            "topicFilterType": self.filter_type,
            "topicSysFlag": self.sys_flag,
            "order": self.order,
            "attributes": self.attributes,
        }


_KNOWN_FIELDS = frozenset(TopicConfig("").to_fields())


def check_topic_name(topic: str) -> None:
    """Refuse a name that clients may not create.

    Raises:
        TopicMissing: the name is blank.
        TopicNameIllegal: it holds a character outside ``%|a-zA-Z0-9_-``.
        TopicTooLong: it exceeds 127 characters, or 255 for a retry or dead-letter topic.
    """
    if not topic.strip():
        raise TopicMissing("the topic is blank; name one")
    if not NAME_PATTERN.fullmatch(topic):
        raise TopicNameIllegal(f"topic {shown(topic)} may hold only letters, digits and % | _ -")
    length_max = topic_length_max(topic)
    if len(topic) > length_max:
        raise TopicTooLong(
            f"topic {shown(topic)} has {len(topic)} characters, at most {length_max}"
        )


def check_topic_folder(topic: str) -> None:
    """Refuse a name that cannot be a folder of its own below the store.

    Weaker than ``check_topic_name``: the broker itself makes names such as
    ``%RETRY%group+topic`` that clients may not.

    Raises:
        TopicNameIllegal: the name leads out of the folder or has no folder form.
    """
    encoded = topic.encode("utf-8", "replace")
    escapes = topic in ("", ".", "..") or "/" in topic or "\x00" in topic
    if escapes or len(encoded) > _FOLDER_NAME_BYTES_MAX:
        raise TopicNameIllegal(f"topic {shown(topic)} cannot be a folder of the store; rename it")


def topic_length_max(topic: str) -> int:
    """Retry and dead-letter topics hold a group's name, so they may be longer."""
    if topic.startswith((RETRY_PREFIX, DLQ_PREFIX)):
        return RETRY_TOPIC_LENGTH_MAX
    return TOPIC_LENGTH_MAX


def is_system_topic(topic: str) -> bool:
    return topic in SYSTEM_TOPICS or topic.startswith(SYSTEM_TOPIC_PREFIX)


def is_closed_topic(topic: str) -> bool:
    """Whether clients may neither read nor write a topic of the system: see ``system_names``.

    Settings of a broker open two more topics, its trace topic and its reply topic.
    """
    if topic.startswith((RETRY_PREFIX, DLQ_PREFIX)):
        group = topic
        while group.startswith((RETRY_PREFIX, DLQ_PREFIX)):
            group = group.removeprefix(RETRY_PREFIX).removeprefix(DLQ_PREFIX)
        return group.startswith(SYSTEM_GROUP_PREFIX)
    is_open = topic in (BENCHMARK_TOPIC, TRACE_TOPIC) or topic.startswith(TRACE_DATA_PREFIX)
    return is_system_topic(topic) and not is_open


def check_not_system_topic(topic: str, own: Container[str] = ()) -> None:
    """Refuse a topic that no operator creates, changes or deletes.

    ``own`` are the topics that a broker has by its settings, beside those of every broker.

    Raises:
        TopicNameIllegal: a system topic, or the retry or dead-letter topic of a system group.
    """
    if topic in own or is_system_topic(topic) or is_closed_topic(topic):
        raise TopicNameIllegal(f"topic {shown(topic)} belongs to the system; choose another name")


def retry_topic(group: str) -> str:
    return RETRY_PREFIX + group


def dlq_topic(group: str) -> str:
    return DLQ_PREFIX + group


def pop_retry_topic(topic: str, group: str) -> str:
    """Where messages wait that a group popped and did not acknowledge."""
    return f"{RETRY_PREFIX}{group}_{topic}"


def pop_retry_topic_v2(topic: str, group: str) -> str:
    """The newer spelling, which no other topic can have: names hold no plus sign."""
    return f"{RETRY_PREFIX}{group}+{topic}"


def normal_topic(topic: str, group: str) -> str:
    """The topic whose retries a group's pop retry topic holds; another topic itself."""
    for separator in "+_":
        start = f"{RETRY_PREFIX}{group}{separator}"
        if topic.startswith(start):
            return topic[len(start) :]
    return topic


def is_pop_retry_v2(topic: str) -> bool:
    return topic.startswith(RETRY_PREFIX) and "+" in topic
