"""Decides whether a pull may be served: every check of the original, in its order."""

from __future__ import annotations

from collections.abc import Callable

from contrail.broker.services.address_shares import owner_at
from contrail.broker.services.groups import Groups
from contrail.broker.services.long_expressions import LongExpressions
from contrail.broker.services.topics import Topics
from contrail.broker.state.consumer_offsets import ConsumerOffsets
from contrail.broker.state.consumers import ConsumerTable
from contrail.broker.state.filter_data import FilterTable
from contrail.broker.state.pull_plan import (
    FLAG_CLASS_FILTER,
    FLAG_SUBSCRIPTION,
    PropertyFilter,
    PullPlan,
)
from contrail.broker.state.runtime_settings import RuntimeSettings
from contrail.clock import Clock
from contrail.errors import ConfigError, FilterInvalid, RequestRejected
from contrail.model.group import SubscriptionGroupConfig
from contrail.model.subscription import SQL92, SubscriptionData, parse_subscription
from contrail.model.topic import RETRY_PREFIX, Perm
from contrail.protocol.bodies.routes import MASTER_ID
from contrail.protocol.bulk_pulls import BULK_FIELD
from contrail.protocol.codes import RequestCode, ResponseCode
from contrail.protocol.command import Request, Response
from contrail.protocol.fields import FieldInvalid, HeaderFields
from contrail.protocol.signing import ACCESS_KEY

# Why a pull was forbidden, as the response's forbiddenType says it.
BROKER_FORBIDDEN = 1
GROUP_FORBIDDEN = 2
TOPIC_FORBIDDEN = 3
BROADCASTING_FORBIDDEN = 4
SUBSCRIPTION_FORBIDDEN = 5


SUBSCRIPTION_CHARACTERS_MAX = 16_384
_PASSED_MAX = 20_000
# Refusals have a table of their own: pulls that are refused must not push out those that pass.
_REFUSED_MAX = 5_000
# Longer fields than a client's own are not worth the memory.
_REMEMBERED_CHARACTERS_MAX = 1024
_NUMBERS = ("queueOffset", "maxMsgNums", "commitOffset", "suspendTimeoutMillis")
_DIGITS_MAX = 18
_COUNT_MAX = 0x7FFFFFFF


class PullForbidden(RequestRejected):
    """NO_PERMISSION with the kind of prohibition."""

    def __init__(self, kind: int, remark: str) -> None:
        super().__init__(ResponseCode.NO_PERMISSION, remark)
        self.fields = {"forbiddenType": str(kind)}


def refusal_answer(refusal: RequestRejected) -> Response:
    """The answer to a pull that may not be served."""
    return Response(refusal.code, refusal.remark, refusal.fields)


