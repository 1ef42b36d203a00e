"""RocketMQ's JSON files under ``<root>/config``, typed.

Each file is read in RocketMQ's own shape, whichever way its keys are quoted, and written back with
the fields of newer writers kept. Fields are sorted; tables are plain mappings, so that the caller
replaces a whole table, not a part of it. An entry that breaks its rule (``model.stored_entries``)
is left out of the table and listed in ``refused``.

    ==========================  ==========================================================
    file                        holds
    ==========================  ==========================================================
    ``topics.json``             every topic's settings
    ``subscriptionGroup.json``  every group's settings, and the topics forbidden to it
    ``consumerOffset.json``     how far each group has consumed each queue
    ``delayOffset.json``        how far each delay level has been delivered
    ``consumerFilter.json``     the SQL filters of consumers, with their bloom filter bits
    ==========================  ==========================================================
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Generic, NamedTuple, Protocol, TypeVar

from contrail.errors import TableTooLong
from contrail.model.data_version import DataVersion
from contrail.model.entry_sieve import EntrySieve, Refused, mended
from contrail.model.fastjson import (
    DOCUMENT_BYTES_MAX,
    FastJsonError,
    Fields,
    JsonValue,
    RawJson,
    dumps,
    entry_text,
    loads,
    raw_object,
    whole_number,
)
from contrail.model.group import SubscriptionGroupConfig
from contrail.model.stored_entries import (
    check_delay_entry,
    check_filter_entry,
    check_forbidden_entry,
    check_group_entry,
    check_offset_entry,
    check_topic_entry,
)
from contrail.model.topic import Perm, TopicConfig
from contrail.runtime.files import FileSystem
from contrail.runtime.state_file import BACKUP_SUFFIX, StateRead, read_state, write_state

CONFIG_FOLDER = "config"
OFFSET_KEY_SEPARATOR = "@"
FORBIDDEN_FIELD = "forbiddenTable"
"""The field of ``subscriptionGroup.json`` with the topics forbidden to groups."""

_GROUPS_FIELD = "subscriptionGroupTable"

_PERM_MAX = 7
_SMALL_NUMBER = re.compile(r"[0-9]{1,9}")

V = TypeVar("V")
Unknown = Mapping[str, JsonValue]


@dataclass(frozen=True, slots=True)
class TopicTable:
    """``topics.json``."""

    topics: Mapping[str, TopicConfig] = field(default_factory=dict)
    data_version: DataVersion = field(default_factory=DataVersion)
    unknown: Unknown = field(default_factory=dict)
    refused: Refused = ()


@dataclass(frozen=True, slots=True)
class GroupTable:
    """``subscriptionGroup.json``; ``forbidden`` is by group and topic, one bit per rule."""

    groups: Mapping[str, SubscriptionGroupConfig] = field(default_factory=dict)
    forbidden: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    data_version: DataVersion = field(default_factory=DataVersion)
    unknown: Unknown = field(default_factory=dict)
    refused: Refused = ()


@dataclass(frozen=True, slots=True)
class ConsumerOffsetTable:
    """``consumerOffset.json``; consumer offsets by ``topic@group`` and queue id."""

    offsets: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    data_version: DataVersion = field(default_factory=DataVersion)
    unknown: Unknown = field(default_factory=dict)
    refused: Refused = ()


@dataclass(frozen=True, slots=True)
class DelayOffsetTable:
    """``delayOffset.json``; the next queue offset to deliver, by delay level."""

    queue_offsets: Mapping[int, int] = field(default_factory=dict)
    data_version: DataVersion = field(default_factory=DataVersion)
    unknown: Unknown = field(default_factory=dict)
    refused: Refused = ()


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
    refused: Refused = ()


class _Table(Protocol):
    @property
    def refused(self) -> Refused: ...


T = TypeVar("T", bound=_Table)


@dataclass(frozen=True, slots=True)
class ConfigFile(Generic[T]):
    """One file of the config folder: its name, and its content as a value and back."""

    name: str
    decode: Callable[[Fields], T]
    encode: Callable[[T], dict[str, object]]
    # Gives the backup's entries the rights that the refused entries still show.
    mend: Callable[[T, T], T] = lambda main, found: found

    def load(self, files: FileSystem, root: Path, *, set_aside: bool = True) -> StateRead[T]:
        """Read the file below ``root``, or its backup; the answer says which and why.

        An entry that breaks its rule is taken from the backup if it is sound there, else left
        out; the table names it in ``refused``.

        Raises:
            StateFileDamaged: neither the file nor its backup can be read.
        """
        path = root / CONFIG_FOLDER / self.name
        read = read_state(files, path, sealed=False, parse=self.parse, set_aside=set_aside)
        if read.value is None or not read.value.refused or read.source != "main":
            return read
        return replace(read, value=self._mended(files, path, read.value))

    def _mended(self, files: FileSystem, path: Path, table: T) -> T:
        try:
            backup = loads(files.read_bytes(path.with_name(path.name + BACKUP_SUFFIX)))
        except (OSError, ValueError):
            return table
        document = mended(loads(files.read_bytes(path)), backup, table.refused)
        found = self.mend(table, self.decode(Fields(document, self.name)))
        return replace(found, refused=table.refused)  # type: ignore[type-var]

    def save(self, files: FileSystem, root: Path, table: T) -> None:
        """Replace the file below ``root``, keeping the old one as its backup."""
        write_state(files, root / CONFIG_FOLDER / self.name, self.render(table), sealed=False)

    def parse(self, data: bytes) -> T:
        """The table in ``data``. Raises ``FastJsonError`` for content that is not this file's."""
        return self.decode(Fields(loads(data), self.name))

    def render(self, table: T) -> bytes:
        """The file's content. Raises ``TableTooLong`` if ``parse`` would refuse its length."""
        return checked_length(self.name, dumps(self.encode(table)))


