"""The table of request codes in scope: the fields of each, with values that are valid.

The kinds of the fields say how they can be wrong: see ``generator.py``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.interop.differential.requests import BROKER, NAMESRV, Body, FieldValue, Reference

TOPIC, GROUP, TEXT, INT, LONG, BOOL = "topic", "group", "text", "int", "long", "bool"

# Topics and groups that the opening makes: see ``opening.py``.
TOPICS = ("Alpha", "Beta", "Single", "Empty", "ReadOnly", "WriteOnly", "Closed", "Ordered")
READ_TOPICS = ("Alpha", "Alpha", "Alpha", "Beta", "Single", "Empty")
GROUPS = ("Online", "Offline", "Fresh")
KNOWN_GROUPS = ("Online", "Offline", "Fresh", "Disabled", "Broadcast", "NoBroadcast")
QUEUE_IDS = ("0", "1", "2", "3")
LATE_MS = "9000000000000"
# Where the opening stores messages: see ``opening.py``.
QUEUES_WITH_MESSAGES = frozenset(
    {("Alpha", "0"), ("Alpha", "1"), ("Alpha", "2"), ("Single", "0")}
    | {("Beta", str(number)) for number in range(4)}
)


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a request: its kind and values that make a valid request."""

    kind: str
    values: tuple[FieldValue, ...]
    required: bool = True


@dataclass(frozen=True, slots=True)
class Spec:
    """One request code: its fields, and bodies that are valid."""

    target: str
    code: int
    fields: Mapping[str, Field] = field(default_factory=dict)
    bodies: tuple[Body, ...] = ()
    valid_count: int = 8
    json_body: bool = False
    bad: bool = True


def needed(kind: str, *values: FieldValue, required: bool = True) -> Field:
    return Field(kind, values, required)


def optional(kind: str, *values: FieldValue) -> Field:
    return Field(kind, (None, *values), required=False)


def encode_json(value: Any) -> bytes:
    return json.dumps(value).encode()


def encode_properties(properties: Mapping[str, str]) -> str:
    return "".join(f"{name}\x01{value}\x02" for name, value in properties.items())


def encode_batch(entries: list[tuple[bytes, str]], *, flag: int = 0) -> bytes:
    """The body of a batch: size, magic, CRC, flag, body and properties of each message."""
    whole = bytearray()
    for body, properties in entries:
        text = properties.encode()
        size = 4 * 5 + len(body) + 2 + len(text)
        for number in (size, 0, 0, flag, len(body)):
            whole += number.to_bytes(4, "big")
        whole += body + len(text).to_bytes(2, "big") + text
    return bytes(whole)


