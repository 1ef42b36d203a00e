"""The SQL expressions of consumer groups, by topic and group, and when each came and went.

An expression lives while its group subscribes with it. When the group goes, it is only marked
dead, so that a group that restarts finds it again; after a day it is removed. Of two expressions
for the same topic and group the one with the larger subscription version counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol

from contrail.broker.state.watched import Watched
from contrail.errors import EntryIllegal, FilterInvalid
from contrail.model.fastjson import JsonValue
from contrail.model.property_sieve import PropertySieve
from contrail.model.stored_entries import check_filter_entry
from contrail.model.subscription import SQL92, SubscriptionData

REMOVED_AFTER_MS = 24 * 3600 * 1000
FILTERS_MAX = 20_000
"""How many expressions are kept; those of groups that are gone make room, the oldest first."""
# After a restart nobody is connected: every expression counts as dead since shortly before.
_DEAD_BEFORE_LOAD_MS = 30_000


class Matcher(Protocol):
    """A compiled expression."""

    @property
    def text(self) -> str: ...

    @property
    def sieve(self) -> PropertySieve | None: ...

    def matches(self, properties: Mapping[str, str]) -> bool: ...


class StoredFilter(Protocol):
    """An entry of ``consumerFilter.json``, as far as it is read here."""

    @property
    def topic(self) -> str: ...
    @property
    def group(self) -> str: ...
    @property
    def expression(self) -> str: ...
    @property
    def expression_type(self) -> str: ...
    @property
    def born_time_ms(self) -> int: ...
    @property
    def dead_time_ms(self) -> int: ...
    @property
    def client_version(self) -> int: ...
    @property
    def bloom_bit_count(self) -> int: ...
    @property
    def bloom_bit_positions(self) -> tuple[int, ...]: ...
    @property
    def unknown(self) -> Mapping[str, JsonValue]: ...


@dataclass(frozen=True, slots=True)
class FilterData:
    """One group's expression on one topic; ``sql`` is None if a stored text no longer compiles."""

    topic: str
    group: str
    expression: str
    version: int
    born_ms: int
    sql: Matcher | None
    dead_ms: int = 0
    expression_type: str = SQL92
    bloom_bit_count: int = 0
    bloom_bit_positions: tuple[int, ...] = ()
    unknown: Mapping[str, JsonValue] = field(default_factory=dict)

    @property
    def is_dead(self) -> bool:
        return self.dead_ms >= self.born_ms

    def is_alive(self, now_ms: int) -> bool:
        """Whether it is in use, or was until so recently that it is still kept."""
        return not self.is_dead or now_ms - self.dead_ms < REMOVED_AFTER_MS


class Refusal(NamedTuple):
    """An expression that does not compile, and why."""

    topic: str
    expression: str
    reason: str


