"""The broker's consumer groups, their forbidden topics, and the version of their table."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from contrail.broker.state.creators import Creators
from contrail.broker.state.watched import Watched
from contrail.model.data_version import DataVersion
from contrail.model.fastjson import JsonValue
from contrail.model.group import SubscriptionGroupConfig
from contrail.model.stored_entries import check_forbidden_entry, check_group_entry

FORBIDDEN_READ = 1 << 2
"""The bit of a group's forbidden set that stops it from reading a topic."""


class GroupTable(Watched):
    """Group settings by name. ``epoch`` grows with each change, so that caches can tell."""

    def __init__(
        self,
        groups: Mapping[str, SubscriptionGroupConfig] | None = None,
        *,
        forbidden: Mapping[str, Mapping[str, int]] | None = None,
        data_version: DataVersion | None = None,
        creators: Creators | None = None,
        unknown: Mapping[str, JsonValue] | None = None,
    ) -> None:
        super().__init__()
        self._groups = dict(groups or {})
        self.groups: Mapping[str, SubscriptionGroupConfig] = MappingProxyType(self._groups)
        self._forbidden = {group: dict(topics) for group, topics in (forbidden or {}).items()}
        self.data_version = data_version or DataVersion()
        self.creators = creators or Creators()
        self.creators.keep(self._groups)
        self.unknown: Mapping[str, JsonValue] = dict(unknown or {})

    def get(self, group: str) -> SubscriptionGroupConfig | None:
        return self._groups.get(group)

    def seed(self, config: SubscriptionGroupConfig) -> None:
        """Add a group every broker has, unless the table was loaded with it: no new version."""
        if config.group not in self._groups:
            self._groups[config.group] = config
            self.moved()

    def put(
        self, config: SubscriptionGroupConfig, now_ms: int, *, auto_created: bool = False
    ) -> None:
        """Raises ``EntryIllegal`` for settings that the reader of the table's file refuses."""
        check_group_entry(config.group, config)
        self._groups[config.group] = config
        if not auto_created:
            self.creators.discard(config.group)
        self._touch(now_ms)

    def delete(self, group: str, now_ms: int) -> bool:
        """False when there was no group of this name; its prohibitions are forgotten either way."""
        forgotten = self._forbidden.pop(group, None)
        found = self._groups.pop(group, None)
        self.creators.discard(group)
        if found is not None or forgotten is not None:
            self._touch(now_ms)
        return found is not None

    def forbidden(self, group: str, topic: str) -> int:
        """The bits that are forbidden to a group on a topic; 0 is nothing."""
        return max(0, self._forbidden.get(group, {}).get(topic, 0))

    def set_forbidden(self, group: str, topic: str, bits: int, now_ms: int) -> None:
        """Raises ``EntryIllegal`` for a group that the reader of the table's file refuses."""
        check_forbidden_entry(group, topic, bits)
        if bits == self.forbidden(group, topic):
            return
        topics = self._forbidden.setdefault(group, {})
        if bits > 0:
            topics[topic] = bits
        else:
            topics.pop(topic, None)
        if not topics:
            del self._forbidden[group]
        self._touch(now_ms)

    def forbidden_table(self) -> dict[str, dict[str, int]]:
        """A copy of everything that is forbidden, by group and topic."""
        return {group: dict(topics) for group, topics in self._forbidden.items()}

    def replace(
        self,
        groups: Mapping[str, SubscriptionGroupConfig],
        forbidden: Mapping[str, Mapping[str, int]],
        data_version: DataVersion,
    ) -> None:
        """Hold the rows of another broker's table, in its version; for a slave.

        Raises ``EntryIllegal``, and changes nothing, for settings that the file's reader refuses.
        """
        for name, config in groups.items():
            check_group_entry(name, config)
        for group, topics in forbidden.items():
            for topic, bits in topics.items():
                check_forbidden_entry(group, topic, bits)
        self._groups.clear()
        self._groups.update(groups)
        self._forbidden = {group: dict(topics) for group, topics in forbidden.items() if topics}
        self.creators.keep(self._groups)
        self.data_version = data_version
        self.moved()

    def page(
        self, known: DataVersion | None, start: int, count: int
    ) -> dict[str, SubscriptionGroupConfig]:
        """Some groups in order of name; from the first one if the table is not the known one."""
        first = max(start, 0) if known == self.data_version else 0
        names = sorted(self._groups)[first : first + max(count, 0)]
        return {name: self._groups[name] for name in names}

    def _touch(self, now_ms: int) -> None:
        self.data_version = self.data_version.bump(now_ms)
        self.moved()
