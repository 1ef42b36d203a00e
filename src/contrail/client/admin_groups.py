"""The admin client on consumer groups: settings, members, and the members' running info."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from contrail.client.admin_asking import decoded
from contrail.client.admin_topics import TopicAdmin
from contrail.client.admin_values import BrokerAddress, ClientConnection, GroupConnections
from contrail.errors import ClientError, ConfigError, RouteMissing
from contrail.model.group import (
    PREDEFINED_GROUPS,
    SubscriptionGroupConfig,
    check_group_name,
    is_system_group,
)
from contrail.model.subscription import SubscriptionData
from contrail.model.topic import Perm, dlq_topic, retry_topic
from contrail.protocol.bodies.connections import (
    Connection,
    ConsumerConnections,
    decode_consumer_connection,
)
from contrail.protocol.bodies.consume_stats import decode_group_subscription
from contrail.protocol.bodies.groups import decode_group_table, encode_group
from contrail.protocol.bodies.reset import decode_consumer_statuses
from contrail.protocol.bodies.running_info import ConsumerRunningInfo, decode_running_info
from contrail.protocol.codes import RequestCode, ResponseCode
from contrail.protocol.json_style import MessageQueue

_OLD_BROKER = (ResponseCode.SUCCESS, ResponseCode.REQUEST_CODE_NOT_SUPPORTED)
# The broker itself gives a client ten seconds.
_CLIENT_TIMEOUT_MS = 15_000


class GroupAdmin(TopicAdmin):
    """Consumer groups."""

    # Settings.

    async def groups(
        self, *, cluster: str | None = None, internal: bool = False, allow_partial: bool = False
    ) -> list[str]:
        """The names of the consumer groups; with ``internal`` also the system's own."""
        tables = await self.group_configs(cluster=cluster, allow_partial=allow_partial)
        names = {name for table in tables.values() for name in table}
        return sorted(
            name
            for name in names
            if internal or not (name in PREDEFINED_GROUPS or is_system_group(name))
        )

    async def group_configs(
        self,
        *,
        cluster: str | None = None,
        broker: str | None = None,
        allow_partial: bool = False,
    ) -> dict[str, dict[str, SubscriptionGroupConfig]]:
        """The settings of all groups by broker name, then by group."""
        return await self._ask_each(
            await self._masters(cluster=cluster, broker=broker),
            self._group_table,
            lambda answers: answers,
            "the table of groups",
            allow_partial=allow_partial,
        )

    async def group_config(
        self, group: str, *, cluster: str | None = None, allow_partial: bool = False
    ) -> dict[str, SubscriptionGroupConfig]:
        """A group's settings, by the names of the brokers that have the group.

        Raises:
            ClientError: no broker has the group.
        """
        found = await self._ask_each(
            await self._masters(cluster=cluster),
            lambda broker: self._group_config(broker, group),
            _without_none,
            f"the settings of group {group!r}",
            allow_partial=allow_partial,
        )
        if not found:
            raise ClientError(
                f"consumer group {group!r} does not exist: create it with create_group(), or "
                "correct its name"
            )
        return found

    async def _group_config(
        self, broker: BrokerAddress, group: str
    ) -> SubscriptionGroupConfig | None:
        """From the table of all groups: asked for one group, a broker may create it."""
        return (await self._group_table(broker)).get(group)

    async def _group_table(self, broker: BrokerAddress) -> dict[str, SubscriptionGroupConfig]:
        what = "the table of groups"
        answer = await self._ask(broker, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, {}, what)
        return decoded(decode_group_table, answer, what)

    async def create_group(
        self,
        group: str,
        *,
        cluster: str | None = None,
        broker: str | None = None,
        **settings: Any,
    ) -> list[str]:
        """Create a group, or set all of its settings, on every master, a cluster's or one broker.

        ``settings`` are fields of ``SubscriptionGroupConfig``, such as ``retry_count_max=3`` or
        ``consume_enable=False``. Returns the brokers' names.

        Raises:
            ConfigError: the name or a setting is not allowed.
            SomeFailed: not every broker took it.
        """
        check_group_name(group)
        config = _with_settings(SubscriptionGroupConfig(group), settings)
        masters = await self._masters(cluster=cluster, broker=broker)
        return await self._set_group(group, masters, {one.broker_name: config for one in masters})

    async def update_group(
        self,
        group: str,
        *,
        cluster: str | None = None,
        broker: str | None = None,
        **settings: Any,
    ) -> list[str]:
        """Change the given settings, and keep the others, on the brokers that have the group.

        Raises:
            ClientError: no broker has the group.
            SomeFailed: not every broker took it.
        """
        known = await self.group_config(group, cluster=cluster)
        masters = await self._masters(cluster=cluster, broker=broker)
        chosen = [one for one in masters if one.broker_name in known]
        if not chosen:
            raise ClientError(f"group {group!r} is not on broker {broker}; create it there")
        configs = {
            one.broker_name: _with_settings(known[one.broker_name], settings) for one in chosen
        }
        return await self._set_group(group, chosen, configs)

    async def _set_group(
        self,
        group: str,
        masters: Sequence[BrokerAddress],
        configs: Mapping[str, SubscriptionGroupConfig],
    ) -> list[str]:
        what = f"consumer group {group!r} to be set"
        code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
        return await self._ask_each(
            masters,
            lambda broker: self._ask(
                broker, code, {}, what, body=encode_group(configs[broker.broker_name])
            ),
            sorted,
            what,
        )

    async def delete_group(
        self,
        group: str,
        *,
        cluster: str | None = None,
        broker: str | None = None,
        remove_offsets: bool = False,
        remove_topics: bool = False,
    ) -> None:
        """Delete a group's settings; if asked also its offsets, its retry and dead-letter topics.

        Raises:
            SomeFailed: not every broker did it.
        """
        what = f"consumer group {group!r} to be deleted"
        fields = {"groupName": group, "cleanOffset": "true" if remove_offsets else "false"}
        await self._ask_each(
            await self._masters(cluster=cluster, broker=broker),
            lambda one: self._ask(one, RequestCode.DELETE_SUBSCRIPTIONGROUP, fields, what),
            list,
            what,
        )
        if remove_topics:
            for topic in (retry_topic(group), dlq_topic(group)):
                await self.delete_topic(topic, cluster=cluster)

    # Members.

    async def group_connections(
        self, group: str, *, cluster: str | None = None, allow_partial: bool = False
    ) -> GroupConnections:
        """The connected consumers of a group and their subscriptions; may be empty."""
        return await self._ask_each(
            await self._masters(cluster=cluster),
            lambda broker: self._connections_on(broker, group),
            lambda answers: _merged(group, _without_none(answers)),
            f"the connections of group {group!r}",
            allow_partial=allow_partial,
        )

    async def _connections_on(
        self, broker: BrokerAddress, group: str
    ) -> ConsumerConnections | None:
        what = f"the connections of group {group!r}"
        answer = await self._ask(
            broker,
            RequestCode.GET_CONSUMER_CONNECTION_LIST,
            {"consumerGroup": group},
            what,
            accepted=(ResponseCode.SUCCESS, ResponseCode.CONSUMER_NOT_ONLINE),
        )
        if answer.code != ResponseCode.SUCCESS:
            return None
        return decoded(decode_consumer_connection, answer, what)

    async def group_subscription(self, group: str, topic: str) -> SubscriptionData | None:
        """The group's current subscription to a topic; None when no member subscribes to it."""
        what = f"the subscription of group {group!r} to topic {topic!r}"

        async def ask(broker: BrokerAddress) -> SubscriptionData | None:
            answer = await self._ask(
                broker,
                RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER,
                {"group": group, "topic": topic},
                what,
                accepted=_OLD_BROKER,
            )
            if answer.code == ResponseCode.SUCCESS:
                return decoded(decode_group_subscription, answer, what)
            connections = await self._connections_on(broker, group)
            return None if connections is None else connections.subscriptions.get(topic)

        brokers = await self._topic_brokers(topic)
        found = await self._ask_each(brokers, ask, _without_none, what)
        return max(found.values(), key=lambda one: one.sub_version, default=None)

    async def running_info(
        self, group: str, client_id: str, *, jstack: bool = False
    ) -> ConsumerRunningInfo:
        """A member's own view: its settings, queues and rates; with ``jstack`` also its threads.

        Raises:
            ClientError: no broker knows that client in the group.
        """
        fields = {
            "consumerGroup": group,
            "clientId": client_id,
            "jstackEnable": "true" if jstack else "false",
        }
        what = f"the running info of client {client_id!r} of group {group!r}"
        broker = await self._broker_knowing(group, client_id)
        answer = await self._ask(
            broker,
            RequestCode.GET_CONSUMER_RUNNING_INFO,
            fields,
            what,
            timeout_ms=max(self._timeout_ms, _CLIENT_TIMEOUT_MS),
        )
        return decoded(decode_running_info, answer, what)

    async def _broker_knowing(self, group: str, client_id: str) -> BrokerAddress:
        connections = await self.group_connections(group, allow_partial=True)
        for one in connections.connections:
            if one.client_id == client_id and one.broker_names:
                (broker,) = await self._masters(broker=one.broker_names[0])
                return broker
        known = ", ".join(one.client_id for one in connections.connections) or "nobody"
        raise ClientError(
            f"client {client_id!r} of group {group!r} is not connected to any broker; those that "
            f"are: {known}"
        )

    async def consumer_status(
        self, group: str, topic: str, *, client_id: str = "", allow_partial: bool = False
    ) -> dict[str, dict[MessageQueue, int]]:
        """The consumer offsets that the group's members have in memory, by client id and queue."""
        what = f"the offsets that clients of group {group!r} have on topic {topic!r}"
        fields = {"group": group, "topic": topic, "clientAddr": client_id}

        async def ask(broker: BrokerAddress) -> dict[str, dict[MessageQueue, int]]:
            answer = await self._ask(
                broker,
                RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS,
                fields,
                what,
                timeout_ms=max(self._timeout_ms, _CLIENT_TIMEOUT_MS),
            )
            return decoded(decode_consumer_statuses, answer, what)

        return await self._ask_each(
            await self._topic_brokers(topic), ask, _merged_status, what, allow_partial=allow_partial
        )

    async def dead_letter_topic(self, group: str) -> str | None:
        """The topic of a group's dead letters, if it ever had any."""
        topic = dlq_topic(group)
        try:
            await self.topic_route(topic)
        except RouteMissing:
            return None
        return topic

    async def closed_dead_letters(self, group: str) -> list[str]:
        """The brokers whose dead-letter topic of a group is not readable, by the topic's perm."""
        route = await self.topic_route(dlq_topic(group))
        return sorted(one.broker_name for one in route.queues if not one.perm & Perm.READ)


