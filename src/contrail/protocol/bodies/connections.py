"""Bodies about connected clients: connection lists, client id lists, and the check of a filter."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from contrail.model.fastjson import Fields
from contrail.model.subscription import SubscriptionData
from contrail.protocol.bodies.heartbeat import ConsumeFromWhere, ConsumeType, MessageModel
from contrail.protocol.json_style import body_errors, decode_body, encode_body


@dataclass(frozen=True, slots=True)
class Connection:
    """One client as a connection list shows it."""

    client_id: str
    address: str
    language: str
    version: int
    last_update_ms: int = 0

    @classmethod
    def from_fields(cls, fields: Fields) -> Connection:
        """Reads either form; raises ``FastJsonError`` for a field of another type."""
        return cls(
            client_id=fields.text("clientId", ""),
            address=fields.text("clientAddr", "") or fields.text("remoteIP", "").lstrip("/"),
            language=fields.text("language", ""),
            version=fields.integer("version", 0),
            last_update_ms=fields.integer("lastUpdateTimestamp", 0),
        )

    def to_fields(self) -> dict[str, object]:
        return {
            "clientAddr": self.address,
            "clientId": self.client_id,
            "language": self.language,
            "version": self.version,
        }

    def to_producer_fields(self) -> dict[str, object]:
        """The form of GET_ALL_PRODUCER_INFO; Java prints a socket address with a slash first."""
        return {
            "clientId": self.client_id,
            "language": self.language,
            "lastUpdateTimestamp": self.last_update_ms,
            "remoteIP": f"/{self.address}",
            "version": self.version,
        }


@dataclass(frozen=True, slots=True)
class ConsumerConnections:
    """The members of a consumer group on one broker, and the group's announced settings."""

    connections: tuple[Connection, ...] = ()
    consume_type: str = ConsumeType.CONSUME_PASSIVELY.value
    message_model: str = MessageModel.CLUSTERING.value
    consume_from_where: str = ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET.value
    subscriptions: Mapping[str, SubscriptionData] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ClientCheck:
    """A subscription that a client wants checked before it starts."""

    client_id: str
    group: str
    subscription: SubscriptionData | None


def encode_consumer_ids(client_ids: Iterable[str]) -> bytes:
    return encode_body({"consumerIdList": list(client_ids)})


def encode_consumer_connection(
    connections: Iterable[Connection],
    *,
    consume_type: ConsumeType,
    message_model: MessageModel,
    consume_from_where: ConsumeFromWhere,
    subscriptions: Mapping[str, SubscriptionData],
) -> bytes:
    return encode_body(
        {
            "connectionSet": [connection.to_fields() for connection in connections],
            "consumeFromWhere": consume_from_where.value,
            "consumeType": consume_type.value,
            "messageModel": message_model.value,
            "subscriptionTable": {
                topic: subscription.to_fields() for topic, subscription in subscriptions.items()
            },
        }
    )


def decode_consumer_connection(body: bytes) -> ConsumerConnections:
    """The answer to GET_CONSUMER_CONNECTION_LIST.

    Raises:
        RequestRejected: the body is malformed.
    """
    what = "a group's connections"
    fields = decode_body(body, what, is_table=True)
    with body_errors(what):
        default = ConsumerConnections()
        subscriptions = fields.children("subscriptionTable")
        return ConsumerConnections(
            connections=_connections(fields, "connectionSet"),
            consume_type=fields.text("consumeType", default.consume_type),
            message_model=fields.text("messageModel", default.message_model),
            consume_from_where=fields.text("consumeFromWhere", default.consume_from_where),
            subscriptions={
                topic: SubscriptionData.from_fields(entry) for topic, entry in subscriptions.items()
            },
        )


def decode_producer_connection(body: bytes) -> tuple[Connection, ...]:
    """The answer to GET_PRODUCER_CONNECTION_LIST.

    Raises:
        RequestRejected: the body is malformed.
    """
    what = "a producer group's connections"
    fields = decode_body(body, what, is_table=True)
    with body_errors(what):
        return _connections(fields, "connectionSet")


def decode_producer_table(body: bytes) -> dict[str, tuple[Connection, ...]]:
    """The answer to GET_ALL_PRODUCER_INFO, by group.

    Raises:
        RequestRejected: the body is malformed.
    """
    what = "a table of producers"
    fields = decode_body(body, what, is_table=True)
    with body_errors(what):
        table = fields.child("data") or Fields({}, "data")
        return {group: _connections(table, group) for group in table.unknown(frozenset())}


def _connections(fields: Fields, name: str) -> tuple[Connection, ...]:
    return tuple(
        Connection.from_fields(Fields(entry, f"an entry of {name}")) for entry in fields.array(name)
    )


def encode_producer_connection(connections: Iterable[Connection]) -> bytes:
    return encode_body({"connectionSet": [connection.to_fields() for connection in connections]})


def encode_producer_table(table: Mapping[str, Iterable[Connection]]) -> bytes:
    """All producers, by group."""
    return encode_body(
        {
            "data": {
                group: [connection.to_producer_fields() for connection in connections]
                for group, connections in table.items()
            }
        }
    )


def decode_client_check(body: bytes) -> ClientCheck:
    """Raises ``RequestRejected`` for a body that is absent or malformed."""
    what = "a client check"
    fields = decode_body(body, what)
    with body_errors(what):
        subscription = fields.child("subscriptionData")
        return ClientCheck(
            client_id=fields.text("clientId", ""),
            group=fields.text("group", ""),
            subscription=None
            if subscription is None
            else SubscriptionData.from_fields(subscription),
        )
