"""How groups ask for messages: pulling is confirmed, popping is refused."""

from __future__ import annotations

import pytest

from contrail.broker.handlers.request_modes import RequestModeHandlers
from contrail.errors import RequestRejected
from contrail.model.fastjson import dumps
from contrail.protocol.codes import RequestCode, ResponseCode
from contrail.protocol.command import Response
from tests.fakes.peers import FakePeer
from tests.unit.broker.client_setup import Setup, request


def answered(body: bytes, **settings: bool) -> Response:
    broker = Setup(**settings)
    handlers = RequestModeHandlers(broker.topic_table, broker.groups, clock=broker.clock)
    code = RequestCode.SET_MESSAGE_REQUEST_MODE
    response = handlers.table()[code](request(code, body=body), FakePeer())
    assert isinstance(response, Response)
    return response


def mode(**changed: object) -> bytes:
    wanted = {"topic": "orders", "consumerGroup": "g", "mode": "PULL", "popShareQueueNum": 0}
    return dumps(wanted | changed)


def test_pulling_is_confirmed_for_a_known_topic() -> None:
    assert answered(mode()).code == ResponseCode.SUCCESS
    assert answered(b'{"topic":"orders","consumerGroup":"g"}').code == ResponseCode.SUCCESS


@pytest.mark.parametrize(
    ("body", "code", "word"),
    [
        (mode(mode="POP"), ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "by POP"),
        (mode(mode="PUSH"), ResponseCode.SYSTEM_ERROR, "'PUSH'"),
        (mode(topic="%RETRY%g"), ResponseCode.NO_PERMISSION, "retry topic"),
        (mode(topic="unknown"), ResponseCode.TOPIC_NOT_EXIST, "'unknown'"),
        (mode(consumerGroup="a/b"), ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, "'a/b'"),
        (b"{}", ResponseCode.SYSTEM_ERROR, "topic and consumerGroup"),
        (b"", ResponseCode.SYSTEM_ERROR, "a message request mode"),
    ],
)
def test_what_cannot_be_set_is_refused_with_its_name(body: bytes, code: int, word: str) -> None:
    with pytest.raises(RequestRejected) as refusal:
        answered(body)
    assert refusal.value.code == code
    assert word in refusal.value.remark


def test_a_group_that_may_not_be_made_is_refused() -> None:
    with pytest.raises(RequestRejected) as refusal:
        answered(mode(), auto_create_group=False)
    assert refusal.value.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
