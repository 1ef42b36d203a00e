"""Pulls with a filter; the fast path answers what the general way answers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from contrail.broker.fast.pulls import Outcome
from contrail.broker.services.cold_reads import FarAnswer
from contrail.model.record import split_record_run
from contrail.protocol.codes import RequestCode, ResponseCode
from contrail.protocol.command import ReceivedResponse, Request, encode_request
from contrail.testing import LocalCluster, eventually
from contrail.wire.connection import Connection
from tests.e2e.raw_client import RawClient, send_fields
from tests.e2e.ways import FAST_ONLY

TOPIC = "orders"
FILTERS = {
    "tag": {"subscription": "t3", "expressionType": "TAG"},
    "no such tag": {"subscription": "t9", "expressionType": "TAG"},
    "SQL92": {"subscription": "kind = 3", "expressionType": "SQL92"},
    "SQL92 for none": {"subscription": "kind = 9", "expressionType": "SQL92"},
}


@pytest.fixture
def cluster(tmp_path: Path, fast_path: str) -> Iterator[LocalCluster]:
    with LocalCluster(folder=tmp_path, properties={"contrailFastPath": fast_path}) as running:
        for number in range(20):
            send(running, number)
        yield running


def send(cluster: LocalCluster, number: int) -> None:
    kind = number % 5
    fields = {"a": "g", "b": TOPIC, "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1"}
    fields |= {"h": "0", "i": f"TAGS\x01t{kind}\x02kind\x01{kind}\x02", "j": "0", "k": "false"}
    answer = cluster.caller.call(
        cluster.brokers[0].address, RequestCode.SEND_MESSAGE_V2, fields, b"x" * (number + 1)
    )
    assert answer.code == ResponseCode.SUCCESS


def pull(cluster: LocalCluster, queue_offset: int, **changes: str) -> ReceivedResponse:
    fields = {
        "consumerGroup": "readers",
        "topic": TOPIC,
        "queueId": "0",
        "queueOffset": str(queue_offset),
        "maxMsgNums": "3",
        "sysFlag": "5",
        "commitOffset": str(queue_offset),
        "suspendTimeoutMillis": "0",
        "subVersion": "0",
    }
    return cluster.caller.call(
        cluster.brokers[0].address, RequestCode.PULL_MESSAGE, fields | changes
    )


def offsets_of(answer: ReceivedResponse) -> list[int]:
    return [message.queue_offset for message in split_record_run(answer.body)]


def start_again(cluster: LocalCluster) -> None:
    cluster.brokers[0].stop()
    cluster.brokers[0].start()


@FAST_ONLY
@pytest.mark.parametrize("is_far", [False, True], ids=["near", "further back"])
@pytest.mark.parametrize("kind", FILTERS)
def test_both_ways_give_the_same_answer_and_leave_the_same_behind(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch, kind: str, is_far: bool
) -> None:
    if is_far:
        start_again(cluster)
    app = cluster.brokers[0].app
    assert app is not None
    taken: list[object] = []
    name = "_answer_far" if is_far else "_give_run"
    fast_way = getattr(app.fast.pulls, name)
    watched = lambda *given: taken.append(fast_way(*given)) or taken[-1]  # noqa: E731
    # The first pull makes the group, the second is remembered.
    for _ in range(2):
        pull(cluster, 0, **FILTERS[kind])
    for queue_offset in (0, 3, 4, 17, 19, 20, 21):
        taken.clear()
        with monkeypatch.context() as patched:
            patched.setattr(app.fast.pulls, name, watched)
            fast = pull(cluster, queue_offset, **FILTERS[kind])
        committed = app.tables.consumer_offsets.query("readers", TOPIC, 0)
        pull(cluster, 7, **FILTERS[kind])
        with monkeypatch.context() as patched:
            patched.setattr(
                app.fast.pulls, "_give_run", lambda peer, frames, at: (at, Outcome.GENERAL)
            )
            general = pull(cluster, queue_offset, **FILTERS[kind])
        assert fast._replace(opaque=0) == general._replace(opaque=0)
        assert app.tables.consumer_offsets.query("readers", TOPIC, 0) == committed == queue_offset
        if queue_offset < 20:
            assert taken and (
                taken[-1] == (1, Outcome.ANSWERED) or isinstance(taken[-1], FarAnswer)
            )


def test_a_filter_that_a_group_replaces_counts_from_its_next_pull_on(cluster: LocalCluster) -> None:
    def heartbeat(expression: str, version: int) -> None:
        subscription = {"topic": TOPIC, "subString": expression, "subVersion": version}
        subscription |= {"expressionType": "SQL92", "tagsSet": [], "codeSet": []}
        consumer = {"groupName": "readers", "consumeType": "CONSUME_PASSIVELY"}
        consumer |= {"messageModel": "CLUSTERING", "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET"}
        data = {"clientID": "c", "producerDataSet": []}
        data |= {"consumerDataSet": [{**consumer, "subscriptionDataSet": [subscription]}]}
        body = json.dumps(data).encode()
        answer = cluster.caller.call(cluster.brokers[0].address, RequestCode.HEART_BEAT, {}, body)
        assert answer.code == ResponseCode.SUCCESS

    registered = {"sysFlag": "0", "expressionType": "SQL92", "maxMsgNums": "32"}
    for version, kind in ((1, 3), (2, 4)):
        heartbeat(f"kind = {kind}", version)
        for _ in range(3):
            answer = pull(cluster, 0, **registered)
            assert offsets_of(answer) == list(range(kind, 20, 5))


def test_many_expressions_in_pulls_are_not_all_remembered(cluster: LocalCluster) -> None:
    app = cluster.brokers[0].app
    assert app is not None
    for number in range(150):
        text = f"kind = 3 AND n{number} IS NULL"
        answer = pull(cluster, 0, subscription=text, expressionType="SQL92")
        assert offsets_of(answer) == [3, 8, 13]
    assert len(app.fast.pulls.forms.by_key) <= 64


def test_a_connection_that_does_not_read_is_answered_busy(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hundreds of pulls in one write: their answers must not all be held in memory."""
    broker = cluster.brokers[0]
    assert broker.app is not None
    queued: list[int] = []

    def watch(name: str) -> None:
        send = getattr(Connection, name)

        def watched(peer: Connection, parts: list[bytes | memoryview]) -> None:
            send(peer, parts)
            assert peer._transport is not None
            queued.append(peer.queued_bytes + peer._transport.get_write_buffer_size())

        monkeypatch.setattr(Connection, name, watched)

    watch("send")
    watch("send_parts")
    with RawClient(broker.port) as client:
        for number in range(32):
            properties = f"UNIQ_KEY\x01AC{number:04}\x02TAGS\x01A\x02"
            fields = send_fields("large", i=properties)
            assert client.call(RequestCode.SEND_MESSAGE_V2, fields, bytes(100_000)).code == 0
        fields = {"consumerGroup": "readers", "topic": "large", "queueId": "0", "queueOffset": "0"}
        fields |= {"maxMsgNums": "32", "sysFlag": "4", "commitOffset": "0", "subVersion": "0"}
        fields |= {"suspendTimeoutMillis": "0", "subscription": "A", "expressionType": "TAG"}
        for _ in range(3):
            assert client.call(RequestCode.PULL_MESSAGE, fields).code == ResponseCode.SUCCESS
        pulls = [Request(RequestCode.PULL_MESSAGE, 1000 + n, fields, b"") for n in range(500)]
        client.send(b"".join(map(encode_request, pulls)))
        eventually(lambda: len(queued) > 3, "some are answered before the first is read")
        codes = {client.next_frame().code for _ in pulls}
    assert codes == {ResponseCode.SUCCESS, ResponseCode.SYSTEM_BUSY}
    limit = broker.app.server.limits.write_bytes_max
    assert max(queued) < 4 * limit
