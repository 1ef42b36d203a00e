"""Extreme values for every request that reaches a persisted table.

``SHAPES`` holds a sound request for each such code of a broker, ``NAMESERVER_SHAPES`` of a
NameServer. ``cases`` replaces one value at a time: each header field, and each value in a JSON
body, by what no table should have to keep. A code that a server answers must stand here or among
those that ``READERS`` says reach no table.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from contrail.protocol.codes import RequestCode as Code

TOPIC, GROUP = "orders", "billing"
ONE_WAY = 2

BROKER_TABLES = {
    "topics.json",
    "subscriptionGroup.json",
    "consumerOffset.json",
    "consumerFilter.json",
    "broker.properties",
    "delayOffset.json",
    "timermetrics",
    "contrailSinks",
    "contrailDeliveries",
    "contrailEscaped",
    "messageRequestMode.json",
    "consumerOrderInfo.json",
}

NAMES = (
    "", " ", "\t", "@", "a@b", "orders@billing", "$ref", ".", "..", "a/b", "../../etc", "a\\b",
    'a"b', "a\nb=c", "\x00", "a\x00b", "\x1f", "\x7f", "\x85", "\ud800", "a\udfffb", "\ufeff",
    "ü", "\U0001f600", "{", '{"a":1}', "null", "true", "-1", "%", "%RETRY%", "%DLQ%billing",
    "%RETRY%a@b", "TBW102", "x" * 120, "x" * 121, "x" * 127, "x" * 128, "x" * 255, "x" * 256,
    "x" * 60_000,
)  # fmt: skip
NUMBERS = (
    "", " ", "x", "-", "+1", "-0", "007", "1.5", "1e3", "0x10", "١", "null", "true",
    "-1", "0", "1", "255", "65535", "65536", "1000000", "2147483647", "2147483648", "-2147483648",
    "-2147483649", "9223372036854775807", "9223372036854775808", "-9223372036854775808",
    "-9223372036854775809", "9" * 25, "9" * 5000,
)  # fmt: skip
SWITCHES = ("", "TRUE", "false", "1", "yes", "\ud800")
TEXTS = (
    *NAMES,
    "+queue.type=BatchCQ",
    "+$ref=x",
    "+contrail.dedupe.window.ms=-1",
    "-" * 60_000,
    "a,b,,=",
)
JSON_VALUES: tuple[Any, ...] = (
    None, True, -1, 0, 2**31 - 1, 2**31, -(2**31) - 1, 2**63 - 1, 2**63, -(2**63) - 1, 10**40, 1.5,
    1e308, "", " ", "x", "-1", "\ud800", "a\nb", "a@b", "$ref", "x" * 60_000, [], {}, [None], [[]],
    [{}], {"": ""}, {"$ref": "$"}, {"$ref": "$.dataVersion"}, [{"$ref": "$.x"}], {"a\x00": 1},
)  # fmt: skip


class Shape(NamedTuple):
    """A sound request: header fields as (kind, value), and a body."""

    fields: Mapping[str, tuple[tuple[str, ...], str]] = {}
    body: object = b""
    flag: int = 0


class Case(NamedTuple):
    """A request with one extreme value."""

    label: str
    code: int
    fields: dict[str, str]
    body: bytes
    flag: int = 0


def _topic(**changes: object) -> dict[str, object]:
    return {
        "topicName": "made",
        "readQueueNums": 4,
        "writeQueueNums": 4,
        "perm": 6,
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": 0,
        "order": False,
        "attributes": {"+message.type": "NORMAL"},
        "more": 1,
        **changes,
    }


def _group() -> dict[str, object]:
    return {
        "groupName": "made",
        "consumeEnable": True,
        "consumeFromMinEnable": True,
        "consumeBroadcastEnable": True,
        "consumeMessageOrderly": False,
        "retryQueueNums": 1,
        "retryMaxTimes": 16,
        "groupRetryPolicy": {
            "type": "CUSTOMIZED",
            "exponentialRetryPolicy": {"initial": 5000, "max": 7200000, "multiplier": 2},
            "customizedRetryPolicy": {"next": [1000, 2000]},
        },
        "brokerId": 0,
        "whichBrokerWhenConsumeSlowly": 1,
        "notifyConsumerIdsChangedEnable": True,
        "groupSysFlag": 0,
        "consumeTimeoutMinute": 15,
        "subscriptionDataSet": [{"topic": "t", "expressionType": "TAG", "expression": "*"}],
        "attributes": {},
        "more": {"deep": 1},
    }


_PULL = {
    "consumerGroup": (NAMES, GROUP),
    "topic": (NAMES, TOPIC),
    "queueId": (NUMBERS, "0"),
    "queueOffset": (NUMBERS, "0"),
    "maxMsgNums": (NUMBERS, "32"),
    "sysFlag": (NUMBERS, "5"),
    "commitOffset": (NUMBERS, "1"),
    "suspendTimeoutMillis": (NUMBERS, "0"),
    "subscription": (TEXTS, "*"),
    "subVersion": (NUMBERS, "0"),
    "expressionType": (NAMES, "TAG"),
}
_SEND = {
    "producerGroup": (NAMES, "p"),
    "topic": (NAMES, "sent"),
    "defaultTopic": (NAMES, "TBW102"),
    "defaultTopicQueueNums": (NUMBERS, "4"),
    "queueId": (NUMBERS, "0"),
    "sysFlag": (NUMBERS, "0"),
    "bornTimestamp": (NUMBERS, "0"),
    "flag": (NUMBERS, "0"),
    "properties": (TEXTS, "KEYS\x01k\x02"),
    "reconsumeTimes": (NUMBERS, "0"),
    "unitMode": (SWITCHES, "false"),
    "batch": (SWITCHES, "false"),
    "maxReconsumeTimes": (NUMBERS, "16"),
}
_SEND_LETTERS = dict(zip(_SEND, "abcdefghijkml", strict=True))
_OFFSET = {
    "consumerGroup": (NAMES, GROUP),
    "topic": (NAMES, TOPIC),
    "queueId": (NUMBERS, "0"),
    "commitOffset": (NUMBERS, "1"),
}
_TOPIC_FIELDS = {
    "topic": (NAMES, "made"),
    "defaultTopic": (NAMES, "TBW102"),
    "readQueueNums": (NUMBERS, "4"),
    "writeQueueNums": (NUMBERS, "4"),
    "perm": (NUMBERS, "6"),
    "topicFilterType": (NAMES, "SINGLE_TAG"),
    "topicSysFlag": (NUMBERS, "0"),
    "order": (SWITCHES, "false"),
    "attributes": (TEXTS, "+message.type=NORMAL"),
}
_END = {
    "producerGroup": (NAMES, "p"),
    "tranStateTableOffset": (NUMBERS, "0"),
    "commitLogOffset": (NUMBERS, "0"),
    "commitOrRollback": (NUMBERS, "8"),
    "msgId": (NAMES, "m"),
    "transactionId": (NAMES, "t"),
}
_SINK = {"sinkId": (NAMES, "sink"), "batchId": (NUMBERS, "1")}
_RECALL = {
    "producerGroup": (NAMES, "p"),
    "topic": (NAMES, TOPIC),
    "recallHandle": (TEXTS, "h"),
}
_POP = {
    "consumerGroup": (NAMES, GROUP),
    "topic": (NAMES, TOPIC),
    "queueId": (NUMBERS, "-1"),
    "maxMsgNums": (NUMBERS, "32"),
    "invisibleTime": (NUMBERS, "60000"),
    # Not to wait for messages.
    "pollTime": ((), "0"),
    "bornTime": (NUMBERS, "0"),
    "initMode": (NUMBERS, "0"),
    "exp": (TEXTS, "*"),
    "expType": (NAMES, "TAG"),
    "order": (SWITCHES, "false"),
    "attemptId": (TEXTS, "a"),
}
_POP_ACK = {
    "consumerGroup": (NAMES, GROUP),
    "topic": (NAMES, TOPIC),
    "queueId": (NUMBERS, "0"),
    "extraInfo": (TEXTS, "0 1700000000000 60000 0 0 broker-a 0 0"),
    "offset": (NUMBERS, "0"),
}
_BATCH_ACK = {
    "b": "Cw==",
    "c": GROUP,
    "it": 60000,
    "pt": 1700000000000,
    "q": 0,
    "r": "0",
    "rq": 0,
    "so": 0,
    "t": TOPIC,
}
_BODY = b"a body"

SHAPES: Mapping[Code, tuple[Shape, ...]] = {
    Code.UPDATE_CONSUMER_OFFSET: (Shape(_OFFSET), Shape(_OFFSET, flag=ONE_WAY)),
    Code.PULL_MESSAGE: (Shape(_PULL),),
    Code.LITE_PULL_MESSAGE: (Shape(_PULL),),
    Code.INVOKE_BROKER_TO_RESET_OFFSET: (
        Shape(
            {
                "topic": (NAMES, TOPIC),
                "group": (NAMES, GROUP),
                "timestamp": (NUMBERS, "-1"),
                "isForce": (SWITCHES, "true"),
                "queueId": (NUMBERS, "0"),
                "offset": (NUMBERS, "0"),
            }
        ),
    ),
    Code.CLONE_GROUP_OFFSET: (
        Shape(
            {
                "srcGroup": (NAMES, GROUP),
                "destGroup": (NAMES, "cloned"),
                "topic": (NAMES, TOPIC),
                "offline": (SWITCHES, "true"),
            }
        ),
    ),
    Code.UPDATE_AND_CREATE_TOPIC: (Shape(_TOPIC_FIELDS),),
    Code.UPDATE_AND_CREATE_TOPIC_LIST: (Shape(body={"topicConfigList": [_topic()]}),),
    Code.DELETE_TOPIC_IN_BROKER: (Shape({"topic": (NAMES, "gone")}),),
    Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: (Shape(body=_group()),),
    Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: (Shape(body={"groupConfigList": [_group()]}),),
    Code.DELETE_SUBSCRIPTIONGROUP: (
        Shape({"groupName": (NAMES, "gone"), "cleanOffset": (SWITCHES, "true")}),
    ),
    Code.GET_SUBSCRIPTIONGROUP_CONFIG: (Shape({"group": (NAMES, "asked")}),),
    Code.UPDATE_AND_GET_GROUP_FORBIDDEN: (
        Shape(
            {
                "group": (NAMES, GROUP),
                "topic": (NAMES, TOPIC),
                "readable": (SWITCHES, "false"),
            }
        ),
    ),
    Code.SET_MESSAGE_REQUEST_MODE: (
        Shape(
            body={"topic": TOPIC, "consumerGroup": "moded", "mode": "POP", "popShareQueueNum": 1}
        ),
    ),
    Code.POP_MESSAGE: (Shape(_POP),),
    Code.ACK_MESSAGE: (Shape(_POP_ACK),),
    Code.BATCH_ACK_MESSAGE: (Shape(body={"acks": [_BATCH_ACK], "brokerName": "broker-a"}),),
    Code.CHANGE_MESSAGE_INVISIBLETIME: (Shape({**_POP_ACK, "invisibleTime": (NUMBERS, "60000")}),),
    Code.UPDATE_BROKER_CONFIG: tuple(
        Shape(body=f"{name}={value}".encode())
        for name in ("shortPollingTimeMills", "traceOn", "brokerName", "nonsense", "$ref", "")
        for value in (*NUMBERS, *SWITCHES[:-1], "\\n1", "1\\n", "\\u00a01", "\\ud800", "true\\f")
    ),
    Code.HEART_BEAT: (
        Shape(
            body={
                "clientID": "c",
                "consumerDataSet": [
                    {
                        "groupName": "beating",
                        "consumeType": "CONSUME_PASSIVELY",
                        "messageModel": "CLUSTERING",
                        "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
                        "subscriptionDataSet": [
                            {
                                "topic": TOPIC,
                                "subString": "a > 1",
                                "expressionType": "SQL92",
                                "subVersion": 7,
                                "tagsSet": [],
                                "codeSet": [],
                                "classFilterMode": False,
                            }
                        ],
                        "unitMode": False,
                    }
                ],
                "producerDataSet": [{"groupName": "p"}],
            }
        ),
    ),
    Code.UNREGISTER_CLIENT: (
        Shape(
            {
                "clientID": (NAMES, "c"),
                "producerGroup": (NAMES, "p"),
                "consumerGroup": (NAMES, "leaving"),
            }
        ),
    ),
    Code.SEND_MESSAGE: (Shape(_SEND, _BODY), Shape(_SEND, _BODY, ONE_WAY)),
    Code.SEND_MESSAGE_V2: (
        Shape({_SEND_LETTERS[name]: kind for name, kind in _SEND.items()}, _BODY),
    ),
    Code.SEND_BATCH_MESSAGE: (
        Shape({_SEND_LETTERS[name]: kind for name, kind in _SEND.items()}, _BODY),
    ),
    Code.SEND_REPLY_MESSAGE: (Shape(_SEND, _BODY),),
    Code.SEND_REPLY_MESSAGE_V2: (
        Shape({_SEND_LETTERS[name]: kind for name, kind in _SEND.items()}, _BODY),
    ),
    Code.CONSUMER_SEND_MSG_BACK: (
        Shape(
            {
                "offset": (NUMBERS, "0"),
                "group": (NAMES, GROUP),
                "delayLevel": (NUMBERS, "1"),
                "originMsgId": (NAMES, "m"),
                "originTopic": (NAMES, TOPIC),
                "unitMode": (SWITCHES, "false"),
                "maxReconsumeTimes": (NUMBERS, "16"),
            }
        ),
    ),
    # Some ends of transactions are not answered, as by RocketMQ.
    Code.END_TRANSACTION: (Shape(_END, flag=ONE_WAY),),
    Code.RESUME_CHECK_HALF_MESSAGE: (Shape({"topic": (NAMES, TOPIC), "msgId": (NAMES, "m")}),),
    Code.DECIDE_TRANSACTION: (
        Shape({"transactionId": (NAMES, "t"), "commit": (SWITCHES, "true")}),
    ),
    Code.RECALL_MESSAGE: (Shape(_RECALL),),
    Code.RECALL_TIMER: (Shape(_RECALL),),
    Code.DECIDE_IN_FLIGHT: (
        Shape(
            {
                "consumerGroup": (NAMES, GROUP),
                "handle": (TEXTS, "orders/0/1700000000000/60000/0/0/broker-a/0/0"),
                "fate": (TEXTS, "ack"),
            }
        ),
        Shape(
            {
                "consumerGroup": (NAMES, GROUP),
                "handle": (NAMES, "orders/0/1700000000000/60000/999/0/broker-a/0/0"),
                "fate": (NAMES, "return"),
            }
        ),
    ),
    Code.CLEAN_UNUSED_TOPIC: (Shape({"x": (NAMES, "")}),),
    Code.CONTRAIL_SINK_BEGIN: (
        Shape(_SINK, {"topics": {TOPIC: [["broker-a", 0]]}, "coordinator": "broker-a"}),
    ),
    Code.CONTRAIL_SINK_SEND: (
        Shape(
            {
                "topic": (NAMES, TOPIC),
                "queueId": (NUMBERS, "0"),
                "producerGroup": (NAMES, "p"),
                "prepared": (SWITCHES, "false"),
            },
            _BODY,
        ),
    ),
    Code.CONTRAIL_SINK_COMMIT: (
        Shape(
            {**_SINK, "decide": (SWITCHES, "true")}, {"participants": {"broker-a": {"0": "one"}}}
        ),
    ),
    Code.CONTRAIL_SINK_ABORT: (Shape(_SINK, {"attempts": ["one"]}),),
    Code.CONTRAIL_SINK_STATUS: (Shape({"sinkId": (NAMES, "sink")}),),
}

NAMESERVER_SHAPES: Mapping[Code, tuple[Shape, ...]] = {
    Code.PUT_KV_CONFIG: (
        Shape({"namespace": (NAMES, "n"), "key": (NAMES, "k"), "value": (TEXTS, "v")}),
    ),
    Code.DELETE_KV_CONFIG: (Shape({"namespace": (NAMES, "n"), "key": (NAMES, "k")}),),
    Code.UPDATE_NAMESRV_CONFIG: tuple(
        Shape(body=f"{name}={value}".encode())
        for name in ("waitSecondsForService", "enableTopicList", "kvConfigPath", "nonsense")
        for value in (*NUMBERS, *SWITCHES[:-1], "\\n1", "\\ud800")
    ),
}

READERS = frozenset(
    {
        Code.QUERY_ASSIGNMENT,
        Code.POLLING_INFO,
        Code.PEEK_MESSAGE,
        Code.NOTIFICATION,
        Code.LIST_IN_FLIGHT,
        Code.POP_ROLLBACK,
        Code.EXCHANGE_BROKER_HA_INFO,
        Code.GET_BROKER_HA_STATUS,
        Code.RESET_MASTER_FLUSH_OFFSET,
        Code.GET_ALL_MESSAGE_REQUEST_MODE,
        Code.QUERY_MESSAGE,
        Code.QUERY_CONSUMER_OFFSET,
        Code.GET_ALL_TOPIC_CONFIG,
        Code.GET_BROKER_CONFIG,
        Code.GET_BROKER_RUNTIME_INFO,
        Code.SEARCH_OFFSET_BY_TIMESTAMP,
        Code.GET_MAX_OFFSET,
        Code.GET_MIN_OFFSET,
        Code.GET_EARLIEST_MSG_STORETIME,
        Code.VIEW_MESSAGE_BY_ID,
        Code.GET_CONSUMER_LIST_BY_GROUP,
        Code.LOCK_BATCH_MQ,
        Code.UNLOCK_BATCH_MQ,
        Code.GET_ALL_CONSUMER_OFFSET,
        Code.GET_ALL_DELAY_OFFSET,
        Code.GET_ESCAPED_MESSAGES,
        Code.CHECK_CLIENT_CONFIG,
        Code.GET_TIMER_CHECK_POINT,
        Code.GET_TIMER_METRICS,
        Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
        Code.GET_TOPIC_STATS_INFO,
        Code.GET_CONSUMER_CONNECTION_LIST,
        Code.GET_PRODUCER_CONNECTION_LIST,
        Code.GET_CONSUME_STATS,
        Code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS,
        Code.QUERY_TOPIC_CONSUME_BY_WHO,
        Code.QUERY_CONSUME_TIME_SPAN,
        Code.GET_SYSTEM_TOPIC_LIST_FROM_BROKER,
        Code.CLEAN_EXPIRED_CONSUMEQUEUE,
        Code.GET_CONSUMER_RUNNING_INFO,
        Code.QUERY_CORRECTION_OFFSET,
        Code.CONSUME_MESSAGE_DIRECTLY,
        Code.VIEW_BROKER_STATS_DATA,
        Code.GET_BROKER_CONSUME_STATS,
        Code.QUERY_CONSUME_QUEUE,
        Code.GET_ALL_PRODUCER_INFO,
        Code.DELETE_EXPIRED_COMMITLOG,
        Code.QUERY_TOPICS_BY_CONSUMER,
        Code.QUERY_SUBSCRIPTION_BY_CONSUMER,
        Code.GET_TOPIC_CONFIG,
        Code.LIST_FIGURES,
        Code.LIST_TRANSACTIONS,
        Code.LIST_SYSTEM_MESSAGES,
        # Of the NameServer, whose routes are in memory only.
        Code.GET_KV_CONFIG,
        Code.REGISTER_BROKER,
        Code.UNREGISTER_BROKER,
        Code.GET_ROUTEINFO_BY_TOPIC,
        Code.GET_BROKER_CLUSTER_INFO,
        Code.WIPE_WRITE_PERM_OF_BROKER,
        Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER,
        Code.DELETE_TOPIC_IN_NAMESRV,
        Code.REGISTER_TOPIC_IN_NAMESRV,
        Code.GET_KVLIST_BY_NAMESPACE,
        Code.GET_TOPICS_BY_CLUSTER,
        Code.GET_SYSTEM_TOPIC_LIST_FROM_NS,
        Code.GET_UNIT_TOPIC_LIST,
        Code.GET_HAS_UNIT_SUB_TOPIC_LIST,
        Code.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST,
        Code.GET_NAMESRV_CONFIG,
        Code.QUERY_DATA_VERSION,
        Code.ADD_WRITE_PERM_OF_BROKER,
        Code.GET_BROKER_MEMBER_GROUP,
        Code.BROKER_HEARTBEAT,
    }
)
"""Codes that are answered and reach no table that is written to a file."""


def cases(code: Code, shapes: tuple[Shape, ...]) -> Iterator[Case]:
    """The sound request, then each value of it replaced by extreme ones."""
    for shape in shapes:
        sound = {name: value for name, (_, value) in shape.fields.items()}
        yield Case("sound", code, sound, _encoded(shape.body), shape.flag)
        for name, (kind, _) in shape.fields.items():
            for value in kind:
                label = f"{name}={value[:40]!r}"
                fields = {**sound, name: value}
                yield Case(label, code, fields, _encoded(shape.body), shape.flag)
        if isinstance(shape.body, dict):
            for label, body in _bodies(shape.body):
                yield Case(label, code, sound, body, shape.flag)


def _bodies(base: dict[str, Any]) -> Iterator[tuple[str, bytes]]:
    yield "no body", b""
    yield "no JSON", b"{"
    yield "an array", b"[]"
    for path in _places(base):
        for value in JSON_VALUES:
            yield f"{path}={str(value)[:40]!r}", _encoded(_with(base, path, value))
        # As deep as a body may be, so that its entry in the file is deeper.
        for depth in (20, 28, 31):
            nested = "[" * depth + "]" * depth
            body = _encoded(_with(base, path, "NESTED")).replace(b'"NESTED"', nested.encode())
            yield f"{path} {depth} deep", body


def _places(value: object, path: tuple[object, ...] = ()) -> Iterator[tuple[object, ...]]:
    items: Any = value.items() if isinstance(value, dict) else ()
    if isinstance(value, list):
        items = enumerate(value)
    for key, inner in items:
        yield (*path, key)
        yield from _places(inner, (*path, key))


def _with(base: dict[str, Any], path: tuple[object, ...], value: object) -> dict[str, Any]:
    changed = copy.deepcopy(base)
    parent: Any = changed
    for key in path[:-1]:
        parent = parent[key]
    parent[path[-1]] = value
    return changed


def _encoded(body: object) -> bytes:
    if isinstance(body, bytes):
        return body
    # Escaped, so that the body's own reader does not take it for a reference.
    return json.dumps(body).replace('"$ref"', '"\\u0024ref"').encode()
