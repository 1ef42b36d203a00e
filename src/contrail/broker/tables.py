"""Everything a broker remembers beside its messages, loaded from its folder."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

from contrail.broker.access_config import AccessConfig
from contrail.broker.config import BrokerConfig
from contrail.broker.replication_config import ReplicationConfig
from contrail.broker.services.groups import Groups
from contrail.broker.services.long_expressions import LongExpressions
from contrail.broker.services.persistence import Persistence
from contrail.broker.services.request_modes import RequestModes
from contrail.broker.services.setting_changes import SettingChanges
from contrail.broker.services.stored_tables import (
    OffsetFile,
    keep_consumer_offsets,
    keep_filters,
    keep_groups,
    keep_settings,
    keep_topics,
    load_consumer_offsets,
    load_filters,
    load_groups,
    load_settings,
    load_topics,
)
from contrail.broker.services.topics import Topics
from contrail.broker.state.consumer_offsets import ConsumerOffsets
from contrail.broker.state.consumers import ConsumerTable
from contrail.broker.state.filter_data import FilterTable
from contrail.broker.state.producers import ProducerTable
from contrail.broker.state.queue_locks import QueueLocks
from contrail.broker.state.runtime_settings import RuntimeSettings
from contrail.clock import Clock
from contrail.model.settings import names_of
from contrail.runtime.durable_changes import Done
from contrail.runtime.files import FileSystem
from contrail.store import CONSUMER_OFFSETS, StoreConfig, apache_names


class BatchTopics:
    """Passes new BatchCQ topics on to the store, once there is one."""

    def __init__(self) -> None:
        self.sink: Callable[[bytes], None] | None = None
        self.check_sink: Callable[[bytes], None] | None = None

    def add(self, topic: bytes) -> None:
        # Before the store is open nothing is lost: it is opened with all topics of this kind.
        if self.sink is not None:
            self.sink(topic)

    def check(self, topic: bytes) -> None:
        """Raises ``StoreLayoutError`` for a topic that ``add`` would raise it for."""
        if self.check_sink is not None:
            self.check_sink(topic)


@dataclass(slots=True, kw_only=True)
class Tables:
    """The broker's state, put together."""

    settings: RuntimeSettings
    setting_changes: SettingChanges
    topics: Topics
    groups: Groups
    consumer_offsets: ConsumerOffsets
    offset_file: OffsetFile
    filters: FilterTable
    expressions: LongExpressions
    persistence: Persistence
    request_modes: RequestModes
    producers: ProducerTable
    consumers: ConsumerTable
    locks: QueueLocks
    batch_topics: BatchTopics

    @classmethod
    def load(
        cls, config: BrokerConfig, store_config: StoreConfig, files: FileSystem, clock: Clock
    ) -> Self:
        """Read the folder's tables, and have their changes written back.

        Raises:
            StateFileDamaged: a table and its backup are both unreadable.
        """
        root = store_config.root
        settings = load_settings(
            files,
            root,
            config,
            fixed_names=apache_names() | names_of(ReplicationConfig) | names_of(AccessConfig),
            now_ms=clock.now_ms(),
        )
        batch_topics = BatchTopics()
        expressions = LongExpressions()
        filters = FilterTable(expressions.compile)
        load_filters(files, root, filters, clock.now_ms())
        consumers = ConsumerTable()
        persistence = Persistence(root, files)
        tables = cls(
            settings=settings,
            setting_changes=SettingChanges(settings),
            topics=Topics(
                load_topics(files, root),
                settings,
                add_batch_topic=batch_topics.add,
                check_batch_topic=batch_topics.check,
            ),
            groups=Groups(load_groups(files, root), settings),
            consumer_offsets=load_consumer_offsets(files, root),
            offset_file=OffsetFile(),
            filters=filters,
            expressions=expressions,
            persistence=persistence,
            request_modes=RequestModes(files, root, persistence),
            producers=ProducerTable(),
            consumers=consumers,
            locks=QueueLocks(consumers),
            batch_topics=batch_topics,
        )
        tables._keep()
        return tables

    def _keep(self) -> None:
        keep_topics(self.persistence, self.topics.table, self.topics.changes)
        keep_groups(self.persistence, self.groups.table, self.groups.changes)
        keep_consumer_offsets(
            self.persistence,
            self.consumer_offsets,
            self.offset_file,
            interval_ms=self.settings.config.flush_consumer_offset_ms,
        )
        keep_filters(self.persistence, self.filters)
        keep_settings(self.persistence, self.settings, self.setting_changes.changes)

    def offsets_written(self, done: Done) -> None:
        """Have the consumer offsets written, and then call ``done``."""
        self.persistence.when_written(CONSUMER_OFFSETS.name, done)
