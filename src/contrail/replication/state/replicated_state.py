"""The tables that all members of a failover group hold alike, decided by the log alone.

A member feeds committed state records, in the order of the log. Offsets are assigned, not merged by
their maximum: an operator's reset moves a group back. Two members that fed the same records hold
the same tables, also when one of them began with a snapshot.

Snapshots: the parts of a snapshot replace everything once the last of them is there. Records that
stand between its parts were written after the tables were rendered, so they count on top of it. A
snapshot whose leader was lost in the middle of it is dropped by the next one's first part.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from contrail.model.fastjson import Fields, dumps, loads, whole_number
from contrail.model.group import is_system_group
from contrail.replication.state.state_records import (
    Change,
    Entries,
    GroupDeletion,
    Key,
    SnapshotPart,
    StateRecord,
    Table,
    TopicDeletion,
    Value,
    decode_state_record,
    encode_state_record,
    snapshot_parts,
)

_SEPARATOR = "@"
_OF_TOPIC = (Table.FILTERS, Table.MODES, Table.NEXT_OFFSETS)
_OF_OFFSETS = (Table.OFFSETS, Table.RESETS)
_SNAPSHOTS_KEPT = 1_000
_FILE = "file"


class StateTables:
    """The tables, and what each kind of record does to them."""

    def __init__(self, entries: Entries | None = None) -> None:
        self._tables: dict[Table, dict[Key, Value]] = {table: {} for table in Table}
        self.changed: set[Table] = set()
        # The queues whose offsets or resets changed, by table: there may be many others.
        self.moved: set[Key] = set()
        if entries is not None:
            self.put(entries)

    def __getitem__(self, table: Table) -> Mapping[Key, Value]:
        return self._tables[table]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StateTables) and self._tables == other._tables

    def copy(self) -> StateTables:
        return StateTables(self._tables)

    def entries(self) -> Entries:
        """All tables, not to be changed."""
        return self._tables

    def put(self, entries: Entries) -> None:
        """Assign entries; those of the system's groups stay out, for each broker has its own."""
        for table, of in entries.items():
            for key, value in of.items():
                if table in _OF_OFFSETS and is_system_group(key[0].rpartition(_SEPARATOR)[2]):
                    continue
                self._tables[table][key] = value
                self._note(table, key)

    def remove(self, table: Table, keys: Iterable[Key]) -> None:
        for key in keys:
            if self._tables[table].pop(key, None) is not None:
                self._note(table, key)

    def _note(self, table: Table, key: Key) -> None:
        self.changed.add(table)
        if table in _OF_OFFSETS:
            self.moved.add(key)

    def note_unlike(self, other: StateTables) -> None:
        """Note as changed all that differs from other tables, and their own changes."""
        self.changed = other.changed | {table for table in Table if self[table] != other[table]}
        self.moved = set(other.moved)
        for table in _OF_OFFSETS:
            mine, others = self[table], other[table]
            self.moved |= {
                key for key in mine.keys() | others.keys() if mine.get(key) != others.get(key)
            }

    def delete_topic(self, topic: str, physical_offset: int) -> None:
        """A topic that comes again begins anew: no offset, filter or next offset is left of it."""
        self.remove(Table.TOPICS, [(topic,)])
        for table in _OF_TOPIC:
            self.remove(table, [key for key in self._tables[table] if key[0] == topic])
        for table in _OF_OFFSETS:
            mine = [key for key in self._tables[table] if _split(key)[0] == topic]
            self.remove(table, mine)
        self.put({Table.TOMBSTONES: {(topic,): physical_offset}})

    def delete_group(self, group: str, *, with_offsets: bool) -> None:
        self.remove(Table.GROUPS, [(group,)])
        self.remove(Table.FORBIDDEN, [key for key in self[Table.FORBIDDEN] if key[0] == group])
        if with_offsets:
            for table in _OF_OFFSETS:
                mine = [key for key in self._tables[table] if _split(key)[1] == group]
                self.remove(table, mine)

    def take(self, record: Change | TopicDeletion | GroupDeletion, physical_offset: int) -> None:
        match record:
            case Change():
                for table, keys in record.remove.items():
                    self.remove(table, keys)
            case TopicDeletion():
                self.delete_topic(record.topic, physical_offset)
            case GroupDeletion():
                self.delete_group(record.group, with_offsets=record.with_offsets)
        self.put(record.put)


def _split(key: Key) -> tuple[str, str]:
    """Topic and group of a key of offsets."""
    topic, _, group = key[0].partition(_SEPARATOR)
    return topic, group


@dataclass(slots=True)
class _Arriving:
    """A snapshot of which parts are still to come."""

    id: str
    parts: int
    physical_offset: int
    tables: StateTables = field(default_factory=StateTables)
    next_part: int = 0
    since: list[tuple[Change | TopicDeletion | GroupDeletion, int]] = field(default_factory=list)


