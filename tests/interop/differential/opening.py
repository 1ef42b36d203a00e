"""The first requests to both clusters: the topics, groups, messages and clients of the run."""

from __future__ import annotations

from collections.abc import Iterator

from tests.interop.differential.requests import BROKER, NAMESRV, Request
from tests.interop.differential.runner import ASKER
from tests.interop.differential.specs import (
    HEARTBEAT_TIMEOUT_MS,
    WRONG_QUEUES,
    encode_json,
    encode_properties,
    group_config,
    heartbeat,
    register_body,
    subscription,
    topic_config,
)
from tests.interop.differential.specs_kinds import WAIT_QUEUES

_TAGS = ("TagA", "TagB", None)
# Where messages of the other kinds go once they have waited: see ``specs_kinds.py``.
_KIND_TOPICS = ("Halves", "Timed", "Retried", "Delayed", "Due", "Recalled", "Committed", "Replies")
_COLOURS = ("red", "blue", "green")


def opening() -> Iterator[Request]:
    """Every request of it is valid and succeeds."""
    yield from _topics()
    yield from _groups()
    yield from _messages()
    yield from _commits()
    yield from heartbeats()


def heartbeats() -> Iterator[Request]:
    """The clients and the brokers of the run say that they live."""
    yield from _clients()
    yield from _fake_brokers()


def _topics() -> Iterator[Request]:
    changes: dict[str, dict[str, str]] = {
        "Alpha": {},
        "Beta": {"readQueueNums": "8"},
        "Single": {"readQueueNums": "1", "writeQueueNums": "1"},
        "Empty": {},
        "SendHere": {},
        "SendThere": {"readQueueNums": "2", "writeQueueNums": "8"},
        "ReadOnly": {"perm": "4"},
        "WriteOnly": {"perm": "2"},
        "Closed": {"perm": "0"},
        "Ordered": {"order": "true"},
        "Typed": {"attributes": "+message.type=FIFO"},
        "Wrongs": {"readQueueNums": str(WRONG_QUEUES), "writeQueueNums": str(WRONG_QUEUES)},
        "WrongTopic": {},
        "WrongChoice": {},
        "OneWay": {},
        "Waits": {"readQueueNums": str(WAIT_QUEUES), "writeQueueNums": str(WAIT_QUEUES)},
        "Batched": {"readQueueNums": "16", "writeQueueNums": "16"},
    } | {name: {} for name in _KIND_TOPICS}
    for name, changed in changes.items():
        yield Request(BROKER, 17, topic_settings(name) | changed, what="opening")


def topic_settings(topic: str, *, queues: str = "4") -> dict[str, str]:
    """The fields that create or change a topic."""
    fields = {"topic": topic, "defaultTopic": "TBW102", "perm": "6", "order": "false"}
    fields |= {"topicFilterType": "SINGLE_TAG", "topicSysFlag": "0"}
    return fields | {"readQueueNums": queues, "writeQueueNums": queues}


def _groups() -> Iterator[Request]:
    configs = [
        group_config("Online"),
        group_config("Offline"),
        group_config("Retriers", retryMaxTimes=2),
        group_config("Reset"),
        group_config("WrongGroup"),
        group_config("WrongBacks"),
        group_config("WrongReset"),
        group_config("Disabled", consumeEnable=False),
        group_config("Broadcast"),
        group_config("NoBroadcast", consumeBroadcastEnable=False),
    ]
    for config in configs:
        yield Request(BROKER, 200, None, encode_json(config), what="opening")


def _messages() -> Iterator[Request]:
    for number in range(24):
        yield _message("Alpha", number, queue_id=number % 3)
    for number in range(12):
        yield _message("Beta", number, queue_id=number % 4)
    for number in range(5):
        yield _message("Single", number, queue_id=0)


def _message(topic: str, number: int, *, queue_id: int) -> Request:
    tag = _TAGS[number % 3]
    properties = {"KEYS": f"key-{number} also-{number % 4}", "UNIQ_KEY": f"unique-{number}"}
    properties |= {"a": str(number % 9), "b": _COLOURS[number % 3]}
    if tag is not None:
        properties["TAGS"] = tag
    values = ("Writers", topic, "TBW102", "4", str(queue_id), "0", "1600000000000", str(number))
    fields = dict(zip("abcdefgh", values, strict=True)) | {"i": encode_properties(properties)}
    body = f"body of {topic} {number}".encode()
    return Request(BROKER, 310, fields, body, "opening", label=f"{topic.lower()}-{number}")


def _commits() -> Iterator[Request]:
    for queue_id in range(4):
        fields = {"consumerGroup": "Offline", "topic": "Alpha", "queueId": str(queue_id)}
        yield Request(BROKER, 15, fields | {"commitOffset": "0"}, what="opening")


def _clients() -> Iterator[Request]:
    tagged = [subscription("Alpha", "TagA"), subscription("%RETRY%Online", "*")]
    first = heartbeat("client-1", {"Online": tagged}, ("Writers",))
    second = heartbeat("client-2", {"Online": tagged}, ("Writers",))
    everyone = heartbeat(
        "client-3",
        {"Broadcast": [subscription("Beta", "*")], "NoBroadcast": [subscription("Beta", "*")]},
        model="BROADCASTING",
        where="CONSUME_FROM_FIRST_OFFSET",
    )
    sql = heartbeat("client-4", {"Sql": [subscription("Alpha", "a > 3", kind="SQL92")]})
    for connection, body in zip("1234", (first, second, everyone, sql), strict=True):
        yield Request(BROKER, 34, None, body, "opening", connection=f"client-{connection}")
    asker = heartbeat(ASKER, {}, ("Askers",))
    yield Request(BROKER, 34, None, asker, "opening", connection=ASKER, one_way=True)


def _fake_brokers() -> Iterator[Request]:
    topics = [topic_config("FakeOne"), topic_config("FakeTwo", perm=4), topic_config("Alpha")]
    for name, port in (("fake-a", 1111), ("fake-b", 2222)):
        fields = {"brokerName": name, "brokerAddr": f"127.0.0.1:{port}", "brokerId": "0"}
        fields |= {"clusterName": "FakeCluster", "haServerAddr": f"127.0.0.1:{port + 1}"}
        fields |= {"heartbeatTimeoutMillis": HEARTBEAT_TIMEOUT_MS}
        yield Request(NAMESRV, 103, fields, register_body(topics), "opening", connection=name)