_QUEUE = {
    "topic": needed(TOPIC, *READ_TOPICS),
    "queueId": needed(INT, *QUEUE_IDS),
}
_TAGGED = encode_properties({"TAGS": "TagA", "KEYS": "k-1 k-2", "UNIQ_KEY": "unique-7"})
SEND_LONG = {
    "producerGroup": needed(GROUP, "Writers"),
    "topic": needed(TOPIC, "SendHere", "SendThere", "ReadOnly", "WriteOnly"),
    "defaultTopic": needed(TOPIC, "TBW102"),
    "defaultTopicQueueNums": needed(INT, "4"),
    "queueId": needed(INT, "0", "1", "3"),
    "sysFlag": needed(INT, "0", "1", "769"),
    "bornTimestamp": needed(LONG, "1600000000000"),
    "flag": needed(INT, "0", "7"),
    "properties": optional(TEXT, _TAGGED),
    "reconsumeTimes": optional(INT, "0"),
    "unitMode": optional(BOOL, "false"),
    "maxReconsumeTimes": optional(INT, "16"),
    "batch": optional(BOOL, "false"),
}
SEND_SHORT = dict(zip("abcdefghijklm", SEND_LONG.values(), strict=True))
_BATCH = encode_batch([(b"one", _TAGGED), (b"two", ""), (b"three", "KEYS\x01deep\x02")])
_SEND_BATCH = SEND_SHORT | {"f": needed(INT, "0"), "m": needed(BOOL, "true")}
_PULL = {
    "consumerGroup": needed(GROUP, "Online", "Offline", "Fresh"),
    "topic": needed(TOPIC, *READ_TOPICS),
    "queueId": needed(INT, *QUEUE_IDS),
    "queueOffset": needed(LONG, "0", "1", "3", "5", "500"),
    "maxMsgNums": needed(INT, "1", "4", "32", "100"),
    "sysFlag": needed(INT, "4", "4", "5", "0"),
    "commitOffset": needed(LONG, "2", "0"),
    "suspendTimeoutMillis": needed(LONG, "0"),
    "subscription": needed(TEXT, "*", "TagA", "TagA || TagB", "TagC", required=False),
    "subVersion": needed(LONG, "0", "1"),
    "expressionType": optional(TEXT, "TAG"),
}
_SQL = _PULL | {
    "sysFlag": needed(INT, "4"),
    "subscription": needed(
        TEXT,
        "a > 5",
        "a between 2 and 6 and b = 'blue'",
        "a is null or b in ('red', 'green')",
        "not (b = 'red')",
        "TRUE",
    ),
    "expressionType": needed(TEXT, "SQL92"),
}
_BROKEN_SQL = _SQL | {
    "consumerGroup": needed(GROUP, "WrongGroup"),
    "subscription": needed(TEXT, "a > ", "a = 'text' + 3", ""),
    "expressionType": needed(TEXT, "SQL92", "sql92", "OTHER"),
}
_QUERY = {
    "topic": needed(TOPIC, "Alpha", "Beta"),
    "key": needed(TEXT, "key-1", "key-2", "key-3", "absent", "unique-3"),
    "maxNum": needed(INT, "1", "10", "32", "100"),
    "beginTimestamp": needed(LONG, "0"),
    "endTimestamp": needed(LONG, LATE_MS, "1"),
    "_UNIQUE_KEY_QUERY": optional(BOOL, "true", "false"),
}
_OFFSETS = {
    "consumerGroup": needed(GROUP, *KNOWN_GROUPS),
    "topic": needed(TOPIC, *READ_TOPICS),
    "queueId": needed(INT, *QUEUE_IDS),
}
ANY_MESSAGE = tuple(Reference(f"alpha-{number}", "msgId", physical=True) for number in (0, 3, 7))
_QUEUES = [{"brokerName": "broker-a", "queueId": number, "topic": "Alpha"} for number in range(3)]


def subscription(topic: str, expression: str, *, kind: str = "TAG", version: int = 1) -> Any:
    """SubscriptionData as a client sends it."""
    tags = [] if expression == "*" or kind != "TAG" else expression.split(" || ")
    return {
        "classFilterMode": False,
        "codeSet": [_java_hash(tag) for tag in tags],
        "expressionType": kind,
        "subString": expression,
        "subVersion": version,
        "tagsSet": tags,
        "topic": topic,
    }


def _java_hash(text: str) -> int:
    value = 0
    for character in text:
        value = (31 * value + ord(character)) & 0xFFFFFFFF
    return value - (1 << 32) if value & 0x80000000 else value


def heartbeat(
    client_id: str,
    consumers: Mapping[str, list[Any]],
    producers: tuple[str, ...] = (),
    *,
    model: str = "CLUSTERING",
    where: str = "CONSUME_FROM_LAST_OFFSET",
    fingerprint: int = 0,
    without: bool = False,
) -> bytes:
    """HeartbeatData: the groups of one client."""
    groups = [
        {
            "consumeFromWhere": where,
            "consumeType": "CONSUME_PASSIVELY",
            "groupName": group,
            "messageModel": model,
            "subscriptionDataSet": subscriptions,
            "unitMode": False,
        }
        for group, subscriptions in consumers.items()
    ]
    return encode_json(
        {
            "clientID": client_id,
            "consumerDataSet": groups,
            "heartbeatFingerprint": fingerprint,
            "producerDataSet": [{"groupName": group} for group in producers],
            "withoutSub": without,
        }
    )


def _locks(client_id: str, group: str = "Online") -> bytes:
    return encode_json({"clientId": client_id, "consumerGroup": group, "mqSet": _QUEUES})


