"""The SQL expressions of consumer groups, by topic and group, and when each came and went.

An expression lives while its group subscribes with it. When the group goes, it is only marked
dead, so that a group that restarts finds it again; after a day it is removed. Of two expressions
for the same topic and group the one with the larger subscription version counts.

Expressions in use count for the address of the client that brought them, in bytes of the table's
file. Dead ones count together, keep their text alone, and the oldest make room.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol

from contrail.broker.state.shares import THIS_HOST, Shares
from contrail.broker.state.watched import Watched
from contrail.errors import EntryIllegal, FilterInvalid
from contrail.model.fastjson import JsonValue, dumps, text_bytes
from contrail.model.property_sieve import PropertySieve
from contrail.model.stored_entries import check_filter_entry
from contrail.model.subscription import SQL92, SubscriptionData

REMOVED_AFTER_MS = 24 * 3600 * 1000
FILTERS_MAX = 20_000
"""How many expressions are kept; those of groups that are gone make room, the oldest first. One
address has a quarter of those in use."""
FILTER_BYTES_MAX = 64 << 20
"""How many bytes of the table's file expressions in use take; an eighth for one address."""
DEAD_BYTES_MAX = 8 << 20
"""How many bytes the expressions of groups that are gone take; the oldest go."""
# The bytes of an entry in its file beside texts: field names, indents, numbers of 20 characters.
_ENTRY_BYTES = 640
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
    """One group's expression on one topic; ``sql`` is None while the group is gone."""

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
        """Whether the expression is in use, or was until recently and is still kept."""
        return not self.is_dead or now_ms - self.dead_ms < REMOVED_AFTER_MS


class Refusal(NamedTuple):
    """An expression that does not compile, and why."""

    topic: str
    expression: str
    reason: str