class FilterTable(Watched):
    """All expressions. ``changed`` is set by every change; who persists them clears it.

    ``epoch`` grows with every change, for those who remember what an expression was.
    """

    def __init__(
        self, compile_sql: Callable[[str], Matcher], *, count_max: int = FILTERS_MAX
    ) -> None:
        super().__init__()
        self._count_max = count_max
        self._count = 0
        # Those whose groups are gone, in the order they went.
        self._dead: dict[tuple[str, str], None] = {}
        self._compile_sql = compile_sql
        self._filters: dict[str, dict[str, FilterData]] = {}
        self._topics_of: dict[str, set[str]] = {}
        self.unknown: Mapping[str, JsonValue] = {}
        self.changed = False

    def get(self, topic: str, group: str) -> FilterData | None:
        return self._filters.get(topic, {}).get(group)

    def of_topic(self, topic: str) -> list[FilterData]:
        return list(self._filters.get(topic, {}).values())

    def of_group(self, group: str) -> list[FilterData]:
        topics = sorted(self._topics_of.get(group, ()))
        return [self._filters[topic][group] for topic in topics]

    def register(
        self, group: str, subscriptions: Iterable[SubscriptionData], now_ms: int
    ) -> list[Refusal]:
        """Take the expressions of a heartbeat; returns those that do not compile."""
        refused = []
        wanted = list(subscriptions)
        topics = {subscription.topic for subscription in wanted}
        for entry in self.of_group(group):
            if entry.topic not in topics:
                self._mark_dead(entry, now_ms)
        for subscription in wanted:
            if not subscription.by_tag and subscription.sub_string:
                refusal = self._register_one(group, subscription, now_ms)
                refused += [] if refusal is None else [refusal]
        return refused

    def _register_one(
        self, group: str, subscription: SubscriptionData, now_ms: int
    ) -> Refusal | None:
        old = self.get(subscription.topic, group)
        version = subscription.sub_version
        if old is not None and version <= old.version:
            if version == old.version and old.is_dead:
                self._put(replace(old, dead_ms=0))
            return None
        if old is not None and old.sql is not None and _same_expression(old, subscription):
            self._put(replace(old, version=version, dead_ms=0))
            return None
        try:
            if old is None:
                self._make_room()
            self._put(self._compile(group, subscription, now_ms))
        except FilterInvalid as error:
            # The old expression is no longer what the group wants: pulls must learn of the error.
            self._drop(subscription.topic, group)
            return Refusal(subscription.topic, subscription.sub_string, str(error))
        return None

    def _make_room(self) -> None:
        if self._count < self._count_max:
            return
        if not self._dead:
            raise FilterInvalid(f"{self._count_max} filters are in use, and no more are kept")
        self._drop(*next(iter(self._dead)))

    def _compile(self, group: str, subscription: SubscriptionData, now_ms: int) -> FilterData:
        try:
            check_filter_entry(subscription.topic, group, (subscription.sub_version, now_ms))
        except EntryIllegal as error:
            raise FilterInvalid(str(error)) from error
        if subscription.expression_type != SQL92:
            raise FilterInvalid(
                f"expression type {subscription.expression_type!r} is unknown; use TAG or SQL92"
            )
        return FilterData(
            topic=subscription.topic,
            group=group,
            expression=subscription.sub_string,
            version=subscription.sub_version,
            born_ms=now_ms,
            sql=self._compile_sql(subscription.sub_string),
        )

    def unregister(self, group: str, now_ms: int) -> None:
        """The group has no clients any more: its expressions are dead from now on."""
        for entry in self.of_group(group):
            self._mark_dead(entry, now_ms)

    def expire(self, now_ms: int) -> list[FilterData]:
        """Remove and return what has been dead for a day."""
        overdue = [entry for entry in self._all() if not entry.is_alive(now_ms)]
        for entry in overdue:
            self._drop(entry.topic, entry.group)
        return overdue

    def load(
        self,
        stored: Iterable[StoredFilter],
        now_ms: int,
        *,
        unknown: Mapping[str, JsonValue] | None = None,
    ) -> None:
        """Take over what a file held, as if all groups had gone shortly before."""
        self.unknown = dict(unknown or {})
        for entry in stored:
            dead_ms = entry.dead_time_ms
            if dead_ms == 0:
                dead_ms = max(entry.born_time_ms, now_ms - _DEAD_BEFORE_LOAD_MS)
            self._keep(
                FilterData(
                    topic=entry.topic,
                    group=entry.group,
                    expression=entry.expression,
                    version=entry.client_version,
                    born_ms=entry.born_time_ms,
                    sql=self._compile_or_none(entry.expression),
                    dead_ms=dead_ms,
                    expression_type=entry.expression_type,
                    bloom_bit_count=entry.bloom_bit_count,
                    bloom_bit_positions=entry.bloom_bit_positions,
                    unknown=entry.unknown,
                )
            )

    def snapshot(self) -> list[FilterData]:
        """Everything there is, for the one who persists it."""
        return list(self._all())

    def _compile_or_none(self, expression: str) -> Matcher | None:
        try:
            return self._compile_sql(expression)
        except FilterInvalid:
            return None  # The group's next heartbeat brings it again and hears of the error.

    def _all(self) -> Iterator[FilterData]:
        return (entry for groups in self._filters.values() for entry in groups.values())

    def _put(self, entry: FilterData) -> None:
        self._keep(entry)
        self.changed = True

    def _keep(self, entry: FilterData) -> None:
        self.moved()
        key, groups = (entry.topic, entry.group), self._filters.setdefault(entry.topic, {})
        self._count += entry.group not in groups
        groups[entry.group] = entry
        self._dead.pop(key, None)
        if entry.is_dead:
            self._dead[key] = None
        self._topics_of.setdefault(entry.group, set()).add(entry.topic)

    def _mark_dead(self, entry: FilterData, now_ms: int) -> None:
        if not entry.is_dead:
            self._put(replace(entry, dead_ms=now_ms))

    def _drop(self, topic: str, group: str) -> None:
        groups = self._filters.get(topic, {})
        if groups.pop(group, None) is None:
            return
        self._count -= 1
        self._dead.pop((topic, group), None)
        self.changed = True
        self.moved()
        if not groups:
            del self._filters[topic]
        topics = self._topics_of[group]
        topics.discard(topic)
        if not topics:
            del self._topics_of[group]


def _same_expression(old: FilterData, subscription: SubscriptionData) -> bool:
    return (old.expression, old.expression_type) == (
        subscription.sub_string,
        subscription.expression_type,
    )