def _check(expression: str, kind: str) -> bytes:
    data = subscription("Alpha", expression, kind=kind)
    whole = {"clientId": "c-1", "group": "Online", "namespace": "", "subscriptionData": data}
    return encode_json(whole)


def _mode(topic: str, mode: str) -> bytes:
    whole = {"consumerGroup": "Moded", "mode": mode, "popShareQueueNum": 0, "topic": topic}
    return encode_json(whole)


def group_config(name: str, **changed: Any) -> Any:
    """SubscriptionGroupConfig with its defaults, except for ``changed``."""
    whole = {
        "groupName": name,
        "consumeEnable": True,
        "consumeFromMinEnable": True,
        "consumeBroadcastEnable": True,
        "retryQueueNums": 1,
        "retryMaxTimes": 16,
        "brokerId": 0,
        "whichBrokerWhenConsumeSlowly": 1,
        "notifyConsumerIdsChangedEnable": True,
    }
    return whole | changed


def topic_config(name: str, **changed: Any) -> Any:
    """TopicConfig with its defaults, except for ``changed``."""
    whole = {
        "topicName": name,
        "readQueueNums": 4,
        "writeQueueNums": 4,
        "perm": 6,
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": 0,
        "order": False,
        "attributes": {},
    }
    return whole | changed


def register_body(topics: list[Any], *, counter: int = 1) -> bytes:
    """RegisterBrokerBody with those topics."""
    version = {"counter": counter, "stateVersion": 0, "timestamp": 1600000000000}
    table = {topic["topicName"]: topic for topic in topics}
    wrapper = {
        "dataVersion": version,
        "mappingDataVersion": version,
        "topicConfigTable": table,
        "topicQueueMappingDetailMap": {},
        "topicQueueMappingInfoMap": {},
    }
    return encode_json({"filterServerList": [], "topicConfigSerializeWrapper": wrapper})


_TOPIC_SETTINGS = {
    "topic": needed(TOPIC, "Made", "MadeToo", "Beta"),
    "defaultTopic": needed(TOPIC, "TBW102"),
    "readQueueNums": needed(INT, "4", "8", "1"),
    "writeQueueNums": needed(INT, "4", "2", "8"),
    "perm": needed(INT, "6", "4", "2"),
    "topicFilterType": needed(TEXT, "SINGLE_TAG", "MULTI_TAG"),
    "topicSysFlag": optional(INT, "0", "1"),
    "order": needed(BOOL, "false", "true"),
    "attributes": optional(TEXT, "", "+message.type=NORMAL", "+nonsense=1", "-message.type"),
}


def _fake_broker(name: str, port: int) -> dict[str, Field]:
    """The identity of a broker; another cluster or address is another broker: see the stories."""
    return {
        "brokerName": needed(TEXT, name),
        "brokerAddr": needed(TEXT, f"127.0.0.1:{port}"),
        "clusterName": needed(TEXT, "FakeCluster"),
        "brokerId": needed(LONG, "0", "1"),
    }


_FAKE_TOPICS = register_body([topic_config("FakeOne"), topic_config("FakeTwo", perm=4)])