class PullAdmission:
    """The broker's rules for consumers that pull."""

    def __init__(
        self,
        settings: RuntimeSettings,
        topics: Topics,
        groups: Groups,
        consumers: ConsumerTable,
        filters: FilterTable,
        clock: Clock,
        *,
        offsets: ConsumerOffsets | None = None,
        remembers: bool = True,
        expressions: LongExpressions | None = None,
    ) -> None:
        """``offsets`` bounds for how many topics groups may read; without it nothing does.

        ``remembers`` tells whether a pull like one before gets its verdict unchecked.
        """
        self._remembers = remembers
        self._expressions = LongExpressions() if expressions is None else expressions
        self._expressions.on_forgotten.append(self._forget)
        self._offsets = offsets
        self._settings = settings
        self._topics = topics
        self._groups = groups
        self._consumers = consumers
        self._filters = filters
        self._clock = clock
        self._epoch = -1
        self._passed: dict[_Checked, PullPlan] = {}
        self._refused: dict[_Checked, RequestRejected] = {}

    def watch(self, forget: Callable[[], None]) -> None:
        """Call ``forget`` whenever something changes that a check looks at."""
        self._settings.watch(forget)
        self._topics.table.watch(forget)
        self._groups.table.watch(forget)
        self._consumers.watch(forget)
        self._filters.watch(forget)
        if self._offsets is not None:
            self._offsets.watch(forget)
        self._expressions.on_forgotten.append(forget)

    @property
    def epoch(self) -> int:
        """Grows whenever something changes that a check looks at."""
        return (
            self._settings.epoch
            + self._topics.table.epoch
            + self._groups.table.epoch
            + self._consumers.epoch
            + self._filters.epoch
            + (0 if self._offsets is None else self._offsets.epoch)
        )

    def _forget(self) -> None:
        """Forget the plans that hold a forgotten expression."""
        self._epoch = -1

    def plan(self, request: Request, client: str) -> PullPlan:
        """The plan of a pull of ``client``, an ``ip:port``.

        A pull like one before gets the same plan or refusal, as long as nothing that was checked
        has changed since.

        Raises:
            RequestRejected: it may not be served; code and remark say why.
        """
        checked = _checked_fields(request)
        known = self._known(checked)
        if known is not None:
            numbers = [small_number(request.fields.get(name)) for name in _NUMBERS]
            queue_offset, count_max, *others = numbers
            if (
                queue_offset is not None
                and count_max is not None
                and count_max <= _COUNT_MAX
                and None not in others
            ):
                if not isinstance(known, PullPlan):
                    raise known.with_traceback(None)
                self.remember_given(known)
                return known._replace(queue_offset=queue_offset, count_max=count_max)
        try:
            plan = self._checked(request, client)
        except RequestRejected as refusal:
            self._remember_refusal(checked, refusal)
            raise
        if self._remembers and _characters(checked) <= _REMEMBERED_CHARACTERS_MAX:
            if len(self._passed) >= _PASSED_MAX:
                self._passed.clear()
            self._passed[checked] = plan
        self.remember_given(plan)
        return plan

    def refuses(self, request: Request, group: str, client: str) -> bool:
        """Whether a held pull of ``group`` may not be served any more.

        A group that its next pull makes again is not made here: an operator who has just deleted
        it must not see it return.
        """
        if self._groups.table.get(group) is None and self._settings.config.auto_create_group:
            return False
        try:
            self.plan(request, client)
        except RequestRejected as refusal:
            return refusal.code != ResponseCode.SYSTEM_BUSY
        return False

    def remember_given(self, plan: PullPlan) -> None:
        """Operators ask for subscriptions, also of groups that tell them in pulls only."""
        if plan.given is not None:
            self._consumers.remember_pulled(
                plan.group, plan.topic_name, plan.given, self._clock.now_ms()
            )

    def passed(self, request: Request) -> PullPlan | None:
        """The plan of an earlier pull that differs in offset and count only, if it still holds."""
        verdict = self.verdict(request)
        return verdict if isinstance(verdict, PullPlan) else None

    def refused(self, request: Request) -> RequestRejected | None:
        """Why an earlier pull that differs in numbers only was refused, if that still holds."""
        verdict = self.verdict(request)
        return None if isinstance(verdict, PullPlan) else verdict

    def verdict(self, request: Request) -> PullPlan | RequestRejected | None:
        """The verdict on an earlier pull that differs in numbers only; see ``plan``."""
        return self._known(_checked_fields(request))

    def _known(self, checked: _Checked) -> PullPlan | RequestRejected | None:
        epoch = self.epoch
        if epoch != self._epoch:
            self._epoch = epoch
            self._passed.clear()
            self._refused.clear()
        return self._passed.get(checked) or self._refused.get(checked)

    def _remember_refusal(self, checked: _Checked, refusal: RequestRejected) -> None:
        """Malformed numbers are another pull's own; a group may be made when its turn comes."""
        if refusal.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST:
            lasts = not self._settings.config.auto_create_group
        else:
            # The table's bound may refuse another address the next time.
            is_busy = refusal.code == ResponseCode.SYSTEM_BUSY
            lasts = not is_busy and not isinstance(refusal, FieldInvalid)
        lasts = lasts and self._remembers
        if lasts and _characters(checked) <= _REMEMBERED_CHARACTERS_MAX:
            if len(self._refused) >= _REFUSED_MAX:
                self._refused.clear()
            self._refused[checked] = refusal.with_traceback(None)

    def _checked(self, request: Request, client: str) -> PullPlan:
        fields = HeaderFields(request)
        group = fields.text("consumerGroup")
        topic = fields.text("topic")
        queue_id = fields.integer("queueId")
        sys_flag = fields.integer("sysFlag")
        # RocketMQ reads the whole header before it looks at any of it.
        queue_offset = fields.long("queueOffset")
        count_max = fields.integer("maxMsgNums")
        for name in ("commitOffset", "suspendTimeoutMillis", "subVersion"):
            fields.optional_long(name)
        self._require_open(group, topic)
        config = self._settings.config
        if not config.permission & Perm.READ:
            raise PullForbidden(
                BROKER_FORBIDDEN,
                f"broker {config.broker_name!r} hands out no messages now (brokerPermission)",
            )
        if request.code == RequestCode.LITE_PULL_MESSAGE and not config.lite_pull_enabled:
            raise PullForbidden(BROKER_FORBIDDEN, "lite pull is off: see litePullMessageEnable")
        group_config = self._checked_group(group, client)
        topic_sys_flag = self._checked_topic(topic, queue_id)
        if sys_flag & FLAG_CLASS_FILTER:
            raise RequestRejected(
                ResponseCode.SYSTEM_ERROR, "class filters are not served; use tags or SQL92"
            )
        subscription, property_filter = (
            self._given(fields, topic)
            if sys_flag & FLAG_SUBSCRIPTION
            else self._registered(fields, group_config, topic)
        )
        if not subscription.by_tag and not config.property_filter:
            raise RequestRejected(
                ResponseCode.SYSTEM_ERROR,
                f"{subscription.expression_type} filters are off: see enablePropertyFilter",
            )
        if topic.startswith(RETRY_PREFIX) and not config.filter_support_retry:
            property_filter = None
        if self._offsets is not None:
            # Later pulls like it may go a fast way; the first one is checked here.
            self._offsets.admit(group, topic, owner_at(client), queue_id)
        return PullPlan(
            group=group,
            topic_name=topic,
            topic=topic.encode(),
            queue_id=queue_id,
            queue_offset=queue_offset,
            count_max=count_max,
            sys_flag=sys_flag,
            tag_codes=None
            if subscription.takes_all or not subscription.by_tag
            else subscription.codes,
            property_filter=property_filter,
            topic_sys_flag=topic_sys_flag,
            group_sys_flag=group_config.sys_flag,
            given=subscription if sys_flag & FLAG_SUBSCRIPTION else None,
            is_bulk=property_filter is None and request.fields.get(BULK_FIELD) == "true",
            suggested_broker_id=group_config.broker_id if config.slave_read_enabled else MASTER_ID,
        )

    def _require_open(self, group: str, topic: str) -> None:
        """Refuse the broker's own groups and topics, before a group is made for the pull."""
        names = self._topics.names
        try:
            names.require_group(group)
        except RequestRejected as refusal:
            raise PullForbidden(GROUP_FORBIDDEN, refusal.remark) from refusal
        try:
            names.require_readable(topic)
        except RequestRejected as refusal:
            raise PullForbidden(TOPIC_FORBIDDEN, refusal.remark) from refusal

    def _checked_group(self, group: str, client: str) -> SubscriptionGroupConfig:
        config = self._groups.require(group, self._clock.now_ms(), client=client)
        if not config.consume_enable:
            raise PullForbidden(GROUP_FORBIDDEN, f"group {group!r} may not consume (consumeEnable)")
        return config

    def _checked_topic(self, topic: str, queue_id: int) -> int:
        config = self._topics.table.get(topic)
        if config is None:
            raise RequestRejected(
                ResponseCode.TOPIC_NOT_EXIST, f"topic {topic!r} does not exist; create it first"
            )
        if not config.readable:
            raise PullForbidden(TOPIC_FORBIDDEN, f"topic {topic!r} is not readable (perm)")
        if not 0 <= queue_id < config.read_queue_count:
            raise RequestRejected(
                ResponseCode.INVALID_PARAMETER,
                f"queue {queue_id} of topic {topic!r} does not exist: "
                f"{config.read_queue_count} may be read",
            )
        return config.sys_flag

    def _given(
        self, fields: HeaderFields, topic: str
    ) -> tuple[SubscriptionData, PropertyFilter | None]:
        """The subscription stands in the request itself."""
        text = fields.optional_text("subscription") or ""
        if len(text) > SUBSCRIPTION_CHARACTERS_MAX:
            raise RequestRejected(
                ResponseCode.SUBSCRIPTION_PARSE_FAILED,
                f"the subscription has {len(text)} characters, at most "
                f"{SUBSCRIPTION_CHARACTERS_MAX} are taken",
            )
        try:
            subscription = parse_subscription(
                topic, fields.optional_text("subscription"), fields.optional_text("expressionType")
            )
            if subscription.by_tag:
                return subscription, None
            if subscription.expression_type != SQL92:
                raise FilterInvalid(
                    f"expression type {subscription.expression_type!r} is unknown; use TAG or SQL92"
                )
            return subscription, self._expressions.compile_for_pull(subscription.sub_string)
        except (ConfigError, FilterInvalid) as error:
            raise RequestRejected(
                ResponseCode.SUBSCRIPTION_PARSE_FAILED, f"the subscription cannot be read: {error}"
            ) from error

    def _registered(
        self, fields: HeaderFields, group_config: SubscriptionGroupConfig, topic: str
    ) -> tuple[SubscriptionData, PropertyFilter | None]:
        """The subscription came with a heartbeat."""
        group = group_config.group
        members = self._consumers.find(group)
        if members is None:
            raise RequestRejected(
                ResponseCode.SUBSCRIPTION_NOT_EXIST,
                f"no consumer of group {group!r} has sent a heartbeat",
            )
        if members.broadcasts and not group_config.consume_broadcast_enable:
            raise PullForbidden(
                BROADCASTING_FORBIDDEN,
                f"group {group!r} may not broadcast (consumeBroadcastEnable)",
            )
        if self._groups.is_read_forbidden(group, topic):
            raise PullForbidden(
                SUBSCRIPTION_FORBIDDEN, f"group {group!r} may not read topic {topic!r}"
            )
        subscription = members.subscription(topic)
        if subscription is None:
            raise RequestRejected(
                ResponseCode.SUBSCRIPTION_NOT_EXIST,
                f"group {group!r} has not subscribed to {topic!r}; do all its consumers subscribe "
                "to the same topics?",
            )
        wanted_version = fields.long("subVersion", 0)
        if subscription.sub_version < wanted_version:
            raise RequestRejected(
                ResponseCode.SUBSCRIPTION_NOT_LATEST,
                f"the subscription of {group!r} to {topic!r} known here is older",
            )
        if subscription.by_tag:
            return subscription, None
        return subscription, self._registered_filter(group, topic, wanted_version)

    def _registered_filter(self, group: str, topic: str, wanted_version: int) -> PropertyFilter:
        data = self._filters.get(topic, group)
        compiled = None if data is None else self._filters.compiled(data)
        if data is None or compiled is None:
            raise RequestRejected(
                ResponseCode.FILTER_DATA_NOT_EXIST,
                f"no filter of {group!r} for {topic!r} is known; does its expression compile? The "
                "answers to the group's heartbeats tell",
            )
        if data.version < wanted_version:
            raise RequestRejected(
                ResponseCode.FILTER_DATA_NOT_LATEST,
                f"the filter of {group!r} for {topic!r} known here is older",
            )
        return compiled


