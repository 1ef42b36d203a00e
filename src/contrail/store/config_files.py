"""RocketMQ's JSON files under ``<root>/config``, typed.

Each file is read in RocketMQ's own shape, whichever way its keys are quoted, and written back with
the fields of newer writers kept. Fields come out sorted; tables are plain mappings, so that the
caller replaces a table rather than a part of it.

    ==========================  ==========================================================
    file                        holds
    ==========================  ==========================================================
    ``topics.json``             every topic's settings
    ``subscriptionGroup.json``  every group's settings, and what is forbidden to it
    ``consumerOffset.json``     how far each group has consumed each queue
    ``delayOffset.json``        how far each delay level has been delivered
    ``consumerFilter.json``     the SQL filters of consumers, with their bloom filter bits
    ==========================  ==========================================================
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, TypeVar

from contrail.model.data_version import DataVersion
from contrail.model.fastjson import FastJsonError, Fields, JsonValue, dumps, loads, whole_number
from contrail.model.group import SubscriptionGroupConfig
from contrail.model.topic import TopicConfig
from contrail.runtime.files import FileSystem
from contrail.runtime.state_file import StateRead, read_state, write_state

CONFIG_FOLDER = "config"
OFFSET_KEY_SEPARATOR = "@"

_SMALL_NUMBER = re.compile(r"[0-9]{1,9}")

T = TypeVar("T")
Unknown = Mapping[str, JsonValue]


@dataclass(frozen=True, slots=True)
class TopicTable:
    """``topics.json``."""

    topics: Mapping[str, TopicConfig] = field(default_factory=dict)
    data_version: DataVersion = field(default_factory=DataVersion)
    unknown: Unknown = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class GroupTable:
    """``subscriptionGroup.json``; ``forbidden`` is by group and topic, one bit per rule."""

    groups: Mapping[str, SubscriptionGroupConfig] = field(default_factory=dict)
    forbidden: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    data_version: DataVersion = field(default_factory=DataVersion)
    unknown: Unknown = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ConsumerOffsetTable:
    """``consumerOffset.json``; consumer offsets by ``topic@group`` and queue id."""

    offsets: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    data_version: DataVersion = field(default_factory=DataVersion)
    unknown: Unknown = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DelayOffsetTable:
    """``delayOffset.json``; the next queue offset to deliver, by delay level."""

    queue_offsets: Mapping[int, int] = field(default_factory=dict)
    data_version: DataVersion = field(default_factory=DataVersion)
    unknown: Unknown = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ConsumerFilter:
    """One consumer group's filter on one topic."""

    topic: str
    group: str
    expression: str
    expression_type: str = "SQL92"
    born_time_ms: int = 0
    dead_time_ms: int = 0
    client_version: int = 0
    bloom_bit_count: int = 0
    bloom_bit_positions: tuple[int, ...] = ()
    unknown: Unknown = field(default_factory=dict)

    @property
    def dead(self) -> bool:
        return self.dead_time_ms >= self.born_time_ms


@dataclass(frozen=True, slots=True)
class ConsumerFilterTable:
    """``consumerFilter.json``; filters by topic and group."""

    filters: Mapping[str, Mapping[str, ConsumerFilter]] = field(default_factory=dict)
    unknown: Unknown = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ConfigFile(Generic[T]):
    """One file of the config folder: its name, and its content as a value and back."""

    name: str
    decode: Callable[[Fields], T]
    encode: Callable[[T], dict[str, object]]

    def load(self, files: FileSystem, root: Path, *, set_aside: bool = True) -> StateRead[T]:
        """Read the file below ``root``, or its backup; the answer says which and why.

        Raises:
            StateFileDamaged: neither can be read.
        """
        path = root / CONFIG_FOLDER / self.name
        return read_state(files, path, sealed=False, parse=self.parse, set_aside=set_aside)

    def save(self, files: FileSystem, root: Path, table: T) -> None:
        """Replace the file below ``root``, keeping the old one as its backup."""
        write_state(files, root / CONFIG_FOLDER / self.name, self.render(table), sealed=False)

    def parse(self, data: bytes) -> T:
        """Raises ``FastJsonError`` for content that is not this file's."""
        return self.decode(Fields(loads(data), self.name))

    def render(self, table: T) -> bytes:
        return dumps(self.encode(table))


