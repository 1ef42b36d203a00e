"""The rules of consumer groups: creations and changes, and the groups that every broker has."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager

from contrail.broker.services.auto_creation import AutoCreation, Kind
from contrail.broker.state.attributes import GROUP_ATTRIBUTES, alter_attributes
from contrail.broker.state.groups import FORBIDDEN_READ, GroupTable
from contrail.broker.state.runtime_settings import RuntimeSettings
from contrail.errors import ConfigError, RequestRejected
from contrail.model.data_version import DataVersion
from contrail.model.group import (
    BUILT_IN_GROUPS,
    SubscriptionGroupConfig,
    check_group_name,
    check_not_system_group,
    checked_subscriptions,
    is_system_group,
)
from contrail.model.stored_entries import check_forbidden_entry, check_group_entry
from contrail.protocol.codes import ResponseCode
from contrail.runtime.durable_changes import Done, DurableChanges, ignore

_log = logging.getLogger(__name__)

RETRY_QUEUE_COUNT_MAX = 1024


GroupKey = str | tuple[str, str]
"""Plans a group's settings by its name, its forbidden topics by group and topic."""
GroupEntry = SubscriptionGroupConfig | int
GroupChanges = DurableChanges[GroupKey, GroupEntry]


class Groups:
    """Creates, changes and deletes groups; ``on_change`` hears the name of each that did.

    ``on_set`` hears of those that an operator has changed, deleted or allowed something else.
    """

    def __init__(self, table: GroupTable, settings: RuntimeSettings) -> None:
        self.table = table
        # Operators' changes that the table's file does not have yet.
        self.changes: GroupChanges = DurableChanges()
        self.on_change: list[Callable[[str], None]] = []
        self.on_set: list[Callable[[str], None]] = []
        self._settings = settings
        self._auto = AutoCreation(
            Kind(
                "groups",
                "contrailAutoGroupsMax",
                "contrailAutoGroupsPerSecond",
                lambda: settings.config.auto_group_count_max,
                lambda: settings.config.auto_groups_per_second_max,
            ),
            settings,
            table.creators,
            lambda: len(table.groups),
        )
        for group in BUILT_IN_GROUPS:
            table.seed(SubscriptionGroupConfig(group))

    def find(self, group: str, now_ms: int, *, client: str = "") -> SubscriptionGroupConfig | None:
        """As ``require``, with None for a group that does not exist and is not created."""
        try:
            return self.require(group, now_ms, client=client)
        except RequestRejected:
            return None

    def require(self, group: str, now_ms: int, *, client: str) -> SubscriptionGroupConfig:
        """A group's settings; an unknown group is created with the defaults where that is allowed.

        One of the system is not: every broker has those that something here uses. A slave makes
        none: it takes an unknown group for one with the defaults until its master tells otherwise.

        Raises:
            RequestRejected: SUBSCRIPTION_GROUP_NOT_EXIST for a group that may not be created; the
                remark says why.
        """
        found = self.table.get(group)
        if found is not None:
            return found
        if is_system_group(group) or not self._settings.config.auto_create_group:
            raise _no_such_group(group)
        try:
            check_group_name(group)
        except ConfigError as error:
            raise _no_such_group(group, f" and cannot: {error}") from error
        if not self._settings.config.role.leads:
            # Its master makes the group, and a slave's table is the master's.
            return SubscriptionGroupConfig(group)
        refusal = self._auto.admit(group, client, now_ms)
        if refusal is not None:
            raise _no_such_group(group, f" and is not created: {refusal.reason}")
        created = SubscriptionGroupConfig(group)
        self.table.put(created, now_ms, auto_created=True)
        # One request may make hundreds of groups; its handler logs them in one line.
        _log.debug("created group %r for %s", group, client)
        self._tell(group)
        return created

    def update(
        self, requested: Iterable[SubscriptionGroupConfig], now_ms: int, done: Done = ignore
    ) -> None:
        """Have groups created or changed: all of them or, if one is refused, none.

        They are there once the table's file has them; then ``done`` is called, and if that fails.

        Raises:
            RequestRejected: INVALID_PARAMETER for a bad name or number or a group of the system,
                SYSTEM_ERROR for an attribute.
        """
        planned = [self._plan_update(config) for config in requested]
        changed: dict[GroupKey, GroupEntry | None] = {
            config.group: config for config in planned if config != self._newest(config.group)
        }

        def believe() -> None:
            for config in planned:
                if config.group in changed:
                    self._put(config, now_ms)

        self.changes.submit(changed, now_ms, believe, done)

    def _newest(self, group: str) -> SubscriptionGroupConfig | None:
        """A group's settings as they will be once all planned changes are durable."""
        found = self.changes.newest(group, self.table.get(group))
        return found if isinstance(found, SubscriptionGroupConfig) else None

    def _plan_update(self, requested: SubscriptionGroupConfig) -> SubscriptionGroupConfig:
        check_name(requested.group)
        _check_not_system(requested.group)
        if not 0 <= requested.retry_queue_count <= RETRY_QUEUE_COUNT_MAX:
            raise RequestRejected(
                ResponseCode.INVALID_PARAMETER,
                f"group {requested.group!r}: retryQueueNums {requested.retry_queue_count} "
                f"must be from 0 to {RETRY_QUEUE_COUNT_MAX}",
            )
        current = self._newest(requested.group)
        attributes = alter_attributes(
            None if current is None else current.attributes, requested.attributes, GROUP_ATTRIBUTES
        )
        # Fields that a request brings and RocketMQ does not know are left out, as by RocketMQ.
        unknown = {} if current is None else current.unknown
        planned = dataclasses.replace(
            requested,
            subscriptions=checked_subscriptions(requested.group, requested.subscriptions),
            attributes=attributes,
            unknown=unknown,
        )
        check_group_entry(planned.group, planned)
        return planned

    def delete(
        self,
        group: str,
        now_ms: int,
        *,
        on_deleted: Callable[[], None] = lambda: None,
        done: Done = ignore,
    ) -> None:
        """Have a group removed, and its prohibitions; a group that is not there is no error.

        It is gone once the table's file is without it; then ``on_deleted`` and ``done`` are called.

        Raises:
            RequestRejected: INVALID_PARAMETER for a group of the system.
        """
        _check_not_system(group)
        places = [(group, topic) for topic in self.table.forbidden_table().get(group, ())]

        def believe() -> None:
            if self.table.delete(group, now_ms):
                _log.info("deleted group %r", group)
                self._tell(group, is_set=True)
            on_deleted()

        entries: dict[GroupKey, GroupEntry | None] = dict.fromkeys([group, *places])
        self.changes.submit(entries, now_ms, believe, done)

    def follow(
        self,
        groups: Mapping[str, SubscriptionGroupConfig],
        forbidden: Mapping[str, Mapping[str, int]],
        data_version: DataVersion,
    ) -> None:
        """Have the groups of another broker and no others; for a slave.

        Raises:
            EntryIllegal: the file's reader would refuse one of them; nothing is changed.
        """
        before, closed = dict(self.table.groups), self.table.forbidden_table()
        self.table.replace(groups, forbidden, data_version)
        for name in before.keys() | groups.keys():
            if before.get(name) != groups.get(name) or closed.get(name) != forbidden.get(name):
                self._tell(name, is_set=True)

    def is_read_forbidden(self, group: str, topic: str) -> bool:
        return bool(self.table.forbidden(group, topic) & FORBIDDEN_READ)

    def set_readable(
        self, group: str, topic: str, readable: bool, now_ms: int, done: Done = ignore
    ) -> None:
        """Have a group allowed or forbidden to read a topic, once the table's file says so.

        Raises:
            EntryIllegal: the reader of the table's file would refuse one of the names.
            RequestRejected: INVALID_PARAMETER for a group of the system.
        """
        _check_not_system(group)
        found = self.changes.newest((group, topic), self.table.forbidden(group, topic))
        bits = found if isinstance(found, int) else 0
        changed = bits & ~FORBIDDEN_READ if readable else bits | FORBIDDEN_READ
        check_forbidden_entry(group, topic, changed)

        def believe() -> None:
            if changed != bits:
                self.table.set_forbidden(group, topic, changed, now_ms)
                _log.info("group %r on topic %r: readable is %s now", group, topic, readable)
                self._tell(group, is_set=True)

        entries: dict[GroupKey, GroupEntry | None] = {}
        if changed != bits:
            entries[group, topic] = changed
        self.changes.submit(entries, now_ms, believe, done)

    def _put(self, config: SubscriptionGroupConfig, now_ms: int) -> None:
        existed = config.group in self.table.groups
        self.table.put(config, now_ms)
        _log.info("%s group: %s", "changed" if existed else "created", config)
        self._tell(config.group, is_set=True)

    def _tell(self, group: str, *, is_set: bool = False) -> None:
        for listener in [*self.on_change, *(self.on_set if is_set else ())]:
            listener(group)


def _no_such_group(group: str, why: str = "") -> RequestRejected:
    return RequestRejected(
        ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
        f"consumer group {group!r} does not exist{why}; create it with updateSubGroup",
    )


def check_name(group: str) -> None:
    """Refuse a name that no group may have, with INVALID_PARAMETER."""
    with _refused_names():
        check_group_name(group)


def _check_not_system(group: str) -> None:
    with _refused_names():
        check_not_system_group(group)


@contextmanager
def _refused_names() -> Iterator[None]:
    try:
        yield
    except ConfigError as error:
        raise RequestRejected(ResponseCode.INVALID_PARAMETER, str(error)) from error