def checked_length(name: str, document: bytes) -> bytes:
    """``document``, unless its reader would refuse it for its length.

    Raises:
        TableTooLong: the document is longer than a reader accepts.
    """
    if len(document) > DOCUMENT_BYTES_MAX:
        raise TableTooLong(
            f"{name} would have {len(document)} bytes, its reader takes {DOCUMENT_BYTES_MAX}; "
            "delete entries that are not used any more"
        )
    return document


class EntryTexts(Generic[V]):
    """The texts of a table's entries: an entry is rendered when it changes, not for each write.

    One thread at a time uses it. Rendering a table of ten thousand topics takes 0.2 s, and the
    table is written for every topic that is created.
    """

    def __init__(self, to_fields: Callable[[V], dict[str, object]]) -> None:
        self._to_fields = to_fields
        self._texts: dict[str, tuple[V, str]] = {}

    def of(self, entries: Mapping[str, V]) -> RawJson:
        """The table's JSON object, as a top-level field of its document."""
        known = self._texts
        for name in known.keys() - entries.keys():
            del known[name]
        for name, entry in entries.items():
            found = known.get(name)
            if found is None or found[0] is not entry:
                known[name] = (entry, entry_text(name, self._to_fields(entry), depth=2))
        return raw_object([known[name][1] for name in sorted(entries)], depth=1)


def render_topics(table: TopicTable, texts: EntryTexts[TopicConfig]) -> bytes:
    """As ``TOPICS.render``, reusing the texts of unchanged entries."""
    document = _encode_topics(replace(table, topics={}))
    document["topicConfigTable"] = texts.of(table.topics)
    return checked_length(TOPICS.name, dumps(document))


def render_groups(table: GroupTable, texts: EntryTexts[SubscriptionGroupConfig]) -> bytes:
    """As ``GROUPS.render``, reusing the texts of unchanged entries."""
    document = _encode_groups(replace(table, groups={}))
    document[_GROUPS_FIELD] = texts.of(table.groups)
    return checked_length(GROUPS.name, dumps(document))


def offset_key(topic: str, group: str) -> str:
    """The key of a group's offsets in ``consumerOffset.json``."""
    return f"{topic}{OFFSET_KEY_SEPARATOR}{group}"


def _decode_topics(fields: Fields) -> TopicTable:
    sieve = EntrySieve(fields)
    return TopicTable(
        topics=sieve.entries("topicConfigTable", _read_topic),
        data_version=_data_version(sieve),
        unknown=fields.unknown(frozenset({"dataVersion", "topicConfigTable"})),
        refused=sieve.refused,
    )


def refused_perms(refused: Refused) -> Iterator[tuple[set[str], int | None]]:
    """The topics that each refused entry of ``topics.json`` names, and its permission.

    An entry under a damaged name counts for the name inside the entry too. None stands for a
    permission that cannot be read.
    """
    for entry in refused:
        if len(entry.place) == 2:
            inner = entry.value.get("topicName") if isinstance(entry.value, dict) else None
            names = {name for name in (entry.place[1], inner) if isinstance(name, str)}
            yield names, _perm_in(entry.value)


def _perm_in(value: JsonValue) -> int | None:
    try:
        perm = Fields(value, "topic").integer("perm", Perm.READ | Perm.WRITE)
    except FastJsonError:
        return None
    return perm if 0 <= perm <= _PERM_MAX else None