CLIENT_SPECS = (
    Spec(BROKER, 10, SEND_LONG, (b"body", b"x" * 5000), 12),
    Spec(BROKER, 310, SEND_SHORT, (b"body", b"y" * 300), 24),
    Spec(BROKER, 320, _SEND_BATCH, (_BATCH,), 10),
    Spec(BROKER, 11, _PULL, valid_count=120),
    Spec(BROKER, 11, _SQL, valid_count=30, bad=False),
    Spec(BROKER, 11, _BROKEN_SQL, valid_count=10, bad=False),
    Spec(BROKER, 361, _PULL, valid_count=30),
    Spec(BROKER, 12, _QUERY, valid_count=30),
    Spec(
        BROKER,
        14,
        _OFFSETS | {"setZeroIfNotFound": optional(BOOL, "true", "false")},
        valid_count=40,
    ),
    Spec(BROKER, 15, _OFFSETS | {"commitOffset": needed(LONG, "0", "2", "4")}, valid_count=30),
    Spec(
        BROKER,
        29,
        _QUEUE
        | {
            "timestamp": needed(LONG, "0", LATE_MS, "1600000000000"),
            "boundaryType": optional(TEXT, "lower", "upper", "UPPER", "LOWER"),
        },
        valid_count=24,
    ),
    Spec(BROKER, 30, _QUEUE | {"committed": optional(BOOL, "true", "false")}, valid_count=16),
    Spec(BROKER, 31, _QUEUE, valid_count=12),
    Spec(BROKER, 32, _QUEUE, valid_count=12),
    Spec(
        BROKER,
        33,
        {"topic": optional(TOPIC, "Alpha"), "offset": needed(LONG, *ANY_MESSAGE)},
        valid_count=8,
    ),
    Spec(
        BROKER,
        34,
        {},
        (
            heartbeat("client-x", {"Extra": [subscription("Alpha", "*")]}, ("ExtraWriters",)),
            heartbeat("client-x", {}, ("ExtraWriters", "MoreWriters")),
            heartbeat("client-x", {"Extra": []}),
            heartbeat("client-x", {"Extra": [subscription("Beta", "TagA")]}, fingerprint=77),
            heartbeat("client-x", {"Extra": []}, fingerprint=77, without=True),
            heartbeat("", {"Extra": []}),
        ),
        12,
        json_body=True,
    ),
    Spec(
        BROKER,
        35,
        {
            "clientID": needed(TEXT, "client-x", "nobody"),
            "producerGroup": optional(GROUP, "MoreWriters"),
            "consumerGroup": optional(GROUP, "Extra"),
        },
    ),
    Spec(BROKER, 38, {"consumerGroup": needed(GROUP, *KNOWN_GROUPS)}, valid_count=8),
    Spec(
        BROKER,
        41,
        {},
        (_locks("client-1"), _locks("client-2"), _locks("client-1", "Fresh")),
        12,
        json_body=True,
    ),
    Spec(BROKER, 42, {}, (_locks("client-1"), _locks("client-2")), json_body=True),
    Spec(
        BROKER,
        46,
        {},
        (
            _check("*", "TAG"),
            _check("a > 1", "SQL92"),
            _check("a >", "SQL92"),
            _check("x", "OTHER"),
            _check("", "SQL92"),
        ),
        10,
        json_body=True,
    ),
    Spec(
        BROKER,
        307,
        {
            "consumerGroup": needed(GROUP, "Offline", "Online"),
            "clientId": needed(TEXT, "nobody"),
            "jstackEnable": optional(BOOL, "false"),
        },
        valid_count=4,
    ),
    Spec(
        BROKER,
        309,
        {
            "consumerGroup": needed(GROUP, "Offline"),
            "clientId": optional(TEXT, "nobody"),
            "msgId": optional(TEXT, Reference("alpha-0", "msgId")),
        },
        valid_count=4,
    ),
    Spec(
        NAMESRV,
        105,
        {
            "topic": needed(TOPIC, "FakeOne", "Alpha", "Beta", "Ordered"),
            "acceptStandardJsonOnly": optional(BOOL, "true", "false"),
        },
        valid_count=16,
    ),
)

# Longer than the run on a busy machine: the two servers look for silent brokers at different times.
HEARTBEAT_TIMEOUT_MS = "3600000"
_REGISTRATION = {
    "haServerAddr": needed(TEXT, "127.0.0.1:3333"),
    "heartbeatTimeoutMillis": optional(LONG, HEARTBEAT_TIMEOUT_MS),
    "enableActingMaster": optional(BOOL, "false"),
    "compressed": optional(BOOL, "false"),
    "bodyCrc32": optional(INT, "0"),
}
_REGISTERED = (
    _FAKE_TOPICS,
    register_body([topic_config("FakeThree"), topic_config("FakeFour", topicSysFlag=1)], counter=2),
)
_VERSION = encode_json({"counter": 1, "stateVersion": 0, "timestamp": 1600000000000})


def _registration_specs(name: str, port: int, *, bad: bool) -> tuple[Spec, ...]:
    who = _fake_broker(name, port)
    alive = who | {"heartbeatTimeoutMills": optional(LONG, HEARTBEAT_TIMEOUT_MS)}
    return (
        Spec(NAMESRV, 103, who | _REGISTRATION, _REGISTERED, 8, json_body=True, bad=bad),
        Spec(NAMESRV, 104, who, valid_count=3, bad=bad),
        Spec(NAMESRV, 322, who, (_VERSION,), 4, json_body=True, bad=bad),
        Spec(NAMESRV, 904, alive, valid_count=4, bad=bad),
    )