class FilterTable(Watched):
    """All expressions. Every change sets ``changed``; the writer of the file clears it.

    ``epoch`` grows with every change, for caches of expressions.
    """

    def __init__(
        self,
        compile_sql: Callable[[str], Matcher],
        *,
        count_max: int = FILTERS_MAX,
        bytes_max: int = FILTER_BYTES_MAX,
        dead_bytes_max: int = DEAD_BYTES_MAX,
    ) -> None:
        super().__init__()
        self._count_max = count_max
        self._count = 0
        self.shares = Shares(count_max, max(1, count_max // 4))
        self.bytes = Shares(bytes_max, bytes_max // 8)
        self._dead_bytes_max = dead_bytes_max
        self.dead_bytes = 0
        # The address that each expression in use counts for, and the bytes of each at all.
        self._owners: dict[tuple[str, str], str] = {}
        self._sizes: dict[tuple[str, str], int] = {}
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

    def compiled(self, entry: FilterData) -> Matcher | None:
        """The compiled form of an expression; None if it does not compile.

        RocketMQ serves pulls by a dead expression that is newer than its group's.
        """
        return entry.sql if entry.sql is not None else self._compile_or_none(entry.expression)

    def register(
        self,
        group: str,
        subscriptions: Iterable[SubscriptionData],
        now_ms: int,
        owner: str = THIS_HOST,
    ) -> list[Refusal]:
        """Take the expressions of a heartbeat; returns those that do not compile or do not fit.

        ``owner`` is the address that sends it.
        """
        refused = []
        wanted = list(subscriptions)
        topics = {subscription.topic for subscription in wanted}
        for entry in self.of_group(group):
            if entry.topic not in topics:
                self._mark_dead(entry, now_ms)
        for subscription in wanted:
            if not subscription.by_tag and subscription.sub_string:
                refusal = self._register_one(group, subscription, now_ms, owner)
                refused += [] if refusal is None else [refusal]
        return refused

    def _register_one(
        self, group: str, subscription: SubscriptionData, now_ms: int, owner: str
    ) -> Refusal | None:
        old = self.get(subscription.topic, group)
        version = subscription.sub_version
        if old is not None and version <= old.version:
            if version != old.version or not old.is_dead:
                return None
            subscription = replace(
                subscription, sub_string=old.expression, expression_type=old.expression_type
            )
        try:
            if old is not None and _same_expression(old, subscription):
                sql = old.sql or self._compile_sql(old.expression)
                self._use(replace(old, version=version, dead_ms=0, sql=sql), owner)
            else:
                self._use(self._compile(group, subscription, now_ms), owner)
        except FilterInvalid as error:
            # The group no longer wants the old expression: pulls must learn of the error.
            self._drop(subscription.topic, group)
            return Refusal(subscription.topic, subscription.sub_string, str(error))
        return None

    def _use(self, entry: FilterData, owner: str) -> None:
        """Keep an expression that is in use, counted for ``owner``.

        Raises:
            FilterInvalid: there are too many, or too long ones.
        """
        key = (entry.topic, entry.group)
        known = self._owners.get(key)
        size = self._sizes.get(key, 0) if known is not None else 0
        # The expression goes on counting for the group's first member.
        owner = owner if known is None else known
        if known is None and self.shares.room(owner) <= 0:
            raise FilterInvalid(
                f"{self.shares.total} filters are in use, at most {self.shares.total_max} are kept "
                f"in all and {self.shares.share_max} for one address"
            )
        if self.bytes.room(owner) < _file_bytes(entry) - size:
            raise FilterInvalid(
                f"filters in use take {self.bytes.total} bytes, at most {self.bytes.total_max} are "
                f"kept in all and {self.bytes.share_max} for one address; use shorter expressions"
            )
        if key not in self._sizes and self._count >= self._count_max:
            self._drop(*next(iter(self._dead)))
        self._keep(entry, owner)
        self.changed = True

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
        """Remove and return the expressions that have been dead for a day."""
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
        """Take over a file's expressions, as if all groups had gone shortly before."""
        self.unknown = dict(unknown or {})
        for entry in stored:
            dead_ms = entry.dead_time_ms
            if dead_ms == 0 or dead_ms < entry.born_time_ms:
                dead_ms = max(entry.born_time_ms, now_ms - _DEAD_BEFORE_LOAD_MS)
            self._keep_dead(
                FilterData(
                    topic=entry.topic,
                    group=entry.group,
                    expression=entry.expression,
                    version=entry.client_version,
                    born_ms=entry.born_time_ms,
                    sql=None,  # Compiled when the group returns.
                    dead_ms=dead_ms,
                    expression_type=entry.expression_type,
                    bloom_bit_count=entry.bloom_bit_count,
                    bloom_bit_positions=entry.bloom_bit_positions,
                    unknown=entry.unknown,
                )
            )

    def snapshot(self) -> list[FilterData]:
        """All expressions, for the writer of the file."""
        return list(self._all())

    def _compile_or_none(self, expression: str) -> Matcher | None:
        try:
            return self._compile_sql(expression)
        except FilterInvalid:
            return None  # The next heartbeat brings the expression again and is told why.

    def _all(self) -> Iterator[FilterData]:
        return (entry for groups in self._filters.values() for entry in groups.values())

    def _keep(self, entry: FilterData, owner: str | None) -> None:
        """Take an entry in; one without an owner is dead."""
        self.moved()
        key, groups = (entry.topic, entry.group), self._filters.setdefault(entry.topic, {})
        self._uncount(key)
        self._count += entry.group not in groups
        groups[entry.group] = entry
        size = self._sizes[key] = _file_bytes(entry)
        if owner is None:
            self._dead[key] = None
            self.dead_bytes += size
        else:
            self._owners[key] = owner
            self.shares.add(owner)
            self.bytes.add(owner, size)
        self._topics_of.setdefault(entry.group, set()).add(entry.topic)

    def _uncount(self, key: tuple[str, str]) -> None:
        size, owner = self._sizes.pop(key, 0), self._owners.pop(key, None)
        if owner is not None:
            self.shares.remove(owner)
            self.bytes.remove(owner, size)
        elif key in self._dead:
            del self._dead[key]
            self.dead_bytes -= size

    def _keep_dead(self, entry: FilterData) -> None:
        self._keep(entry, None)
        while self.dead_bytes > self._dead_bytes_max or self._count > self._count_max:
            self._drop(*next(iter(self._dead)))

    def _mark_dead(self, entry: FilterData, now_ms: int) -> None:
        if not entry.is_dead:
            # Compiled it takes five times its text and more.
            self._keep_dead(replace(entry, dead_ms=now_ms, sql=None))
            self.changed = True

    def _drop(self, topic: str, group: str) -> None:
        groups = self._filters.get(topic, {})
        if groups.pop(group, None) is None:
            return
        self._count -= 1
        self._uncount((topic, group))
        self.changed = True
        self.moved()
        if not groups:
            del self._filters[topic]
        topics = self._topics_of[group]
        topics.discard(topic)
        if not topics:
            del self._topics_of[group]


def _file_bytes(entry: FilterData) -> int:
    """How many bytes an entry takes in its file at most, with an object for its topic."""
    texts = 5 * text_bytes(entry.topic) + 2 * text_bytes(entry.group)
    texts += text_bytes(entry.expression) + text_bytes(entry.expression_type)
    unknown = len(dumps(dict(entry.unknown))) * 2 if entry.unknown else 0
    return _ENTRY_BYTES + texts + unknown + 32 * len(entry.bloom_bit_positions)


def _same_expression(old: FilterData, subscription: SubscriptionData) -> bool:
    return (old.expression, old.expression_type) == (
        subscription.sub_string,
        subscription.expression_type,
    )
