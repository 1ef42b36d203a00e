"""The rights that each request needs: a closed table, with a row for every served code.

A code without a row is refused, except to a Super. An empty list of needs is for requests that
every user may make, and for those whose topic is known only once a record was found: their
handlers ask ``AccessGate.may_use`` then.

A retry topic belongs to its group: what is done to it needs the group, with Sub in place of Pub.
In a request that names a group, a retry topic of that group needs nothing more, one of pop
(``%RETRY%group_topic`` or ``%RETRY%group+topic``) its topic, and that of another group that group.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Protocol

from contrail.access.state.rights import Action, Need, ResourceType
from contrail.model.topic import RETRY_PREFIX
from contrail.protocol.bodies.connections import decode_client_check
from contrail.protocol.bodies.groups import decode_group, decode_group_list, decode_request_mode
from contrail.protocol.bodies.heartbeat import decode_heartbeat
from contrail.protocol.bodies.locks import decode_lock_request
from contrail.protocol.bodies.pop import decode_assignment_question, decode_batch_acks
from contrail.protocol.bodies.sinks import decode_begin
from contrail.protocol.bodies.topics import decode_topic_list
from contrail.protocol.codes import RequestCode
from contrail.protocol.command import Request
from contrail.protocol.fields import HeaderFields

EVERYTHING = "*"
"""A name that only entries for every name cover."""

PUB = (Action.PUB,)
SUB = (Action.SUB,)
GET = (Action.GET,)
SUB_OR_GET = (Action.SUB, Action.GET)
_SUB_OR_UPDATE = (Action.SUB, Action.UPDATE)
_UPDATE = (Action.UPDATE,)
_CREATE = (Action.CREATE,)
_DELETE = (Action.DELETE,)
_CREATE_OR_UPDATE = (Action.CREATE, Action.UPDATE)
_LIST = (Action.LIST,)


class Facts(Protocol):
    """The broker as the table asks about it."""

    @property
    def cluster_name(self) -> str: ...

    def has_topic(self, topic: str) -> bool: ...

    def sink_topics(self, sink_id: str) -> Iterable[str]:
        """The topics that a sink's rows go to; none if the sink is unknown."""
        ...


Needs = tuple[Need, ...]
NeedsOf = Callable[[Request, Facts], Iterable[Need]]
"""Reads a request's needs; raises ``RequestRejected`` for one that names no resource."""


def needs_of(request: Request, facts: Facts) -> Needs | None:
    """The needs of a request; None for a code that no rights open.

    Raises:
        RequestRejected: the request lacks a field or its body is malformed.
    """
    row = NEEDS.get(request.code)
    return None if row is None else tuple(row(request, facts))


def topic_need(topic: str, actions: tuple[Action, ...]) -> Need:
    """The need of a topic; that of a retry topic is its group's."""
    if not topic.startswith(RETRY_PREFIX):
        return Need(ResourceType.TOPIC, topic, actions)
    return _group(topic.removeprefix(RETRY_PREFIX), SUB if actions == PUB else actions)


def _group(group: str, actions: tuple[Action, ...]) -> Need:
    return Need(ResourceType.GROUP, group.removeprefix(RETRY_PREFIX), actions)


def _topic_of_group(topic: str, group: str, actions: tuple[Action, ...]) -> Iterator[Need]:
    """The need of a topic beside that of the group which uses it."""
    own = RETRY_PREFIX + group
    if topic == own:
        return
    for mark in ("+", "_"):
        if group and topic.startswith(own + mark):
            yield Need(ResourceType.TOPIC, topic.removeprefix(own + mark), actions)
            return
    yield topic_need(topic, actions)


# Rows: each makes the function of a code.


def _nothing(request: Request, facts: Facts) -> Iterable[Need]:
    return ()


def _topic(actions: tuple[Action, ...], field: str = "topic") -> NeedsOf:
    def needs(request: Request, facts: Facts) -> Iterable[Need]:
        return (topic_need(HeaderFields(request).text(field), actions),)

    return needs


