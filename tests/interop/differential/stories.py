"""Whole stories at the end of the run: each request sees the effect of the one before."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from tests.interop.differential.opening import topic_settings
from tests.interop.differential.requests import BROKER, NAMESRV, FieldValue, Reference, Request
from tests.interop.differential.runner import RELAYED
from tests.interop.differential.specs import (
    encode_json,
    encode_properties,
    group_config,
    heartbeat,
    register_body,
    subscription,
    topic_config,
)


def stories() -> Iterator[Request]:
    """Each once, in this order."""
    yield from _a_read_only_broker()
    yield from _a_queue_taken_away()
    yield from _locks_of_two_clients()
    yield from _a_client_leaves()
    yield from _a_broker_leaves()
    yield from _told_one_way()
    yield from _a_client_is_asked()
    yield from _odd_values()
    yield from _a_group_leaves_a_topic()
    yield from _a_list_half_known()
    yield from _two_topics_forbidden()
    yield from _a_reset_before_a_commit()
    yield from _a_broker_moves()
    yield from _a_single_topic_first()
    yield from _a_topic_is_deleted()
    yield from _large_bodies()
    yield from _a_group_deleted_without_its_offsets()
    yield from _wrong_groups()


def _send(topic: str, *, label: str | None = None, body: bytes = b"story", **more: str) -> Request:
    named = {"a": "Writers", "b": topic, "c": "TBW102", "d": "4", "e": "0", "f": "0"}
    named |= {"g": "1600000000000", "h": "0"} | more
    return Request(BROKER, 310, named, body, "story", label=label)


def _pull(topic: str, queue_offset: int, *, queue_id: int = 0) -> Request:
    fields = {"consumerGroup": "Fresh", "topic": topic, "queueId": str(queue_id)}
    fields |= {"queueOffset": str(queue_offset), "maxMsgNums": "32", "sysFlag": "4"}
    fields |= {"commitOffset": "0", "suspendTimeoutMillis": "0", "subscription": "*"}
    return Request(BROKER, 11, fields | {"subVersion": "0"}, what="story")


def _a_read_only_broker() -> Iterator[Request]:
    # The first send makes the topic; the second is refused by ours alone.
    for permission in ("6", "4", "2", "6"):
        yield Request(BROKER, 25, None, f"brokerPermission={permission}\n".encode(), "story")
        yield _send("ShutBroker")
        yield _send("Ordered")
        yield _pull("Alpha", 0)
        yield Request(NAMESRV, 105, {"topic": "Alpha"}, what="story")


def _a_queue_taken_away() -> Iterator[Request]:
    for queues in ("4", "2", "3"):
        yield Request(BROKER, 17, topic_settings("Shrinking", queues=queues), what="story")
        for queue_id in range(4):
            yield _send("Shrinking", e=str(queue_id))
            yield _pull("Shrinking", 0, queue_id=queue_id)
        yield Request(BROKER, 202, {"topic": "Shrinking"}, what="story")


def _locks_of_two_clients() -> Iterator[Request]:
    queues = [{"brokerName": "broker-a", "queueId": number, "topic": "Beta"} for number in (0, 1)]
    yield Request(BROKER, 200, None, encode_json(group_config("Lockers")), "story")
    for client, code, count in (("1", 41, 1), ("2", 41, 2), ("1", 42, 2), ("2", 41, 2)):
        whole = {"clientId": f"client-{client}", "consumerGroup": "Lockers"}
        body = encode_json(whole | {"mqSet": queues[:count]})
        yield Request(BROKER, code, None, body, "story", connection=f"client-{client}")


def _told_one_way() -> Iterator[Request]:
    """One-way requests have no answer; their effect is seen afterwards."""
    named = {"a": "Writers", "b": "OneWay", "c": "TBW102", "d": "4", "e": "1", "f": "0"}
    named |= {"g": "1600000000000", "h": "0"}
    place = {"consumerGroup": "OneWay", "topic": "OneWay", "queueId": "0"}
    group = encode_json(group_config("OneWay"))
    yield Request(BROKER, 200, None, group, "story")
    for binary in (False, True):
        for request in (
            Request(BROKER, 310, named, b"one", "told"),
            Request(BROKER, 310, named | {"b": "Closed"}, b"refused", "told"),
            Request(BROKER, 11, {"topic": "OneWay"}, what="told"),
            Request(BROKER, 15, place | {"commitOffset": "5"}, what="told"),
            Request(BROKER, 9_999, what="told"),
        ):
            yield dataclasses.replace(request, one_way=True, binary=binary)
        yield Request(BROKER, 14, place, what="story")
        yield Request(BROKER, 30, {"topic": "OneWay", "queueId": "1"}, what="story")
        key = {"namespace": "TOLD", "key": f"one-{binary}"}
        yield from (
            Request(NAMESRV, 100, key | {"value": "1"}, what="told", one_way=True, binary=binary),
            Request(NAMESRV, 105, {"topic": "Never"}, what="told", one_way=True, binary=binary),
        )
        yield Request(NAMESRV, 101, key, what="story")


def _a_client_is_asked() -> Iterator[Request]:
    subscribed = {"Relayed": [subscription("Alpha", "*")]}
    body = heartbeat("relayed-client", subscribed)
    yield Request(BROKER, 34, None, body, "story", connection=RELAYED)
    who: dict[str, FieldValue] = {"consumerGroup": "Relayed", "clientId": "relayed-client"}
    yield Request(BROKER, 307, who | {"jstackEnable": "false"}, what="story")
    yield Request(BROKER, 309, who | {"msgId": Reference("alpha-0", "msgId")}, what="story")
    yield Request(BROKER, 223, {"topic": "Alpha", "group": "Relayed"}, what="story")


def _odd_values() -> Iterator[Request]:
    """Each shows a difference that other seeds may not meet."""
    yield Request(BROKER, 215, {"topic": "a/b"}, what="story")
    yield _send("Wrongs", e="511", f=str(0x40))
    rows = {"topic": "Single", "queueId": "0", "index": str(-(1 << 63)), "count": "1"}
    yield Request(BROKER, 321, rows, what="story")
    rows = rows | {"queueId": "1", "index": "0"}
    yield Request(BROKER, 30, {"topic": "Single", "queueId": "1"}, what="story")
    yield Request(BROKER, 321, rows, what="story")
    yield Request(BROKER, 321, rows | {"topic": "Typed"}, what="story")
    body = heartbeat("client-y", {"Short": []}, fingerprint=7, without=True)
    yield Request(BROKER, 34, None, body, what="story", connection="short")
    pull = _pull("Alpha", 0)
    fields = dict(pull.fields or {}) | {"consumerGroup": "WrongGroup", "sysFlag": str(4 | 8)}
    yield dataclasses.replace(pull, fields=fields)
    settings = topic_settings("WrongTopic") | {"topicFilterType": "ODD"}
    yield Request(BROKER, 17, settings, what="topicFilterType=ODD")


def _a_group_leaves_a_topic() -> Iterator[Request]:
    for subscriptions in ([subscription("Alpha", "*")], []):
        body = heartbeat("leaver", {"Leaver": subscriptions})
        yield Request(BROKER, 34, None, body, "story", connection="leaver")
        yield Request(BROKER, 203, {"consumerGroup": "Leaver"}, what="story")
    fields = {"clientID": "leaver", "consumerGroup": "Leaver"}
    yield Request(BROKER, 35, fields, what="story", connection="leaver")
    yield Request(BROKER, 300, {"topic": "Alpha"}, what="story")


def _a_list_half_known() -> Iterator[Request]:
    for name in ("HalfOther", "HalfTwo"):
        topics = [topic_config("HalfOne"), topic_config(name)]
        body = encode_json({"topicConfigList": topics})
        yield Request(BROKER, 18, None, body, "story")
    yield Request(BROKER, 351, {"topic": "HalfTwo"}, what="story list half known")


def _a_group_deleted_without_its_offsets() -> Iterator[Request]:
    yield Request(BROKER, 207, {"groupName": "Gone", "cleanOffset": "false"}, what="story")
    yield Request(BROKER, 201, what="story")


def _two_topics_forbidden() -> Iterator[Request]:
    for topic, readable in (("Alpha", "false"), ("Beta", "false"), ("Alpha", "true"), ("Beta", "")):
        fields = {"group": "TwoForbidden", "topic": topic}
        fields |= {"readable": readable} if readable else {}
        yield Request(BROKER, 353, fields, what="story two forbidden")


def _a_reset_before_a_commit() -> Iterator[Request]:
    place = {"topic": "Alpha", "queueId": "0"}
    yield Request(BROKER, 200, None, encode_json(group_config("Moved")), "story")
    fields = {"group": "Moved", "timestamp": "-1", "isForce": "true", "offset": "1"}
    yield Request(BROKER, 222, place | fields, what="story")
    yield Request(BROKER, 14, place | {"consumerGroup": "Moved"}, what="story")
    fields = {"consumerGroup": "Moved", "queueOffset": "3", "maxMsgNums": "4", "sysFlag": "5"}
    fields |= {"commitOffset": "7", "suspendTimeoutMillis": "0", "subscription": "*"}
    yield Request(BROKER, 11, place | fields | {"subVersion": "0"}, what="story")
    yield Request(BROKER, 14, place | {"consumerGroup": "Moved"}, what="story stale commit")


def _registered(name: str, port: int, cluster: str, broker_id: int, count: int) -> Request:
    fields = {"brokerName": name, "brokerAddr": f"127.0.0.1:{port}", "clusterName": cluster}
    fields |= {"brokerId": str(broker_id), "haServerAddr": "127.0.0.1:3333"}
    topics = [topic_config(f"Moving-{number}") for number in range(count)]
    return Request(NAMESRV, 103, fields, register_body(topics), "story", connection="moving")


def _a_broker_moves() -> Iterator[Request]:
    """Under another cluster, then another address, then another id; then it goes."""
    for port, cluster, broker_id in (
        (1111, "FirstCluster", 0),
        (1111, "SecondCluster", 0),
        (2222, "SecondCluster", 0),
        (2222, "SecondCluster", 1),
        (1111, "SecondCluster", 0),
    ):
        yield _registered("moving", port, cluster, broker_id, 2)
        yield Request(NAMESRV, 106, what="story")
        yield Request(NAMESRV, 105, {"topic": "Moving-0"}, what="story")
    for port, own_id in ((1111, "0"), (2222, "1")):
        fields = {"brokerName": "moving", "brokerAddr": f"127.0.0.1:{port}"}
        fields |= {"clusterName": "SecondCluster", "brokerId": own_id}
        yield Request(NAMESRV, 104, fields, what="story", connection="moving")
        yield Request(NAMESRV, 105, {"topic": "Moving-0"}, what="story")
    yield Request(NAMESRV, 106, what="story broker moved")


def _a_single_topic_first() -> Iterator[Request]:
    yield _registered("single", 1111, "SingleCluster", 0, 1)
    yield Request(NAMESRV, 106, what="story single topic first")


def _wrong_groups() -> Iterator[Request]:
    """At the very end: the original's handling of a missing name is seen nowhere else."""
    reset = {"topic": "Alpha", "timestamp": "-1", "isForce": "true", "queueId": "0"}
    for group in ("", " ", "bad group", "g" * 256, "Nobody", "é"):
        yield Request(BROKER, 222, reset | {"group": group}, what="story")
    yield Request(BROKER, 222, reset, what="without group")
    clone = {"srcGroup": "Offline", "topic": "Alpha", "offline": "true"}
    yield Request(BROKER, 314, clone, what="without destGroup")


