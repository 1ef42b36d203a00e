"""The broker's topics and the version of their table, with the creators of topics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from contrail.broker.state.creators import Creators
from contrail.broker.state.watched import Watched
from contrail.model.data_version import DataVersion
from contrail.model.fastjson import JsonValue
from contrail.model.stored_entries import check_topic_entry
from contrail.model.topic import TopicConfig


class TopicTable(Watched):
    """Topic settings by name. ``epoch`` grows with each change, so that caches can tell."""

    def __init__(
        self,
        topics: Mapping[str, TopicConfig] | None = None,
        *,
        data_version: DataVersion | None = None,
        auto_created: Iterable[str] = (),
        creators: Creators | None = None,
        unknown: Mapping[str, JsonValue] | None = None,
        quarantined: Mapping[str, int | None] | None = None,
    ) -> None:
        """``quarantined`` has the permissions of topics whose entries the reader put aside.

        ``None`` stands for a permission that cannot be read.
        """
        super().__init__()
        self.quarantined: Mapping[str, int | None] = dict(quarantined or {})
        self._topics = dict(topics or {})
        self.topics: Mapping[str, TopicConfig] = MappingProxyType(self._topics)
        self.data_version = data_version or DataVersion()
        self.auto_created = {topic for topic in auto_created if topic in self._topics}
        self.creators = creators or Creators()
        self.creators.keep(self.auto_created)
        self.unknown: Mapping[str, JsonValue] = dict(unknown or {})

    def get(self, topic: str) -> TopicConfig | None:
        return self._topics.get(topic)

    def seed(self, config: TopicConfig) -> None:
        """Add a topic every broker has, unless the table was loaded with it: no new version."""
        if config.topic not in self._topics:
            self._topics[config.topic] = config
            self.moved()

    def put(self, config: TopicConfig, now_ms: int, *, auto_created: bool = False) -> None:
        """Raises ``EntryIllegal`` for settings that the reader of the table's file refuses."""
        check_topic_entry(config.topic, config)
        self._topics[config.topic] = config
        if auto_created:
            self.auto_created.add(config.topic)
        else:
            self.auto_created.discard(config.topic)
            self.creators.discard(config.topic)
        self.touch(now_ms)

    def delete(self, topic: str, now_ms: int) -> bool:
        """False when there was no topic of this name."""
        if self._topics.pop(topic, None) is None:
            return False
        self.auto_created.discard(topic)
        self.creators.discard(topic)
        self.touch(now_ms)
        return True

    def replace(self, topics: Mapping[str, TopicConfig], data_version: DataVersion) -> None:
        """Hold the rows of another broker's table, in its version; for a slave.

        Raises ``EntryIllegal``, and changes nothing, for settings that the file's reader refuses.
        """
        for name, config in topics.items():
            check_topic_entry(name, config)
        self._topics.clear()
        self._topics.update(topics)
        self.auto_created &= self._topics.keys()
        self.creators.keep(self.auto_created)
        self.data_version = data_version
        self.moved()

    def touch(self, now_ms: int) -> None:
        """A new version: something changed that the table's readers must learn of."""
        self.data_version = self.data_version.bump(now_ms)
        self.moved()

    def page(self, known: DataVersion | None, start: int, count: int) -> dict[str, TopicConfig]:
        """Some topics in order of name; from the first one if the table is not the known one."""
        first = max(start, 0) if known == self.data_version else 0
        names = sorted(self._topics)[first : first + max(count, 0)]
        return {name: self._topics[name] for name in names}