def _group_field(actions: tuple[Action, ...], field: str) -> NeedsOf:
    def needs(request: Request, facts: Facts) -> Iterable[Need]:
        return (_group(HeaderFields(request).text(field), actions),)

    return needs


def _topic_and_group(
    actions: tuple[Action, ...], group_field: str, group_actions: tuple[Action, ...] | None = None
) -> NeedsOf:
    def needs(request: Request, facts: Facts) -> Iterator[Need]:
        fields = HeaderFields(request)
        group = fields.text(group_field)
        yield _group(group, group_actions or actions)
        yield from _topic_of_group(fields.text("topic"), group, actions)

    return needs


def _topic_and_group_if_named(group_field: str, group_actions: tuple[Action, ...] = GET) -> NeedsOf:
    """A topic's figures; without a topic those of every topic."""

    def needs(request: Request, facts: Facts) -> Iterator[Need]:
        fields = HeaderFields(request)
        topic, group = fields.text("topic", ""), fields.text(group_field, "")
        listed = [name for name in fields.text("topicList", "").split(";") if name.strip()]
        if topic.strip():
            listed.append(topic)
        for name in listed:
            yield from _topic_of_group(name, group, GET)
        if group:
            yield _group(group, group_actions)
        elif not listed:
            yield Need(ResourceType.TOPIC, EVERYTHING, GET)

    return needs


def _cluster(actions: tuple[Action, ...]) -> NeedsOf:
    def needs(request: Request, facts: Facts) -> Iterable[Need]:
        return (Need(ResourceType.CLUSTER, facts.cluster_name, actions),)

    return needs


def _whole_table(kind: ResourceType) -> NeedsOf:
    """A table with a row for each resource of a kind, shown to those who may see every row."""

    def needs(request: Request, facts: Facts) -> Iterable[Need]:
        return (
            Need(ResourceType.CLUSTER, facts.cluster_name, _LIST),
            Need(kind, EVERYTHING, GET),
        )

    return needs


def _heartbeat(request: Request, facts: Facts) -> Iterator[Need]:
    """Producers are free; what they send is checked."""
    for consumer in decode_heartbeat(request.body, now_ms=0).consumers:
        yield _group(consumer.group, SUB)
        for subscription in consumer.subscriptions:
            yield from _topic_of_group(subscription.topic, consumer.group, SUB)


def _unregister(request: Request, facts: Facts) -> Iterator[Need]:
    group = HeaderFields(request).text("consumerGroup", "")
    if group:
        yield _group(group, SUB)


def _client_check(request: Request, facts: Facts) -> Iterator[Need]:
    check = decode_client_check(request.body)
    yield _group(check.group, SUB)
    if check.subscription is not None:
        yield from _topic_of_group(check.subscription.topic, check.group, SUB)


def _locks(request: Request, facts: Facts) -> Iterator[Need]:
    asked = decode_lock_request(request.body)
    yield _group(asked.group, SUB)
    for topic in {queue.topic for queue in asked.queues}:
        yield from _topic_of_group(topic, asked.group, SUB)


def _batch_acks(request: Request, facts: Facts) -> Iterator[Need]:
    """Every entry names its own group and topic."""
    named = {(one.group, one.topic) for one in decode_batch_acks(request.body).acks}
    for group, topic in sorted(named):
        yield _group(group, SUB)
        yield from _topic_of_group(topic, group, SUB)


def _assignment(request: Request, facts: Facts) -> Iterator[Need]:
    asked = decode_assignment_question(request.body)
    yield _group(asked.group, SUB)
    yield from _topic_of_group(asked.topic, asked.group, SUB)


def _set_topic(request: Request, facts: Facts) -> Iterable[Need]:
    return (_topic_change(HeaderFields(request).text("topic"), facts),)