def _with_settings(
    config: SubscriptionGroupConfig, settings: Mapping[str, Any]
) -> SubscriptionGroupConfig:
    try:
        return replace(config, **settings)
    except TypeError as error:
        known = ", ".join(SubscriptionGroupConfig.__slots__)
        raise ConfigError(
            f"group {config.group!r}: a setting of {', '.join(settings)} is unknown ({error}); "
            f"there are {known}"
        ) from error


def _without_none(answers: Mapping[str, Any]) -> dict[str, Any]:
    return {name: answer for name, answer in answers.items() if answer is not None}


def _merged(group: str, answers: Mapping[str, ConsumerConnections]) -> GroupConnections:
    """Every broker names its connected clients; most clients are connected to all brokers."""
    if not answers:
        return GroupConnections(group)
    subscriptions: dict[str, SubscriptionData] = {}
    for answer in answers.values():
        for topic, entry in answer.subscriptions.items():
            known = subscriptions.get(topic)
            if known is None or known.sub_version < entry.sub_version:
                subscriptions[topic] = entry
    newest = next(iter(answers.values()))
    return GroupConnections(
        group,
        connections=merged_connections({name: one.connections for name, one in answers.items()}),
        consume_type=newest.consume_type,
        message_model=newest.message_model,
        consume_from_where=newest.consume_from_where,
        subscriptions=dict(sorted(subscriptions.items())),
    )


def merged_connections(
    by_broker: Mapping[str, Sequence[Connection]],
) -> tuple[ClientConnection, ...]:
    """One entry for each client, with the brokers that know it."""
    clients: dict[str, ClientConnection] = {}
    for broker_name, connections in by_broker.items():
        for one in connections:
            known = clients.get(one.client_id)
            clients[one.client_id] = ClientConnection(
                client_id=one.client_id,
                address=one.address,
                language=one.language,
                version=one.version,
                broker_names=(*(known.broker_names if known else ()), broker_name),
                last_update_ms=max(one.last_update_ms, known.last_update_ms if known else 0),
            )
    return tuple(clients[client_id] for client_id in sorted(clients))


def _merged_status(
    answers: Mapping[str, Mapping[str, Mapping[MessageQueue, int]]],
) -> dict[str, dict[MessageQueue, int]]:
    merged: dict[str, dict[MessageQueue, int]] = {}
    for answer in answers.values():
        for client_id, offsets in answer.items():
            merged.setdefault(client_id, {}).update(offsets)
    return merged
