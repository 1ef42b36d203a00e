"""Request-reply through running brokers: the reply goes to the client that asked."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import pytest

from contrail.model.properties import decode_properties
from contrail.protocol.codes import RequestCode, ResponseCode
from contrail.protocol.command import (
    ReceivedResponse,
    Request,
    Response,
    encode_request,
    encode_response,
)
from contrail.testing import LocalCluster, eventually
from tests.e2e.asking import Asker, messages, properties_text
from tests.e2e.raw_client import RawClient, send_fields

REPLY_TOPIC = "DefaultCluster_REPLY_TOPIC"
REPLY, PUSH = RequestCode.SEND_REPLY_MESSAGE_V2, RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(brokers=2) as running:
        yield running


def _heartbeat(client_id: str) -> bytes:
    producers = [{"groupName": "askers"}]
    return json.dumps({"clientID": client_id, "producerDataSet": producers}).encode()


@contextmanager
def _requester(cluster: LocalCluster, client_id: str, number: int = 0) -> Iterator[RawClient]:
    """A client that has told a broker who it is."""
    with RawClient(cluster.brokers[number].port) as client:
        answer = client.call(RequestCode.HEART_BEAT, {}, _heartbeat(client_id))
        assert answer.code == ResponseCode.SUCCESS
        yield client


def _reply_fields(client_id: str, correlation_id: str = "c-1", **changes: str) -> dict[str, str]:
    properties = {
        "MSG_TYPE": "reply",
        "CORRELATION_ID": correlation_id,
        "REPLY_TO_CLIENT": client_id,
        "TTL": "3000",
    }
    return send_fields(REPLY_TOPIC, i=properties_text(properties), **changes)


class Responder:
    """A client that sends replies."""

    def __init__(self, cluster: LocalCluster, number: int = 0) -> None:
        self.client = RawClient(cluster.brokers[number].port)

    def send(self, fields: Mapping[str, str], body: bytes, opaque: int = 7) -> None:
        self.client.send(encode_request(Request(REPLY, opaque, dict(fields), body)))

    def answer(self, opaque: int = 7) -> ReceivedResponse:
        return self.client.answer_to(opaque)


@pytest.fixture
def responder(cluster: LocalCluster) -> Iterator[Responder]:
    found = Responder(cluster)
    yield found
    found.client.close()


def _pushed(requester: RawClient) -> Request:
    """The reply that a requester is sent."""
    while True:
        frame = requester.next_frame()
        if isinstance(frame, Request) and frame.code == PUSH:
            return frame


def _accept(requester: RawClient, push: Request, code: int = 0) -> None:
    requester.send(b"".join(encode_response(Response(code, None), push.opaque)))


@pytest.mark.proves("kinds.order.replies")
def test_a_question_and_its_answer(cluster: LocalCluster, responder: Responder) -> None:
    asker = Asker(cluster)
    question = {"CORRELATION_ID": "q-1", "REPLY_TO_CLIENT": "asker@1", "TTL": "3000"}
    with _requester(cluster, "asker@1") as requester:
        place = asker.stored("questions", b"how much?", properties=question)
        (asked,) = messages(asker.pull("questions", place))
        assert asked.properties["CLUSTER"] + "_REPLY_TOPIC" == REPLY_TOPIC
        responder.send(_reply_fields("asker@1", "q-1"), b"forty-two")
        push = _pushed(requester)
        assert push.body == b"forty-two"
        assert push.fields["topic"] == REPLY_TOPIC
        assert push.fields["bornHost"] == f"127.0.0.1:{responder.client.local_port}"
        assert push.fields["storeHost"] == cluster.brokers[0].address
        properties = decode_properties(push.fields["properties"].encode())
        assert properties["CORRELATION_ID"] == "q-1"
        assert int(properties["PUSH_REPLY_TIME"]) == int(push.fields["storeTimestamp"])
        _accept(requester, push)
        answer = responder.answer()
    assert (answer.code, answer.remark) == (ResponseCode.SUCCESS, None)
    # It is kept, and read like any message.
    (kept,) = messages(asker.pull(REPLY_TOPIC, int(answer.fields["queueOffset"])))
    assert kept.body == b"forty-two" and kept.properties["CORRELATION_ID"] == "q-1"
    assert answer.fields["msgId"].endswith(f"{kept.physical_offset:016X}")


def test_replies_to_many_questions_are_under_way_at_once(
    cluster: LocalCluster, responder: Responder
) -> None:
    with _requester(cluster, "asker@2") as requester:
        for number in range(100):
            responder.send(_reply_fields("asker@2", f"q-{number}"), b"%d" % number, number)
        pushes = [_pushed(requester) for _ in range(100)]
        assert [push.body for push in pushes] == [b"%d" % number for number in range(100)]
        # Answered in another order than asked.
        for push in reversed(pushes):
            _accept(requester, push)
        answers = [responder.client.next_frame() for _ in range(100)]
    assert {answer.opaque for answer in answers} == set(range(100))
    assert {answer.code for answer in answers} == {ResponseCode.SUCCESS}


@pytest.mark.proves("kinds.order.replies")
def test_a_requester_that_is_not_here_fails_the_reply(
    cluster: LocalCluster, responder: Responder
) -> None:
    responder.send(_reply_fields("nobody@1"), b"into the void")
    answer = responder.answer()
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "nobody@1" in (answer.remark or "")


@pytest.mark.proves("kinds.order.replies")
def test_a_requester_that_goes_while_its_reply_is_under_way_fails_it(
    cluster: LocalCluster, responder: Responder
) -> None:
    with _requester(cluster, "asker@3") as requester:
        responder.send(_reply_fields("asker@3"), b"too late")
        _pushed(requester)
    answer = responder.answer()
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "asker@3" in (answer.remark or "")


def test_a_requester_that_refuses_its_reply_fails_it(
    cluster: LocalCluster, responder: Responder
) -> None:
    with _requester(cluster, "asker@4") as requester:
        responder.send(_reply_fields("asker@4"), b"unwanted")
        _accept(requester, _pushed(requester), code=1)
        assert responder.answer().code == ResponseCode.SYSTEM_ERROR


def test_a_requester_that_came_back_is_found_on_its_new_connection(
    cluster: LocalCluster, responder: Responder
) -> None:
    with _requester(cluster, "asker@5") as old, _requester(cluster, "asker@5") as new:
        responder.send(_reply_fields("asker@5"), b"welcome back")
        _accept(new, _pushed(new))
        assert responder.answer().code == ResponseCode.SUCCESS
        new.close()
        app = cluster.brokers[0].app
        assert app is not None
        producers = app.tables.producers
        eventually(lambda: len(producers.channels("askers")) == 1, "the new connection is gone")
        responder.send(_reply_fields("asker@5"), b"and again", 8)
        _accept(old, _pushed(old))
        assert responder.answer(8).code == ResponseCode.SUCCESS


def test_a_reply_reaches_its_requester_through_every_broker_it_is_known_to(
    cluster: LocalCluster,
) -> None:
    elsewhere = Responder(cluster, number=1)
    try:
        with (
            _requester(cluster, "asker@6", number=0),
            _requester(cluster, "asker@6", number=1) as requester,
        ):
            elsewhere.send(_reply_fields("asker@6"), b"from afar")
            push = _pushed(requester)
            assert push.fields["storeHost"] == cluster.brokers[1].address
            _accept(requester, push)
            assert elsewhere.answer().code == ResponseCode.SUCCESS
        with _requester(cluster, "asker@7", number=0):
            elsewhere.send(_reply_fields("asker@7"), b"lost", 8)
            assert elsewhere.answer(8).code == ResponseCode.SYSTEM_ERROR
    finally:
        elsewhere.client.close()


def test_the_long_spelling_is_understood_too(cluster: LocalCluster) -> None:
    fields = {
        "producerGroup": "answerers",
        "topic": REPLY_TOPIC,
        "defaultTopic": "TBW102",
        "defaultTopicQueueNums": "4",
        "queueId": "-1",
        "sysFlag": "0",
        "bornTimestamp": "17",
        "flag": "0",
        "properties": _reply_fields("asker@8")["i"],
    }
    with _requester(cluster, "asker@8") as requester, RawClient(cluster.brokers[0].port) as client:
        request = Request(RequestCode.SEND_REPLY_MESSAGE, 7, fields, b"at length")
        client.send(encode_request(request))
        push = _pushed(requester)
        assert (push.body, push.fields["queueId"]) == (b"at length", "-1")
        _accept(requester, push)
        answer = client.answer_to(7)
    assert (answer.code, answer.fields["queueId"]) == (ResponseCode.SUCCESS, "0")


def test_a_broker_that_keeps_no_replies_still_pushes_them() -> None:
    with LocalCluster(properties={"storeReplyMessageEnable": "false"}) as cluster:
        responder = Responder(cluster)
        try:
            with _requester(cluster, "asker@9") as requester:
                responder.send(_reply_fields("asker@9"), b"in passing")
                _accept(requester, _pushed(requester))
                answer = responder.answer()
        finally:
            responder.client.close()
        assert (answer.code, answer.fields["msgId"]) == (ResponseCode.SUCCESS, "0")
        assert Asker(cluster).bodies(REPLY_TOPIC) == []


def test_under_sync_flush_the_reply_is_on_the_disk_when_it_is_answered() -> None:
    with LocalCluster(properties={"flushDiskType": "SYNC_FLUSH"}) as cluster:
        responder = Responder(cluster)
        try:
            with _requester(cluster, "asker@10") as requester:
                responder.send(_reply_fields("asker@10"), b"for good")
                _accept(requester, _pushed(requester))
                answer = responder.answer()
        finally:
            responder.client.close()
        assert answer.code == ResponseCode.SUCCESS
        assert Asker(cluster).bodies(REPLY_TOPIC) == [b"for good"]


def test_a_broker_that_stops_does_not_wait_for_replies_under_way() -> None:
    with LocalCluster() as cluster:
        responder = Responder(cluster)
        try:
            with _requester(cluster, "asker@11") as requester:
                responder.send(_reply_fields("asker@11"), b"unanswered")
                _pushed(requester)
                cluster.brokers[0].stop()
                responder.client.wait_closed()
        finally:
            responder.client.close()