REGISTRATION_SPECS = (
    *_registration_specs("fake-a", 1111, bad=True),
    *_registration_specs("fake-b", 2222, bad=False),
    Spec(
        NAMESRV,
        901,
        {
            "clusterName": needed(TEXT, "FakeCluster", "DefaultCluster"),
            "brokerName": needed(TEXT, "fake-a", "broker-a", "nobody"),
        },
    ),
    Spec(
        NAMESRV,
        217,
        {"topic": needed(TOPIC, "Announced")},
        (
            encode_json(
                {
                    "queueDatas": [
                        {
                            "brokerName": "fake-a",
                            "perm": 6,
                            "readQueueNums": 2,
                            "writeQueueNums": 2,
                            "topicSysFlag": 0,
                        }
                    ],
                    "brokerDatas": [],
                    "filterServerTable": {},
                }
            ),
        ),
        4,
        json_body=True,
    ),
)

_PAGE = {"dataVersion": optional(TEXT, "")}
SHARED_SPECS = (
    Spec(BROKER, 21, {"topicSeq": optional(INT, "0")} | _PAGE, valid_count=3),
    Spec(BROKER, 43, valid_count=2),
    Spec(BROKER, 45, valid_count=2),
    Spec(BROKER, 201, {"groupSeq": optional(INT, "0")} | _PAGE, valid_count=3),
)

