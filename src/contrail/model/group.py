"""Consumer groups: which names are allowed, which belong to the system, and a group's settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self

from contrail.errors import ConfigError, EntryIllegal
from contrail.model.delay_levels import DEFAULT_DELAY_LEVELS, parse_delay_levels
from contrail.model.fastjson import FastJsonError, Fields, JsonValue, whole_number
from contrail.model.shown import shown
from contrail.model.topic import NAME_PATTERN, SYSTEM_GROUP_PREFIX

GROUP_LENGTH_MAX = 120
# Clients allow longer names for producer groups, which give no topic its name.
PRODUCER_GROUP_LENGTH_MAX = 255
SUBSCRIPTIONS_MAX = 1000
TRANSACTION_GROUP = "CID_RMQ_SYS_TRANS"

# Groups every broker has from the start.
BUILT_IN_GROUPS = (
    "TOOLS_CONSUMER",
    "FILTERSRV_CONSUMER",
    "SELF_TEST_C_GROUP",
    "CID_ONS-HTTP-PROXY",
    "CID_ONSAPI_PULL",
    "CID_ONSAPI_PERMISSION",
    "CID_ONSAPI_OWNER",
    TRANSACTION_GROUP,
)
PREDEFINED_GROUPS = frozenset(BUILT_IN_GROUPS) | {
    "DEFAULT_CONSUMER",
    "DEFAULT_PRODUCER",
    "SCHEDULE_CONSUMER",
    "__MONITOR_CONSUMER",
    "CLIENT_INNER_PRODUCER",
    "SELF_TEST_P_GROUP",
}

CUSTOMIZED = "CUSTOMIZED"
EXPONENTIAL = "EXPONENTIAL"
_DEFAULT_DELAYS_MS = tuple(parse_delay_levels(DEFAULT_DELAY_LEVELS)[1:])
# A doubling delay passes any maximum long before this, and Java's arithmetic stops here too.
_EXPONENT_MAX = 32


@dataclass(frozen=True, slots=True)
class ExponentialRetry:
    """Each retry waits ``multiplier`` times as long as the one before."""

    initial_ms: int = 5_000
    max_ms: int = 7_200_000
    multiplier: int = 2

    def delay_ms(self, reconsume_times: int) -> int:
        exponent = min(max(reconsume_times, 0), _EXPONENT_MAX)
        return min(self.max_ms, self.initial_ms * int(self.multiplier**exponent))


@dataclass(frozen=True, slots=True)
class CustomizedRetry:
    """Each retry waits for the next delay of the list."""

    delays_ms: tuple[int, ...] = _DEFAULT_DELAYS_MS

    def delay_ms(self, reconsume_times: int) -> int:
        # The first two delays are skipped: retries have always begun with delay level 3.
        return self.delays_ms[min(max(reconsume_times, 0) + 2, len(self.delays_ms) - 1)]


@dataclass(frozen=True, slots=True)
class GroupRetryPolicy:
    """How long a message waits after a failed attempt until it is delivered again."""

    kind: str = CUSTOMIZED
    exponential: ExponentialRetry | None = None
    customized: CustomizedRetry | None = None

    @property
    def chosen(self) -> ExponentialRetry | CustomizedRetry | None:
        """The policy set for this group; None if the group uses the delay levels."""
        return self.exponential if self.kind == EXPONENTIAL else self.customized

    def delay_ms(self, reconsume_times: int) -> int:
        return (self.chosen or CustomizedRetry()).delay_ms(reconsume_times)

    @classmethod
    def from_fields(cls, fields: Fields) -> Self:
        exponential = fields.child("exponentialRetryPolicy")
        customized = fields.child("customizedRetryPolicy")
        return cls(
            kind=fields.text("type", CUSTOMIZED),
            exponential=None if exponential is None else _read_exponential(exponential),
            customized=None if customized is None else _read_customized(customized),
        )

    def to_fields(self) -> dict[str, object]:
        exponential, customized = self.exponential, self.customized
        return {
            "type": self.kind,
            "exponentialRetryPolicy": exponential
            and {
                "initial": exponential.initial_ms,
                "max": exponential.max_ms,
                "multiplier": exponential.multiplier,
            },
            "customizedRetryPolicy": customized and {"next": customized.delays_ms},
        }


@dataclass(frozen=True, slots=True)
class SubscriptionGroupConfig:
    """A group's settings; ``unknown`` keeps fields of newer writers for the next rewrite."""

    group: str
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    consume_broadcast_enable: bool = True
    consume_message_orderly: bool = False
    retry_queue_count: int = 1
    retry_count_max: int = 16
    retry_policy: GroupRetryPolicy = GroupRetryPolicy()
    broker_id: int = 0
    broker_id_when_slow: int = 1
    notify_consumer_ids_changed_enable: bool = True
    sys_flag: int = 0
    consume_timeout_minutes: int = 15
    subscriptions: tuple[JsonValue, ...] | None = None
    attributes: Mapping[str, str] = field(default_factory=dict)
    unknown: Mapping[str, JsonValue] = field(default_factory=dict)

    @classmethod
    def from_fields(cls, fields: Fields, group: str) -> Self:
        """Read RocketMQ's field names; raises ``FastJsonError`` for a field of another type."""
        return cls(
            group=fields.text("groupName", group),
            consume_enable=fields.boolean("consumeEnable", True),
            consume_from_min_enable=fields.boolean("consumeFromMinEnable", True),
            consume_broadcast_enable=fields.boolean("consumeBroadcastEnable", True),
            consume_message_orderly=fields.boolean("consumeMessageOrderly", False),
            retry_queue_count=fields.integer("retryQueueNums", 1),
            retry_count_max=fields.integer("retryMaxTimes", 16),
            retry_policy=_read_policy(fields.child("groupRetryPolicy")),
            broker_id=fields.integer("brokerId", 0),
            broker_id_when_slow=fields.integer("whichBrokerWhenConsumeSlowly", 1),
            notify_consumer_ids_changed_enable=fields.boolean(
                "notifyConsumerIdsChangedEnable", True
            ),
            sys_flag=fields.integer("groupSysFlag", 0),
            consume_timeout_minutes=fields.integer("consumeTimeoutMinute", 15),
            subscriptions=tuple(fields.array("subscriptionDataSet")) or None,
            attributes=fields.texts("attributes"),
            unknown=fields.unknown(_KNOWN_FIELDS),
        )

    def to_fields(self) -> dict[str, object]:
        return {
            **self.unknown,
            "groupName": self.group,
            "consumeEnable": self.consume_enable,
            "consumeFromMinEnable": self.consume_from_min_enable,
            "consumeBroadcastEnable": self.consume_broadcast_enable,
            "consumeMessageOrderly": self.consume_message_orderly,
            "retryQueueNums": self.retry_queue_count,
            "retryMaxTimes": self.retry_count_max,
            "groupRetryPolicy": self.retry_policy.to_fields(),
            "brokerId": self.broker_id,
            "whichBrokerWhenConsumeSlowly": self.broker_id_when_slow,
            "notifyConsumerIdsChangedEnable": self.notify_consumer_ids_changed_enable,
            "groupSysFlag": self.sys_flag,
            "consumeTimeoutMinute": self.consume_timeout_minutes,
            "subscriptionDataSet": self.subscriptions,
            "attributes": self.attributes,
        }