def _set_topics(request: Request, facts: Facts) -> Iterable[Need]:
    return [_topic_change(config.topic, facts) for config in decode_topic_list(request.body)]


def _topic_change(topic: str, facts: Facts) -> Need:
    return topic_need(topic, _UPDATE if facts.has_topic(topic) else _CREATE)


def _set_group(request: Request, facts: Facts) -> Iterable[Need]:
    return (_group(decode_group(request.body).group, _CREATE_OR_UPDATE),)


def _set_groups(request: Request, facts: Facts) -> Iterable[Need]:
    return [_group(config.group, _CREATE_OR_UPDATE) for config in decode_group_list(request.body)]


def _request_mode(request: Request, facts: Facts) -> Iterator[Need]:
    wanted = decode_request_mode(request.body)
    yield _group(wanted.group, _UPDATE)
    yield from _topic_of_group(wanted.topic, wanted.group, _UPDATE)


def _clone(request: Request, facts: Facts) -> Iterator[Need]:
    """Progress is read of one group and written to another."""
    fields = HeaderFields(request)
    yield _group(fields.text("srcGroup"), GET)
    destination = fields.text("destGroup")
    yield _group(destination, _UPDATE)
    topic = fields.text("topic", "")
    if topic.strip():
        yield from _topic_of_group(topic, destination, _UPDATE)
    else:
        yield Need(ResourceType.TOPIC, EVERYTHING, _UPDATE)


def _sink_begin(request: Request, facts: Facts) -> Iterable[Need]:
    return [topic_need(topic, PUB) for topic in decode_begin(request.body).topics]


def _sink(request: Request, facts: Facts) -> Iterable[Need]:
    """Of a sink that is unknown here nothing tells the topics."""
    topics = facts.sink_topics(HeaderFields(request).text("sinkId"))
    return [topic_need(topic, PUB) for topic in topics] or [
        Need(ResourceType.TOPIC, EVERYTHING, PUB)
    ]


_CLUSTER_GET = _cluster(GET)
_CLUSTER_UPDATE = _cluster(_UPDATE)
_PULL = _topic_and_group(SUB, "consumerGroup")