_KV = {
    "namespace": needed(TEXT, "SPACE", "ORDER_TOPIC_CONFIG", "EMPTY"),
    "key": needed(TEXT, "one", "two"),
}
_RESET = {
    "topic": needed(TOPIC, "Alpha", "Beta"),
    # No other request pulls for it: a story covers a pull's commit while a reset is pending.
    "group": needed(GROUP, "Reset"),
    "timestamp": needed(LONG, "-1", "0", LATE_MS),
    "isForce": needed(BOOL, "true", "false"),
    "queueId": optional(INT, "-1", "0", "1"),
    "offset": optional(LONG, "-1", "1"),
}
_TOPIC_ONLY = {"topic": needed(TOPIC, *TOPICS)}
_GROUP_ONLY = {"consumerGroup": needed(GROUP, *KNOWN_GROUPS)}
ADMIN_SPECS = (
    Spec(BROKER, 17, _TOPIC_SETTINGS, valid_count=24),
    Spec(
        BROKER,
        18,
        {},
        (
            encode_json({"topicConfigList": [topic_config("ListOne"), topic_config("ListTwo")]}),
            # A story covers lists with a topic that exists already.
            encode_json({"topicConfigList": [topic_config("ListThree")]}),
            encode_json({"topicConfigList": [topic_config("bad name")]}),
            encode_json({"topicConfigList": []}),
            encode_json({"topicConfigList": [topic_config("TBW102")]}),
        ),
        json_body=True,
    ),
    Spec(BROKER, 215, {"topic": needed(TOPIC, "Made", "ListThree", "Never")}, valid_count=4),
    Spec(
        NAMESRV,
        216,
        {"topic": needed(TOPIC, "FakeTwo", "Never"), "clusterName": optional(TEXT, "FakeCluster")},
        valid_count=4,
    ),
    Spec(
        BROKER,
        351,
        _TOPIC_ONLY | {"lo": optional(BOOL, "true")},
        valid_count=12,
    ),
    Spec(BROKER, 202, _TOPIC_ONLY, valid_count=12),
    Spec(NAMESRV, 206, valid_count=3),
    Spec(
        NAMESRV,
        224,
        {"cluster": needed(TEXT, "DefaultCluster", "FakeCluster", "NoCluster")},
        valid_count=6,
    ),
    Spec(NAMESRV, 304, valid_count=3),
    Spec(BROKER, 305, valid_count=3),
    Spec(NAMESRV, 106, valid_count=4),
    Spec(BROKER, 28, valid_count=3),
    Spec(
        BROKER,
        25,
        {},
        (
            b"sendThreadPoolQueueCapacity=20000\n",
            b"brokerConfigPath=/tmp/elsewhere\n",
            b"noSuchSetting=1\n",
            b"shortPollingTimeMills=1500\nmaxTransferCountOnMessageInMemory=32\n",
        ),
        8,
    ),
    Spec(BROKER, 26, valid_count=2),
    Spec(
        NAMESRV,
        318,
        {},
        (b"orderMessageEnable=false\n", b"kvConfigPath=/tmp/elsewhere\n", b"noSuchSetting=1\n"),
        6,
    ),
    Spec(NAMESRV, 319, valid_count=2),
    Spec(NAMESRV, 100, _KV | {"value": needed(TEXT, "first", "second")}, valid_count=8),
    Spec(NAMESRV, 101, _KV, valid_count=10),
    Spec(NAMESRV, 102, _KV, valid_count=4),
    Spec(NAMESRV, 219, {"namespace": needed(TEXT, "SPACE", "EMPTY", "NONE", "ORDER_TOPIC_CONFIG")}),
    Spec(NAMESRV, 205, {"brokerName": needed(TEXT, "fake-a", "nobody")}, valid_count=4),
    Spec(NAMESRV, 327, {"brokerName": needed(TEXT, "fake-a", "nobody")}, valid_count=4),
    Spec(
        BROKER,
        200,
        {},
        (
            encode_json(group_config("Configured", retryMaxTimes=3)),
            encode_json(group_config("Configured", consumeBroadcastEnable=False)),
            encode_json(group_config("bad name")),
            encode_json(group_config("")),
            encode_json({"groupName": "Sparse"}),
        ),
        12,
        json_body=True,
    ),
    Spec(
        BROKER,
        225,
        {},
        (
            encode_json({"groupConfigList": [group_config("Many"), group_config("Few")]}),
            encode_json({"groupConfigList": [group_config("bad name")]}),
            encode_json({"groupConfigList": []}),
        ),
        json_body=True,
    ),
    Spec(
        BROKER,
        207,
        {"groupName": needed(GROUP, "Many", "Never"), "cleanOffset": needed(BOOL, "true")},
        valid_count=4,
    ),
    Spec(BROKER, 352, {"group": needed(GROUP, *KNOWN_GROUPS, "Configured")}, valid_count=10),
    Spec(
        BROKER,
        353,
        {
            "group": needed(GROUP, "Forbidden"),
            # A second topic is in a story: RocketMQ allows both when one is allowed.
            "topic": needed(TOPIC, "Alpha"),
            "readable": optional(BOOL, "true", "false"),
        },
    ),
    Spec(
        BROKER,
        208,
        _GROUP_ONLY
        | {"topic": optional(TOPIC, "Alpha"), "topicList": optional(TEXT, "Alpha;Beta")},
        valid_count=16,
    ),
    Spec(BROKER, 317, {"isOrder": needed(BOOL, "false", "true")}, valid_count=3),
    Spec(BROKER, 203, _GROUP_ONLY, valid_count=8),
    Spec(BROKER, 204, {"producerGroup": needed(GROUP, "Writers", "Nobody")}, valid_count=4),
    Spec(BROKER, 328, valid_count=2),
    Spec(BROKER, 222, _RESET, valid_count=24),
    Spec(
        BROKER,
        223,
        {"topic": needed(TOPIC, "Alpha"), "group": needed(GROUP, "Offline")},
        valid_count=3,
    ),
    Spec(BROKER, 300, _TOPIC_ONLY, valid_count=8),
    Spec(BROKER, 343, {"group": needed(GROUP, *KNOWN_GROUPS)}, valid_count=8),
    Spec(
        BROKER,
        345,
        {"group": needed(GROUP, *KNOWN_GROUPS), "topic": optional(TOPIC, "Alpha", "Beta")},
        valid_count=10,
    ),
    Spec(
        BROKER,
        303,
        {"topic": needed(TOPIC, "Alpha", "Beta", "Empty"), "group": needed(GROUP, "Offline")},
        valid_count=6,
    ),
    Spec(
        BROKER,
        314,
        {
            "srcGroup": needed(GROUP, "Offline"),
            "destGroup": needed(GROUP, "Cloned"),
            # Without a topic Apache clones nothing.
            "topic": needed(TOPIC, "Alpha", "Beta", required=False),
            "offline": optional(BOOL, "true"),
        },
        valid_count=6,
    ),
    Spec(
        BROKER,
        308,
        {
            "compareGroup": needed(GROUP, "Offline"),
            "topic": needed(TOPIC, "Alpha"),
            # Apache forgets the offsets of the groups named here: no other request may use them.
            "filterGroups": optional(TEXT, "WrongOne,WrongTwo"),
        },
        valid_count=6,
    ),
    Spec(
        BROKER,
        315,
        {
            "statsName": needed(TEXT, "TOPIC_PUT_NUMS", "TOPIC_PUT_SIZE", "NO_SUCH_STAT"),
            "statsKey": needed(TEXT, "Alpha", "Alpha", "NoSuchKey"),
        },
        valid_count=16,
    ),
    Spec(
        BROKER,
        321,
        _QUEUE
        | {
            "index": needed(LONG, "0", "1", "-1", "500"),
            "count": needed(INT, "1", "10"),
            "consumerGroup": optional(GROUP, "Online"),
        },
        valid_count=16,
    ),
    Spec(BROKER, 306, valid_count=2),
    Spec(
        BROKER,
        401,
        {},
        (
            _mode("Alpha", "PULL"),
            _mode("%RETRY%Moded", "PULL"),
            _mode("Unknown", "PULL"),
        ),
        json_body=True,
    ),
    Spec(BROKER, 316, valid_count=1),
    Spec(BROKER, 329, valid_count=2),
    Spec(NAMESRV, 311, valid_count=2),
    Spec(NAMESRV, 312, valid_count=2),
    Spec(NAMESRV, 313, valid_count=2),
)