def _mend_topics(main: TopicTable, found: TopicTable) -> TopicTable:
    """Keep refused entries' permissions: the backup may be older than the closing of a topic."""
    topics = dict(found.topics)
    for names, perm in refused_perms(main.refused):
        for name in names & topics.keys() - main.topics.keys():
            if perm is not None:
                topics[name] = replace(topics[name], perm=perm)
    return replace(found, topics=topics)


def _read_topic(name: str, value: JsonValue) -> TopicConfig:
    config = TopicConfig.from_fields(Fields(value, f"topic {name!r}"), name)
    check_topic_entry(name, config)
    return config


def _encode_topics(table: TopicTable) -> dict[str, object]:
    return {
        **table.unknown,
        "dataVersion": table.data_version.to_fields(),
        "topicConfigTable": {name: topic.to_fields() for name, topic in table.topics.items()},
    }


def _decode_groups(fields: Fields) -> GroupTable:
    sieve = EntrySieve(fields)

    def forbidden_to(group: str, value: JsonValue) -> dict[str, int]:
        place = f"forbiddenTable.{group}"
        return sieve.items(
            (FORBIDDEN_FIELD, group),
            Fields(value, place),
            lambda topic, bits: _read_forbidden(group, topic, bits),
        )

    return GroupTable(
        groups=sieve.entries(_GROUPS_FIELD, _read_group),
        forbidden=sieve.entries(FORBIDDEN_FIELD, forbidden_to),
        data_version=_data_version(sieve),
        unknown=fields.unknown(frozenset({"dataVersion", FORBIDDEN_FIELD, _GROUPS_FIELD})),
        refused=sieve.refused,
    )


class GroupRights(NamedTuple):
    """A group's rights by its entry; None for a right that cannot be read."""

    consume_enable: bool | None
    consume_broadcast_enable: bool | None

    def within(self, config: SubscriptionGroupConfig) -> SubscriptionGroupConfig:
        """``config`` with these rights; a right that cannot be read stays as in ``config``."""
        consume, broadcast = self
        return replace(
            config,
            consume_enable=config.consume_enable if consume is None else consume,
            consume_broadcast_enable=config.consume_broadcast_enable
            if broadcast is None
            else broadcast,
        )


def refused_rights(refused: Refused) -> Iterator[tuple[set[str], GroupRights]]:
    """The groups that each refused entry of ``subscriptionGroup.json`` names, and their rights.

    An entry under a damaged name counts for the name inside the entry too.
    """
    for entry in refused:
        if entry.place[0] == _GROUPS_FIELD and len(entry.place) == 2:
            inner = entry.value.get("groupName") if isinstance(entry.value, dict) else None
            names = {name for name in (entry.place[1], inner) if isinstance(name, str)}
            consume, broadcast = (
                _flag_in(entry.value, name) for name in ("consumeEnable", "consumeBroadcastEnable")
            )
            yield names, GroupRights(consume, broadcast)


def _flag_in(value: JsonValue, name: str) -> bool | None:
    try:
        return Fields(value, "group").boolean(name, True)
    except FastJsonError:
        return None


def _mend_groups(main: GroupTable, found: GroupTable) -> GroupTable:
    """Keep refused entries' rights: the backup may be older than the closing of a group."""
    groups = dict(found.groups)
    for names, rights in refused_rights(main.refused):
        for name in names & groups.keys() - main.groups.keys():
            groups[name] = rights.within(groups[name])
    return replace(found, groups=groups)


def _read_group(name: str, value: JsonValue) -> SubscriptionGroupConfig:
    config = SubscriptionGroupConfig.from_fields(Fields(value, f"group {name!r}"), name)
    check_group_entry(name, config)
    return config


def _read_forbidden(group: str, topic: str, value: JsonValue) -> int:
    bits = whole_number(value, f"forbiddenTable.{group}.{topic}")
    check_forbidden_entry(group, topic, bits)
    return bits


def _encode_groups(table: GroupTable) -> dict[str, object]:
    return {
        **table.unknown,
        "dataVersion": table.data_version.to_fields(),
        FORBIDDEN_FIELD: table.forbidden,
        _GROUPS_FIELD: {name: group.to_fields() for name, group in table.groups.items()},
    }


def _decode_consumer_offsets(fields: Fields) -> ConsumerOffsetTable:
    sieve = EntrySieve(fields)

    def queues_of(key: str, value: JsonValue) -> dict[int, int]:
        def read(queue: str, offset: JsonValue) -> tuple[int, int]:
            entry = _numbered(queue, key), whole_number(offset, f"{key}.{queue}")
            check_offset_entry(key, *entry)
            return entry

        # An illegal key is refused with all its queues.
        check_offset_entry(key, 0, 0)
        found = sieve.items(("offsetTable", key), Fields(value, key), read)
        return dict(found.values())

    return ConsumerOffsetTable(
        offsets=sieve.entries("offsetTable", queues_of),
        data_version=_data_version(sieve),
        unknown=fields.unknown(frozenset({"dataVersion", "groupTopicMap", "offsetTable"})),
        refused=sieve.refused,
    )


