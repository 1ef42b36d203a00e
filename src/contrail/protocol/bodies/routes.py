"""Bodies about routes: route, cluster and member-group answers.

Broker ids are the keys of address tables. They are written without quotes, except in the strict
style that newer clients get for routes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Self

from contrail.model.fastjson import Fields, whole_number
from contrail.protocol.json_style import body_errors, decode_body, encode_body

MASTER_ID = 0

Addresses = Mapping[int, str]
"""``ip:port`` by broker id."""


@dataclass(frozen=True, slots=True)
class QueueData:
    """How many queues of a topic one broker has, and their permissions."""

    broker_name: str
    read_queue_count: int
    write_queue_count: int
    perm: int
    sys_flag: int = 0

    @classmethod
    def from_fields(cls, fields: Fields) -> Self:
        """Read RocketMQ's field names; raises ``FastJsonError`` for a field of another type."""
        return cls(
            broker_name=fields.text("brokerName", ""),
            read_queue_count=fields.integer("readQueueNums", 0),
            write_queue_count=fields.integer("writeQueueNums", 0),
            perm=fields.integer("perm", 0),
            sys_flag=fields.integer("topicSysFlag", 0),
        )

    def to_fields(self) -> dict[str, object]:
        return {
            "brokerName": self.broker_name,
            "perm": int(self.perm),
            "readQueueNums": self.read_queue_count,
            "topicSysFlag": self.sys_flag,
            "writeQueueNums": self.write_queue_count,
        }


@dataclass(frozen=True, slots=True)
class BrokerData:
    """One broker name: its addresses by id, its cluster, its zone if it has one."""

    broker_name: str
    cluster: str
    addresses: Addresses
    acting_master_enabled: bool = False
    zone: str | None = None

    @classmethod
    def from_fields(cls, fields: Fields) -> Self:
        """Read RocketMQ's field names; raises ``FastJsonError`` for a field of another type."""
        return cls(
            broker_name=fields.text("brokerName", ""),
            cluster=fields.text("cluster", ""),
            addresses=read_addresses(fields, "brokerAddrs"),
            acting_master_enabled=fields.boolean("enableActingMaster", False),
            zone=fields.text("zoneName", "") or None,
        )

    def to_fields(self) -> dict[str, object]:
        return {
            "brokerAddrs": self.addresses,
            "brokerName": self.broker_name,
            "cluster": self.cluster,
            "enableActingMaster": self.acting_master_enabled,
            "zoneName": self.zone,
        }


@dataclass(frozen=True, slots=True)
class TopicQueueMapping:
    """The queues of a static topic that one broker currently serves: queue ids by logical id."""

    topic: str
    broker_name: str
    total_queue_count: int = 0
    epoch: int = 0
    scope: str = "__global__"
    dirty: bool = False
    current_ids: Mapping[int, int] = field(default_factory=dict)

    @classmethod
    def from_fields(cls, fields: Fields) -> Self:
        """Read RocketMQ's field names; raises ``FastJsonError`` for a field of another type."""
        ids = fields.integers("currIdMap")
        return cls(
            topic=fields.text("topic", ""),
            broker_name=fields.text("bname", ""),
            total_queue_count=fields.integer("totalQueues", 0),
            epoch=fields.integer("epoch", 0),
            scope=fields.text("scope", "__global__"),
            dirty=fields.boolean("dirty", False),
            current_ids={whole_number(key, "currIdMap"): ids[key] for key in ids},
        )

    def to_fields(self) -> dict[str, object]:
        return {
            "bname": self.broker_name,
            "currIdMap": self.current_ids,
            "dirty": self.dirty,
            "epoch": self.epoch,
            "scope": self.scope,
            "topic": self.topic,
            "totalQueues": self.total_queue_count,
        }


