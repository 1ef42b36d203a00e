"""Asks a cluster for the facts that findings are made from. Decides nothing."""

from __future__ import annotations

import asyncio
import errno
import os
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TypeVar, overload

from contrail.client.admin import Admin
from contrail.client.admin_values import (
    BrokerAddress,
    ClientConnection,
    GroupConnections,
    GroupLag,
    OpenTransaction,
    TopicStats,
)
from contrail.client.message import ReceivedMessage
from contrail.errors import ClientError, RouteMissing
from contrail.insight.asking import gathered
from contrail.insight.findings.facts import (
    BrokerFacts,
    ClusterFacts,
    GroupFacts,
    MemberFacts,
    Reach,
    RetriedMessage,
    TopicFacts,
)
from contrail.model.properties import ORIGIN_MESSAGE_ID, RETRY_TOPIC
from contrail.model.topic import RETRY_PREFIX, Perm, TopicConfig, dlq_topic, retry_topic
from contrail.protocol.bodies.in_flight import InFlight
from contrail.protocol.bodies.running_info import ConsumerRunningInfo
from contrail.wire.addresses import split_address

_CONNECT_TIMEOUT_S = 2.0
# Bounds of each kind of fact, so that a large cluster does not take all day.
_MEMBERS_MAX = 100
_SAMPLED_QUEUES_MAX = 16
_SAMPLED_MESSAGES = 32
_TRANSACTIONS_MAX = 100