_KEPT_FIELDS = (
    "consumerGroup",
    "topic",
    "queueId",
    "sysFlag",
    "subscription",
    "expressionType",
    "subVersion",
    BULK_FIELD,
    # The user's name: its rights are asked about again before the answer.
    ACCESS_KEY,
    *_NUMBERS,
)
_LONG_CHARACTERS = 2048


def kept_form(request: Request) -> Request:
    """A pull as it is held: without a body, and without fields that no check looks at."""
    fields = {name: request.fields[name] for name in _KEPT_FIELDS if name in request.fields}
    return request._replace(fields=fields, body=b"", remark=None)


def is_long(kept: Request) -> bool:
    """Whether a held pull takes so much memory that few like it may be held."""
    return sum(map(len, kept.fields.values())) > _LONG_CHARACTERS


_Checked = tuple[int, *tuple[str | None, ...]]


def _checked_fields(request: Request) -> _Checked:
    """All tables that a check looks at; their common verdict may be remembered."""
    get = request.fields.get
    return (
        request.code,
        get("consumerGroup"),
        get("topic"),
        get("queueId"),
        get("sysFlag"),
        get("subscription"),
        get("expressionType"),
        get("subVersion"),
        get(BULK_FIELD),
    )


def _characters(checked: _Checked) -> int:
    return sum(map(len, filter(None, checked[1:])))


def small_number(text: str | None) -> int | None:
    """A number of at most 18 ASCII digits, as clients write them; None for everything else."""
    if text is None or len(text) > _DIGITS_MAX or not (text.isdecimal() and text.isascii()):
        return None
    return int(text)