def _encode_consumer_offsets(table: ConsumerOffsetTable) -> dict[str, object]:
    return {
        **table.unknown,
        "dataVersion": table.data_version.to_fields(),
        "groupTopicMap": _topics_by_group(table.offsets),
        "offsetTable": table.offsets,
    }


def _topics_by_group(offset_keys: Mapping[str, object]) -> dict[str, list[str]]:
    """A field that RocketMQ writes beside the offsets; it is derived, and no broker reads it."""
    topics: dict[str, list[str]] = {}
    for key in sorted(offset_keys):
        topic, _, group = key.partition(OFFSET_KEY_SEPARATOR)
        if topic and group:
            topics.setdefault(group, []).append(topic)
    return topics


def _decode_delay_offsets(fields: Fields) -> DelayOffsetTable:
    sieve = EntrySieve(fields)
    return DelayOffsetTable(
        queue_offsets=dict(sieve.entries("offsetTable", _read_delay).values()),
        data_version=_data_version(sieve),
        unknown=fields.unknown(frozenset({"dataVersion", "offsetTable"})),
        refused=sieve.refused,
    )


def _read_delay(level: str, value: JsonValue) -> tuple[int, int]:
    entry = _numbered(level, "offsetTable"), whole_number(value, f"offsetTable.{level}")
    check_delay_entry(*entry)
    return entry


def _encode_delay_offsets(table: DelayOffsetTable) -> dict[str, object]:
    return {
        **table.unknown,
        "dataVersion": table.data_version.to_fields(),
        "offsetTable": table.queue_offsets,
    }


def _decode_filters(fields: Fields) -> ConsumerFilterTable:
    sieve = EntrySieve(fields)

    def groups_of(topic: str, value: JsonValue) -> dict[str, ConsumerFilter]:
        name = "groupFilterData"
        return sieve.items(
            ("filterDataByTopic", topic, name),
            Fields(value, topic).child(name),
            lambda group, entry: _decode_filter(Fields(entry, f"{topic}.{group}"), topic, group),
        )

    return ConsumerFilterTable(
        filters=sieve.entries("filterDataByTopic", groups_of),
        unknown=fields.unknown(frozenset({"filterDataByTopic"})),
        refused=sieve.refused,
    )


def _decode_filter(fields: Fields, topic: str, group: str) -> ConsumerFilter:
    entry = _read_filter(fields, topic, group)
    check_filter_entry(entry.topic, entry.group, filter_numbers(entry))
    return entry


def filter_numbers(entry: ConsumerFilter) -> tuple[int, ...]:
    """All fields of a filter that must be 64-bit numbers."""
    return (
        entry.born_time_ms,
        entry.dead_time_ms,
        entry.client_version,
        entry.bloom_bit_count,
        *entry.bloom_bit_positions,
    )


def _read_filter(fields: Fields, topic: str, group: str) -> ConsumerFilter:
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


def _data_version(sieve: EntrySieve) -> DataVersion:
    name = "dataVersion"
    return sieve.value(
        name, lambda found: DataVersion.from_fields(Fields(found, name)), DataVersion()
    )


def _numbered(key: str, place: str) -> int:
    """A key that is a number: a queue id or a delay level."""
    return int(key) if _SMALL_NUMBER.fullmatch(key) else whole_number(key, f"a key of {place}")


TOPICS = ConfigFile("topics.json", _decode_topics, _encode_topics, _mend_topics)
GROUPS = ConfigFile("subscriptionGroup.json", _decode_groups, _encode_groups, _mend_groups)
CONSUMER_OFFSETS = ConfigFile(
    "consumerOffset.json", _decode_consumer_offsets, _encode_consumer_offsets
)
DELAY_OFFSETS = ConfigFile("delayOffset.json", _decode_delay_offsets, _encode_delay_offsets)
CONSUMER_FILTERS = ConfigFile("consumerFilter.json", _decode_filters, _encode_filters)

load_topics, save_topics = TOPICS.load, TOPICS.save
load_groups, save_groups = GROUPS.load, GROUPS.save
load_consumer_offsets, save_consumer_offsets = CONSUMER_OFFSETS.load, CONSUMER_OFFSETS.save
load_delay_offsets = DELAY_OFFSETS.load
load_consumer_filters = CONSUMER_FILTERS.load
