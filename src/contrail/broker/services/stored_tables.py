"""The broker's tables and their files: loaded at the start, registered to be written."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, TypeVar

from contrail.broker.config import BrokerConfig
from contrail.broker.services.groups import GroupChanges
from contrail.broker.services.persistence import Persistence, Render
from contrail.broker.services.quarantined_groups import kept_closed
from contrail.broker.services.setting_changes import SettingsChanges
from contrail.broker.services.topics import TopicChanges
from contrail.broker.state.consumer_offsets import ConsumerOffsets
from contrail.broker.state.creators import Creators
from contrail.broker.state.delay_cursors import DelayCursors
from contrail.broker.state.filter_data import FilterData, FilterTable
from contrail.broker.state.groups import GroupTable
from contrail.broker.state.runtime_settings import CHANGEABLE, RuntimeSettings
from contrail.broker.state.topics import TopicTable
from contrail.errors import RequestRejected, TableTooLong
from contrail.model.entry_sieve import Refused, RefusedEntry
from contrail.model.fastjson import JsonValue
from contrail.model.group import SubscriptionGroupConfig
from contrail.model.topic import TopicConfig
from contrail.protocol.bodies.properties_text import parse_properties, render_properties
from contrail.runtime.durable_changes import DurableChanges
from contrail.runtime.files import FileSystem
from contrail.runtime.quarantine import quarantine
from contrail.runtime.state_file import StateRead, read_state
from contrail.store import (
    CONFIG_FOLDER,
    CONSUMER_FILTERS,
    CONSUMER_OFFSETS,
    DELAY_OFFSETS,
    GROUPS,
    TOPICS,
    ConfigFile,
    ConsumerFilter,
    ConsumerFilterTable,
    ConsumerOffsetTable,
    DelayOffsetTable,
    EntryTexts,
    refused_perms,
    render_groups,
    render_topics,
)
from contrail.store import GroupTable as StoredGroupTable
from contrail.store import TopicTable as StoredTopicTable

_log = logging.getLogger(__name__)

SETTINGS_FILE = "broker.properties"
# Beside RocketMQ's fields in topics.json, which ignores it: these topics count towards the limit.
_AUTO_CREATED_FIELD = "contrailAutoTopics"
# The names that were created for each address, which has a share of the limit.
_TOPIC_CREATORS_FIELD = "contrailAutoTopicsByAddress"
_GROUP_CREATORS_FIELD = "contrailAutoGroupsByAddress"

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")
E = TypeVar("E", bound="_WithRefused")


class _WithRefused(Protocol):
    @property
    def refused(self) -> Refused: ...


class _WithEpoch(Protocol):
    @property
    def epoch(self) -> int: ...


class _WithLength(Protocol):
    too_long: str | None


class _WithFlag(Protocol):
    changed: bool


def load_topics(files: FileSystem, root: Path) -> TopicTable:
    """The topics of the last run, or none.

    Raises:
        StateFileDamaged: neither the file nor its backup can be read.
    """
    stored = _load(TOPICS, files, root, StoredTopicTable())
    unknown = dict(stored.unknown)
    auto_created = unknown.pop(_AUTO_CREATED_FIELD, None)
    names = auto_created if isinstance(auto_created, list) else []
    creators = _read_creators(unknown.pop(_TOPIC_CREATORS_FIELD, None))
    return TopicTable(
        stored.topics,
        data_version=stored.data_version,
        auto_created=[name for name in names if isinstance(name, str)],
        creators=creators,
        unknown=unknown,
        quarantined=_quarantined_perms(stored),
    )


def _quarantined_perms(stored: StoredTopicTable) -> dict[str, int | None]:
    """The permissions of topics whose entries are quarantined and not sound in the backup."""
    perms: dict[str, int | None] = {}
    for names, perm in refused_perms(stored.refused):
        if names.isdisjoint(stored.topics):
            perms |= dict.fromkeys(names, perm)
    return perms


def load_groups(files: FileSystem, root: Path) -> GroupTable:
    """The groups of the last run, or none; raises like ``load_topics``."""
    stored = kept_closed(_load(GROUPS, files, root, StoredGroupTable()))
    unknown = dict(stored.unknown)
    creators = _read_creators(unknown.pop(_GROUP_CREATORS_FIELD, None))
    return GroupTable(
        stored.groups,
        forbidden=stored.forbidden,
        data_version=stored.data_version,
        creators=creators,
        unknown=unknown,
    )


def load_consumer_offsets(files: FileSystem, root: Path) -> ConsumerOffsets:
    """The consumer offsets of the last run, or none; raises like ``load_topics``."""
    stored = _load(CONSUMER_OFFSETS, files, root, ConsumerOffsetTable())
    return ConsumerOffsets(stored.offsets, data_version=stored.data_version, unknown=stored.unknown)


def load_delay_cursors(files: FileSystem, root: Path, delay_table: Sequence[int]) -> DelayCursors:
    """The cursors of the delay levels, or none; raises like ``load_topics``.

    ``services.delay_levels`` writes them: only when their deliveries are durable.
    """
    read = DELAY_OFFSETS.load(files, root)
    stored = _value(read, DelayOffsetTable())
    _quarantine(files, root, DELAY_OFFSETS.name, stored.refused)
    return DelayCursors(
        delay_table,
        stored.queue_offsets,
        data_version=stored.data_version,
        unknown=stored.unknown,
        are_newest=read.source == "main" and not stored.refused,
    )


def load_filters(files: FileSystem, root: Path, filters: FilterTable, now_ms: int) -> None:
    """Give ``filters`` the expressions of the last run; raises like ``load_topics``."""
    stored = _load(CONSUMER_FILTERS, files, root, ConsumerFilterTable())
    entries = [entry for groups in stored.filters.values() for entry in groups.values()]
    filters.load(entries, now_ms, unknown=stored.unknown)


def load_settings(
    files: FileSystem,
    root: Path,
    config: BrokerConfig,
    *,
    fixed_names: frozenset[str] = frozenset(),
    now_ms: int,
) -> RuntimeSettings:
    """``config`` with the settings changed while the broker ran; raises like ``load_topics``."""
    settings = RuntimeSettings(config, fixed_names=fixed_names)
    path = root / CONFIG_FOLDER / SETTINGS_FILE
    read = read_state(files, path, sealed=False, parse=lambda data: parse_properties(data.decode()))
    refused = []
    for name, text in _value(read, {}).items():
        try:
            settings.change({name: text}, now_ms)
            _log.info("%s=%s, as changed at run time (%s)", name, text, path)
        except RequestRejected as error:
            refused.append(RefusedEntry((name,), text, error.remark))
            _close(settings, name, now_ms)
    _quarantine(files, root, SETTINGS_FILE, tuple(refused))
    return settings


def _close(settings: RuntimeSettings, name: str, now_ms: int) -> None:
    """A damaged setting must not open to clients what an operator has closed by it."""
    closed = CHANGEABLE[name].closed if name in CHANGEABLE else None
    if closed is None:
        return
    settings.change({name: closed}, now_ms)
    _log.error(
        "%s=%s until it is set again, since %s cannot be read there: "
        "mqadmin updateBrokerConfig -b BROKER -k %s -v VALUE",
        name,
        closed,
        SETTINGS_FILE,
        name,
    )


def _load(file: ConfigFile[E], files: FileSystem, root: Path, default: E) -> E:
    stored = _value(file.load(files, root), default)
    _quarantine(files, root, file.name, stored.refused)
    return stored


def _quarantine(files: FileSystem, root: Path, name: str, refused: Refused) -> None:
    quarantine(files, root / CONFIG_FOLDER / name, refused)


def _value(read: StateRead[T], default: T) -> T:
    if read.problem is not None:
        _log.warning("%s", read.problem)
    return default if read.value is None else read.value


def _read_creators(stored: JsonValue) -> Creators:
    """The creators in a file; anything else there only means that no creator is known."""
    if not isinstance(stored, dict):
        return Creators()
    return Creators(
        {
            address: [name for name in names if isinstance(name, str)]
            for address, names in stored.items()
            if isinstance(names, list)
        }
    )


def _written_creators(field: str, creators: Creators) -> dict[str, JsonValue]:
    by_address = creators.by_address()
    if not by_address:
        return {}
    return {field: {address: [*names] for address, names in by_address.items()}}


def keep_topics(
    persistence: Persistence, table: TopicTable, changes: TopicChanges | None = None
) -> None:
    """Have the topics written; ``changes`` are those that wait to be."""
    changes = _on_disk(persistence, TOPICS.name, table, changes or DurableChanges())
    texts: EntryTexts[TopicConfig] = EntryTexts(TopicConfig.to_fields)

    def snapshot() -> Render:
        topics, version = dict(table.topics), table.data_version
        auto_created = set(table.auto_created)
        for change in changes.planned():
            for name, config in change.entries.items():
                auto_created.discard(name)
                _set(topics, name, config)
            version = version.bump(change.now_ms) if change.entries else version
        extra = _written_creators(_TOPIC_CREATORS_FIELD, table.creators)
        if auto_created:
            extra[_AUTO_CREATED_FIELD] = [*sorted(auto_created)]
        copy = StoredTopicTable(
            topics=topics, data_version=version, unknown={**table.unknown, **extra}
        )
        return lambda: render_topics(copy, texts)

    written, failed = _length_noted(table.creators)
    persistence.register(
        TOPICS.name,
        take_changed=_epoch_moved(table, changes),
        snapshot=snapshot,
        on_written=written,
        on_failed=failed,
    )


def keep_groups(
    persistence: Persistence, table: GroupTable, changes: GroupChanges | None = None
) -> None:
    """Have the groups written; ``changes`` are those that wait to be."""
    changes = _on_disk(persistence, GROUPS.name, table, changes or DurableChanges())
    texts: EntryTexts[SubscriptionGroupConfig] = EntryTexts(SubscriptionGroupConfig.to_fields)

    def snapshot() -> Render:
        groups, forbidden = dict(table.groups), table.forbidden_table()
        version = table.data_version
        for change in changes.planned():
            for name, entry in change.entries.items():
                if isinstance(name, tuple):
                    _set_forbidden(forbidden, name, entry)
                else:
                    assert not isinstance(entry, int), "bits are kept by group and topic"
                    _set(groups, name, entry)
            version = version.bump(change.now_ms) if change.entries else version
        copy = StoredGroupTable(
            groups=groups,
            forbidden=forbidden,
            data_version=version,
            unknown={
                **table.unknown,
                **_written_creators(_GROUP_CREATORS_FIELD, table.creators),
            },
        )
        return lambda: render_groups(copy, texts)

    written, failed = _length_noted(table.creators)
    persistence.register(
        GROUPS.name,
        take_changed=_epoch_moved(table, changes),
        snapshot=snapshot,
        on_written=written,
        on_failed=failed,
    )


def _set(table: dict[str, T], name: str, entry: T | None) -> None:
    if entry is None:
        table.pop(name, None)
    else:
        table[name] = entry


def _set_forbidden(
    forbidden: dict[str, dict[str, int]],
    place: tuple[str, str],
    bits: SubscriptionGroupConfig | int | None,
) -> None:
    group, topic = place
    assert not isinstance(bits, SubscriptionGroupConfig), "settings are kept by group"
    topics = forbidden.setdefault(group, {})
    _set(topics, topic, bits or None)
    if not topics:
        del forbidden[group]


@dataclass(slots=True)
class OffsetFile:
    """Tells when the table of offsets is copied for its file, and when the copy is durable."""

    on_copied: list[Callable[[], None]] = field(default_factory=list)
    on_written: list[Callable[[], None]] = field(default_factory=list)

    def copied(self) -> None:
        for listener in self.on_copied:
            listener()

    def written(self) -> None:
        for listener in self.on_written:
            listener()


def keep_consumer_offsets(
    persistence: Persistence, offsets: ConsumerOffsets, file: OffsetFile, *, interval_ms: int
) -> None:
    def snapshot() -> Render:
        copy = consumer_offset_table(offsets)
        file.copied()
        return lambda: CONSUMER_OFFSETS.render(copy)

    note_length, failed = _length_noted(offsets)

    def written() -> None:
        note_length()
        file.written()

    persistence.register(
        CONSUMER_OFFSETS.name,
        take_changed=_flag_taken(offsets),
        snapshot=snapshot,
        interval_ms=interval_ms,
        on_written=written,
        on_failed=failed,
    )


def consumer_offset_table(offsets: ConsumerOffsets) -> ConsumerOffsetTable:
    """A copy of the offsets in the form of their file."""
    return ConsumerOffsetTable(*offsets.snapshot())


def keep_filters(persistence: Persistence, filters: FilterTable) -> None:
    def snapshot() -> Render:
        entries = filters.snapshot()
        unknown = filters.unknown
        return lambda: CONSUMER_FILTERS.render(
            ConsumerFilterTable(_filters_by_topic(entries), unknown)
        )

    persistence.register(
        CONSUMER_FILTERS.name, take_changed=_flag_taken(filters), snapshot=snapshot
    )


def _filters_by_topic(
    entries: list[FilterData],
) -> dict[str, dict[str, ConsumerFilter]]:
    by_topic: dict[str, dict[str, ConsumerFilter]] = {}
    for entry in entries:
        by_topic.setdefault(entry.topic, {})[entry.group] = ConsumerFilter(
            topic=entry.topic,
            group=entry.group,
            expression=entry.expression,
            expression_type=entry.expression_type,
            born_time_ms=entry.born_ms,
            dead_time_ms=entry.dead_ms,
            client_version=entry.version,
            bloom_bit_count=entry.bloom_bit_count,
            bloom_bit_positions=entry.bloom_bit_positions,
            unknown=entry.unknown,
        )
    return by_topic


def keep_settings(
    persistence: Persistence, settings: RuntimeSettings, changes: SettingsChanges | None = None
) -> None:
    """Have changed settings written; ``changes`` are those that wait to be."""
    changes = _on_disk(persistence, SETTINGS_FILE, settings, changes or DurableChanges())

    def snapshot() -> Render:
        changed = dict(settings.changed)
        for change in changes.planned():
            for name, text in change.entries.items():
                _set(changed, name, text)
        return lambda: render_properties(changed).encode()

    persistence.register(
        SETTINGS_FILE, take_changed=_epoch_moved(settings, changes), snapshot=snapshot
    )


def _on_disk(
    persistence: Persistence, name: str, table: _WithEpoch, changes: DurableChanges[K, V]
) -> DurableChanges[K, V]:
    """From now on the changes are believed once the file ``name`` has them."""
    changes.when_written = lambda done: persistence.when_written(name, done)
    changes.epoch = lambda: table.epoch
    return changes


def _epoch_moved(table: _WithEpoch, changes: DurableChanges[K, V]) -> Callable[[], bool]:
    """Whether something changed since the last call that was not written before it was believed."""

    def unwritten() -> int:
        return table.epoch - changes.believed_epochs

    known = unwritten()

    def moved() -> bool:
        nonlocal known
        before, known = known, unwritten()
        return before != known

    return moved


def _length_noted(
    table: _WithLength,
) -> tuple[Callable[[], None], Callable[[Exception], None]]:
    """The calls after a write and after a failed one: requests hear that a file is too long.

    A full disk is another matter: its changes wait for their next write, as for this one.
    """

    def written() -> None:
        table.too_long = None

    def failed(problem: Exception) -> None:
        if isinstance(problem, TableTooLong):
            table.too_long = str(problem)

    return written, failed


def _flag_taken(table: _WithFlag) -> Callable[[], bool]:
    """Whether the table's flag was set; it is cleared."""

    def taken() -> bool:
        was, table.changed = table.changed, False
        return was

    return taken
