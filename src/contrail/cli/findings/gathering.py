"""Asks a cluster for the facts that findings are made from. Decides nothing."""

from __future__ import annotations

import socket
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TypeVar

from contrail.cli.findings.facts import (
    BrokerFacts,
    ClusterFacts,
    GroupFacts,
    MemberFacts,
    Reach,
    RetriedMessage,
    TopicFacts,
)
from contrail.client.admin_values import (
    BrokerAddress,
    ClientConnection,
    GroupConnections,
    GroupLag,
    OpenTransaction,
    TopicStats,
)
from contrail.client.blocking.admin import Admin
from contrail.client.message import ReceivedMessage
from contrail.errors import ClientError, RouteMissing
from contrail.model.properties import ORIGIN_MESSAGE_ID, RETRY_TOPIC
from contrail.model.topic import RETRY_PREFIX, Perm, TopicConfig, dlq_topic, retry_topic
from contrail.protocol.bodies.in_flight import InFlight
from contrail.protocol.bodies.running_info import ConsumerRunningInfo
from contrail.wire.addresses import split_address

_WORKERS = 8
_CONNECT_TIMEOUT_S = 2.0
# Bounds of each kind of fact, so that a large cluster does not take all day.
_MEMBERS_MAX = 100
_SAMPLED_QUEUES_MAX = 16
_SAMPLED_MESSAGES = 32
_TRANSACTIONS_MAX = 100

T = TypeVar("T")
S = TypeVar("S")