def _a_client_leaves() -> Iterator[Request]:
    for client in ("1", "2"):
        yield Request(BROKER, 38, {"consumerGroup": "Online"}, what="story")
        yield Request(BROKER, 203, {"consumerGroup": "Online"}, what="story")
        yield Request(BROKER, 204, {"producerGroup": "Writers"}, what="story")
        fields = {"clientID": f"client-{client}", "consumerGroup": "Online"}
        fields |= {"producerGroup": "Writers"}
        yield Request(BROKER, 35, fields, what="story", connection=f"client-{client}")
    yield Request(BROKER, 38, {"consumerGroup": "Online"}, what="story")


def _a_broker_leaves() -> Iterator[Request]:
    for name, port in (("fake-a", 1111), ("fake-b", 2222)):
        yield Request(NAMESRV, 105, {"topic": "FakeOne"}, what="story")
        fields = {"brokerName": name, "brokerAddr": f"127.0.0.1:{port}", "brokerId": "0"}
        fields |= {"clusterName": "FakeCluster"}
        yield Request(NAMESRV, 104, fields, what="story", connection=name)
    yield Request(NAMESRV, 105, {"topic": "FakeOne"}, what="story")
    yield Request(NAMESRV, 106, what="story")


def _a_topic_is_deleted() -> Iterator[Request]:
    """A group that pulled the topic and committed no offset is forgotten too."""
    yield Request(BROKER, 17, topic_settings("Beta"), what="story")
    pull = _pull("Beta", 0)
    puller = dict(pull.fields or {}) | {"consumerGroup": "Puller"}
    yield dataclasses.replace(pull, fields=puller)
    yield Request(BROKER, 215, {"topic": "Beta"}, what="story")
    yield Request(NAMESRV, 216, {"topic": "Beta"}, what="story")
    yield Request(NAMESRV, 105, {"topic": "Beta"}, what="story")
    yield Request(BROKER, 30, {"topic": "Beta", "queueId": "0"}, what="story")
    yield _pull("Beta", 0)
    yield Request(BROKER, 43, what="story topic deleted")


def _large_bodies() -> Iterator[Request]:
    for size in ((4 << 20) - 1, 4 << 20, (4 << 20) + 1):
        yield _send("SendHere", body=b"x" * size)
    yield _send("SendHere", i=encode_properties({"long": "y" * 32_767}))
    yield _send("SendHere", body=b"")
