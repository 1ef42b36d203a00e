"""The tables of a member of a failover group: written by the leader, held alike by all members.

| table in memory | at the leader                     | at other members                |
| --------------- | --------------------------------- | ------------------------------- |
| live            | as appended: admission acts on it | as committed                    |
| committed       | as committed; files are rendered from it alone | the same           |

The leader appends a state record before anything that depends on it: a topic stands in the log
before its first message. Changed offsets go once a second. Operators' changes are appended first,
and carried out and answered when they are committed. A leader that leads no more takes its live
tables back from the committed ones.

Records are read through the queue of their topic, which is derived below commit: a member that
has none to read looks at one number.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple, Protocol

from contrail.broker.services.acknowledgements import IN_DOUBT_CODE, doubt_fields
from contrail.broker.services.groups import GroupEntry, GroupKey, Groups
from contrail.broker.services.persistence import Persistence, Render
from contrail.broker.services.stored_tables import (
    OffsetFile,
    keep_consumer_offsets,
    keep_groups,
    keep_topics,
)
from contrail.broker.services.topics import Topics
from contrail.broker.state.consumer_offsets import ConsumerOffsets
from contrail.broker.state.groups import GroupTable
from contrail.broker.state.topics import TopicTable
from contrail.clock import Clock
from contrail.errors import EntryIllegal, RecordDamaged, RequestRejected, StoreError
from contrail.model.data_version import DataVersion
from contrail.model.fastjson import JsonValue
from contrail.model.group import SubscriptionGroupConfig
from contrail.model.message import MessageDraft, StoredMessage
from contrail.model.stored_entries import check_entry_name
from contrail.model.topic import TopicConfig
from contrail.protocol.codes import ResponseCode
from contrail.replication.state.replicated_state import ReplicatedState, StateTables
from contrail.replication.state.state_records import (
    STATE_TOPIC,
    Change,
    Entries,
    GroupDeletion,
    Key,
    SnapshotPart,
    StateRecord,
    Table,
    TopicDeletion,
    Value,
    encode_state_record,
    queue_id_of,
    snapshot_parts,
)
from contrail.runtime.durable_changes import Change as PlannedChange
from contrail.runtime.durable_changes import Done
from contrail.runtime.files import FileSystem
from contrail.runtime.state_file import read_state
from contrail.store import CONFIG_FOLDER, CONSUMER_OFFSETS, GROUPS, TOPICS

_log = logging.getLogger(__name__)

FILE_NAME = "contrail.state"
_TOPIC, _QUEUE = STATE_TOPIC.encode(), 0
_READ_COUNT = 256
_Entries = dict[Table, dict[Key, Value]]


class _Appended(Protocol):
    @property
    def physical_end(self) -> int: ...


class _Found(Protocol):
    @property
    def messages(self) -> list[StoredMessage]: ...
    @property
    def next_queue_offset(self) -> int: ...
    @property
    def damaged(self) -> list[int]: ...


class StateLog(Protocol):
    """The log, as far as state records need it."""

    def append_one(self, draft: MessageDraft) -> _Appended: ...
    def begin_topic_anew(self, topic: bytes) -> None: ...
    def get(
        self, topic: bytes, queue_id: int, queue_offset: int, *, count_max: int, bytes_max: int
    ) -> _Found: ...
    @property
    def physical_end(self) -> int: ...
    @property
    def segment_bytes(self) -> int: ...
    def queues(self) -> list[tuple[bytes, int]]: ...
    def queue_offset_min(self, topic: bytes, queue_id: int) -> int: ...
    def queue_offset_max(self, topic: bytes, queue_id: int) -> int: ...


class _Waiting(NamedTuple):
    """A change that is answered when the log is committed up to there."""

    physical_end: int
    done: Done
    problem: Exception | None = None


class GroupTables:
    """Follows the group's role; see ``broker.group_side``."""

    def __init__(
        self,
        store: StateLog,
        topics: Topics,
        groups: Groups,
        offsets: ConsumerOffsets,
        persistence: Persistence,
        files: FileSystem,
        root: Path,
        clock: Clock,
        *,
        offsets_interval_ms: int,
        carried: Mapping[str, Callable[[], JsonValue]] | None = None,
        on_topic_deleted: Callable[[str, int], None] = lambda topic, physical_end: None,
    ) -> None:
        """``carried`` has more for the records, by name: facts of other parts that lead.

        ``on_topic_deleted`` carries out a committed deletion, whose record ends there.

        Raises ``StateFileDamaged`` if neither the file nor its backup can be read."""
        self._store = store
        self._topics, self._groups, self._offsets = topics, groups, offsets
        self._clock = clock
        self._leads = False
        self._carried = dict(carried or {})
        self._on_topic_deleted = on_topic_deleted
        # Topics whose deletion this leader has appended, and no member has carried out.
        self._deleting: set[str] = set()
        self._state = _read(files, root)
        self._next_row = store.queue_offset_min(_TOPIC, _QUEUE)
        # The tables as this leader appended them; the followed ones lag by the tail of the log.
        self._appended = StateTables()
        self._seen_offsets: dict[str, dict[int, int]] = {}
        self._waiting: deque[_Waiting] = deque()
        # Changes of operators that are planned and not appended yet, by table.
        self._unappended: dict[str, list[Done]] = {TOPICS.name: [], GROUPS.name: []}
        self._is_append_due = False
        self._term = self._snapshot_count = 0
        self._snapshot_segment = -1
        # The end of the last record that this leader appended.
        self._last_end = 0
        self._is_written = True
        self._committed_topics = TopicTable()
        self._committed_groups = GroupTable()
        self._committed_offsets = ConsumerOffsets()
        self._keep(persistence, offsets_interval_ms)
        topics.on_change.append(self._topic_changed)
        groups.on_change.append(self._group_changed)

    def _keep(self, persistence: Persistence, offsets_interval_ms: int) -> None:
        """Have Apache's files written from the committed tables, and changes wait for the log."""
        for name in (TOPICS.name, GROUPS.name, CONSUMER_OFFSETS.name):
            persistence.forget(name)
        keep_topics(persistence, self._committed_topics)
        keep_groups(persistence, self._committed_groups)
        # Groups do not pop, so that nobody waits for this file.
        keep_consumer_offsets(
            persistence, self._committed_offsets, OffsetFile(), interval_ms=offsets_interval_ms
        )
        persistence.register(
            FILE_NAME, take_changed=self._take_unwritten, snapshot=self._snapshot, sealed=True
        )
        self._topics.changes.when_written = lambda done: self._plan(TOPICS.name, done)
        self._groups.changes.when_written = lambda done: self._plan(GROUPS.name, done)
        persistence.instead[CONSUMER_OFFSETS.name] = self.when_committed

    def _take_unwritten(self) -> bool:
        was, self._is_written = self._is_written, True
        return not was

    def _snapshot(self) -> Render:
        content = self._state.encode()
        return lambda: content

    # Following.

    def begin(self) -> None:
        """Recall the tables: those of the file, and of the records that were committed since."""
        self._read_on()
        self._show_committed()
        if self._state.position:
            self._take_back()

    def committed(self, physical_start: int, physical_end: int) -> None:
        """These records are committed and derived."""
        self._read_on()
        self._show_committed()
        while self._waiting and self._waiting[0].physical_end <= physical_end:
            one = self._waiting.popleft()
            one.done(one.problem)

    def _read_on(self) -> None:
        """Feed the state records that are derived by now."""
        queue_offset_max = self._store.queue_offset_max(_TOPIC, _QUEUE)
        while self._next_row < queue_offset_max:
            found = self._store.get(
                _TOPIC, _QUEUE, self._next_row, count_max=_READ_COUNT, bytes_max=1 << 20
            )
            for message in found.messages:
                end = message.physical_offset + message.record_bytes
                record = self._state.feed(message.body, message.physical_offset, end)
                if isinstance(record, TopicDeletion):
                    self._deleting.discard(record.topic)
                    self._on_topic_deleted(record.topic, end)
            self._is_written = False
            if found.damaged:
                raise RecordDamaged(
                    f"a record of the group's tables at {found.damaged[0]} is damaged",
                    physical_offset=found.damaged[0],
                )
            self._next_row = max(found.next_queue_offset, self._next_row + 1)

    def _show_committed(self) -> None:
        """Bring the committed tables up to date, and the live ones of a member that follows."""
        tables = self._state.tables
        changed, moved = tables.changed, tables.moved
        tables.changed, tables.moved = set(), set()
        if Table.TOPICS in changed or self._is_newer(TOPICS.name, self._committed_topics):
            topics, version = _topics(tables), _version(tables, TOPICS.name)
            self._committed_topics.replace(topics, version)
            if not self._leads:
                self._topics.follow(topics, version)
        if not changed.isdisjoint((Table.GROUPS, Table.FORBIDDEN)) or self._is_newer(
            GROUPS.name, self._committed_groups
        ):
            groups, version = _groups(tables), _version(tables, GROUPS.name)
            forbidden = _forbidden(tables)
            self._committed_groups.replace(groups, forbidden, version)
            if not self._leads:
                self._groups.follow(groups, forbidden, version)
        for offsets in (self._committed_offsets, *(() if self._leads else (self._offsets,))):
            for key in moved:
                offset, reset = (tables[one].get(key) for one in (Table.OFFSETS, Table.RESETS))
                offsets.assign(key[0], queue_id_of(key), _number(offset), _number(reset))
            if moved or self._is_newer(CONSUMER_OFFSETS.name, offsets):
                offsets.data_version = _version(tables, CONSUMER_OFFSETS.name)

    def _is_newer(self, name: str, table: TopicTable | GroupTable | ConsumerOffsets) -> bool:
        known = self._state.tables[Table.VERSIONS].get((name,))
        return known is not None and known != table.data_version

    def _take_back(self) -> None:
        """Have the live tables as they are committed, whatever they were."""
        tables = self._state.tables
        self._topics.follow(_topics(tables), _version(tables, TOPICS.name))
        groups, forbidden = _groups(tables), _forbidden(tables)
        self._groups.follow(groups, forbidden, _version(tables, GROUPS.name))
        self._offsets.replace(
            _by_queue(tables, Table.OFFSETS),
            _by_queue(tables, Table.RESETS),
            _version(tables, CONSUMER_OFFSETS.name),
        )

    @property
    def snapshot_start(self) -> int | None:
        """Where the newest whole and committed snapshot begins in the log."""
        starts = self._state.snapshot_starts
        return starts[-1] if starts else None

    def removed_before(self, physical_min: int) -> None:
        """The log begins there now."""
        self._state.removed_before(physical_min)

    def carried(self, name: str) -> JsonValue:
        """A fact of another part, as it is committed; None if there is none."""
        found = self._state.tables[Table.CARRIED].get((name,))
        assert not isinstance(found, TopicConfig | SubscriptionGroupConfig | DataVersion)
        return found

    def offset_floors(self) -> dict[tuple[bytes, int], int]:
        """At least the next offset of each queue, also where all of its messages are removed."""
        floors = self._state.tables[Table.NEXT_OFFSETS].items()
        return {
            (key[0].encode(), queue_id_of(key)): floor
            for key, floor in floors
            if isinstance(floor, int)
        }

    def follow(self, term: int) -> None:
        """Another member leads: what was appended and not committed is not so any more."""
        was_leading, self._leads = self._leads, False
        self._deleting.clear()
        waiting, self._waiting = [one.done for one in self._waiting], deque()
        for name, dones in self._unappended.items():
            waiting += dones
            self._unappended[name] = []
        for done in waiting:
            done(_in_doubt())
        if was_leading:
            self._take_back()

    # Leading.

    async def lead(self, term: int) -> None:
        """Write down the tables as they are: the first leader brings those of its folder."""
        self._leads = True
        self._appended = StateTables(self._live())
        committed = self._offsets.all_committed()
        self._seen_offsets = {key: dict(queues) for key, queues in committed.items()}
        self._term = term
        self._append_snapshot()

    def _append_snapshot(self) -> None:
        """Everything as it is appended now, with the queues' next offsets; one in each segment.

        Queue offsets are those derived: messages that are not derived yet stand in the log.
        """
        next_offsets = {
            key: offset
            for key, offset in _flat_offsets(self._store).items()
            if key[0] not in self._deleting
        }
        tables: Entries = {**self._appended.entries(), Table.NEXT_OFFSETS: next_offsets}
        self._snapshot_count += 1
        for part in snapshot_parts(tables, f"{self._term}-{self._snapshot_count}"):
            self._append(part)
        self._snapshot_segment = self._last_end // self._store.segment_bytes

    def sweep(self) -> None:
        """Append everything that changed since: offsets above all; called once a second."""
        if not self._leads:
            return
        try:
            self._append_difference(self._live_tables())
            self._append_offsets()
            if self._store.physical_end // self._store.segment_bytes != self._snapshot_segment:
                self._append_snapshot()
        except StoreError as error:
            _log.warning("changes of the tables wait for the log: %s", error)

    def _live(self) -> _Entries:
        """Everything: tables that have no live form stay as they are committed."""
        followed = {table: dict(of) for table, of in self._state.tables.entries().items()}
        offsets = _flat(self._offsets.all_committed())
        return {**followed, **self._live_tables(), Table.OFFSETS: offsets}

    def _live_tables(self) -> _Entries:
        """The live tables without the offsets, of which there are many."""
        topics, groups = self._topics.table, self._groups.table
        return {
            Table.TOPICS: {(name,): config for name, config in topics.topics.items()},
            Table.GROUPS: {(name,): config for name, config in groups.groups.items()},
            Table.FORBIDDEN: {
                (group, topic): bits
                for group, by_topic in groups.forbidden_table().items()
                for topic, bits in by_topic.items()
            },
            Table.RESETS: _flat(self._offsets.pending_resets),
            Table.CARRIED: {
                (name,): fact
                for name, tell in self._carried.items()
                if (fact := tell()) is not None
            },
            Table.VERSIONS: {
                (TOPICS.name,): topics.data_version,
                (GROUPS.name,): groups.data_version,
                (CONSUMER_OFFSETS.name,): self._offsets.data_version,
            },
        }

    def _append_offsets(self) -> None:
        """One record for the groups and topics whose offsets are not as they were appended."""
        put: dict[Key, Value] = {}
        gone: list[Key] = []
        for key in self._offsets.keys_unlike(self._seen_offsets):
            known, queues = self._seen_offsets.pop(key, {}), self._offsets.all_committed().get(key)
            for queue_id, one in (queues or {}).items():
                if known.get(queue_id) != one:
                    put[key, str(queue_id)] = one
            gone += [(key, str(queue_id)) for queue_id in known if queue_id not in (queues or ())]
            if queues:
                self._seen_offsets[key] = dict(queues)
        if put or gone:
            self._append(Change({Table.OFFSETS: put}, {Table.OFFSETS: tuple(gone)}))

    def _topic_changed(self, config: TopicConfig) -> None:
        """Stand in the log before the first message of the topic."""
        if self._leads and self._appended[Table.TOPICS].get((config.topic,)) != config:
            self._append(Change({Table.TOPICS: {(config.topic,): config}}))

    def _group_changed(self, group: str) -> None:
        config = self._groups.table.get(group)
        is_new = config is not None and self._appended[Table.GROUPS].get((group,)) != config
        if self._leads and is_new:
            self._append(Change({Table.GROUPS: {(group,): config}}))

    def _append_difference(self, live: _Entries) -> None:
        """One record for the entries that differ from those appended, and for those that went."""
        put: _Entries = {}
        gone: dict[Table, tuple[Key, ...]] = {}
        for table, entries in live.items():
            known = self._appended[table]
            fresh = {
                key: one
                for key, one in entries.items()
                if known.get(key) != one and not self._is_planned(table, key)
            }
            if fresh:
                put[table] = fresh
            lost = [key for key in known if key not in entries]
            if lost := [key for key in lost if not self._is_planned(table, key)]:
                gone[table] = tuple(lost)
        if put or gone:
            self._append(Change(put, gone))

    def _is_planned(self, table: Table, key: Key) -> bool:
        """Whether an operator's change is appended that the live table has once it is committed."""
        if table is Table.TOPICS:
            return any(key[0] in change.entries for change in self._topics.changes.planned())
        if table is Table.GROUPS:
            return any(key[0] in change.entries for change in self._groups.changes.planned())
        return table is Table.FORBIDDEN and any(
            (key[0], key[1]) in change.entries for change in self._groups.changes.planned()
        )

    def delete_topic(self, topic: str) -> None:
        """Delete a topic: its next messages are of a new one, also before this is committed.

        Raises:
            StoreError: the log takes nothing now.
        """
        self._append(TopicDeletion(topic))
        self._deleting.add(topic)
        self._store.begin_topic_anew(topic.encode())

    def _append(self, record: StateRecord) -> int:
        """The end of the record in the log.

        Raises:
            StoreError: the log takes nothing now.
        """
        body = encode_state_record(record)
        draft = MessageDraft(_TOPIC, _QUEUE, body, born_timestamp_ms=self._clock.now_ms())
        end = self._last_end = self._store.append_one(draft).physical_end
        if not isinstance(record, SnapshotPart):
            self._appended.take(record, end)
        return end

    # Changes of operators: appended first, carried out and answered when they are committed.

    def _plan(self, name: str, done: Done) -> None:
        """The change itself is planned right after this call."""
        if not self._leads:
            raise RequestRejected(
                ResponseCode.SERVICE_NOT_AVAILABLE, "this member of the group does not lead"
            )
        self._unappended[name].append(done)
        if not self._is_append_due:
            self._is_append_due = True
            asyncio.get_running_loop().call_soon(self._append_planned)

    def _append_planned(self) -> None:
        self._is_append_due = False
        self._append_all(TOPICS.name, map(_topic_records, self._topics.changes.planned()))
        self._append_all(GROUPS.name, map(_group_records, self._groups.changes.planned()))

    def _append_all(self, name: str, planned: Iterator[Iterator[StateRecord]]) -> None:
        """The newest of the planned changes are those that are not appended yet."""
        dones, self._unappended[name] = self._unappended[name], []
        if dones:
            for done, records in zip(dones, list(planned)[-len(dones) :], strict=True):
                self._append_one_planned(done, records)

    def _append_one_planned(self, done: Done, records: Iterator[StateRecord]) -> None:
        try:
            end = max((self._append_planned_record(record) for record in records), default=0)
        except StoreError as error:
            self._fail_in_order(done, error)
            return
        self._waiting.append(_Waiting(end, done))

    def _append_planned_record(self, record: StateRecord) -> int:
        if not isinstance(record, TopicDeletion):
            return self._append(record)
        # Sends that were admitted are deleted too; later ones find no such topic.
        for prepare in self._topics.before_delete:
            prepare()
        self.delete_topic(record.topic)
        self._topics.withdraw(record.topic, self._clock.now_ms())
        return self._last_end

    def _fail_in_order(self, done: Done, error: StoreError) -> None:
        """Changes of a table end in the order they came: those that wait for the log come first."""
        if self._waiting:
            self._waiting.append(_Waiting(self._waiting[-1].physical_end, done, error))
        else:
            done(error)

    def when_committed(self, done: Done) -> None:
        """Append all changes so far, and call ``done`` once they are committed.

        Raises:
            RequestRejected: this member does not lead.
        """
        if not self._leads:
            raise RequestRejected(
                ResponseCode.SERVICE_NOT_AVAILABLE, "this member of the group does not lead"
            )
        try:
            self._append_difference(self._live_tables())
            self._append_offsets()
        except StoreError as error:
            self._fail_in_order(done, error)
            return
        if self._last_end <= self._state.position:
            done(None)
        else:
            self._waiting.append(_Waiting(self._last_end, done))


