"""The admin client on topics: settings, routes, stats, queue offsets."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace

from contrail.client.admin_asking import decoded
from contrail.client.admin_queues import QueueAdmin
from contrail.client.admin_values import (
    BrokerAddress,
    QueueStats,
    TopicStats,
)
from contrail.errors import ClientError, ConfigError, MessageIllegal, RouteMissing
from contrail.model.topic import (
    AUTO_CREATE_TOPIC,
    DLQ_PREFIX,
    RETRY_PREFIX,
    Perm,
    TopicConfig,
    check_topic_name,
    is_system_topic,
)
from contrail.protocol.bodies.consume_stats import decode_group_names
from contrail.protocol.bodies.tables import TopicList
from contrail.protocol.bodies.topics import (
    QueueReach,
    decode_topic,
    decode_topic_stats,
    decode_topic_table,
)
from contrail.protocol.codes import RequestCode, ResponseCode
from contrail.protocol.json_style import MessageQueue

ORDER_NAMESPACE = "ORDER_TOPIC_CONFIG"
_ROUTE_POLL_S = 0.05

_ANSWERS_OF_MASTERS = (ResponseCode.SUCCESS,)
# Slaves and members of a failover group may leave deletions to their master or leader.
_ANSWERS_OF_OTHERS = (ResponseCode.SUCCESS, ResponseCode.SERVICE_NOT_AVAILABLE)


class TopicAdmin(QueueAdmin):
    """Topics."""

    # Lists and settings.

    async def topics(self, *, cluster: str | None = None, internal: bool = True) -> list[str]:
        """The names of all topics, or of one cluster's topics.

        Without ``internal`` topics of the system, of retries and of dead letters are left out.
        """
        if cluster is None:
            code, fields = RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, {}
        else:
            await self._every_broker(cluster)
            code, fields = RequestCode.GET_TOPICS_BY_CLUSTER, {"cluster": cluster}
        answer = await self._ask_name_server(code, fields, "the list of topics")
        names = sorted(decoded(TopicList.decode, answer, "the list of topics").topics)
        return names if internal else await self._without_internal(names)

    async def _without_internal(self, names: Sequence[str]) -> list[str]:
        info = await self.cluster_info()
        # Clusters and brokers have topics of their own names.
        hidden = {*info.clusters, *info.brokers, *(f"{one}_REPLY_TOPIC" for one in info.clusters)}
        return [
            name
            for name in names
            if name not in hidden
            and not is_system_topic(name)
            and not name.startswith((RETRY_PREFIX, DLQ_PREFIX))
        ]

    async def topic_clusters(self, topic: str) -> list[str]:
        """The clusters that have a topic."""
        return sorted({one.cluster for one in (await self.topic_route(topic)).brokers})

    async def topic_config(
        self, topic: str, *, allow_partial: bool = False
    ) -> dict[str, TopicConfig]:
        """A topic's settings by broker name."""
        return await self._ask_each(
            await self._topic_brokers(topic),
            lambda broker: self._topic_config(broker, topic),
            lambda answers: answers,
            f"the settings of topic {topic!r}",
            allow_partial=allow_partial,
        )

    async def topic_configs(self, broker: str) -> dict[str, TopicConfig]:
        """All topics of one broker."""
        (address,) = await self._masters(broker=broker)
        return await self._topic_table(address)

    async def _topic_config(self, broker: BrokerAddress, topic: str) -> TopicConfig:
        what = f"the settings of topic {topic!r}"
        answer = await self._ask(
            broker,
            RequestCode.GET_TOPIC_CONFIG,
            {"topic": topic},
            what,
            accepted=(ResponseCode.SUCCESS, ResponseCode.REQUEST_CODE_NOT_SUPPORTED),
        )
        if answer.code == ResponseCode.SUCCESS:
            return decoded(decode_topic, answer, what)
        # Brokers before 5.0 tell only all of them.
        found = (await self._topic_table(broker)).get(topic)
        if found is None:
            raise ClientError(f"{broker} has no topic {topic!r}, though it is routed there")
        return found

    async def _topic_table(self, broker: BrokerAddress) -> dict[str, TopicConfig]:
        what = "the table of topics"
        answer = await self._ask(broker, RequestCode.GET_ALL_TOPIC_CONFIG, {}, what)
        return decoded(decode_topic_table, answer, what)

    # Changing.

    async def create_topic(
        self,
        topic: str,
        *,
        queues: int = 8,
        read_queues: int | None = None,
        write_queues: int | None = None,
        perm: int = Perm.READ | Perm.WRITE,
        order: bool = False,
        attributes: Mapping[str, str] | None = None,
        cluster: str | None = None,
        broker: str | None = None,
    ) -> list[str]:
        """Create a topic, or set all of its settings, on every master, one cluster's or one broker.

        Returns the brokers' names once every NameServer routes to them.

        Raises:
            ConfigError: the name or a setting is not allowed.
            SomeFailed: not every broker took it.
        """
        config = TopicConfig(
            topic,
            read_queue_count=queues if read_queues is None else read_queues,
            write_queue_count=queues if write_queues is None else write_queues,
            perm=perm,
            order=order,
            attributes=dict(attributes or {}),
        )
        _check_topic(config)
        masters = await self._masters(cluster=cluster, broker=broker)
        configs = {one.broker_name: config for one in masters}
        return await self._set_topic(topic, masters, configs, attributes or {}, order)

    async def update_topic(
        self,
        topic: str,
        *,
        queues: int | None = None,
        read_queues: int | None = None,
        write_queues: int | None = None,
        perm: int | None = None,
        order: bool | None = None,
        attributes: Mapping[str, str | None] | None = None,
        cluster: str | None = None,
        broker: str | None = None,
    ) -> list[str]:
        """Change the given settings and keep the others; an attribute that is None is removed.

        To shrink without losing messages, first lower ``write_queues``, and ``read_queues`` when
        the last queues are consumed.

        Raises:
            RouteMissing: the topic does not exist.
            SomeFailed: not every broker took it.
        """
        known = await self.topic_config(topic)
        wanted = {one.broker_name for one in await self._masters(cluster=cluster, broker=broker)}
        masters = [one for one in await self._topic_brokers(topic) if one.broker_name in wanted]
        if not masters:
            raise ClientError(f"topic {topic!r} is not on {broker or cluster}; create it there")
        changes = {
            "read_queue_count": queues if read_queues is None else read_queues,
            "write_queue_count": queues if write_queues is None else write_queues,
            "perm": perm,
            "order": order,
        }
        given = {name: value for name, value in changes.items() if value is not None}
        configs = {
            one.broker_name: replace(known[one.broker_name], **given)  # type: ignore[arg-type]
            for one in masters
        }
        for config in configs.values():
            _check_topic(config)
        return await self._set_topic(topic, masters, configs, attributes or {}, order)

    async def _set_topic(
        self,
        topic: str,
        masters: Sequence[BrokerAddress],
        configs: Mapping[str, TopicConfig],
        attributes: Mapping[str, str | None],
        order: bool | None,
    ) -> list[str]:
        what = f"topic {topic!r} to be set"

        async def set_one(broker: BrokerAddress) -> None:
            fields = _topic_fields(configs[broker.broker_name], attributes)
            await self._ask(broker, RequestCode.UPDATE_AND_CREATE_TOPIC, fields, what)

        names = await self._ask_each(masters, set_one, list, what)
        known = await self.order_config(topic)
        wanted = _order_counts(known, configs, order)
        if wanted != known:
            await self.set_order_config(topic, wanted)
        await self._wait_for_route(topic, configs)
        return sorted(names)

    async def _wait_for_route(self, topic: str, configs: Mapping[str, TopicConfig]) -> None:
        """Wait for the routes: a broker answers before it registers with the NameServers."""
        deadline = asyncio.get_running_loop().time() + self._timeout_ms / 1000
        while not await self._is_routed(topic, configs):
            if asyncio.get_running_loop().time() > deadline:
                raise ClientError(
                    f"topic {topic!r} is set on {', '.join(sorted(configs))}, but a NameServer "
                    "does not route to all of them yet: check the brokers' namesrvAddr"
                )
            await asyncio.sleep(_ROUTE_POLL_S)

    async def _is_routed(self, topic: str, configs: Mapping[str, TopicConfig]) -> bool:
        try:
            route = await self.topic_route(topic)
        except RouteMissing:
            return False
        routed = {one.broker_name: one for one in route.queues}
        return all(
            name in routed
            and routed[name].read_queue_count == config.read_queue_count
            and routed[name].write_queue_count == config.write_queue_count
            for name, config in configs.items()
        )

    async def delete_topic(self, topic: str, *, cluster: str | None = None) -> None:
        """Delete a topic with its messages from every broker, then from every NameServer.

        Raises:
            SomeFailed: a server did not do it; the others did.
        """
        what = f"topic {topic!r} to be deleted"
        await self._ask_each(
            await self._every_broker(cluster),
            lambda broker: self._ask(
                broker,
                RequestCode.DELETE_TOPIC_IN_BROKER,
                {"topic": topic},
                what,
                accepted=_ANSWERS_OF_MASTERS if broker.is_master else _ANSWERS_OF_OTHERS,
            ),
            list,
            what,
        )
        fields = {"topic": topic} | ({} if cluster is None else {"clusterName": cluster})
        await self._ask_name_servers(RequestCode.DELETE_TOPIC_IN_NAMESRV, fields, what)
        if cluster is None:
            await self.set_order_config(topic, None)
        self._routes.pop(topic, None)

    # Order.

    async def order_config(self, topic: str) -> dict[str, int]:
        """How many queues each broker has for ordered sends; empty for a topic without order."""
        answer = await self._ask_name_server(
            RequestCode.GET_KV_CONFIG,
            {"namespace": ORDER_NAMESPACE, "key": topic},
            f"the order configuration of topic {topic!r}",
            accepted=(ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND),
        )
        pieces = [piece.partition(":") for piece in answer.fields.get("value", "").split(";")]
        return {name: int(count) for name, _, count in pieces if name and count.isdecimal()}

    async def set_order_config(self, topic: str, queues: Mapping[str, int] | None) -> None:
        """Fix how many queues each broker has for ordered sends, on all NameServers; None ends it.

        Raises:
            SomeFailed: not every NameServer took it.
        """
        what = f"the order configuration of topic {topic!r}"
        fields = {"namespace": ORDER_NAMESPACE, "key": topic}
        if queues:
            fields["value"] = ";".join(f"{name}:{queues[name]}" for name in sorted(queues))
        code = RequestCode.PUT_KV_CONFIG if queues else RequestCode.DELETE_KV_CONFIG
        await self._ask_name_servers(code, fields, what)

    # Traffic.

    async def topic_stats(self, topic: str, *, allow_partial: bool = False) -> TopicStats:
        """How far each queue of a topic reaches, and when its last message was stored."""
        what = f"the stats of topic {topic!r}"

        brokers = await self._topic_brokers(topic)
        queues = await self.queues(topic)

        async def ask(broker: BrokerAddress) -> tuple[dict[MessageQueue, QueueReach], float]:
            fields = {"topic": topic}
            answer = await self._ask(broker, RequestCode.GET_TOPIC_STATS_INFO, fields, what)
            reaches, rate = decoded(decode_topic_stats, answer, what)
            for queue in queues:
                if queue.broker_name == broker.broker_name and queue not in reaches:
                    # Brokers before 5.0 leave out queues that are read-only.
                    reaches[queue] = await self._reach(queue)
            return reaches, rate

        return await self._ask_each(
            brokers,
            ask,
            lambda answers: _topic_stats(topic, list(answers.values())),
            what,
            allow_partial=allow_partial,
        )

    async def topic_consumers(self, topic: str, *, allow_partial: bool = False) -> list[str]:
        """The groups that consume a topic, or have offsets on it."""
        what = f"the consumers of topic {topic!r}"

        async def ask(broker: BrokerAddress) -> list[str]:
            fields = {"topic": topic}
            answer = await self._ask(broker, RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, fields, what)
            return decoded(decode_group_names, answer, what)

        return await self._ask_each(
            await self._topic_brokers(topic),
            ask,
            lambda answers: sorted({group for groups in answers.values() for group in groups}),
            what,
            allow_partial=allow_partial,
        )