def offset_key(topic: str, group: str) -> str:
    """The key of a group's offsets in ``consumerOffset.json``."""
    return f"{topic}{OFFSET_KEY_SEPARATOR}{group}"


def _decode_topics(fields: Fields) -> TopicTable:
    table = fields.children("topicConfigTable")
    return TopicTable(
        topics={name: TopicConfig.from_fields(entry, name) for name, entry in table.items()},
        data_version=_data_version(fields),
        unknown=fields.unknown(frozenset({"dataVersion", "topicConfigTable"})),
    )


def _encode_topics(table: TopicTable) -> dict[str, object]:
    return {
        **table.unknown,
        "dataVersion": table.data_version.to_fields(),
        "topicConfigTable": {name: topic.to_fields() for name, topic in table.topics.items()},
    }


def _decode_groups(fields: Fields) -> GroupTable:
    groups = fields.children("subscriptionGroupTable")
    forbidden = fields.children("forbiddenTable")
    return GroupTable(
        groups={
            name: SubscriptionGroupConfig.from_fields(entry, name) for name, entry in groups.items()
        },
        forbidden={group: topics.as_integers() for group, topics in forbidden.items()},
        data_version=_data_version(fields),
        unknown=fields.unknown(
            frozenset({"dataVersion", "forbiddenTable", "subscriptionGroupTable"})
        ),
    )


def _encode_groups(table: GroupTable) -> dict[str, object]:
    return {
        **table.unknown,
        "dataVersion": table.data_version.to_fields(),
        "forbiddenTable": table.forbidden,
        "subscriptionGroupTable": {name: group.to_fields() for name, group in table.groups.items()},
    }


def _decode_consumer_offsets(fields: Fields) -> ConsumerOffsetTable:
    table = fields.children("offsetTable")
    return ConsumerOffsetTable(
        offsets={key: _by_number(queues, key) for key, queues in table.items()},
        data_version=_data_version(fields),
        unknown=fields.unknown(frozenset({"dataVersion", "groupTopicMap", "offsetTable"})),
    )


def _encode_consumer_offsets(table: ConsumerOffsetTable) -> dict[str, object]:
    return {
        **table.unknown,
        "dataVersion": table.data_version.to_fields(),
        "groupTopicMap": _topics_by_group(table.offsets),
        "offsetTable": table.offsets,
    }


def _topics_by_group(offset_keys: Mapping[str, object]) -> dict[str, list[str]]:
    """What RocketMQ writes beside the offsets; it is derived, and nobody reads it back."""
    topics: dict[str, list[str]] = {}
    for key in sorted(offset_keys):
        topic, _, group = key.partition(OFFSET_KEY_SEPARATOR)
        if topic and group:
            topics.setdefault(group, []).append(topic)
    return topics


def _decode_delay_offsets(fields: Fields) -> DelayOffsetTable:
    table = fields.child("offsetTable")
    return DelayOffsetTable(
        queue_offsets={} if table is None else _by_number(table, "offsetTable"),
        data_version=_data_version(fields),
        unknown=fields.unknown(frozenset({"dataVersion", "offsetTable"})),
    )


def _encode_delay_offsets(table: DelayOffsetTable) -> dict[str, object]:
    return {
        **table.unknown,
        "dataVersion": table.data_version.to_fields(),
        "offsetTable": table.queue_offsets,
    }