def _read(files: FileSystem, root: Path) -> ReplicatedState:
    path = root / CONFIG_FOLDER / FILE_NAME
    read = read_state(files, path, sealed=True, parse=ReplicatedState.decode)
    if read.problem is not None:
        # An older copy is as good: the records since are fed again.
        _log.warning("%s", read.problem)
    return ReplicatedState() if read.value is None else read.value


def _in_doubt() -> RequestRejected:
    refusal = RequestRejected(
        IN_DOUBT_CODE,
        "this member leads no more: the change may still be carried out by the next leader",
    )
    refusal.fields = doubt_fields(IN_DOUBT_CODE)
    return refusal


def _topic_records(change: PlannedChange[str, TopicConfig]) -> Iterator[StateRecord]:
    put: dict[Key, Value] = {}
    for name, config in change.entries.items():
        if config is None:
            yield TopicDeletion(name)
        else:
            put[name,] = config
    if put:
        yield Change({Table.TOPICS: put})


def _group_records(change: PlannedChange[GroupKey, GroupEntry]) -> Iterator[StateRecord]:
    groups: dict[Key, Value] = {}
    bits: dict[Key, Value] = {}
    allowed: list[Key] = []
    for key, entry in change.entries.items():
        if isinstance(key, tuple):
            if entry:
                bits[key] = entry
            else:
                allowed.append(key)
        elif entry is None:
            # Its offsets go by a record of their own, if they go.
            yield GroupDeletion(key, with_offsets=False)
        else:
            groups[key,] = entry
    if groups or bits or allowed:
        put = {Table.GROUPS: groups, Table.FORBIDDEN: bits}
        yield Change(put, {Table.FORBIDDEN: tuple(allowed)})


