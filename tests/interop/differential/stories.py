"""Whole stories at the end of the run: what one request does is seen by the next."""

from __future__ import annotations

from collections.abc import Iterator

from tests.interop.differential.opening import topic_settings
from tests.interop.differential.requests import BROKER, NAMESRV, Request
from tests.interop.differential.specs import encode_json, encode_properties


def stories() -> Iterator[Request]:
    """Each once, in this order."""
    yield from _a_read_only_broker()
    yield from _a_queue_taken_away()
    yield from _locks_of_two_clients()
    yield from _a_client_leaves()
    yield from _a_broker_leaves()
    yield from _a_topic_is_deleted()
    yield from _large_bodies()


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
    for permission in ("4", "2", "6"):
        yield Request(BROKER, 25, None, f"brokerPermission={permission}\n".encode(), "story")
        yield _send("SendHere")
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
    for client, code, count in (("1", 41, 1), ("2", 41, 2), ("1", 42, 2), ("2", 41, 2)):
        whole = {"clientId": f"client-{client}", "consumerGroup": "Lockers"}
        body = encode_json(whole | {"mqSet": queues[:count]})
        yield Request(BROKER, code, None, body, "story", connection=f"client-{client}")


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
    yield Request(BROKER, 215, {"topic": "Beta"}, what="story")
    yield Request(NAMESRV, 216, {"topic": "Beta"}, what="story")
    yield Request(NAMESRV, 105, {"topic": "Beta"}, what="story")
    yield Request(BROKER, 30, {"topic": "Beta", "queueId": "0"}, what="story")
    yield _pull("Beta", 0)
    yield Request(BROKER, 43, what="story")


def _large_bodies() -> Iterator[Request]:
    for size in ((4 << 20) - 1, 4 << 20, (4 << 20) + 1):
        yield _send("SendHere", body=b"x" * size)
    yield _send("SendHere", i=encode_properties({"long": "y" * 32_767}))
    yield _send("SendHere", body=b"")
