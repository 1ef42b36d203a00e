"""The routing tables: clusters, brokers and their heartbeats, topic queues, queue mappings.

A broker is known by its cluster and address; a broker name groups the master (id 0) and its
slaves. Only the master's topics count; if brokers say whether a slave may act as master, those of
the slave with the smallest id count too. The tables are in memory only: brokers register again
every half minute, and a restarted NameServer learns its routes from them.

Changes of a broker's topics are generators that yield after each row. The caller runs one change
of a broker name at a time. Between two steps every topic that the broker has before and after the
change is in its routes; a broker that has left is in no route, even while its rows are removed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple, TypeVar

from contrail.errors import RequestRejected
from contrail.model.data_version import DataVersion
from contrail.model.topic import Perm, TopicConfig
from contrail.nameserver.state.topic_queues import TopicQueues
from contrail.protocol.bodies.registration import RegisterBrokerBody
from contrail.protocol.bodies.routes import (
    MASTER_ID,
    BrokerData,
    BrokerMemberGroup,
    ClusterInfo,
    QueueData,
    TopicQueueMapping,
    TopicRouteData,
)
from contrail.protocol.codes import ResponseCode
from contrail.wire.peer import Peer

T = TypeVar("T")

HEARTBEAT_TIMEOUT_MS = 120_000
BROKER_COUNT_MAX = 10_000


class BrokerKey(NamedTuple):
    """Identifies one broker process."""

    cluster: str
    address: str


@dataclass(frozen=True, slots=True)
class Registration:
    """One broker's registration. ``acting_master`` is None for brokers of older versions."""

    key: BrokerKey
    broker_name: str
    broker_id: int
    ha_address: str = ""
    zone: str | None = None
    heartbeat_timeout_ms: int | None = None
    acting_master: bool | None = None
    body: RegisterBrokerBody = field(default_factory=RegisterBrokerBody)


class Registered(NamedTuple):
    """The outcome of a registration; slaves learn their master's addresses.

    ``displaced`` had the id until now, and is still connected.
    """

    master_address: str | None = None
    ha_address: str | None = None
    is_new: bool = False
    is_ignored: bool = False
    displaced: str | None = None


class Evicted(NamedTuple):
    """A broker that was removed, and the connection it had registered over."""

    key: BrokerKey
    connection: Peer


@dataclass(slots=True)
class _Group:
    """The brokers under one name."""

    cluster: str
    addresses: dict[int, str] = field(default_factory=dict)
    acting_master_enabled: bool = False
    zone: str | None = None

    def to_data(self, broker_name: str) -> BrokerData:
        return BrokerData(
            broker_name,
            self.cluster,
            dict(self.addresses),
            self.acting_master_enabled,
            self.zone,
        )


@dataclass(slots=True)
class _Live:
    """The time of a broker's last heartbeat, and its connection."""

    heard_ms: int
    heartbeat_timeout_ms: int
    data_version: DataVersion | None
    """The version of the registered topics; None until the first registration is done."""
    connection: Peer
    ha_address: str


def in_one_go(steps: Generator[None, None, T]) -> T:
    """Do all steps of a change now; returns its outcome."""
    while True:
        try:
            next(steps)
        except StopIteration as done:
            return done.value  # type: ignore[no-any-return]


def _rows_at_once(broker_name: str, rows: Iterator[None]) -> None:
    for _ in rows:
        pass