_KNOWN_FIELDS = frozenset(SubscriptionGroupConfig("").to_fields())


def check_group_name(group: str) -> None:
    """Refuse a name that no group may have.

    Raises:
        ConfigError: the name is blank, too long, or holds a character outside ``%|a-zA-Z0-9_-``.
    """
    if not group.strip():
        raise ConfigError("the consumer group is blank; name one")
    if not NAME_PATTERN.fullmatch(group):
        raise ConfigError(f"group {shown(group)} may hold only letters, digits and % | _ -")
    if len(group) > GROUP_LENGTH_MAX:
        raise ConfigError(
            f"group {shown(group)} has {len(group)} characters, at most {GROUP_LENGTH_MAX} "
            "are allowed"
        )


def checked_subscriptions(
    group: str, subscriptions: Sequence[JsonValue] | None
) -> tuple[JsonValue, ...] | None:
    """A group's ``subscriptionDataSet`` as RocketMQ keeps it: known fields alone, no nulls.

    Raises:
        EntryIllegal: there are too many subscriptions, or one has another shape.
    """
    if subscriptions is None:
        return None
    if len(subscriptions) > SUBSCRIPTIONS_MAX:
        raise EntryIllegal(
            f"group {shown(group)}: subscriptionDataSet has {len(subscriptions)} entries, "
            f"at most {SUBSCRIPTIONS_MAX} are kept"
        )
    return tuple(_subscription(group, entry) for entry in subscriptions)


def _subscription(group: str, value: JsonValue) -> JsonValue:
    try:
        fields = Fields(value, "subscriptionDataSet")
        kept: dict[str, JsonValue] = {
            name: fields.text(name, "") for name in ("topic", "expressionType", "expression")
        }
        kept["version"] = fields.integer("version", 0)
    except FastJsonError as error:
        raise EntryIllegal(f"group {shown(group)}: {error}") from error
    given = fields.unknown(frozenset())
    return {name: item for name, item in kept.items() if given.get(name) is not None}


def is_system_group(group: str) -> bool:
    return group.startswith(SYSTEM_GROUP_PREFIX)


def check_not_system_group(group: str) -> None:
    """Raises ``ConfigError`` for a group that no operator creates, changes or deletes."""
    if is_system_group(group):
        raise ConfigError(f"group {shown(group)} belongs to the system; choose another name")


def _read_policy(fields: Fields | None) -> GroupRetryPolicy:
    return GroupRetryPolicy() if fields is None else GroupRetryPolicy.from_fields(fields)


def _read_exponential(fields: Fields) -> ExponentialRetry:
    default = ExponentialRetry()
    return ExponentialRetry(
        initial_ms=fields.integer("initial", default.initial_ms),
        max_ms=fields.integer("max", default.max_ms),
        multiplier=fields.integer("multiplier", default.multiplier),
    )


def _read_customized(fields: Fields) -> CustomizedRetry:
    delays_ms = [whole_number(item, "customizedRetryPolicy.next") for item in fields.array("next")]
    return CustomizedRetry(tuple(delays_ms)) if delays_ms else CustomizedRetry()