# Entries as the live tables hold them.


def _topics(tables: StateTables) -> dict[str, TopicConfig]:
    found = tables[Table.TOPICS].items()
    return {name: config for (name,), config in found if isinstance(config, TopicConfig)}


def _groups(tables: StateTables) -> dict[str, SubscriptionGroupConfig]:
    found = tables[Table.GROUPS].items()
    return {
        name: config for (name,), config in found if isinstance(config, SubscriptionGroupConfig)
    }


def _forbidden(tables: StateTables) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for (group, topic), bits in tables[Table.FORBIDDEN].items():
        assert isinstance(bits, int), bits
        found.setdefault(group, {})[topic] = bits
    return found


def _by_queue(tables: StateTables, table: Table) -> dict[str, dict[int, int]]:
    found: dict[str, dict[int, int]] = {}
    for key, one in tables[table].items():
        assert isinstance(one, int), one
        found.setdefault(key[0], {})[queue_id_of(key)] = one
    return found


def _flat(by_queue: Mapping[str, Mapping[int, int]]) -> dict[Key, Value]:
    return {
        (key, str(queue_id)): one
        for key, queues in by_queue.items()
        for queue_id, one in queues.items()
    }


def _flat_offsets(store: StateLog) -> dict[Key, Value]:
    found: dict[Key, Value] = {}
    for topic, queue_id in store.queues():
        try:
            name = topic.decode()
            check_entry_name("topic", name)
        except (UnicodeDecodeError, EntryIllegal):
            # Of a foreign folder: no client can send to such a topic.
            continue
        found[name, str(queue_id)] = store.queue_offset_max(topic, queue_id)
    return found


def _number(value: Value) -> int | None:
    assert value is None or isinstance(value, int), value
    return value


def _version(tables: StateTables, name: str) -> DataVersion:
    found = tables[Table.VERSIONS].get((name,))
    return found if isinstance(found, DataVersion) else DataVersion()