class ReplicatedState:
    """The tables as of ``position``, the end of the last record that was fed."""

    def __init__(self) -> None:
        self.tables = StateTables()
        self.position = 0
        # The first bytes of the snapshots that are whole, oldest first.
        self.snapshot_starts: list[int] = []
        self._arriving: _Arriving | None = None

    def feed(self, body: bytes, physical_offset: int, physical_end: int) -> StateRecord | None:
        """Take a committed record; None for one that the tables hold already.

        Raises:
            ValueError: no leader that this member understands has written it; nothing is taken.
        """
        if physical_end <= self.position:
            return None
        record = decode_state_record(body)
        if isinstance(record, SnapshotPart):
            self._take_part(record, physical_offset)
        else:
            self.tables.take(record, physical_offset)
            if self._arriving is not None:
                self._arriving.since.append((record, physical_offset))
        self.position = physical_end
        return record

    def _take_part(self, part: SnapshotPart, physical_offset: int) -> None:
        if part.part == 0:
            self._arriving = _Arriving(part.id, part.parts, physical_offset)
        arriving = self._arriving
        if arriving is None or (part.id, part.parts) != (arriving.id, arriving.parts):
            return
        if part.part != arriving.next_part:
            self._arriving = None
            return
        arriving.tables.put(part.put)
        arriving.next_part += 1
        if arriving.next_part == arriving.parts:
            self._replace(arriving)

    def _replace(self, arrived: _Arriving) -> None:
        for record, physical_offset in arrived.since:
            arrived.tables.take(record, physical_offset)
        arrived.tables.note_unlike(self.tables)
        self.tables = arrived.tables
        self.snapshot_starts = [*self.snapshot_starts, arrived.physical_offset][-_SNAPSHOTS_KEPT:]
        self._arriving = None

    def removed_before(self, physical_min: int) -> None:
        """The log begins there now: snapshots before it are gone."""
        self.snapshot_starts = [one for one in self.snapshot_starts if one >= physical_min]

    # The file.

    def encode(self) -> bytes:
        """The position and everything that was fed, for the sealed ``contrail.state``."""
        parts = snapshot_parts(self.tables.entries(), _FILE)
        head: dict[str, object] = {
            "position": self.position,
            "snapshots": self.snapshot_starts,
            "parts": len(parts),
        }
        records: list[StateRecord] = [*parts]
        if (arriving := self._arriving) is not None:
            arrived = snapshot_parts(arriving.tables.entries(), arriving.id)
            head["arriving"] = {
                "id": arriving.id,
                "parts": arriving.parts,
                "physicalOffset": arriving.physical_offset,
                "next": arriving.next_part,
                "arrived": len(arrived),
                "since": [physical_offset for _, physical_offset in arriving.since],
            }
            records += [*arrived, *(record for record, _ in arriving.since)]
        return b"\n".join([dumps(head, pretty=False), *map(encode_state_record, records)])

    @classmethod
    def decode(cls, data: bytes) -> ReplicatedState:
        """Raises ``ValueError`` for content that ``encode`` did not write."""
        first, *lines = data.split(b"\n")
        head = Fields(loads(first), "the head of the state")
        records = iter([decode_state_record(line) for line in lines])
        found = cls()
        found.position = _from_0(head, "position")
        found.snapshot_starts = _numbers(head, "snapshots")
        found.tables = _tables_of(records, _from_0(head, "parts"))
        if (arriving := head.child("arriving")) is not None:
            found._arriving = _arriving_of(arriving, records)
        if next(records, None) is not None:
            raise ValueError("the state has more records than its head says")
        found.tables.note_unlike(StateTables())
        return found

    def digest(self) -> int:
        """A number that members at the same position have in common."""
        tables = self.tables.entries()
        ordered = {table: dict(sorted(of.items(), key=_by_key)) for table, of in tables.items()}
        parts = snapshot_parts(ordered, _FILE)
        return zlib.crc32(b"\n".join(map(encode_state_record, parts)))


def _by_key(entry: tuple[Key, Value]) -> Key:
    return entry[0]


def _tables_of(records: Iterator[StateRecord], count: int) -> StateTables:
    tables = StateTables()
    for _ in range(count):
        part = next(records, None)
        if not isinstance(part, SnapshotPart):
            raise ValueError("the state ends in the middle of its tables")
        tables.put(part.put)
    return tables


def _arriving_of(fields: Fields, records: Iterator[StateRecord]) -> _Arriving:
    tables = _tables_of(records, _from_0(fields, "arrived"))
    since = []
    for physical_offset in _numbers(fields, "since"):
        record = next(records, None)
        if record is None or isinstance(record, SnapshotPart):
            raise ValueError("the state ends in the middle of its records")
        since.append((record, physical_offset))
    return _Arriving(
        fields.text("id", ""),
        _from_0(fields, "parts"),
        _from_0(fields, "physicalOffset"),
        tables,
        _from_0(fields, "next"),
        since,
    )


def _from_0(fields: Fields, name: str) -> int:
    number = fields.integer(name, -1)
    if number < 0:
        raise ValueError(f"the state has no {name}")
    return number


def _numbers(fields: Fields, name: str) -> list[int]:
    return [whole_number(one, name) for one in fields.array(name)]