class RouteTables:
    """The tables of one NameServer. Connections are only compared and returned to the caller."""

    def __init__(self, clean: Callable[[str, Iterator[None]], None] = _rows_at_once) -> None:
        """``clean`` runs the removal of rows, one a step, for the name of a broker that left."""
        self._clean = clean
        self.topics = TopicQueues()
        self._clusters: dict[str, set[str]] = {}
        self._groups: dict[str, _Group] = {}
        self._live: dict[BrokerKey, _Live] = {}
        self._filter_servers: dict[BrokerKey, tuple[str, ...]] = {}
        self._mappings: dict[str, dict[str, TopicQueueMapping]] = {}

    def registering(
        self,
        registration: Registration,
        connection: Peer,
        now_ms: int,
        *,
        delete_missing_topics: bool = False,
    ) -> Generator[None, None, Registered]:
        """Register a broker's addresses and topics.

        A broker with an id whose owner has a higher state version is ignored, not refused. A
        broker that leaves, or loses its connection, between two steps stays out of the routes.

        Raises:
            RequestRejected: a single topic came before the broker's first full registration, or
                the tables are full.
        """
        group = self._groups.get(registration.broker_name) or _Group(registration.key.cluster)
        self._require_admissible(group, registration)
        _drop_other_ids(group, registration)
        if self._is_outdated(group, registration):
            self._live.pop(registration.key, None)
            return Registered(is_ignored=True)
        is_first = registration.broker_id not in group.addresses
        known_version = self.data_version(registration.key)
        is_changed = is_first or known_version != registration.body.data_version
        is_new = registration.key not in self._live
        displaced = self._live_owner(group, registration)
        self._enter(group, registration)
        live = self._set_live(registration, connection, now_ms, known_version)
        if self._gives_topics(group, registration):
            rows = self._topic_rows(group, registration, is_changed, delete_missing_topics)
            for _ in rows:
                yield
                if self._live.get(registration.key) is not live:
                    return Registered(is_new=is_new)
        # Set the version last: an interrupted registration must not count as known.
        live.data_version = registration.body.data_version
        return self._registered(group, registration, is_new)._replace(displaced=displaced)

    def register(
        self,
        registration: Registration,
        connection: Peer,
        now_ms: int,
        *,
        delete_missing_topics: bool = False,
    ) -> Registered:
        """``registering`` in one go."""
        return in_one_go(
            self.registering(
                registration, connection, now_ms, delete_missing_topics=delete_missing_topics
            )
        )

    def unregistering(self, key: BrokerKey, broker_name: str) -> Generator[None, None, bool]:
        """Remove a broker that unregisters; True if it was known."""
        was_known, rows = self._leave(key, broker_name)
        yield from rows
        return was_known

    def unregister(self, key: BrokerKey, broker_name: str) -> bool:
        """``unregistering`` in one go."""
        return in_one_go(self.unregistering(key, broker_name))

    def _leave(self, key: BrokerKey, broker_name: str) -> tuple[bool, Iterator[None]]:
        """Take a broker out of all routes at once; returns the removal of its rows too."""
        was_live = self._live.pop(key, None) is not None
        self._filter_servers.pop(key, None)
        group = self._groups.get(broker_name)
        if group is None:
            return was_live, iter(())
        held = [broker_id for broker_id, known in group.addresses.items() if known == key.address]
        for broker_id in held:
            del group.addresses[broker_id]
        rows: Iterator[None] = iter(())
        if not group.addresses:
            self._remove_group(broker_name)
            rows = self.topics.removing_broker(broker_name)
        elif group.acting_master_enabled and min(group.addresses) > MASTER_ID:
            rows = self.topics.wiping_write(broker_name)
        return was_live or bool(held), rows

    def disconnect(self, connection: Peer) -> list[BrokerKey]:
        """Remove every broker that registered over ``connection``."""
        gone = [key for key, live in self._live.items() if live.connection is connection]
        for key in gone:
            self._evict(key)
        return gone

    def expire(self, now_ms: int) -> list[Evicted]:
        """Remove every broker that was silent for longer than its announced heartbeat timeout."""
        silent = [
            Evicted(key, live.connection)
            for key, live in self._live.items()
            if live.heard_ms + live.heartbeat_timeout_ms < now_ms
        ]
        for evicted in silent:
            self._evict(evicted.key)
        return silent

    def heard(self, key: BrokerKey, now_ms: int) -> None:
        """Note a heartbeat; that of a broker that never registered has no effect."""
        live = self._live.get(key)
        if live is not None:
            live.heard_ms = now_ms

    def data_version(self, key: BrokerKey) -> DataVersion | None:
        """The version of the topics a broker last registered; None for an unknown broker."""
        live = self._live.get(key)
        return None if live is None else live.data_version

    def register_topic(self, topic: str, queues: Iterable[QueueData]) -> bool:
        """Add a topic's queues; False, and nothing added, if a broker name is unknown."""
        wanted = list(queues)
        if any(item.broker_name not in self._groups for item in wanted):
            return False
        for item in wanted:
            self.topics.put(topic, item)
        return True

    def delete_topic(self, topic: str, cluster: str | None = None) -> None:
        """Remove a topic, everywhere or on one cluster's brokers."""
        if cluster:
            self.topics.delete_on(topic, self.broker_names(cluster))
        else:
            self.topics.delete(topic)

    def broker_counts(self) -> dict[str, int]:
        """How many brokers are alive, by cluster."""
        return dict(Counter(key.cluster for key in self._live))

    def broker_names(self, cluster: str) -> frozenset[str]:
        return frozenset(self._clusters.get(cluster, ()))

    def cluster_info(self) -> ClusterInfo:
        return ClusterInfo(
            {name: group.to_data(name) for name, group in self._groups.items()},
            {cluster: frozenset(names) for cluster, names in self._clusters.items()},
        )

    def member_group(self, cluster: str, broker_name: str) -> BrokerMemberGroup:
        group = self._groups.get(broker_name)
        addresses = {} if group is None else dict(group.addresses)
        return BrokerMemberGroup(cluster, broker_name, addresses)

    def route(self, topic: str) -> TopicRouteData | None:
        """The brokers and queues of a topic; None if no known broker has it."""
        # Some rows of a broker that has left may not be removed yet.
        queues = tuple(
            item for item in self.topics.of_topic(topic) if item.broker_name in self._groups
        )
        brokers = tuple(self._groups[item.broker_name].to_data(item.broker_name) for item in queues)
        if not brokers:
            return None
        return TopicRouteData(
            queues,
            brokers,
            self._filter_servers_of(brokers),
            queue_mappings=self._mappings.get(topic),
        )

    def _is_outdated(self, group: _Group, registration: Registration) -> bool:
        """Whether another address has this id with a newer state."""
        owner = group.addresses.get(registration.broker_id)
        if owner is None or owner == registration.key.address:
            return False
        owner_version = self.data_version(BrokerKey(registration.key.cluster, owner))
        new_version = registration.body.data_version.state_version
        return owner_version is not None and owner_version.state_version > new_version

    def _live_owner(self, group: _Group, registration: Registration) -> str | None:
        """Another address that has this id and is heard of, if there is one."""
        owner = group.addresses.get(registration.broker_id)
        is_other = owner is not None and owner != registration.key.address
        is_live = is_other and BrokerKey(registration.key.cluster, owner or "") in self._live
        return owner if is_live else None

    def _require_admissible(self, group: _Group, registration: Registration) -> None:
        if registration.broker_id not in group.addresses and len(registration.body.topics) == 1:
            # Brokers also register single topics, right after their creation. Such a request says
            # nothing about the broker's other topics, so it cannot be the first registration.
            raise RequestRejected(
                ResponseCode.SYSTEM_ERROR,
                f"broker {registration.broker_name!r} (id {registration.broker_id}) registered a "
                "single topic before all of its topics; register in full first",
            )
        if registration.key not in self._live and len(self._live) >= BROKER_COUNT_MAX:
            raise RequestRejected(
                ResponseCode.SYSTEM_ERROR,
                f"this NameServer has {BROKER_COUNT_MAX} brokers and accepts no more",
            )

    def _enter(self, group: _Group, registration: Registration) -> None:
        self._clusters.setdefault(registration.key.cluster, set()).add(registration.broker_name)
        self._groups[registration.broker_name] = group
        group.addresses[registration.broker_id] = registration.key.address
        group.acting_master_enabled = bool(registration.acting_master)
        group.zone = registration.zone

    def _gives_topics(self, group: _Group, registration: Registration) -> bool:
        return registration.broker_id == MASTER_ID or _is_prime_slave(group, registration)

    def _topic_rows(
        self,
        group: _Group,
        registration: Registration,
        is_changed: bool,
        delete_missing_topics: bool,
    ) -> Iterator[None]:
        name, body = registration.broker_name, registration.body
        if delete_missing_topics and not body.mappings:
            known = {topic.topic for topic in body.topics.values()}
            yield from self.topics.removing_others(name, known)
        # A slave that acts as master serves stored messages, but accepts no sends.
        read_only = _is_prime_slave(group, registration) and group.acting_master_enabled
        for topic in body.topics.values():
            if is_changed or not self.topics.has(topic.topic, name):
                self.topics.put(topic.topic, _queue_data(name, topic, read_only))
            yield
        if is_changed:
            for static_topic, mapping in body.mappings.items():
                self._mappings.setdefault(static_topic, {})[mapping.broker_name] = mapping
                yield

    def _set_live(
        self,
        registration: Registration,
        connection: Peer,
        now_ms: int,
        data_version: DataVersion | None,
    ) -> _Live:
        timeout_ms = registration.heartbeat_timeout_ms
        live = self._live[registration.key] = _Live(
            now_ms,
            HEARTBEAT_TIMEOUT_MS if timeout_ms is None else timeout_ms,
            data_version,
            connection,
            registration.ha_address,
        )
        if registration.body.filter_servers:
            self._filter_servers[registration.key] = registration.body.filter_servers
        else:
            self._filter_servers.pop(registration.key, None)
        return live

    def _registered(self, group: _Group, registration: Registration, is_new: bool) -> Registered:
        master = group.addresses.get(MASTER_ID)
        if registration.broker_id == MASTER_ID or master is None:
            return Registered(is_new=is_new)
        live = self._live.get(BrokerKey(registration.key.cluster, master))
        if live is None:
            return Registered(is_new=is_new)
        return Registered(master, live.ha_address, is_new)

    def _evict(self, key: BrokerKey) -> None:
        for name, group in self._groups.items():
            if group.cluster == key.cluster and key.address in group.addresses.values():
                _, rows = self._leave(key, name)
                self._clean(name, rows)
                return
        self._live.pop(key, None)
        self._filter_servers.pop(key, None)

    def _remove_group(self, broker_name: str) -> None:
        del self._groups[broker_name]
        for names in self._clusters.values():
            names.discard(broker_name)
        self._clusters = {cluster: names for cluster, names in self._clusters.items() if names}

    def _filter_servers_of(self, brokers: Iterable[BrokerData]) -> Mapping[str, tuple[str, ...]]:
        keys = [BrokerKey(b.cluster, address) for b in brokers for address in b.addresses.values()]
        return {
            key.address: self._filter_servers[key] for key in keys if key in self._filter_servers
        }


