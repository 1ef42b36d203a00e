"""The records by which the leader of a failover group tells all members what its tables hold.

They are ordinary messages of one system topic, queue 0, with a JSON body. ``kind`` says how it is
read; unknown kinds are refused, for a member that skipped one would hold other tables.

| kind          | other fields                                                            |
| ------------- | ----------------------------------------------------------------------- |
| `change`      | `put`: entries by table, assigned; `remove`: keys by table              |
| `deleteTopic` | `topic`, `put`: its offsets and filters go too; the record is its tombstone |
| `deleteGroup` | `group`, `withOffsets`, `put`                                           |
| `snapshot`    | `id`, `part`, `parts`, `put`: a part of everything, in `parts` records  |

An entry is `table: {key: value}`, or `table: {outer: {inner: value}}` for tables of two levels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from contrail.errors import EntryIllegal
from contrail.model.data_version import DataVersion
from contrail.model.fastjson import Fields, JsonValue, dumps, is_long, loads
from contrail.model.group import SubscriptionGroupConfig
from contrail.model.stored_entries import (
    QUEUE_ID_MAX,
    check_entry_name,
    check_forbidden_entry,
    check_group_entry,
    check_offset_entry,
    check_topic_entry,
)
from contrail.model.topic import TopicConfig

STATE_TOPIC = "rmq_sys_contrail_state"
PART_BYTES = 256 << 10
"""About the largest body of a part of a snapshot."""

# A body that is longer than any the leader writes.
_BODY_BYTES_MAX = 4 << 20
# The most bytes of the JSON around an entry, beside its key and value.
_ENTRY_BYTES = 16

Value = TopicConfig | SubscriptionGroupConfig | DataVersion | int | JsonValue
Key = tuple[str, ...]
Entries = Mapping["Table", Mapping[Key, Value]]
Keys = Mapping["Table", tuple[Key, ...]]


class Table(StrEnum):
    """The tables that all members hold alike; the value is the name in records and files."""

    TOPICS = "topics"
    GROUPS = "groups"
    # By group and topic: bits.
    FORBIDDEN = "forbidden"
    # By topic and group, as they were set.
    MODES = "modes"
    FILTERS = "filters"
    # By topic@group and queue.
    OFFSETS = "offsets"
    # Offsets that an operator has set and no consumer has heard of yet.
    RESETS = "resets"
    # The physical offset at which a topic was deleted.
    TOMBSTONES = "tombstones"
    # By topic and queue: the next queue offset when the snapshot was made.
    NEXT_OFFSETS = "nextOffsets"
    # Data versions of Apache's tables, by file.
    VERSIONS = "versions"
    # Facts that the log no longer tells, by the part of the broker that reads them.
    CARRIED = "carried"


class _Shape(NamedTuple):
    """How deep a table's keys are, and its entries as JSON."""

    depth: int
    parse: Callable[[Key, JsonValue], Value]
    render: Callable[[Value], object]


@dataclass(frozen=True, slots=True)
class Change:
    """Entries that are assigned, whatever was there, and keys that go."""

    put: Entries = field(default_factory=dict)
    remove: Keys = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TopicDeletion:
    topic: str
    put: Entries = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class GroupDeletion:
    group: str
    with_offsets: bool
    put: Entries = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SnapshotPart:
    """The ``part``-th of ``parts`` records, counted from 0, that together hold everything."""

    id: str
    part: int
    parts: int
    put: Entries


StateRecord = Change | TopicDeletion | GroupDeletion | SnapshotPart


def encode_state_record(record: StateRecord) -> bytes:
    fields: dict[str, object] = {"put": _rendered(record.put)}
    match record:
        case Change():
            fields |= {"kind": "change", "remove": _rendered_keys(record.remove)}
        case TopicDeletion():
            fields |= {"kind": "deleteTopic", "topic": record.topic}
        case GroupDeletion():
            deletion = {"group": record.group, "withOffsets": record.with_offsets}
            fields |= {"kind": "deleteGroup", **deletion}
        case SnapshotPart():
            place = {"id": record.id, "part": record.part, "parts": record.parts}
            fields |= {"kind": "snapshot", **place}
    return dumps(fields, pretty=False)


