"""The admin client on the queues of many topics at once.

A few topics are asked for one by one. Many are looked up in the brokers' tables, so that the number
of requests follows the brokers; what brokers have no table for is asked with many requests on their
way at once.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

from contrail.client.admin_asking import decoded, one_of_each_name
from contrail.client.admin_offsets import OffsetAdmin
from contrail.client.admin_values import BrokerAddress, Moment
from contrail.client.state.routes import TopicRoute
from contrail.errors import BrokerRefused, BrokerUnknown, ClientError, RouteMissing
from contrail.model.topic import Perm, TopicConfig
from contrail.protocol.bodies.consume_stats import decode_group_offsets
from contrail.protocol.bodies.figures import Figures
from contrail.protocol.bodies.topics import decode_topic_stats
from contrail.protocol.codes import RequestCode, ResponseCode
from contrail.protocol.json_style import MessageQueue

_log = logging.getLogger(__name__)

# From so many topics on the brokers' tables are shorter than an answer for each topic.
_FROM_TABLES = 16
# Requests to one server that are on their way at once.
_IN_FLIGHT_MAX = 32

T = TypeVar("T")
Range = tuple[int, int]


@dataclass(frozen=True, slots=True)
class QueueAnswers(Generic[T]):
    """The answers of brokers about queues; ``failures`` has the first error of each other broker.

    A broker that fails one request is not asked on: the answers about its queues are left out.
    """

    values: Mapping[MessageQueue, T]
    failures: Mapping[str, ClientError]


class ManyTopicsAdmin(OffsetAdmin):
    """Queues of many topics at once."""

    async def queues_of_topics(self, topics: Sequence[str]) -> dict[str, list[MessageQueue]]:
        """``queues`` of each topic; topics without a route are left out.

        Raises:
            NameServerUnreachable: no NameServer answered.
        """
        if len(topics) < _FROM_TABLES:
            return await self._queues_by_route(topics)
        try:
            found = await self._queues_by_table(frozenset(topics))
        except ClientError as error:
            # The routes still name the queues of a broker that does not tell its table.
            _log.debug("asking route by route: %s", error)
            found = None
        return await self._queues_by_route(topics) if found is None else found

    async def _queues_by_route(self, topics: Sequence[str]) -> dict[str, list[MessageQueue]]:
        found: dict[str, list[MessageQueue]] = {}

        async def ask(topic: str) -> None:
            try:
                found[topic] = await self.queues(topic)
            except RouteMissing:
                return

        await _at_most(_IN_FLIGHT_MAX, (ask(topic) for topic in topics))
        return {topic: found[topic] for topic in topics if topic in found}

    async def _queues_by_table(
        self, topics: Collection[str]
    ) -> dict[str, list[MessageQueue]] | None:
        """The same by the brokers' tables of topics; None where a route disagrees."""
        brokers = list((await self._brokers_by_name()).values())
        tables = await asyncio.gather(*(self._topic_table(broker) for broker in brokers))
        found: defaultdict[str, list[MessageQueue]] = defaultdict(list)
        for broker, table in zip(brokers, tables, strict=True):
            readable = [
                table[topic] for topic in topics if topic in table and table[topic].perm & Perm.READ
            ]
            if readable and not await self._is_routed_to(broker, readable[0]):
                return None
            for config in readable:
                found[config.topic] += (
                    MessageQueue(config.topic, broker.broker_name, queue_id)
                    for queue_id in range(config.read_queue_count)
                )
        return {topic: sorted(found[topic]) for topic in sorted(found)}

    async def _is_routed_to(self, broker: BrokerAddress, config: TopicConfig) -> bool:
        """Whether the route agrees: a broker that refuses all reads registers every topic so."""
        route = TopicRoute.of(config.topic, await self.topic_route(config.topic))
        mine = [one for one in route.read_queues if one.broker_name == broker.broker_name]
        return len(mine) == config.read_queue_count

    async def queue_ranges(self, queues: Iterable[MessageQueue]) -> QueueAnswers[Range]:
        """The smallest and the next offset of each queue.

        Queues of topics that a broker no longer has are left out.

        Raises:
            NameServerUnreachable: no NameServer answered.
        """
        listed = list(queues)
        brokers = await self._brokers_by_name()
        told = await self._told_at_once(listed, brokers)

        async def ask(queues: Sequence[MessageQueue]) -> Mapping[MessageQueue, Range]:
            name, topic = queues[0].broker_name, queues[0].topic
            if name not in brokers:
                raise BrokerUnknown(f"no NameServer knows broker {name!r} now")
            if name in told:
                return {queue: told[name][queue] for queue in queues if queue in told[name]}
            return await self._ranges_of(brokers[name], topic, queues)

        return await self._by_topic(listed, ask)

    async def _told_at_once(
        self, queues: Sequence[MessageQueue], brokers: Mapping[str, BrokerAddress]
    ) -> dict[str, Mapping[MessageQueue, Range]]:
        """The ranges of all queues of brokers that tell them with one request, by broker name."""
        topics: defaultdict[str, set[str]] = defaultdict(set)
        for queue in queues:
            topics[queue.broker_name].add(queue.topic)
        names = [name for name in brokers if len(topics[name]) >= _FROM_TABLES]
        found = await asyncio.gather(*(self._ranges_told(brokers[name]) for name in names))
        return {name: one for name, one in zip(names, found, strict=True) if one is not None}

    async def _ranges_told(self, broker: BrokerAddress) -> Mapping[MessageQueue, Range] | None:
        what = "the figures of all topics"
        try:
            answer = await self._ask(broker, RequestCode.LIST_FIGURES, {}, what)
            figures = decoded(Figures.decode, answer, what)
        except ClientError as error:
            # Apache's brokers do not know the request, others may not answer it to everyone.
            _log.debug("asking topic by topic: %s", error)
            return None
        return {
            MessageQueue(topic, broker.broker_name, queue_id): (
                max(0, figures.queue_mins[begin + queue_id]),
                max(0, figures.queue_maxs[begin + queue_id]),
            )
            for topic, (begin, end) in zip(figures.topics, figures.queue_spans(), strict=False)
            for queue_id in range(end - begin)
        }

    async def _ranges_of(
        self, broker: BrokerAddress, topic: str, queues: Sequence[MessageQueue]
    ) -> dict[MessageQueue, Range]:
        what = f"the stats of topic {topic!r}"
        try:
            answer = await self._ask(
                broker, RequestCode.GET_TOPIC_STATS_INFO, {"topic": topic}, what
            )
        except BrokerRefused as refusal:
            if refusal.code == ResponseCode.TOPIC_NOT_EXIST:
                return {}
            raise
        reaches, _ = decoded(decode_topic_stats, answer, what)
        found = {}
        for queue in queues:
            # Brokers before 5.0 leave out queues that are read-only.
            reach = reaches.get(queue) or await self._reach(queue)
            found[queue] = max(0, reach.queue_offset_min), max(0, reach.queue_offset_max)
        return found

    async def search_offsets_of(
        self,
        queues: Iterable[MessageQueue],
        moment: Moment,
        *,
        boundary: Literal["lower", "upper"] = "lower",
    ) -> QueueAnswers[int]:
        """``search_offset`` of each queue."""

        async def ask(queues: Sequence[MessageQueue]) -> dict[MessageQueue, int]:
            return {
                queue: await self.search_offset(queue, moment, boundary=boundary)
                for queue in queues
            }

        return await self._by_topic(queues, ask)

    async def committed_of(
        self, group: str, queues: Iterable[MessageQueue]
    ) -> QueueAnswers[int | None]:
        """``committed`` of each queue."""
        listed = list(queues)
        if len({queue.topic for queue in listed}) >= _FROM_TABLES:
            try:
                return await self._committed_by_table(group, listed)
            except ClientError as error:
                # Some brokers do not give their whole table to clients; each queue may be asked.
                _log.debug("asking queue by queue: %s", error)

        async def ask(queues: Sequence[MessageQueue]) -> dict[MessageQueue, int | None]:
            return {queue: await self.committed(group, queue) for queue in queues}

        return await self._by_topic(listed, ask)

    async def _committed_by_table(
        self, group: str, queues: Sequence[MessageQueue]
    ) -> QueueAnswers[int | None]:
        """One request to each broker; tells a queue without an offset from one at 0."""
        what = f"the offsets of group {group!r}"
        brokers = await self._brokers_by_name()
        found: dict[MessageQueue, int | None] = {}
        failures: dict[str, ClientError] = {}
        for name in sorted({queue.broker_name for queue in queues}):
            if name not in brokers:
                failures[name] = BrokerUnknown(f"no NameServer knows broker {name!r} now")
                continue
            answer = await self._ask(brokers[name], RequestCode.GET_ALL_CONSUMER_OFFSET, {}, what)
            table = decoded(lambda body: decode_group_offsets(body, group), answer, what)
            for queue in queues:
                if queue.broker_name == name:
                    found[queue] = table.get(queue.topic, {}).get(queue.queue_id)
        return QueueAnswers(found, failures)

    async def commit_offsets_of(
        self, group: str, consumer_offsets: Mapping[MessageQueue, int]
    ) -> QueueAnswers[BrokerRefused | None]:
        """``commit_offset`` of each queue; the refusal of each queue that a broker refuses."""

        async def commit(queue: MessageQueue) -> BrokerRefused | None:
            try:
                await self.commit_offset(group, queue, consumer_offsets[queue])
            except BrokerRefused as refusal:
                return refusal
            return None

        async def ask(queues: Sequence[MessageQueue]) -> dict[MessageQueue, BrokerRefused | None]:
            return {queue: await commit(queue) for queue in queues}

        return await self._by_topic(consumer_offsets, ask)

    async def _by_topic(
        self,
        queues: Iterable[MessageQueue],
        ask: Callable[[Sequence[MessageQueue]], Awaitable[Mapping[MessageQueue, T]]],
    ) -> QueueAnswers[T]:
        """Ask for the queues of one topic on one broker at a time, all brokers at once."""
        listed: defaultdict[str, defaultdict[str, list[MessageQueue]]]
        listed = defaultdict(lambda: defaultdict(list))
        for queue in queues:
            listed[queue.broker_name][queue.topic].append(queue)
        values: dict[MessageQueue, T] = {}
        failures: dict[str, ClientError] = {}

        async def take(queues: Sequence[MessageQueue]) -> None:
            values.update(await ask(queues))

        async def ask_broker(name: str) -> None:
            try:
                await _at_most(_IN_FLIGHT_MAX, (take(one) for one in listed[name].values()))
            except ClientError as error:
                failures[name] = error

        await asyncio.gather(*(ask_broker(name) for name in listed))
        kept = {queue: at for queue, at in values.items() if queue.broker_name not in failures}
        return QueueAnswers(kept, failures)

    async def _brokers_by_name(self) -> dict[str, BrokerAddress]:
        """A broker of each name: its master, else its first replica."""
        return one_of_each_name((await self.cluster_info()).brokers.values())


async def _at_most(count: int, works: Iterable[Coroutine[None, None, None]]) -> None:
    """Carry out these works, ``count`` at a time; the first error ends all of them."""
    waiting = iter(works)

    async def work_on() -> None:
        for work in waiting:
            await work

    tasks = [asyncio.create_task(work_on()) for _ in range(count)]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