_ROWS: dict[RequestCode, NeedsOf] = {
    # Producers.
    RequestCode.SEND_MESSAGE: _topic(PUB),
    RequestCode.SEND_MESSAGE_V2: _topic(PUB, "b"),
    RequestCode.SEND_BATCH_MESSAGE: _topic(PUB, "b"),
    RequestCode.SEND_REPLY_MESSAGE: _topic(PUB),
    RequestCode.SEND_REPLY_MESSAGE_V2: _topic(PUB, "b"),
    RequestCode.RECALL_MESSAGE: _topic(PUB),
    # Pub on the topic of the half message that is found.
    RequestCode.END_TRANSACTION: _nothing,
    RequestCode.CONTRAIL_SINK_BEGIN: _sink_begin,
    RequestCode.CONTRAIL_SINK_SEND: _topic(PUB),
    RequestCode.CONTRAIL_SINK_COMMIT: _sink,
    RequestCode.CONTRAIL_SINK_ABORT: _sink,
    RequestCode.CONTRAIL_SINK_STATUS: _sink,
    # Consumers.
    RequestCode.PULL_MESSAGE: _PULL,
    RequestCode.LITE_PULL_MESSAGE: _PULL,
    RequestCode.HEART_BEAT: _heartbeat,
    RequestCode.UNREGISTER_CLIENT: _unregister,
    # And Sub on the topic of the record that is found.
    RequestCode.CONSUMER_SEND_MSG_BACK: _group_field(SUB, "group"),
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: _group_field(SUB_OR_GET, "consumerGroup"),
    RequestCode.CHECK_CLIENT_CONFIG: _client_check,
    RequestCode.LOCK_BATCH_MQ: _locks,
    RequestCode.UNLOCK_BATCH_MQ: _locks,
    RequestCode.QUERY_CONSUMER_OFFSET: _topic_and_group(SUB_OR_GET, "consumerGroup"),
    RequestCode.UPDATE_CONSUMER_OFFSET: _topic_and_group(_SUB_OR_UPDATE, "consumerGroup"),
    RequestCode.POP_MESSAGE: _PULL,
    RequestCode.PEEK_MESSAGE: _PULL,
    RequestCode.NOTIFICATION: _PULL,
    RequestCode.POLLING_INFO: _PULL,
    RequestCode.ACK_MESSAGE: _PULL,
    RequestCode.CHANGE_MESSAGE_INVISIBLETIME: _PULL,
    RequestCode.BATCH_ACK_MESSAGE: _batch_acks,
    RequestCode.QUERY_ASSIGNMENT: _assignment,
    # Questions about topics and messages.
    RequestCode.QUERY_MESSAGE: _topic(SUB_OR_GET),
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: _topic(SUB_OR_GET),
    RequestCode.GET_MAX_OFFSET: _topic(SUB_OR_GET),
    RequestCode.GET_MIN_OFFSET: _topic(SUB_OR_GET),
    RequestCode.GET_EARLIEST_MSG_STORETIME: _topic(SUB_OR_GET),
    # Sub or Get on the topic of the record that is found.
    RequestCode.VIEW_MESSAGE_BY_ID: _nothing,
    RequestCode.GET_TOPIC_STATS_INFO: _topic(GET),
    RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: _topic(GET),
    RequestCode.GET_TOPIC_CONFIG: _topic(GET),
    RequestCode.GET_CONSUME_STATS: _topic_and_group_if_named("consumerGroup"),
    RequestCode.QUERY_CONSUME_TIME_SPAN: _topic_and_group(GET, "group"),
    RequestCode.QUERY_CORRECTION_OFFSET: _topic_and_group(GET, "compareGroup"),
    RequestCode.QUERY_CONSUME_QUEUE: _topic_and_group_if_named("consumerGroup"),
    RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER: _topic_and_group_if_named("group"),
    # Questions about groups.
    RequestCode.GET_CONSUMER_CONNECTION_LIST: _group_field(GET, "consumerGroup"),
    RequestCode.GET_CONSUMER_RUNNING_INFO: _group_field(GET, "consumerGroup"),
    RequestCode.QUERY_TOPICS_BY_CONSUMER: _group_field(GET, "group"),
    RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: _group_field(GET, "group"),
    RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: _topic_and_group(GET, "group"),
    # Changes of topics and groups.
    RequestCode.UPDATE_AND_CREATE_TOPIC: _set_topic,
    RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: _set_topics,
    RequestCode.DELETE_TOPIC_IN_BROKER: _topic(_DELETE),
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: _set_group,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: _set_groups,
    RequestCode.DELETE_SUBSCRIPTIONGROUP: _group_field(_DELETE, "groupName"),
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: _topic_and_group(_UPDATE, "group"),
    RequestCode.CLONE_GROUP_OFFSET: _clone,
    RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN: _topic_and_group(_UPDATE, "group"),
    RequestCode.SET_MESSAGE_REQUEST_MODE: _request_mode,
    # And Sub on the topic of the record that is found.
    RequestCode.CONSUME_MESSAGE_DIRECTLY: _group_field(SUB, "consumerGroup"),
    # The whole broker.
    RequestCode.GET_ALL_TOPIC_CONFIG: _whole_table(ResourceType.TOPIC),
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: _whole_table(ResourceType.GROUP),
    RequestCode.GET_BROKER_CONFIG: _CLUSTER_GET,
    RequestCode.GET_BROKER_RUNTIME_INFO: _CLUSTER_GET,
    RequestCode.GET_ALL_CONSUMER_OFFSET: _CLUSTER_GET,
    RequestCode.GET_ALL_DELAY_OFFSET: _CLUSTER_GET,
    RequestCode.GET_TIMER_CHECK_POINT: _CLUSTER_GET,
    RequestCode.GET_TIMER_METRICS: _CLUSTER_GET,
    RequestCode.GET_PRODUCER_CONNECTION_LIST: _CLUSTER_GET,
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: _CLUSTER_GET,
    RequestCode.VIEW_BROKER_STATS_DATA: _CLUSTER_GET,
    RequestCode.GET_BROKER_CONSUME_STATS: _CLUSTER_GET,
    RequestCode.GET_ALL_PRODUCER_INFO: _CLUSTER_GET,
    RequestCode.GET_ALL_MESSAGE_REQUEST_MODE: _CLUSTER_GET,
    RequestCode.GET_BROKER_HA_STATUS: _CLUSTER_GET,
    RequestCode.LIST_TRANSACTIONS: _CLUSTER_GET,
    RequestCode.LIST_FIGURES: _CLUSTER_GET,
    RequestCode.LIST_SYSTEM_MESSAGES: _CLUSTER_GET,
    RequestCode.LIST_IN_FLIGHT: _CLUSTER_GET,
    RequestCode.GET_ESCAPED_MESSAGES: _CLUSTER_GET,
    # Sealed under the cluster secret.
    RequestCode.GET_SEALED_USERS: _CLUSTER_UPDATE,
    RequestCode.UPDATE_BROKER_CONFIG: _CLUSTER_UPDATE,
    RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE: _CLUSTER_UPDATE,
    RequestCode.CLEAN_UNUSED_TOPIC: _CLUSTER_UPDATE,
    RequestCode.DELETE_EXPIRED_COMMITLOG: _CLUSTER_UPDATE,
    RequestCode.RESUME_CHECK_HALF_MESSAGE: _CLUSTER_UPDATE,
    RequestCode.DECIDE_TRANSACTION: _CLUSTER_UPDATE,
    RequestCode.RECALL_TIMER: _CLUSTER_UPDATE,
    RequestCode.POP_ROLLBACK: _CLUSTER_UPDATE,
    RequestCode.DECIDE_IN_FLIGHT: _CLUSTER_UPDATE,
    RequestCode.EXCHANGE_BROKER_HA_INFO: _CLUSTER_UPDATE,
    RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE: _CLUSTER_UPDATE,
    RequestCode.RESET_MASTER_FLUSH_OFFSET: _CLUSTER_UPDATE,
    # Failover groups.
    RequestCode.CONTROLLER_ELECT_MASTER: _CLUSTER_UPDATE,
    RequestCode.CONTROLLER_GET_REPLICA_INFO: _CLUSTER_GET,
    RequestCode.CONTROLLER_GET_METADATA_INFO: _CLUSTER_GET,
    RequestCode.CONTROLLER_GET_SYNC_STATE_DATA: _CLUSTER_GET,
    RequestCode.GET_BROKER_EPOCH_CACHE: _CLUSTER_GET,
    # Users and rights.
    RequestCode.AUTH_CREATE_USER: _CLUSTER_UPDATE,
    RequestCode.AUTH_UPDATE_USER: _CLUSTER_UPDATE,
    RequestCode.AUTH_DELETE_USER: _CLUSTER_UPDATE,
    RequestCode.AUTH_GET_USER: _CLUSTER_GET,
    RequestCode.AUTH_LIST_USER: _CLUSTER_GET,
    RequestCode.AUTH_CREATE_ACL: _CLUSTER_UPDATE,
    RequestCode.AUTH_UPDATE_ACL: _CLUSTER_UPDATE,
    RequestCode.AUTH_DELETE_ACL: _CLUSTER_UPDATE,
    RequestCode.AUTH_GET_ACL: _CLUSTER_GET,
    RequestCode.AUTH_LIST_ACL: _CLUSTER_GET,
}

NEEDS: Mapping[int, NeedsOf] = MappingProxyType({int(code): row for code, row in _ROWS.items()})
"""The row of every request code that a broker serves."""
