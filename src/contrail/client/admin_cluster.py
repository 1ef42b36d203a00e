"""The admin client on servers: brokers, NameServers, their settings, producers, upkeep."""

from __future__ import annotations

from collections.abc import Mapping

from contrail.client.admin_asking import decoded, number_field
from contrail.client.admin_groups import merged_connections
from contrail.client.admin_messages import MessageAdmin
from contrail.client.admin_values import BrokerAddress, BrokerRuntime, ProducerGroup
from contrail.errors import ConfigError
from contrail.protocol.bodies.connections import (
    Connection,
    decode_producer_connection,
    decode_producer_table,
)
from contrail.protocol.bodies.figures import Figures
from contrail.protocol.bodies.ha_status import HaStatus, decode_ha_status
from contrail.protocol.bodies.properties_text import parse_properties, render_properties
from contrail.protocol.bodies.stats import StatItem, decode_stats
from contrail.protocol.bodies.tables import KVTable
from contrail.protocol.codes import RequestCode, ResponseCode
from contrail.protocol.command import ReceivedResponse


class ClusterAdmin(MessageAdmin):
    """Brokers and NameServers."""

    # Brokers.

    async def brokers(self, *, cluster: str | None = None) -> list[BrokerAddress]:
        """Every broker, replicas too, by cluster and name."""
        return await self._every_broker(cluster)

    async def broker_runtime(self, broker: str) -> BrokerRuntime:
        """A broker's runtime info; ``broker`` is its name or address here and below."""
        (address,) = await self._masters(broker=broker)
        return await self._runtime(address)

    async def broker_runtimes(
        self, *, cluster: str | None = None, allow_partial: bool = False
    ) -> dict[str, BrokerRuntime]:
        """The runtime info of all masters by name, and of replicas by address."""
        return await self._ask_each(
            await self._every_broker(cluster),
            self._runtime,
            lambda answers: answers,
            "the runtime info",
            allow_partial=allow_partial,
        )

    async def _runtime(self, broker: BrokerAddress) -> BrokerRuntime:
        what = "the runtime info"
        answer = await self._ask(broker, RequestCode.GET_BROKER_RUNTIME_INFO, {}, what)
        return BrokerRuntime(broker, decoded(KVTable.decode, answer, what).table)

    async def figures(
        self, *, cluster: str | None = None, allow_partial: bool = False
    ) -> dict[str, Figures | None]:
        """The figures of all topics and groups with one request to each broker, by broker name.

        None for a broker that does not tell them: Apache's, and Contrail's of older releases.
        """
        what = "the figures of all topics and groups"

        async def ask(broker: BrokerAddress) -> Figures | None:
            answer = await self._ask(
                broker,
                RequestCode.LIST_FIGURES,
                {},
                what,
                accepted=(ResponseCode.SUCCESS, ResponseCode.REQUEST_CODE_NOT_SUPPORTED),
            )
            if answer.code != ResponseCode.SUCCESS:
                return None
            return decoded(Figures.decode, answer, what)

        return await self._ask_each(
            await self._masters(cluster=cluster),
            ask,
            lambda answers: answers,
            what,
            allow_partial=allow_partial,
        )

    async def replication_status(self, broker: str) -> HaStatus:
        """How replication stands, as a master or one of its slaves tells it."""
        (address,) = await self._masters(broker=broker)
        what = "the status of replication"
        answer = await self._ask(address, RequestCode.GET_BROKER_HA_STATUS, {}, what)
        return decoded(decode_ha_status, answer, what)

    async def broker_stats(self, broker: str, stat: str, key: str) -> StatItem:
        """A stat item, such as ``TOPIC_PUT_NUMS`` of a topic; refused until there was traffic."""
        (address,) = await self._masters(broker=broker)
        what = f"stat {stat} of {key!r}"
        fields = {"statsName": stat, "statsKey": key}
        answer = await self._ask(address, RequestCode.VIEW_BROKER_STATS_DATA, fields, what)
        return decoded(decode_stats, answer, what)

    async def broker_config(self, broker: str) -> dict[str, str]:
        """A broker's settings under RocketMQ's names."""
        (address,) = await self._masters(broker=broker)
        answer = await self._ask(address, RequestCode.GET_BROKER_CONFIG, {}, "its settings")
        return _settings(answer)

    async def update_broker_config(
        self,
        settings: Mapping[str, str],
        *,
        broker: str | None = None,
        cluster: str | None = None,
    ) -> list[str]:
        """Change settings of one broker or of all masters of a cluster; returns their names.

        Raises:
            ConfigError: neither a broker nor a cluster is named.
            SomeFailed: not every broker took them.
        """
        if (broker is None) == (cluster is None):
            raise ConfigError("name the broker or the cluster whose settings are to be changed")
        what = f"settings {', '.join(settings)}"
        body = render_properties(settings).encode()
        return await self._ask_each(
            await self._masters(cluster=cluster, broker=broker),
            lambda one: self._ask(one, RequestCode.UPDATE_BROKER_CONFIG, {}, what, body=body),
            sorted,
            what,
        )

    # Draining.

    async def wipe_write_perm(self, broker_name: str) -> dict[str, int]:
        """Take a broker's write permission from its routes; returns topics changed, by NameServer.

        Producers then send to other brokers, until this broker registers its topics with other
        settings.

        Raises:
            SomeFailed: some NameServers failed.
        """
        code = RequestCode.WIPE_WRITE_PERM_OF_BROKER
        return await self._write_perm(broker_name, code, "wipeTopicCount")

    async def add_write_perm(self, broker_name: str) -> dict[str, int]:
        """Take ``wipe_write_perm`` back.

        Raises:
            SomeFailed: some NameServers failed.
        """
        code = RequestCode.ADD_WRITE_PERM_OF_BROKER
        return await self._write_perm(broker_name, code, "addTopicCount")

    async def _write_perm(
        self, broker_name: str, code: RequestCode, counted: str
    ) -> dict[str, int]:
        await self._masters(broker=broker_name)
        what = f"the write permission of broker {broker_name!r}"
        answers = await self._ask_name_servers(code, {"brokerName": broker_name}, what)
        return {server: number_field(one, counted, what) for server, one in answers.items()}

    # Producers.

    async def producers(
        self, *, cluster: str | None = None, allow_partial: bool = False
    ) -> list[ProducerGroup]:
        """Every producer group with the clients that produce for it now."""
        what = "the table of producers"

        async def ask(broker: BrokerAddress) -> dict[str, tuple[Connection, ...]]:
            answer = await self._ask(broker, RequestCode.GET_ALL_PRODUCER_INFO, {}, what)
            return decoded(decode_producer_table, answer, what)

        return await self._ask_each(
            await self._masters(cluster=cluster),
            ask,
            _producer_groups,
            what,
            allow_partial=allow_partial,
        )

    async def producer_connections(
        self, group: str, topic: str, *, allow_partial: bool = False
    ) -> ProducerGroup:
        """The producers of a group that are connected to the brokers of a topic; may be empty."""
        what = f"the connections of producer group {group!r}"

        async def ask(broker: BrokerAddress) -> tuple[Connection, ...]:
            answer = await self._ask(
                broker,
                RequestCode.GET_PRODUCER_CONNECTION_LIST,
                {"producerGroup": group},
                what,
                # Codes that mean: no client is connected.
                accepted=(ResponseCode.SUCCESS, ResponseCode.SYSTEM_ERROR),
            )
            if answer.code != ResponseCode.SUCCESS:
                return ()
            return decoded(decode_producer_connection, answer, what)

        return await self._ask_each(
            await self._topic_brokers(topic),
            ask,
            lambda answers: ProducerGroup(group, merged_connections(answers)),
            what,
            allow_partial=allow_partial,
        )

    # Upkeep.

    async def clean_expired_queues(
        self, *, cluster: str | None = None, broker: str | None = None
    ) -> list[str]:
        """Have index files removed whose messages are gone; returns the brokers' names."""
        code = RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE
        return await self._upkeep(code, "removal of expired queue files", cluster, broker)

    async def clean_unused_topics(
        self, *, cluster: str | None = None, broker: str | None = None
    ) -> list[str]:
        """Have the data of topics removed that have no settings any more."""
        code = RequestCode.CLEAN_UNUSED_TOPIC
        return await self._upkeep(code, "removal of unused topics", cluster, broker)

    async def delete_expired_segments(
        self, *, cluster: str | None = None, broker: str | None = None
    ) -> list[str]:
        """Have expired messages removed now, not only at ``deleteWhen``."""
        code = RequestCode.DELETE_EXPIRED_COMMITLOG
        return await self._upkeep(code, "removal of expired messages", cluster, broker)

    async def _upkeep(
        self, code: RequestCode, what: str, cluster: str | None, broker: str | None
    ) -> list[str]:
        return await self._ask_each(
            await self._masters(cluster=cluster, broker=broker),
            lambda one: self._ask(one, code, {}, what),
            sorted,
            what,
        )

    # NameServers.

    @property
    def name_servers(self) -> tuple[str, ...]:
        """The addresses this client was given."""
        return self._settings.namesrv

    async def namesrv_config(self) -> dict[str, dict[str, str]]:
        """Every NameServer's settings, by address."""
        answers = await self._ask_name_servers(
            RequestCode.GET_NAMESRV_CONFIG, {}, "the NameServers' settings"
        )
        return {server: _settings(answer) for server, answer in answers.items()}

    async def update_namesrv_config(self, settings: Mapping[str, str]) -> None:
        """Change settings of every NameServer.

        Raises:
            SomeFailed: some NameServers did not take them.
        """
        await self._ask_name_servers(
            RequestCode.UPDATE_NAMESRV_CONFIG,
            {},
            f"settings {', '.join(settings)}",
            body=render_properties(settings).encode(),
        )

    async def kv_get(self, namespace: str, key: str) -> str | None:
        """A value of the NameServers' table."""
        answer = await self._ask_name_server(
            RequestCode.GET_KV_CONFIG,
            {"namespace": namespace, "key": key},
            f"key {key!r} of namespace {namespace!r}",
            accepted=(ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND),
        )
        return answer.fields.get("value") if answer.code == ResponseCode.SUCCESS else None

    async def kv_list(self, namespace: str) -> dict[str, str]:
        """All values of a namespace of the NameServers' table."""
        what = f"namespace {namespace!r}"
        answer = await self._ask_name_server(
            RequestCode.GET_KVLIST_BY_NAMESPACE,
            {"namespace": namespace},
            what,
            accepted=(ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND),
        )
        if answer.code != ResponseCode.SUCCESS:
            return {}
        return dict(decoded(KVTable.decode, answer, what).table)

    async def kv_put(self, namespace: str, key: str, value: str) -> None:
        """Set a value on every NameServer; raises ``SomeFailed`` when one did not take it."""
        fields = {"namespace": namespace, "key": key, "value": value}
        await self._ask_name_servers(
            RequestCode.PUT_KV_CONFIG, fields, f"key {key!r} of namespace {namespace!r}"
        )

    async def kv_delete(self, namespace: str, key: str) -> None:
        """Remove a value from every NameServer; one that is not there is no error."""
        fields = {"namespace": namespace, "key": key}
        await self._ask_name_servers(
            RequestCode.DELETE_KV_CONFIG, fields, f"key {key!r} of namespace {namespace!r}"
        )


def _settings(answer: ReceivedResponse) -> dict[str, str]:
    return parse_properties(answer.body.decode("utf-8", "replace"))


def _producer_groups(
    answers: Mapping[str, Mapping[str, tuple[Connection, ...]]],
) -> list[ProducerGroup]:
    groups = sorted({group for answer in answers.values() for group in answer})
    return [
        ProducerGroup(
            group,
            merged_connections(
                {name: answer[group] for name, answer in answers.items() if group in answer}
            ),
        )
        for group in groups
    ]