def decode_state_record(body: bytes) -> StateRecord:
    """Raises ``ValueError`` for anything but a record that a leader could have written."""
    try:
        return _decoded(Fields(loads(body, bytes_max=_BODY_BYTES_MAX), "a state record"))
    except EntryIllegal as error:
        raise ValueError(error.remark) from error


def _decoded(fields: Fields) -> StateRecord:
    put, kind = _parsed(fields), fields.text("kind", "")
    match kind:
        case "change":
            return Change(put, _parsed_keys(fields))
        case "deleteTopic":
            return TopicDeletion(_name(fields, "topic"), put)
        case "deleteGroup":
            with_offsets = fields.boolean("withOffsets", False)
            return GroupDeletion(_name(fields, "group"), with_offsets, put)
        case "snapshot":
            part, parts = fields.integer("part", -1), fields.integer("parts", -1)
            if not 0 <= part < parts:
                raise ValueError(f"part {part} of {parts} cannot be")
            return SnapshotPart(_name(fields, "id"), part, parts, put)
    raise ValueError(f"{kind!r} is no kind of state record")


def snapshot_parts(
    tables: Entries, snapshot_id: str, *, part_bytes: int = PART_BYTES
) -> list[SnapshotPart]:
    """All entries in parts of about ``part_bytes``; an empty state is one part."""
    pieces: list[dict[Table, dict[Key, Value]]] = [{}]
    filled = 0
    for table, key, value in _entries(tables):
        size = _ENTRY_BYTES + sum(map(len, key)) + len(dumps(_SHAPES[table].render(value)))
        if filled and filled + size > part_bytes:
            pieces.append({})
            filled = 0
        filled += size
        pieces[-1].setdefault(table, {})[key] = value
    return [
        SnapshotPart(snapshot_id, number, len(pieces), piece) for number, piece in enumerate(pieces)
    ]


def _entries(tables: Entries) -> Iterator[tuple[Table, Key, Value]]:
    for table, entries in tables.items():
        for key, value in entries.items():
            yield table, key, value


# Entries as JSON.


def _rendered(put: Entries) -> dict[str, object]:
    return {
        table.value: _nested(_SHAPES[table], entries) for table, entries in put.items() if entries
    }


def _nested(shape: _Shape, entries: Mapping[Key, Value]) -> dict[str, object]:
    if shape.depth == 1:
        return {key: shape.render(value) for (key,), value in entries.items()}
    found: dict[str, object] = {}
    for (outer, inner), value in entries.items():
        of = found.setdefault(outer, {})
        assert isinstance(of, dict)
        of[inner] = shape.render(value)
    return found


def _rendered_keys(remove: Keys) -> dict[str, object]:
    return {table.value: [list(key) for key in keys] for table, keys in remove.items() if keys}


def _parsed(fields: Fields) -> dict[Table, dict[Key, Value]]:
    found: dict[Table, dict[Key, Value]] = {}
    for name, of in fields.children("put").items():
        table = _table(name)
        shape = _SHAPES[table]
        entries = _flat(of) if shape.depth == 1 else _two_levels(of)
        found[table] = {key: shape.parse(key, value) for key, value in entries}
    return found


def _flat(of: Fields) -> Iterator[tuple[Key, JsonValue]]:
    for key, value in of.unknown(frozenset()).items():
        yield (key,), value


def _two_levels(of: Fields) -> Iterator[tuple[Key, JsonValue]]:
    for outer, inners in of.unknown(frozenset()).items():
        for inner, value in Fields(inners, outer).unknown(frozenset()).items():
            yield (outer, inner), value


def _parsed_keys(fields: Fields) -> dict[Table, tuple[Key, ...]]:
    removed = fields.child("remove")
    if removed is None:
        return {}
    found = {}
    for name in removed.unknown(frozenset()):
        table = _table(name)
        found[table] = tuple(_key(key, _SHAPES[table].depth) for key in removed.array(name))
    return found


