"""A topic without the write bit, and a broker without it, refuse sends on every way.

Each way is taken once while writing is allowed, so that the fast ways know the topic;
then the bit is taken away. Messages accepted before go on: delayed messages are delivered, half
messages are committed, consumers read.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from contrail.clock import ManualClock
from contrail.model.properties import encode_properties
from contrail.protocol.codes import RequestCode, ResponseCode
from contrail.protocol.command import Request, encode_request
from contrail.testing import LocalCluster, eventually
from tests.e2e import sink_asking
from tests.e2e.asking import Asker, messages, properties_text
from tests.e2e.raw_client import RawClient, send_fields
from tests.e2e.test_transactions import COMMIT, GROUP, Producer

TOPIC = "orders"
REFUSED = ResponseCode.NO_PERMISSION
RUN = 8

Way = Callable[[Asker], list[int]]


def _single(asker: Asker) -> list[int]:
    return [asker.send(TOPIC).code]


def _with(**properties: str) -> Way:
    return lambda asker: [asker.send(TOPIC, properties=properties).code]


def _half(asker: Asker) -> list[int]:
    properties = properties_text({"TRAN_MSG": "true", "PGROUP": GROUP})
    return [asker.send(TOPIC, f="4", i=properties).code]


def _long_header(asker: Asker) -> list[int]:
    fields = {"producerGroup": "producers", "topic": TOPIC, "defaultTopic": "TBW102"}
    fields |= {"defaultTopicQueueNums": "4", "queueId": "0", "sysFlag": "0", "flag": "0"}
    fields |= {"bornTimestamp": "1700000000000", "reconsumeTimes": "0", "unitMode": "false"}
    fields["properties"] = properties_text({})
    return [asker.ask(RequestCode.SEND_MESSAGE, fields, b"x").code]


def _batch_unit(number: int) -> bytes:
    properties = encode_properties({"UNIQ_KEY": f"BA{number:030X}"})
    tail = b"x" + struct.pack(">h", len(properties)) + properties
    return struct.pack(">iiiii", 20 + len(tail), 0, 0, 0, 1) + tail


def _batch(asker: Asker) -> list[int]:
    body = _batch_unit(1) + _batch_unit(2)
    return [asker.ask(RequestCode.SEND_BATCH_MESSAGE, send_fields(TOPIC, m="true"), body).code]


def _in_one_write(asker: Asker, code: int, fields: dict[str, str], body: bytes) -> list[int]:
    """Several sends of one read: taken as rows, or as batches that join a run."""
    with RawClient(asker.broker.port) as client:
        frames = [encode_request(Request(code, at, fields, body)) for at in range(RUN)]
        client.send(b"".join(frames))
        return [client.answer_to(at).code for at in range(RUN)]


def _run(asker: Asker) -> list[int]:
    return _in_one_write(asker, RequestCode.SEND_MESSAGE_V2, send_fields(TOPIC), b"x")


def _run_of_batches(asker: Asker) -> list[int]:
    fields = send_fields(TOPIC, m="true")
    return _in_one_write(asker, RequestCode.SEND_BATCH_MESSAGE, fields, _batch_unit(3))


def _reply(asker: Asker) -> list[int]:
    properties = properties_text({"REPLY_TO_CLIENT": "nobody"})
    fields = send_fields(TOPIC, i=properties)
    code = asker.ask(RequestCode.SEND_REPLY_MESSAGE_V2, fields, b"x").code
    # Nobody waits for it, which is another answer than a refusal.
    return [0 if code == ResponseCode.SYSTEM_ERROR else code]


def _sink(asker: Asker) -> list[int]:
    fields = sink_asking.send_fields(TOPIC)
    body = sink_asking.rows("sink/0/0", [len(asker.bodies(TOPIC))])
    return [asker.ask(RequestCode.CONTRAIL_SINK_SEND, fields, body).code]


WAYS: dict[str, Way] = {
    "a send": _single,
    "a send with a long header": _long_header,
    "a run of sends": _run,
    "a batch": _batch,
    "a run of batches": _run_of_batches,
    "a delayed send": _with(DELAY="18"),
    "a timed send": _with(TIMER_DELAY_SEC="3600"),
    "a half message": _half,
    "a reply": _reply,
    "rows of a sink": _sink,
}


@contextmanager
def _place(**properties: str) -> Iterator[tuple[LocalCluster, Asker]]:
    with LocalCluster(clock=ManualClock(), properties=properties) as cluster:
        asker = Asker(cluster)
        asker.make_topic(TOPIC, read=1, write=1)
        yield cluster, asker


def _close_topic(asker: Asker, perm: int) -> None:
    asker.make_topic(TOPIC, read=1, write=1, perm=perm)


def _close_broker(asker: Asker, perm: int) -> None:
    asker.change_settings(f"brokerPermission={perm}\n")


@pytest.mark.proves("broker.permissions.write-bit")
@pytest.mark.parametrize("close", [_close_topic, _close_broker], ids=["topic", "broker"])
def test_without_the_write_bit_every_way_of_sending_is_refused(
    close: Callable[[Asker, int], None],
) -> None:
    with _place() as (_, asker):
        for name, way in WAYS.items():
            assert set(way(asker)) == {0}, name
        count = len(asker.bodies(TOPIC))
        close(asker, 4)
        for name, way in WAYS.items():
            for _ in range(2):
                assert set(way(asker)) == {REFUSED}, name
        assert len(asker.bodies(TOPIC)) == count
        close(asker, 6)
        for name, way in WAYS.items():
            assert set(way(asker)) == {0}, name


def test_a_refusal_names_the_permission_and_what_lifts_it() -> None:
    with _place() as (_, asker):
        _close_topic(asker, 4)
        answer = asker.send(TOPIC)
        assert "perm 4" in str(answer.remark) and "updateTopicPerm" in str(answer.remark)
        _close_topic(asker, 6)
        _close_broker(asker, 4)
        assert "brokerPermission" in str(asker.send(TOPIC).remark)


def test_a_closed_broker_makes_no_topic_for_a_send() -> None:
    with _place() as (cluster, asker):
        _close_broker(asker, 4)
        assert asker.send("never_made").code == REFUSED
        app = cluster.brokers[0].app
        assert app is not None and "never_made" not in app.tables.topics.table.topics


@pytest.mark.proves("broker.permissions.write-bit")
@pytest.mark.parametrize("close", [_close_topic, _close_broker], ids=["topic", "broker"])
def test_messages_accepted_before_are_delivered_and_committed(
    close: Callable[[Asker, int], None],
) -> None:
    with _place() as (cluster, asker), Producer(cluster) as producer:
        half = producer.half("half")
        assert asker.send(TOPIC, b"delayed", properties={"DELAY": "1"}).code == 0
        assert asker.send(TOPIC, b"timed", properties={"TIMER_DELAY_SEC": "2"}).code == 0
        close(asker, 4)
        assert producer.end(half, COMMIT).code == 0

        def arrived() -> bool:
            cluster.advance(ms=1000)
            return sorted(asker.bodies(TOPIC)) == [b"delayed", b"half", b"timed"]

        eventually(arrived, "all that was accepted is there")
        assert [one.body for one in messages(asker.pull(TOPIC, 0))][:1] == [b"half"]


@pytest.mark.proves("broker.permissions.write-bit")
def test_the_read_bit_closes_pulls_and_not_what_names_one_message() -> None:
    """As Apache's broker: a client that has a message, or its id or key, may still use it."""
    with LocalCluster(clock=ManualClock()) as cluster:
        asker = Asker(cluster)
        asker.make_topic(TOPIC)
        asker.make_group("readers")
        sent = asker.send(TOPIC, b"body", properties={"KEYS": "k"})
        place = str(int(sent.fields["msgId"][-16:], 16))
        asker.make_topic(TOPIC, perm=2)
        assert asker.pull(TOPIC, 0).code == REFUSED
        viewed = asker.done(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": place})
        assert [message.body for message in messages(viewed)] == [b"body"]
        asked = {"topic": TOPIC, "key": "k", "maxNum": "1"}
        asked |= {"beginTimestamp": "0", "endTimestamp": str(1 << 60)}
        queried = asker.done(RequestCode.QUERY_MESSAGE, asked)
        assert [message.body for message in messages(queried)] == [b"body"]
        back = {"offset": place, "group": "readers", "delayLevel": "0", "originTopic": TOPIC}
        asker.done(RequestCode.CONSUMER_SEND_MSG_BACK, back)
        assert asker.sent_back_count() == 1