# Filter servers, and access control while it is off; pops have a comparison of their own.
_LATER_CODES = (301, 302, 3001)
LATER_SPECS = tuple(Spec(BROKER, code, valid_count=1) for code in _LATER_CODES)

SPECS = CLIENT_SPECS + REGISTRATION_SPECS + SHARED_SPECS + ADMIN_SPECS

# Codes that are reserved, go the other way, or do not exist: all must be refused alike.
UNHANDLED = (0, -1, 13, 22, 23, 27, 47, 209, 210, 211, 212, 213, 214, 301, 302, 39, 40, 220, 221)
UNHANDLED_ELSEWHERE = (326, 905, 9_999, 54_321, 1_000_000)

# If one server alone carries a wrong request out, later requests must not see its effect: wrong
# requests use these names, and no other request does.
WRONG_QUEUES = 512
WRONG_BROKER = {
    "brokerName": "wrong-broker",
    "brokerAddr": "127.0.0.1:3333",
    "clusterName": "WrongCluster",
}
WRONG_BODIES = {103: register_body([topic_config("WrongTopic"), topic_config("WrongTopicToo")])}
ASIDE: Mapping[int, Mapping[str, FieldValue]] = {
    10: {"topic": "Wrongs"},
    310: {"b": "Wrongs"},
    320: {"b": "Wrongs"},
    # Larger than all other committed offsets: requests ask for the smallest of all groups.
    11: {"consumerGroup": "WrongGroup", "commitOffset": "9"},
    361: {"consumerGroup": "WrongGroup", "commitOffset": "9"},
    15: {"consumerGroup": "WrongGroup"},
    17: {"topic": "WrongTopic", "attributes": ""},
    215: {"topic": "WrongDeleted"},
    216: {"topic": "WrongDeleted"},
    222: {"group": "WrongReset", "topic": "Single"},
    314: {"destGroup": "WrongGroup"},
    353: {"group": "WrongGroup"},
    207: {"groupName": "Gone"},
    217: {"topic": "WrongTopic"},
    100: {"namespace": "WRONG"},
    102: {"namespace": "WRONG"},
    205: {"brokerName": "wrong-broker"},
    327: {"brokerName": "wrong-broker"},
    103: WRONG_BROKER,
    104: WRONG_BROKER,
    322: WRONG_BROKER,
    904: WRONG_BROKER,
}