class Gathering:
    """Requests to one cluster. A fact that no server answers stays unknown."""

    def __init__(
        self,
        admin: Admin,
        admin_of: Callable[[str], Admin],
        now_ms: Callable[[], int],
        *,
        watch_ms: int,
        is_open: bool = False,
    ) -> None:
        """``admin_of`` opens a client of a single NameServer; ``is_open`` says that the clients
        neither sign nor speak TLS.
        """
        self._is_open = is_open
        self._admin = admin
        self._admin_of = admin_of
        self._now_ms = now_ms
        self._watch_ms = watch_ms

    # Servers.

    def cluster(self) -> ClusterFacts:
        """Raises ``NameServerUnreachable`` when no NameServer answers."""
        brokers = self._admin.brokers()
        return ClusterFacts(
            self._admin.name_servers,
            brokers=tuple(_each(self._broker, brokers)),
            known_by={name: self._known_by(name) for name in self._admin.name_servers},
        )

    def _known_by(self, name_server: str) -> frozenset[str] | None:
        def ask() -> frozenset[str]:
            with self._admin_of(name_server) as admin:
                return frozenset(admin.cluster_info().brokers)

        return _asked(ask, None)

    def _broker(self, broker: BrokerAddress) -> BrokerFacts:
        reach, error = connect(broker.address)
        facts = BrokerFacts(broker, reach, error)
        if reach is not Reach.OPEN:
            return facts
        asked_ms = self._now_ms()
        try:
            runtime = self._admin.broker_runtime(broker.address)
        except ClientError as failure:
            return replace(facts, error=str(failure))
        facts = replace(
            facts,
            runtime=runtime,
            asked_at_ms=(asked_ms + self._now_ms()) // 2,
            takes_unsigned=self._is_open,
            replication=_asked(lambda: self._admin.replication_status(broker.address), None),
        )
        return self._master(facts) if broker.is_master else facts

    def _master(self, facts: BrokerFacts) -> BrokerFacts:
        name = facts.broker.broker_name
        topics = _asked(lambda: self._admin.topic_configs(name), {})
        settings = _asked(lambda: self._admin.broker_config(name), {})
        own = self._writable_topic(facts.broker, topics)
        permission = settings.get("brokerPermission", "")
        return replace(
            facts,
            routed_perm=None if own is None else self._routed_perm(own.topic, name),
            own_perm=None if own is None else int(own.perm),
            broker_permission=int(permission) if permission.isdecimal() else None,
            transactions=self._transactions(name),
        )

    def _writable_topic(
        self, broker: BrokerAddress, topics: Mapping[str, TopicConfig]
    ) -> TopicConfig | None:
        """A topic that shows whether producers are kept away, as from all topics of a broker."""
        preferred = [broker.broker_name, broker.cluster, *sorted(topics)]
        known = [topics[name] for name in preferred if name in topics]
        return next((one for one in known if one.perm & Perm.WRITE), None)

    def _routed_perm(self, topic: str, broker_name: str) -> int | None:
        route = _asked(lambda: self._admin.topic_route(topic), None)
        queues = () if route is None else route.queues
        return next((one.perm for one in queues if one.broker_name == broker_name), None)

    def _transactions(self, broker: str) -> tuple[OpenTransaction, ...]:
        """Empty from Apache's brokers, which do not report it."""
        return _asked(
            lambda: self._admin.transactions(broker, count_max=_TRANSACTIONS_MAX).transactions, ()
        )

    # Topics.

    def topic(self, topic: str, *, sampled: bool = False) -> TopicFacts:
        """With ``sampled`` also the tags of its newest messages."""
        try:
            route = self._admin.topic_route(topic)
        except RouteMissing:
            return TopicFacts(topic, None)
        clusters = {one.cluster for one in route.brokers}
        masters = [one for one in self._admin.brokers() if one.is_master]
        stats = _asked(lambda: self._admin.topic_stats(topic, allow_partial=True), None)
        return TopicFacts(
            topic,
            route,
            masters=tuple(one for one in masters if one.cluster in clusters),
            configs=_asked(lambda: self._admin.topic_config(topic, allow_partial=True), {}),
            stats=stats,
            tags=self._tags(stats) if sampled else {},
        )

    def _tags(self, stats: TopicStats | None) -> Mapping[str, int]:
        return Counter(one.tags or "" for one in self._newest(stats))

    def _newest(self, stats: TopicStats | None) -> list[ReceivedMessage]:
        """The last messages of each queue."""
        queues = [one for one in (() if stats is None else stats.queues) if one.count > 0]
        found: list[ReceivedMessage] = []
        for one in queues[:_SAMPLED_QUEUES_MAX]:
            first = max(one.queue_offset_min, one.queue_offset_max - _SAMPLED_MESSAGES)
            queue = one.queue
            found += _asked(
                lambda q=queue, at=first: self._admin.messages_from(  # type: ignore[misc]
                    q, at, _SAMPLED_MESSAGES
                ),
                [],
            )
        return found

    # Groups.

    def group_names(self) -> list[str]:
        """Every group that applications use."""
        known = _asked(lambda: self._admin.groups(allow_partial=True), [])
        return sorted(known)

    def is_known(self, group: str) -> bool:
        """Whether a group has settings, offsets or members anywhere."""
        return (
            group in self._admin.groups(internal=True, allow_partial=True)
            or bool(_asked(lambda: self._admin.group_topics(group, allow_partial=True), []))
            or self._connections(group).is_online
        )

    def groups(
        self, names: Sequence[str], *, is_named: bool = False, topic: str | None = None
    ) -> list[GroupFacts]:
        """Each group, looked at twice with a pause between; ``topic`` leaves out the others."""
        first = list(_each(lambda name: self._first_look(name, is_named, topic), names))
        if any(map(_is_at_work, first)):
            time.sleep(self._watch_ms / 1000)
        return list(_each(lambda one: self._second_look(one, topic), first))

    def _first_look(self, group: str, is_named: bool, topic: str | None) -> GroupFacts:
        connections = self._connections(group)
        lag = self._lag(group, topic)
        configs = _asked(lambda: self._admin.group_config(group, allow_partial=True), {})
        facts = GroupFacts(
            group, is_named, self._now_ms(), self._watch_ms, configs, connections, lag, lag
        )
        chosen = connections.connections[:_MEMBERS_MAX]
        infos = _each(lambda one: self._running(group, one), chosen)
        return replace(
            facts,
            members=tuple(
                MemberFacts(one, info, info) for one, info in zip(chosen, infos, strict=True)
            ),
        )

    def _popped(self, group: str) -> tuple[InFlight, ...]:
        pages = self._admin.in_flight(group)
        return tuple(one for page in pages for one in page.messages)

    def _second_look(self, facts: GroupFacts, topic: str | None) -> GroupFacts:
        """Slow requests are sent only where there may be a finding."""
        if _is_at_work(facts):
            facts = self._looked_again(facts, topic)
        has_work = facts.after.total > 0 or facts.connections.is_online or facts.is_named
        if not has_work:
            return replace(facts, dead_letters=self._stats(dlq_topic(facts.group)))
        wanted = facts.connections.subscriptions
        names = {*facts.lag_by_topic(), *wanted} if topic is None else {topic}
        return replace(
            facts,
            now_ms=self._now_ms(),
            topics={
                name: self.topic(name, sampled=name in wanted and not wanted[name].takes_all)
                for name in sorted(names)
                if not name.startswith(RETRY_PREFIX)
            },
            unwanted=self._unwanted(facts, topic),
            dead_letters=self._stats(dlq_topic(facts.group)),
            in_flight=_asked(lambda: self._popped(facts.group), ()),
            retried=self._retried(facts.group),
        )

    def _looked_again(self, facts: GroupFacts, topic: str | None) -> GroupFacts:
        infos = _each(lambda one: self._running(facts.group, one.connection), facts.members)
        return replace(
            facts,
            after=self._lag(facts.group, topic),
            members=tuple(
                replace(one, after=info) for one, info in zip(facts.members, infos, strict=True)
            ),
        )

    def _unwanted(self, facts: GroupFacts, topic: str | None) -> dict[str, int]:
        """By its offsets: brokers leave such topics out of the lag of a group that is online."""
        group, wanted = facts.group, facts.connections.subscriptions
        if not facts.connections.is_online:
            return {}
        names = _asked(lambda: self._admin.group_topics(group, allow_partial=True), [])
        left = [name for name in names if name not in wanted and not name.startswith(RETRY_PREFIX)]
        return {name: self._waiting(group, name) for name in left if topic in (None, name)}

    def _waiting(self, group: str, topic: str) -> int:
        stats = self._stats(topic)
        places = _asked(lambda: self._admin.committed_offsets(group, topic), {})
        queues = () if stats is None else stats.queues
        known = ((one.queue_offset_max, places.get(one.queue)) for one in queues)
        return sum(max(0, end - place) for end, place in known if place is not None)

    def _connections(self, group: str) -> GroupConnections:
        return _asked(
            lambda: self._admin.group_connections(group, allow_partial=True),
            GroupConnections(group),
        )

    def _lag(self, group: str, topic: str | None) -> GroupLag:
        nothing = GroupLag(group, (), 0)
        lag = _asked(lambda: self._admin.lag(group, allow_partial=True), nothing)
        if topic is None:
            return lag
        queues = tuple(one for one in lag.queues if one.queue.topic == topic)
        return replace(lag, queues=queues, total=sum(one.lag for one in queues))

    def _running(self, group: str, one: ClientConnection) -> ConsumerRunningInfo | None:
        return _asked(lambda: self._admin.running_info(group, one.client_id), None)

    def _stats(self, topic: str) -> TopicStats | None:
        return _asked(lambda: self._admin.topic_stats(topic, allow_partial=True), None)

    def _retried(self, group: str) -> tuple[RetriedMessage, ...]:
        return tuple(
            RetriedMessage(
                one.properties.get(RETRY_TOPIC, one.topic),
                one.properties.get(ORIGIN_MESSAGE_ID, one.message_id),
                one.reconsume_times,
                one.store_timestamp_ms,
            )
            for one in self._newest(self._stats(retry_topic(group)))
        )