@dataclass(frozen=True, slots=True)
class TopicRouteData:
    """The answer to a route query: a topic's queues and brokers."""

    queues: tuple[QueueData, ...] = ()
    brokers: tuple[BrokerData, ...] = ()
    filter_servers: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    order_config: str | None = None
    queue_mappings: Mapping[str, TopicQueueMapping] | None = None

    def encode(self, *, strict: bool = False) -> bytes:
        document = {
            "brokerDatas": [broker.to_fields() for broker in self.brokers],
            "filterServerTable": self.filter_servers,
            "orderTopicConf": self.order_config,
            "queueDatas": [queue.to_fields() for queue in self.queues],
            "topicQueueMappingByBroker": self._mapping_fields(),
        }
        return encode_body(document, strict=strict)

    def with_order_config(self, order_config: str | None) -> TopicRouteData:
        """The same route with the queue counts that ordered sends rely on."""
        return replace(self, order_config=order_config)

    def _mapping_fields(self) -> dict[str, object] | None:
        if self.queue_mappings is None:
            return None
        return {name: mapping.to_fields() for name, mapping in self.queue_mappings.items()}

    @classmethod
    def decode(cls, body: bytes) -> Self:
        """Raises ``RequestRejected`` for a body that is no route."""
        what = "TopicRouteData"
        fields = decode_body(body, what, is_table=True)
        with body_errors(what):
            mappings = fields.children("topicQueueMappingByBroker")
            return cls(
                queues=tuple(
                    QueueData.from_fields(Fields(item, "queueDatas"))
                    for item in fields.array("queueDatas")
                ),
                brokers=tuple(
                    BrokerData.from_fields(Fields(item, "brokerDatas"))
                    for item in fields.array("brokerDatas")
                ),
                filter_servers=_filter_servers(fields),
                order_config=fields.text("orderTopicConf", "") or None,
                queue_mappings={
                    name: TopicQueueMapping.from_fields(child) for name, child in mappings.items()
                }
                or None,
            )


@dataclass(frozen=True, slots=True)
class ClusterInfo:
    """Every broker by name, and the names of each cluster."""

    brokers: Mapping[str, BrokerData] = field(default_factory=dict)
    clusters: Mapping[str, frozenset[str]] = field(default_factory=dict)

    def encode(self) -> bytes:
        # Never the strict style: tools of every version read it.
        return encode_body(
            {
                "brokerAddrTable": {name: b.to_fields() for name, b in self.brokers.items()},
                "clusterAddrTable": self.clusters,
            }
        )

    @classmethod
    def decode(cls, body: bytes) -> Self:
        """Raises ``RequestRejected`` for a body that is no cluster description."""
        what = "ClusterInfo"
        fields = decode_body(body, what, is_table=True)
        with body_errors(what):
            brokers = fields.children("brokerAddrTable")
            return cls(
                brokers={name: BrokerData.from_fields(child) for name, child in brokers.items()},
                clusters={
                    name: frozenset(str(item) for item in names)
                    for name, names in _arrays(fields, "clusterAddrTable").items()
                },
            )


@dataclass(frozen=True, slots=True)
class BrokerMemberGroup:
    """The addresses under one broker name, for its members."""

    cluster: str
    broker_name: str
    addresses: Addresses = field(default_factory=dict)

    def encode(self) -> bytes:
        return encode_body(
            {
                "brokerMemberGroup": {
                    "brokerAddrs": self.addresses,
                    "brokerName": self.broker_name,
                    "cluster": self.cluster,
                }
            }
        )

    @classmethod
    def decode(cls, body: bytes) -> Self:
        """Raises ``RequestRejected`` for a body that is no member group."""
        what = "a BrokerMemberGroup"
        fields = decode_body(body, what, is_table=True)
        with body_errors(what):
            group = fields.child("brokerMemberGroup") or Fields({}, what)
            return cls(
                cluster=group.text("cluster", ""),
                broker_name=group.text("brokerName", ""),
                addresses=read_addresses(group, "brokerAddrs"),
            )


def read_addresses(fields: Fields, name: str) -> dict[int, str]:
    """An address table, with quoted or unquoted ids."""
    return {whole_number(key, name): value for key, value in fields.texts(name).items()}


def _filter_servers(fields: Fields) -> dict[str, tuple[str, ...]]:
    return {
        address: tuple(str(item) for item in items)
        for address, items in _arrays(fields, "filterServerTable").items()
    }


def _arrays(fields: Fields, name: str) -> dict[str, list[object]]:
    table = fields.child(name)
    if table is None:
        return {}
    return {key: list(table.array(key)) for key in table.unknown(frozenset())}
