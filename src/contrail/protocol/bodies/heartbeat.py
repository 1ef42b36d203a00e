"""The body of HEART_BEAT: a client's producer groups, consumer groups and subscriptions.

Java writes enums by name, the C++ client by number; both are read. The second form of the
heartbeat carries a fingerprint of the subscriptions and may then leave the subscriptions out.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TypeVar

from contrail.model.fastjson import FastJsonError, Fields, JsonValue
from contrail.model.subscription import SubscriptionData
from contrail.protocol.json_style import body_errors, client_id_of, decode_body, encode_body

E = TypeVar("E", bound=Enum)

GROUPS_MAX = 1000
"""Bound of the consumer groups of one heartbeat, and of its producer groups."""
SUBSCRIPTIONS_MAX = 5000
"""Bound of the subscriptions of one heartbeat, over all its groups."""
GOES_ON_FIELD = "contrailGoesOnMs"
"""Contrail's own field: announced in the body, confirmed in the broker's answer."""
GOES_ON_MS_MIN = 1_000
GOES_ON_MS_MAX = 60_000


class ConsumeType(Enum):
    """Whether a consumer pulls, gets pushes or pops, in the order of RocketMQ's enum."""

    CONSUME_ACTIVELY = "CONSUME_ACTIVELY"
    CONSUME_PASSIVELY = "CONSUME_PASSIVELY"
    CONSUME_POP = "CONSUME_POP"


class MessageModel(Enum):
    """Whether every member of a group gets every message, in the order of RocketMQ's enum."""

    BROADCASTING = "BROADCASTING"
    CLUSTERING = "CLUSTERING"


class ConsumeFromWhere(Enum):
    """Where a group without offsets starts, in the order of RocketMQ's enum."""

    CONSUME_FROM_LAST_OFFSET = "CONSUME_FROM_LAST_OFFSET"
    CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST = (
        "CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST"
    )
    CONSUME_FROM_MIN_OFFSET = "CONSUME_FROM_MIN_OFFSET"
    CONSUME_FROM_MAX_OFFSET = "CONSUME_FROM_MAX_OFFSET"
    CONSUME_FROM_FIRST_OFFSET = "CONSUME_FROM_FIRST_OFFSET"
    CONSUME_FROM_TIMESTAMP = "CONSUME_FROM_TIMESTAMP"


@dataclass(frozen=True, slots=True)
class ConsumerData:
    """One consumer group of a client."""

    group: str
    consume_type: ConsumeType = ConsumeType.CONSUME_PASSIVELY
    message_model: MessageModel = MessageModel.CLUSTERING
    consume_from_where: ConsumeFromWhere = ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET
    subscriptions: tuple[SubscriptionData, ...] = ()
    unit_mode: bool = False

    def to_fields(self) -> dict[str, object]:
        return {
            "consumeFromWhere": self.consume_from_where.value,
            "consumeType": self.consume_type.value,
            "groupName": self.group,
            "messageModel": self.message_model.value,
            "subscriptionDataSet": [entry.to_fields() for entry in self.subscriptions],
            "unitMode": self.unit_mode,
        }


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """A client's heartbeat; a ``fingerprint`` other than 0 marks the second form.

    ``goes_on_ms`` is how long the client handles messages of ordered queues without an answer of
    its broker; 0 if the heartbeat does not announce it. Apache's brokers ignore it.
    """

    client_id: str
    producer_groups: tuple[str, ...] = ()
    consumers: tuple[ConsumerData, ...] = ()
    fingerprint: int = 0
    without_sub: bool = False
    goes_on_ms: int = 0


def decode_heartbeat(body: bytes, *, now_ms: int) -> Heartbeat:
    """The heartbeat in a request's body; a subscription without a version gets ``now_ms``.

    Raises:
        RequestRejected: the body is absent or malformed, or names too many groups.
    """
    what = "a heartbeat"
    fields = decode_body(body, what)
    with body_errors(what):
        producers = _objects(fields, "producerDataSet", GROUPS_MAX)
        consumers = _objects(fields, "consumerDataSet", GROUPS_MAX)
        _check_subscription_count(consumers)
        return Heartbeat(
            client_id=client_id_of(fields, "clientID"),
            producer_groups=tuple(entry.text("groupName", "") for entry in producers),
            consumers=tuple(_decode_consumer(entry, now_ms) for entry in consumers),
            fingerprint=fields.integer("heartbeatFingerprint", 0),
            without_sub=fields.boolean("withoutSub", False),
            goes_on_ms=_goes_on_ms(fields),
        )


def _goes_on_ms(fields: Fields) -> int:
    given = fields.integer(GOES_ON_FIELD, 0)
    if given and not GOES_ON_MS_MIN <= given <= GOES_ON_MS_MAX:
        raise FastJsonError(
            f"{GOES_ON_FIELD} is {given}: announce {GOES_ON_MS_MIN} to {GOES_ON_MS_MAX} "
            "milliseconds, or leave it out"
        )
    return given


def encode_heartbeat(heartbeat: Heartbeat) -> bytes:
    return encode_body(
        {
            "clientID": heartbeat.client_id,
            "consumerDataSet": [consumer.to_fields() for consumer in heartbeat.consumers],
            "heartbeatFingerprint": heartbeat.fingerprint,
            "producerDataSet": [{"groupName": group} for group in heartbeat.producer_groups],
            "withoutSub": heartbeat.without_sub,
            **({GOES_ON_FIELD: heartbeat.goes_on_ms} if heartbeat.goes_on_ms else {}),
        }
    )


def _decode_consumer(fields: Fields, now_ms: int) -> ConsumerData:
    values = fields.unknown(frozenset())
    return ConsumerData(
        group=fields.text("groupName", ""),
        consume_type=_member(values, "consumeType", ConsumeType.CONSUME_PASSIVELY),
        message_model=_member(values, "messageModel", MessageModel.CLUSTERING),
        consume_from_where=_member(
            values, "consumeFromWhere", ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET
        ),
        subscriptions=tuple(
            SubscriptionData.from_fields(entry, version_default=now_ms)
            for entry in _objects(fields, "subscriptionDataSet", SUBSCRIPTIONS_MAX)
        ),
        unit_mode=fields.boolean("unitMode", False),
    )


def _objects(fields: Fields, name: str, count_max: int) -> list[Fields]:
    entries = fields.array(name)
    if len(entries) > count_max:
        raise FastJsonError(f"{name} has {len(entries)} entries, at most {count_max} are taken")
    return [Fields(entry, f"an entry of {name}") for entry in entries]


def _check_subscription_count(consumers: list[Fields]) -> None:
    """Count the subscriptions before any is read, since reading them takes long."""
    count = sum(len(entry.array("subscriptionDataSet")) for entry in consumers)
    if count > SUBSCRIPTIONS_MAX:
        raise FastJsonError(
            f"it has {count} entries of subscriptionDataSet, at most {SUBSCRIPTIONS_MAX} are taken"
        )


def _member(values: dict[str, JsonValue], name: str, default: E) -> E:
    """An enum member by name or position; an unknown name of a newer client is the default."""
    value = values.get(name)
    members = list(type(default))
    if isinstance(value, int) and not isinstance(value, bool):
        if not 0 <= value < len(members):
            raise FastJsonError(f"{name} must be a number below {len(members)}, it is {value}")
        return members[value]
    return next((member for member in members if member.value == value), default)