def _check_topic(config: TopicConfig) -> None:
    try:
        check_topic_name(config.topic)
    except MessageIllegal as error:
        raise ConfigError(str(error)) from error
    if min(config.read_queue_count, config.write_queue_count) < 1:
        raise ConfigError(
            f"topic {config.topic!r} needs at least 1 queue to read and to write, not "
            f"{config.read_queue_count} and {config.write_queue_count}"
        )


def _order_counts(
    known: Mapping[str, int], configs: Mapping[str, TopicConfig], order: bool | None
) -> dict[str, int]:
    """The order configuration to set; None for ``order`` keeps the topic's present one.

    The NameServers are asked too, since brokers before 5.0 do not remember it.
    """
    counts = dict(known)
    for name, config in configs.items():
        if order or (order is None and (config.order or name in known)):
            counts[name] = config.write_queue_count
        else:
            counts.pop(name, None)
    return counts


def _topic_fields(config: TopicConfig, attributes: Mapping[str, str | None]) -> dict[str, str]:
    return {
        "topic": config.topic,
        "defaultTopic": AUTO_CREATE_TOPIC,
        "readQueueNums": str(config.read_queue_count),
        "writeQueueNums": str(config.write_queue_count),
        "perm": str(int(config.perm)),
        "topicFilterType": config.filter_type,
        "topicSysFlag": str(config.sys_flag),
        "order": "true" if config.order else "false",
        "attributes": ",".join(
            f"-{name}" if value is None else f"+{name}={value}"
            for name, value in attributes.items()
        ),
    }


def _topic_stats(
    topic: str, answers: Sequence[tuple[Mapping[MessageQueue, QueueReach], float]]
) -> TopicStats:
    reaches = {queue: reach for table, _ in answers for queue, reach in table.items()}
    return TopicStats(
        topic,
        queues=tuple(QueueStats(queue, *reaches[queue]) for queue in sorted(reaches)),
        put_per_second=sum(rate for _, rate in answers),
    )