T = TypeVar("T")


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

    async def cluster(self) -> ClusterFacts:
        """Raises ``NameServerUnreachable`` when no NameServer answers."""
        brokers = await self._admin.brokers()
        return ClusterFacts(
            self._admin.name_servers,
            brokers=tuple(await gathered(self._broker, brokers)),
            known_by={name: await self._known_by(name) for name in self._admin.name_servers},
        )

    async def _known_by(self, name_server: str) -> frozenset[str] | None:
        async def ask() -> frozenset[str]:
            async with self._admin_of(name_server) as admin:
                return frozenset((await admin.cluster_info()).brokers)

        return await _asked(ask(), None)

    async def _broker(self, broker: BrokerAddress) -> BrokerFacts:
        reach, error = await connect(broker.address)
        facts = BrokerFacts(broker, reach, error)
        if reach is not Reach.OPEN:
            return facts
        asked_ms = self._now_ms()
        try:
            runtime = await self._admin.broker_runtime(broker.address)
        except ClientError as failure:
            return replace(facts, error=str(failure))
        facts = replace(
            facts,
            runtime=runtime,
            asked_at_ms=(asked_ms + self._now_ms()) // 2,
            takes_unsigned=self._is_open,
            replication=await _asked(self._admin.replication_status(broker.address), None),
        )
        return await self._master(facts) if broker.is_master else facts

    async def _master(self, facts: BrokerFacts) -> BrokerFacts:
        name = facts.broker.broker_name
        topics = await _asked(self._admin.topic_configs(name), {})
        settings = await _asked(self._admin.broker_config(name), {})
        own = self._writable_topic(facts.broker, topics)
        permission = settings.get("brokerPermission", "")
        return replace(
            facts,
            routed_perm=None if own is None else await self._routed_perm(own.topic, name),
            own_perm=None if own is None else int(own.perm),
            broker_permission=int(permission) if permission.isdecimal() else None,
            transactions=await self._transactions(name),
        )

    def _writable_topic(
        self, broker: BrokerAddress, topics: Mapping[str, TopicConfig]
    ) -> TopicConfig | None:
        """A topic that shows whether producers are kept away, as from all topics of a broker."""
        preferred = [broker.broker_name, broker.cluster, *sorted(topics)]
        known = [topics[name] for name in preferred if name in topics]
        return next((one for one in known if one.perm & Perm.WRITE), None)

    async def _routed_perm(self, topic: str, broker_name: str) -> int | None:
        route = await _asked(self._admin.topic_route(topic), None)
        queues = () if route is None else route.queues
        return next((one.perm for one in queues if one.broker_name == broker_name), None)

    async def _transactions(self, broker: str) -> tuple[OpenTransaction, ...]:
        """Empty from Apache's brokers, which do not report it."""
        page = await _asked(self._admin.transactions(broker, count_max=_TRANSACTIONS_MAX), None)
        return () if page is None else page.transactions

    # Topics.

    async def topic(self, topic: str, *, sampled: bool = False) -> TopicFacts:
        """With ``sampled`` also the tags of its newest messages."""
        try:
            route = await self._admin.topic_route(topic)
        except RouteMissing:
            return TopicFacts(topic, None)
        clusters = {one.cluster for one in route.brokers}
        masters = [one for one in await self._admin.brokers() if one.is_master]
        stats = await _asked(self._admin.topic_stats(topic, allow_partial=True), None)
        return TopicFacts(
            topic,
            route,
            masters=tuple(one for one in masters if one.cluster in clusters),
            configs=await _asked(self._admin.topic_config(topic, allow_partial=True), {}),
            stats=stats,
            tags=await self._tags(stats) if sampled else {},
        )

    async def _tags(self, stats: TopicStats | None) -> Mapping[str, int]:
        found = await self._newest(stats)
        return Counter(one.tags or "" for one in found)

    async def _newest(self, stats: TopicStats | None) -> list[ReceivedMessage]:
        """The last messages of each queue."""
        queues = [one for one in (() if stats is None else stats.queues) if one.count > 0]
        found: list[ReceivedMessage] = []
        for one in queues[:_SAMPLED_QUEUES_MAX]:
            first = max(one.queue_offset_min, one.queue_offset_max - _SAMPLED_MESSAGES)
            queue = one.queue
            asked = self._admin.messages_from(queue, first, _SAMPLED_MESSAGES)
            found += await _asked(asked, [])
        return found

    # Groups.

    async def group_names(self) -> list[str]:
        """Every group that applications use."""
        known = await _asked(self._admin.groups(allow_partial=True), [])
        return sorted(known)

    async def is_known(self, group: str) -> bool:
        """Whether a group has settings, offsets or members anywhere."""
        return (
            group in await self._admin.groups(internal=True, allow_partial=True)
            or bool(await _asked(self._admin.group_topics(group, allow_partial=True), []))
            or (await self._connections(group)).is_online
        )

    async def groups(
        self, names: Sequence[str], *, is_named: bool = False, topic: str | None = None
    ) -> list[GroupFacts]:
        """Each group, looked at twice with a pause between; ``topic`` leaves out the others."""

        async def look(name: str) -> GroupFacts:
            return await self._first_look(name, is_named, topic)

        async def look_again(facts: GroupFacts) -> GroupFacts:
            return await self._second_look(facts, topic)

        first = await gathered(look, names)
        if any(map(_is_at_work, first)):
            await asyncio.sleep(self._watch_ms / 1000)
        return await gathered(look_again, first)

    async def _first_look(self, group: str, is_named: bool, topic: str | None) -> GroupFacts:
        connections = await self._connections(group)
        lag = await self._lag(group, topic)
        configs = await _asked(self._admin.group_config(group, allow_partial=True), {})
        facts = GroupFacts(
            group, is_named, self._now_ms(), self._watch_ms, configs, connections, lag, lag
        )
        chosen = connections.connections[:_MEMBERS_MAX]
        infos = await self._runnings(group, chosen)
        return replace(
            facts,
            members=tuple(
                MemberFacts(one, info, info) for one, info in zip(chosen, infos, strict=True)
            ),
        )

    async def _popped(self, group: str) -> tuple[InFlight, ...]:
        pages = await self._admin.in_flight(group)
        return tuple(one for page in pages for one in page.messages)

    async def _second_look(self, facts: GroupFacts, topic: str | None) -> GroupFacts:
        """Slow requests are sent only where there may be a finding."""
        if _is_at_work(facts):
            facts = await self._looked_again(facts, topic)
        has_work = facts.after.total > 0 or facts.connections.is_online or facts.is_named
        if not has_work:
            return replace(facts, dead_letters=await self._stats(dlq_topic(facts.group)))
        wanted = facts.connections.subscriptions
        names = {*facts.lag_by_topic(), *wanted} if topic is None else {topic}
        return replace(
            facts,
            now_ms=self._now_ms(),
            topics={
                name: await self.topic(name, sampled=name in wanted and not wanted[name].takes_all)
                for name in sorted(names)
                if not name.startswith(RETRY_PREFIX)
            },
            unwanted=await self._unwanted(facts, topic),
            dead_letters=await self._stats(dlq_topic(facts.group)),
            in_flight=await _asked(self._popped(facts.group), ()),
            retried=await self._retried(facts.group),
        )

    async def _looked_again(self, facts: GroupFacts, topic: str | None) -> GroupFacts:
        infos = await self._runnings(facts.group, [one.connection for one in facts.members])
        return replace(
            facts,
            after=await self._lag(facts.group, topic),
            members=tuple(
                replace(one, after=info) for one, info in zip(facts.members, infos, strict=True)
            ),
        )

    async def _unwanted(self, facts: GroupFacts, topic: str | None) -> dict[str, int]:
        """By its offsets: brokers leave such topics out of the lag of a group that is online."""
        group, wanted = facts.group, facts.connections.subscriptions
        if not facts.connections.is_online:
            return {}
        names = await _asked(self._admin.group_topics(group, allow_partial=True), [])
        left = [name for name in names if name not in wanted and not name.startswith(RETRY_PREFIX)]
        return {name: await self._waiting(group, name) for name in left if topic in (None, name)}

    async def _waiting(self, group: str, topic: str) -> int:
        stats = await self._stats(topic)
        places = await _asked(self._admin.committed_offsets(group, topic), {})
        queues = () if stats is None else stats.queues
        known = ((one.queue_offset_max, places.get(one.queue)) for one in queues)
        return sum(max(0, end - place) for end, place in known if place is not None)

    async def _connections(self, group: str) -> GroupConnections:
        return await _asked(
            self._admin.group_connections(group, allow_partial=True),
            GroupConnections(group),
        )

    async def _lag(self, group: str, topic: str | None) -> GroupLag:
        nothing = GroupLag(group, (), 0)
        lag = await _asked(self._admin.lag(group, allow_partial=True), nothing)
        if topic is None:
            return lag
        queues = tuple(one for one in lag.queues if one.queue.topic == topic)
        return replace(lag, queues=queues, total=sum(one.lag for one in queues))

    async def _runnings(
        self, group: str, clients: Sequence[ClientConnection]
    ) -> list[ConsumerRunningInfo | None]:
        async def ask(one: ClientConnection) -> ConsumerRunningInfo | None:
            return await _asked(self._admin.running_info(group, one.client_id), None)

        return await gathered(ask, clients)

    async def _stats(self, topic: str) -> TopicStats | None:
        return await _asked(self._admin.topic_stats(topic, allow_partial=True), None)

    async def _retried(self, group: str) -> tuple[RetriedMessage, ...]:
        found = await self._newest(await self._stats(retry_topic(group)))
        return tuple(
            RetriedMessage(
                one.properties.get(RETRY_TOPIC, one.topic),
                one.properties.get(ORIGIN_MESSAGE_ID, one.message_id),
                one.reconsume_times,
                one.store_timestamp_ms,
            )
            for one in found
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


async def connect(address: str, timeout_s: float = _CONNECT_TIMEOUT_S) -> tuple[Reach, str]:
    """Whether this machine gets a connection, and the error if not."""
    try:
        async with asyncio.timeout(timeout_s):
            _, writer = await asyncio.open_connection(*split_address(address))
    except ConnectionRefusedError as error:
        return Reach.REFUSED, f"{address}: {os.strerror(error.errno or errno.ECONNREFUSED)}"
    except TimeoutError:
        return Reach.NOWHERE, f"{address}: no answer in {timeout_s:g} s"
    except OSError as error:
        told = os.strerror(number) if (number := error.errno or 0) > 0 else error.strerror
        return Reach.NOWHERE, f"{address}: {told or error}"
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()
    return Reach.OPEN, ""


@overload
async def _asked(asked: Awaitable[T], unknown: None) -> T | None: ...


@overload
async def _asked(asked: Awaitable[T], unknown: T) -> T: ...


async def _asked(asked: Awaitable[T], unknown: T | None) -> T | None:
    """An answer, or ``unknown``: a failing server has its own finding."""
    try:
        return await asked
    except ClientError:
        return unknown