def _decode_filters(fields: Fields) -> ConsumerFilterTable:
    topics = fields.children("filterDataByTopic")
    return ConsumerFilterTable(
        filters={
            topic: {
                group: _decode_filter(entry, topic, group)
                for group, entry in groups.children("groupFilterData").items()
            }
            for topic, groups in topics.items()
        },
        unknown=fields.unknown(frozenset({"filterDataByTopic"})),
    )


def _decode_filter(fields: Fields, topic: str, group: str) -> ConsumerFilter:
    bloom = fields.child("bloomFilterData") or Fields({}, "bloomFilterData")
    return ConsumerFilter(
        topic=fields.text("topic", topic),
        group=fields.text("consumerGroup", group),
        expression=fields.text("expression", ""),
        expression_type=fields.text("expressionType", "SQL92"),
        born_time_ms=fields.integer("bornTime", 0),
        dead_time_ms=fields.integer("deadTime", 0),
        client_version=fields.integer("clientVersion", 0),
        bloom_bit_count=bloom.integer("bitNum", 0),
        bloom_bit_positions=tuple(whole_number(bit, "bitPos") for bit in bloom.array("bitPos")),
        unknown=fields.unknown(_FILTER_FIELDS),
    )


def _encode_filters(table: ConsumerFilterTable) -> dict[str, object]:
    by_topic = {
        topic: {
            "topic": topic,
            "groupFilterData": {group: _encode_filter(entry) for group, entry in groups.items()},
        }
        for topic, groups in table.filters.items()
    }
    return {**table.unknown, "filterDataByTopic": by_topic}


def _encode_filter(entry: ConsumerFilter) -> dict[str, object]:
    return {
        **entry.unknown,
        "topic": entry.topic,
        "consumerGroup": entry.group,
        "expression": entry.expression,
        "expressionType": entry.expression_type,
        "bornTime": entry.born_time_ms,
        "deadTime": entry.dead_time_ms,
        "dead": entry.dead,
        "clientVersion": entry.client_version,
        "bloomFilterData": {
            "bitNum": entry.bloom_bit_count,
            "bitPos": entry.bloom_bit_positions,
        },
    }


_FILTER_FIELDS = frozenset(_encode_filter(ConsumerFilter("", "", "")))


def _data_version(fields: Fields) -> DataVersion:
    found = fields.child("dataVersion")
    return DataVersion() if found is None else DataVersion.from_fields(found)


def _by_number(fields: Fields, place: str) -> dict[int, int]:
    """A table whose keys are numbers: queue ids or delay levels."""
    return {_key_number(key, place): value for key, value in fields.as_integers().items()}


def _key_number(key: str, place: str) -> int:
    number = int(key) if _SMALL_NUMBER.fullmatch(key) else whole_number(key, f"a key of {place}")
    if not 0 <= number < 2**31:
        raise FastJsonError(f"a key of {place} must be a number from 0 to 2147483647, it is {key}")
    return number


TOPICS = ConfigFile("topics.json", _decode_topics, _encode_topics)
GROUPS = ConfigFile("subscriptionGroup.json", _decode_groups, _encode_groups)
CONSUMER_OFFSETS = ConfigFile(
    "consumerOffset.json", _decode_consumer_offsets, _encode_consumer_offsets
)
DELAY_OFFSETS = ConfigFile("delayOffset.json", _decode_delay_offsets, _encode_delay_offsets)
CONSUMER_FILTERS = ConfigFile("consumerFilter.json", _decode_filters, _encode_filters)

load_topics, save_topics = TOPICS.load, TOPICS.save
load_groups, save_groups = GROUPS.load, GROUPS.save
load_consumer_offsets, save_consumer_offsets = CONSUMER_OFFSETS.load, CONSUMER_OFFSETS.save
load_delay_offsets, save_delay_offsets = DELAY_OFFSETS.load, DELAY_OFFSETS.save
load_consumer_filters, save_consumer_filters = CONSUMER_FILTERS.load, CONSUMER_FILTERS.save
