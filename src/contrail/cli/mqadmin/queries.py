"""Messages: find them by id, key or place, and the trace of one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from contrail.cli.exits import CommandFailed, NotFound
from contrail.cli.mqadmin.java_text import receipt_text, second_time, truth, value_text
from contrail.cli.mqadmin.message_facts import print_message
from contrail.cli.mqadmin.options import Call, Command, may, need, switch
from contrail.cli.mqadmin.running_info import is_push
from contrail.cli.mqadmin.sending import open_producer
from contrail.client.blocking.admin import Admin
from contrail.client.message import ReceivedMessage
from contrail.errors import (
    BrokerRefused,
    ConfigError,
    OffsetIllegal,
    OptionInvalid,
    RemoteProtocolError,
)
from contrail.insight.changes.messages import message_copy
from contrail.insight.damage import DamageNoted
from contrail.insight.messages import elsewhere
from contrail.model.topic import TRACE_TOPIC
from contrail.protocol.bodies.trace import PubTrace, SubAfterTrace, decode_traces
from contrail.protocol.json_style import MessageQueue

_LONG_MAX = (1 << 63) - 1
_KEY_COUNT = 64
_HOUR_MS = 3_600_000
_BY_KEY = "K"
_TOPIC = need("t", "topic", "topic name")
_ID = need("i", "msgId", "message id")
_GROUP = may("g", "consumerGroup", "with -d: have a member of this group consume it")
_CLIENT = may("d", "clientId", "with -g: that member")
_FORMAT = may("f", "bodyFormat", "print the body in this charset too")
_BEGIN = may("b", "beginTimestamp", "stored at or after this time, in ms (0)")
_END = may("e", "endTimestamp", "stored at or before this time, in ms")
_CLUSTER = may("c", "cluster", "cluster, or LMQ parent topic; brokers are found without it")
_TRACE_LINE = "{:<10} {:<20} {:<20} {:<20} {:<10} {:<10}"


def query_msg_by_id(call: Call, admin: Admin) -> None:
    topic, damage = call.text("t"), DamageNoted()
    for message_id in filter(None, (one.strip() for one in call.text("i").split(","))):
        message = _message(admin, topic, message_id, damage)
        if call.has("g") and call.has("d"):
            _push(call, admin, message)
        elif call.has("s"):
            if call.truth("s"):
                _send_again(call, message)
        else:
            print_message(admin, message, charset=call.maybe("f"))
    damage.require_none()


def _message(admin: Admin, topic: str, message_id: str, damage: DamageNoted) -> ReceivedMessage:
    """Raises ``NotFound`` when no broker has it, ``MessageDamaged`` when none has it sound."""
    try:
        found = damage.sound(lambda: list(filter(None, [admin.message(topic, message_id)])))
    except BrokerRefused as error:
        raise NotFound(f"topic {topic!r} has no message {message_id}: {error}") from error
    if not found:
        damage.require_none()
        raise NotFound(
            f"topic {topic!r} has no message {message_id}: correct the id{elsewhere(message_id)}"
        )
    return found[0]


def _push(call: Call, admin: Admin, message: ReceivedMessage) -> None:
    group, client_id = call.text("g"), call.text("d")
    if not is_push(admin.running_info(group, client_id)):
        raise CommandFailed(f"client {client_id!r} of {group!r} is no push consumer")
    result = admin.consume_directly(group, client_id, message)
    print(
        f"ConsumeMessageDirectlyResult [order={truth(result.order)}, "
        f"autoCommit={truth(result.auto_commit)}, consumeResult={result.result}, "
        f"remark={value_text(result.remark)}, spentTimeMills={result.spent_ms}]"
    )


def _send_again(call: Call, message: ReceivedMessage) -> None:
    copy = message_copy(message, message.topic, message.properties)
    print(f"prepare resend msg. originalMsgId={message.message_id}")
    with open_producer(call) as producer:
        print(receipt_text(producer.send(copy)))


def query_msg_by_key(call: Call, admin: Admin) -> None:
    topic, key = call.text("t"), call.text("k")
    if call.maybe("p") not in (None, _BY_KEY) or call.maybe("l"):
        raise OptionInvalid("-p T and -l: brokers find messages by key only, and in one answer")
    damage = DamageNoted()
    found = damage.sound(
        lambda: admin.messages_by_key(
            topic,
            key,
            count_max=call.number("m", _KEY_COUNT),
            begin=call.number("b"),
            end=call.number("e", _LONG_MAX),
        )
    )
    print(f"{'#Message ID':<50} {'#QID':>4} {'#Offset':>40} #IndexKey")
    for one in found:
        hour_ms = one.store_timestamp_ms // _HOUR_MS * _HOUR_MS
        index = f"{hour_ms}@{topic}@{_BY_KEY}@{key}@{one.message_id}@{one.physical_offset}"
        print(f"{one.message_id:<50} {one.queue.queue_id:>4} {one.queue_offset:>40} {index}")
    damage.require_none()


def query_msg_by_unique_key(call: Call, admin: Admin) -> None:
    topic, message_id, damage = call.text("t"), call.text("i"), DamageNoted()
    if call.has("g") and call.has("d"):
        _push(call, admin, _message(admin, topic, message_id, damage))
        damage.require_none()
        return
    found = damage.sound(
        lambda: admin.messages_by_unique_key(
            topic, message_id, begin=call.number("s"), end=call.number("e", _LONG_MAX)
        )
    )
    if not found:
        damage.require_none()
        raise NotFound(f"topic {topic!r} has no message {message_id}: correct the id")
    for index, one in enumerate(found if call.has("a") else found[:1]):
        suffix = f"_{index}" if index else ""
        print_message(admin, one, with_offset_id=False, suffix=suffix)
    damage.require_none()


def query_msg_by_offset(call: Call, admin: Admin) -> None:
    queue = MessageQueue(call.text("t"), call.text("b"), call.number("i"))
    try:
        found = admin.message_at(queue, call.number("o"))
    except OffsetIllegal as error:
        raise NotFound(str(error)) from error
    print_message(admin, found, charset=call.maybe("f"))


class _Seen(NamedTuple):
    """A trace of the message, and its writer."""

    trace: PubTrace | SubAfterTrace
    client_host: str


def query_msg_trace_by_id(call: Call, admin: Admin) -> None:
    message_id, topic = call.text("i"), call.maybe("t") or TRACE_TOPIC
    damage = DamageNoted()
    found = damage.sound(
        lambda: admin.messages_by_key(
            topic,
            message_id,
            count_max=call.number("c", _KEY_COUNT),
            begin=call.number("b"),
            end=call.number("e", _LONG_MAX),
        )
    )
    seen = [one for message in found for one in _seen(message, message_id)]
    if not seen:
        damage.require_none()
        raise NotFound(f"topic {topic!r} has no trace of message {message_id}")
    for one in seen:
        if isinstance(one.trace, PubTrace):
            _print_traces("Pub", "#ProducerGroup", "#SendTime", [one])
    consumed = [one for one in seen if isinstance(one.trace, SubAfterTrace)]
    for group in dict.fromkeys(one.trace.group for one in consumed):
        of_group = [one for one in consumed if one.trace.group == group]
        _print_traces("Sub", "#ConsumerGroup", "#ConsumerTime", of_group)
    damage.require_none()


def _seen(message: ReceivedMessage, message_id: str) -> Iterator[_Seen]:
    try:
        traces = decode_traces(message.body)
    except RemoteProtocolError as error:
        raise ConfigError(f"message {message.message_id} holds no traces: {error}") from error
    for trace in traces:
        if isinstance(trace, PubTrace | SubAfterTrace) and trace.message_id == message_id:
            yield _Seen(trace, message.born_host.rpartition(":")[0])


def _print_traces(kind: str, group_head: str, time_head: str, seen: list[_Seen]) -> None:
    heads = ("#Type", group_head, "#ClientHost", time_head, "#CostTimes", "#Status")
    print(_TRACE_LINE.format(*heads))
    for trace, host in seen:
        cells = (kind, trace.group, host, second_time(trace.timestamp_ms), f"{trace.cost_ms}ms")
        print(_TRACE_LINE.format(*cells, "success" if trace.success else "failed"))
    print()


COMMANDS = (
    Command(
        "queryMsgById",
        "Messages by id, with all their facts; or have them consumed or sent again.",
        query_msg_by_id,
        (
            _TOPIC,
            need("i", "msgId", "message ids of either kind, with commas between them"),
            _GROUP,
            _CLIENT,
            may("s", "sendMessage", "true to send the message again"),
            may("u", "unitName", "unit of the producer; nothing differs"),
            _FORMAT,
            _CLUSTER,
        ),
        (106, 33, 105, 12, 300, 203, 208, 307, 309, 310),
    ),
    Command(
        "queryMsgByKey",
        "Messages with a key.",
        query_msg_by_key,
        (
            _TOPIC,
            need("k", "msgKey", "the key"),
            _BEGIN,
            _END,
            may("m", "maxNum", "at most this many (64)"),
            _CLUSTER,
            may("p", "keyType", "K for keys, the only kind that brokers of ours index (K)"),
            may("l", "lastKey", "refused: there are no pages"),
        ),
        (105, 12),
    ),
    Command(
        "queryMsgByUniqueKey",
        "The message that a producer gave an id, with all its facts.",
        query_msg_by_unique_key,
        (
            _ID,
            _GROUP,
            _CLIENT,
            _TOPIC,
            switch("a", "showAll", "all of them, 32 at most"),
            _CLUSTER,
            may("s", "startTime", "stored at or after this time, in ms (0)"),
            may("e", "endTime", "stored at or before this time, in ms"),
        ),
        (105, 12, 300, 203, 208, 307, 309),
    ),
    Command(
        "queryMsgByOffset",
        "The message at a place in a queue, with all its facts.",
        query_msg_by_offset,
        (
            _TOPIC,
            need("b", "brokerName", "broker name"),
            need("i", "queueId", "queue id"),
            need("o", "offset", "queue offset"),
            _FORMAT,
            may("r", "routeTopic", "the topic whose route is used; the topic's own is"),
        ),
        (105, 11, 300, 203, 208),
    ),
    Command(
        "queryMsgTraceById",
        "The sends and handlings of a message, from the traces of clients.",
        query_msg_trace_by_id,
        (
            _ID,
            may("t", "traceTopic", f"the topic of traces ({TRACE_TOPIC})"),
            _BEGIN,
            _END,
            may("c", "maxNum", "at most this many trace messages (64)"),
        ),
        (105, 12),
    ),
)
