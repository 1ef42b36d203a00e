"""Decides whether a pop may be served: every check of the original, in its order."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from contrail.broker.services.address_shares import owner_at
from contrail.broker.services.groups import Groups
from contrail.broker.services.long_expressions import LongExpressions
from contrail.broker.services.topics import Topics
from contrail.broker.state.consumer_offsets import ConsumerOffsets
from contrail.broker.state.consumers import ConsumerTable
from contrail.broker.state.pop_records import COUNT_MAX
from contrail.broker.state.pull_plan import PropertyFilter
from contrail.broker.state.runtime_settings import RuntimeSettings
from contrail.clock import Clock
from contrail.errors import ConfigError, FilterInvalid, RequestRejected
from contrail.model.subscription import (
    ALL_TAGS,
    SQL92,
    TAG,
    SubscriptionData,
    parse_subscription,
)
from contrail.model.topic import Perm, TopicConfig
from contrail.protocol.codes import ResponseCode
from contrail.protocol.command import Request
from contrail.protocol.fields import HeaderFields

ALL_QUEUES = -1
FROM_FIRST = 0
"""``initMode`` of a group that begins at the first message; 1 is the last."""
_LATE_MS_MAX = 500
_SUBSCRIPTION_CHARACTERS_MAX = 16_384
_ATTEMPT_CHARACTERS_MAX = 255


class PopPlan(NamedTuple):
    """A pop that may be served."""

    group: str
    topic: str
    # -1 for all queues.
    queue_id: int
    read_queue_count: int
    count_max: int
    invisible_ms: int
    poll_ms: int
    # When the client asked, by its clock.
    born_ms: int
    from_first: bool
    # None: every message. Otherwise the hash codes of the tags wanted.
    tag_codes: frozenset[int] | None
    property_filter: PropertyFilter | None
    in_order: bool = False
    # Of a pop in order: a pop that repeats it gets the same messages.
    attempt_id: str | None = None

    @property
    def queue_ids(self) -> range:
        """The queues of the topic itself that are popped."""
        if self.queue_id == ALL_QUEUES:
            return range(self.read_queue_count)
        return range(self.queue_id, self.queue_id + 1)


class LookPlan(NamedTuple):
    """A request that may be served and takes no messages."""

    group: str
    topic: str
    # -1 for all queues.
    queue_id: int
    read_queue_count: int

    @property
    def queue_ids(self) -> range:
        """The queues of the topic itself that are looked at."""
        if self.queue_id == ALL_QUEUES:
            return range(self.read_queue_count)
        return range(self.queue_id, self.queue_id + 1)


class PopAdmission:
    """The broker's rules for consumers that pop."""

    def __init__(
        self,
        settings: RuntimeSettings,
        topics: Topics,
        groups: Groups,
        consumers: ConsumerTable,
        offsets: ConsumerOffsets,
        expressions: LongExpressions,
        clock: Clock,
        *,
        timers_enabled: bool,
    ) -> None:
        self._settings = settings
        self._topics = topics
        self._groups = groups
        self._consumers = consumers
        self._offsets = offsets
        self._expressions = expressions
        self._clock = clock
        self._timers_enabled = timers_enabled

    def plan(self, request: Request, client: str) -> PopPlan:
        """The plan of a pop of ``client``, an ``ip:port``.

        Raises:
            RequestRejected: it may not be served; code and remark say why.
        """
        fields = HeaderFields(request)
        group, topic_name = fields.text("consumerGroup"), fields.text("topic")
        queue_id = fields.integer("queueId")
        count_max = fields.integer("maxMsgNums")
        invisible_ms = fields.long("invisibleTime")
        poll_ms = fields.long("pollTime")
        now_ms = self._clock.now_ms()
        born_ms = fields.long("bornTime", 0) or now_ms
        init_mode = fields.integer("initMode")
        if now_ms - born_ms - poll_ms > _LATE_MS_MAX:
            raise RequestRejected(
                ResponseCode.POLLING_TIMEOUT,
                f"the pop was made {now_ms - born_ms} ms ago by its client's clock and may wait "
                f"{poll_ms} ms: do both clocks tell the same time?",
            )
        self._require_readable_broker()
        if count_max > COUNT_MAX:
            raise RequestRejected(
                ResponseCode.INVALID_PARAMETER,
                f"maxMsgNums={count_max}: a pop gets at most {COUNT_MAX} messages",
            )
        if not self._timers_enabled:
            raise RequestRejected(
                ResponseCode.SYSTEM_ERROR,
                "this broker keeps no timers (timerWheelEnable=false), and pop needs them",
            )
        topic = self._checked_topic(topic_name, queue_id)
        self._check_group(group, topic_name, client)
        subscription, property_filter = self._filter(fields, topic_name)
        self._consumers.remember_pulled(group, topic_name, subscription, now_ms)
        plan = PopPlan(
            group=group,
            topic=topic_name,
            queue_id=max(queue_id, ALL_QUEUES),
            read_queue_count=topic.read_queue_count,
            count_max=count_max,
            invisible_ms=invisible_ms,
            poll_ms=poll_ms,
            born_ms=born_ms,
            from_first=init_mode == FROM_FIRST,
            tag_codes=None
            if subscription.takes_all or not subscription.by_tag
            else subscription.codes,
            property_filter=property_filter,
            in_order=fields.boolean("order"),
            attempt_id=_attempt_id(fields),
        )
        self._offsets.admit(group, topic_name, owner_at(client), *plan.queue_ids)
        return plan

    def look(self, request: Request, client: str) -> LookPlan:
        """The plan of a request that takes no messages: a notification, or a look at them.

        Raises:
            RequestRejected: it may not be served; code and remark say why.
        """
        fields = HeaderFields(request)
        group, topic_name = fields.text("consumerGroup"), fields.text("topic")
        queue_id = fields.integer("queueId")
        self._require_readable_broker()
        topic = self._checked_topic(topic_name, queue_id)
        self._check_group(group, topic_name, client)
        return LookPlan(group, topic_name, max(queue_id, ALL_QUEUES), topic.read_queue_count)

    def _require_readable_broker(self) -> None:
        config = self._settings.config
        if not config.permission & Perm.READ:
            raise RequestRejected(
                ResponseCode.NO_PERMISSION,
                f"broker {config.broker_name!r} hands out no messages now (brokerPermission)",
            )

    def _checked_topic(self, topic: str, queue_id: int) -> TopicConfig:
        config = self._topics.table.get(topic)
        if config is None:
            raise RequestRejected(
                ResponseCode.TOPIC_NOT_EXIST, f"topic {topic!r} does not exist; create it first"
            )
        if not config.readable:
            raise RequestRejected(
                ResponseCode.NO_PERMISSION, f"topic {topic!r} is not readable (perm)"
            )
        if queue_id >= config.read_queue_count:
            raise RequestRejected(
                ResponseCode.INVALID_PARAMETER,
                f"queue {queue_id} of topic {topic!r} does not exist: "
                f"{config.read_queue_count} may be read",
            )
        return config

    def _check_group(self, group: str, topic: str, client: str) -> None:
        config = self._groups.require(group, self._clock.now_ms(), client=client)
        if not config.consume_enable:
            raise RequestRejected(
                ResponseCode.NO_PERMISSION, f"group {group!r} may not consume (consumeEnable)"
            )
        if self._groups.is_read_forbidden(group, topic):
            raise RequestRejected(
                ResponseCode.NO_PERMISSION, f"group {group!r} may not read topic {topic!r}"
            )

    def _filter(
        self, fields: HeaderFields, topic: str
    ) -> tuple[SubscriptionData, PropertyFilter | None]:
        text = fields.optional_text("exp") or ""
        if len(text) > _SUBSCRIPTION_CHARACTERS_MAX:
            raise RequestRejected(
                ResponseCode.SUBSCRIPTION_PARSE_FAILED,
                f"the subscription has {len(text)} characters, at most "
                f"{_SUBSCRIPTION_CHARACTERS_MAX} are taken",
            )
        if not text or (text == ALL_TAGS and fields.optional_text("expType") in (None, "", TAG)):
            return _everything(topic), None
        try:
            subscription = parse_subscription(topic, text, fields.optional_text("expType"))
            if subscription.by_tag:
                return subscription, None
            if subscription.expression_type != SQL92 or not self._settings.config.property_filter:
                raise FilterInvalid(
                    f"filters of type {subscription.expression_type!r} are not served here"
                )
            return subscription, self._expressions.compile_for_pull(text)
        except (ConfigError, FilterInvalid) as error:
            raise RequestRejected(
                ResponseCode.SUBSCRIPTION_PARSE_FAILED, f"the subscription cannot be read: {error}"
            ) from error


@lru_cache(maxsize=4096)
def _everything(topic: str) -> SubscriptionData:
    return parse_subscription(topic, ALL_TAGS)


def _attempt_id(fields: HeaderFields) -> str | None:
    """The id of a pop in order that may be repeated.

    Raises:
        RequestRejected: it is longer than any client's.
    """
    attempt_id = fields.optional_text("attemptId") or None
    if attempt_id is not None and len(attempt_id) > _ATTEMPT_CHARACTERS_MAX:
        raise RequestRejected(
            ResponseCode.INVALID_PARAMETER,
            f"attemptId has {len(attempt_id)} characters, at most {_ATTEMPT_CHARACTERS_MAX} are "
            "taken",
        )
    return attempt_id