def _key(value: JsonValue, depth: int) -> Key:
    if not isinstance(value, list) or len(value) != depth:
        raise ValueError(f"{value!r} is no key of {depth} names")
    names = tuple(one for one in value if isinstance(one, str))
    if len(names) != depth:
        raise ValueError(f"{value!r} is no key of {depth} names")
    return names


def _table(name: str) -> Table:
    try:
        return Table(name)
    except ValueError as error:
        raise ValueError(f"{name!r} is no table of a failover group") from error


def _name(fields: Fields, field_name: str) -> str:
    name = fields.text(field_name, "")
    check_entry_name(field_name, name)
    return name


# The rules of entries: those of Apache's files, which are rendered from these tables.


def _topic(key: Key, value: JsonValue) -> TopicConfig:
    config = TopicConfig.from_fields(Fields(value, f"topic {key[0]}"), key[0])
    check_topic_entry(key[0], config)
    return config


def _group(key: Key, value: JsonValue) -> SubscriptionGroupConfig:
    config = SubscriptionGroupConfig.from_fields(Fields(value, f"group {key[0]}"), key[0])
    check_group_entry(key[0], config)
    return config


def _forbidden(key: Key, value: JsonValue) -> int:
    bits = _long(key, value)
    check_forbidden_entry(key[0], key[1], bits)
    return bits


def _offset(key: Key, value: JsonValue) -> int:
    offset = _long(key, value)
    check_offset_entry(key[0], queue_id_of(key), offset)
    return offset


def _next_offset(key: Key, value: JsonValue) -> int:
    check_entry_name("topic", key[0])
    queue_id_of(key)
    return _place(key, value)


def _place(key: Key, value: JsonValue) -> int:
    place = _long(key, value)
    if place < 0:
        raise ValueError(f"{' '.join(key)}: {place} is no place")
    return place


def _version(key: Key, value: JsonValue) -> DataVersion:
    return DataVersion.from_fields(Fields(value, f"version of {key[0]}"))


def _named(key: Key, value: JsonValue) -> JsonValue:
    for name in key:
        check_entry_name("key", name)
    if value is None:
        raise ValueError(f"{' '.join(key)} has no value")
    return value


def queue_id_of(key: Key) -> int:
    """The queue in a key of offsets; raises ``ValueError`` for anything else."""
    text = key[1]
    if not (text.isascii() and text.isdecimal() and len(text) <= 10 and str(int(text)) == text):
        raise ValueError(f"{text!r} is no queue id")
    if int(text) > QUEUE_ID_MAX:
        raise ValueError(f"queue {text} cannot exist")
    return int(text)


def _long(key: Key, value: JsonValue) -> int:
    if not is_long(value):
        raise ValueError(f"{' '.join(key)}: {value!r} is no 64-bit number")
    return value


def _as_it_is(value: Value) -> object:
    return value


def _fields(value: Value) -> object:
    assert isinstance(value, TopicConfig | SubscriptionGroupConfig | DataVersion)
    return value.to_fields()


_SHAPES = {
    Table.TOPICS: _Shape(1, _topic, _fields),
    Table.GROUPS: _Shape(1, _group, _fields),
    Table.FORBIDDEN: _Shape(2, _forbidden, _as_it_is),
    Table.MODES: _Shape(2, _named, _as_it_is),
    Table.FILTERS: _Shape(2, _named, _as_it_is),
    Table.OFFSETS: _Shape(2, _offset, _as_it_is),
    Table.RESETS: _Shape(2, _offset, _as_it_is),
    Table.TOMBSTONES: _Shape(1, _place, _as_it_is),
    Table.NEXT_OFFSETS: _Shape(2, _next_offset, _as_it_is),
    Table.VERSIONS: _Shape(1, _version, _fields),
    Table.CARRIED: _Shape(1, _named, _as_it_is),
}