def present_acting_masters(route: TopicRouteData) -> TopicRouteData:
    """``route`` with the smallest slave shown as master where a master is missing.

    Only if the brokers allow it and the queues are read-only, so that no producer sends to a slave.
    """
    read_only = {item.broker_name for item in route.queues if not item.perm & Perm.WRITE}
    return replace(
        route,
        brokers=tuple(
            _with_acting_master(broker) if broker.broker_name in read_only else broker
            for broker in route.brokers
        ),
    )


def keep_zone(route: TopicRouteData, zone: str) -> TopicRouteData:
    """``route`` without the brokers of other zones; a name without a master is kept for pulls."""
    away = {
        broker.broker_name: broker
        for broker in route.brokers
        if MASTER_ID in broker.addresses and (broker.zone or "").lower() != zone.lower()
    }
    lost = {address for broker in away.values() for address in broker.addresses.values()}
    return replace(
        route,
        queues=tuple(item for item in route.queues if item.broker_name not in away),
        brokers=tuple(item for item in route.brokers if item.broker_name not in away),
        filter_servers={a: s for a, s in route.filter_servers.items() if a not in lost},
    )


def _with_acting_master(broker: BrokerData) -> BrokerData:
    if not broker.acting_master_enabled or not broker.addresses or MASTER_ID in broker.addresses:
        return broker
    smallest = min(broker.addresses)
    others = {i: address for i, address in broker.addresses.items() if i != smallest}
    return replace(broker, addresses={MASTER_ID: broker.addresses[smallest], **others})


def _is_prime_slave(group: _Group, registration: Registration) -> bool:
    if registration.acting_master is None or registration.broker_id == MASTER_ID:
        return False
    return registration.broker_id == min(group.addresses)


def _drop_other_ids(group: _Group, registration: Registration) -> None:
    """Remove the broker's address from other ids: it keeps its address when its role changes."""
    for broker_id, address in list(group.addresses.items()):
        if address == registration.key.address and broker_id != registration.broker_id:
            del group.addresses[broker_id]


def _queue_data(broker_name: str, topic: TopicConfig, read_only: bool) -> QueueData:
    perm = int(topic.perm) & ~int(Perm.WRITE) if read_only else int(topic.perm)
    return QueueData(
        broker_name, topic.read_queue_count, topic.write_queue_count, perm, topic.sys_flag
    )