def _is_at_work(facts: GroupFacts) -> bool:
    """Whether members have messages to handle, so that a second look shows progress or none."""
    held = any(
        queue.cached_count
        for one in facts.members
        if one.before is not None
        for queue in one.before.queues.values()
    )
    return bool(facts.members) and (held or facts.before.total > 0)


def connect(address: str, timeout_s: float = _CONNECT_TIMEOUT_S) -> tuple[Reach, str]:
    """Whether this machine gets a connection, and the error if not."""
    try:
        with socket.create_connection(split_address(address), timeout=timeout_s):
            return Reach.OPEN, ""
    except ConnectionRefusedError as error:
        return Reach.REFUSED, f"{address}: {error.strerror}"
    except TimeoutError:
        return Reach.NOWHERE, f"{address}: no answer in {timeout_s:g} s"
    except OSError as error:
        return Reach.NOWHERE, f"{address}: {error.strerror or error}"


def _asked(ask: Callable[[], T], unknown: S) -> T | S:
    """An answer, or ``unknown``: a failing server has its own finding."""
    try:
        return ask()
    except ClientError:
        return unknown


def _each(ask: Callable[[T], S], given: Iterable[T]) -> list[S]:
    """All concurrently, results in the order given."""
    chosen = list(given)
    if len(chosen) < 2:
        return [ask(one) for one in chosen]
    with ThreadPoolExecutor(min(_WORKERS, len(chosen))) as pool:
        return list(pool.map(ask, chosen))
