"""Sends and the deletion of their topic in one read; marks that only the broker writes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from contrail.model.batch import BatchUnit, encode_batch
from contrail.protocol.codes import RequestCode, ResponseCode
from contrail.protocol.command import Request, encode_request
from contrail.testing import LocalCluster
from tests.e2e.asking import Asker
from tests.e2e.raw_client import RawClient, send_fields

TOPIC = "gone"
COUNT = 4


@pytest.fixture(params=["ASYNC_FLUSH", "SYNC_FLUSH"])
def asker(request: pytest.FixtureRequest, fast_path: str, tmp_path: Path) -> Iterator[Asker]:
    properties = {"contrailFastPath": fast_path, "flushDiskType": request.param}
    with LocalCluster(folder=tmp_path, properties=properties) as running:
        asker = Asker(running)
        asker.make_topic(TOPIC, read=1, write=1)
        yield asker


def send(opaque: int, *, code: int = RequestCode.SEND_MESSAGE_V2, **changes: str) -> bytes:
    properties = f"UNIQ_KEY\x01{opaque:032X}\x02"
    return encode_request(Request(code, opaque, send_fields(TOPIC, i=properties, **changes), b"x"))


def codes(asker: Asker, data: bytes, count: int) -> list[int]:
    """The answers to requests with the opaques 1 to ``count``, in that order."""
    with RawClient(asker.broker.port) as client:
        client.send(data)
        answers = [client.next_frame() for _ in range(count)]
    return [answer.code for answer in sorted(answers, key=lambda answer: int(answer.opaque))]


def test_sends_before_a_deletion_are_deleted_with_their_topic(asker: Asker) -> None:
    sends = b"".join(send(number) for number in range(1, COUNT + 1))
    assert codes(asker, sends, COUNT) == [ResponseCode.SUCCESS] * COUNT
    fields = {"topic": TOPIC}
    deletion = encode_request(Request(RequestCode.DELETE_TOPIC_IN_BROKER, COUNT + 1, fields))
    assert codes(asker, sends + deletion, COUNT + 1) == [ResponseCode.SUCCESS] * (COUNT + 1)
    broker = asker.broker
    broker.stop()
    broker.start()
    answer = asker.ask(RequestCode.GET_TOPIC_CONFIG, fields)
    assert answer.code == ResponseCode.TOPIC_NOT_EXIST
    assert broker.app is not None
    assert not [queue for queue in broker.app.store.queues() if queue[0] == TOPIC.encode()]


@pytest.mark.parametrize("flags", [0x40, 0x80, 0xC0])
def test_a_batch_with_the_marks_of_an_inner_batch_is_refused(asker: Asker, flags: int) -> None:
    body = encode_batch([BatchUnit(b"one", b""), BatchUnit(b"two", b"")])
    fields = send_fields(TOPIC, f=str(flags), m="true")
    for _ in range(3):
        answer = asker.ask(RequestCode.SEND_BATCH_MESSAGE, fields, body)
        assert answer.code == ResponseCode.MESSAGE_ILLEGAL
        assert "marks of an inner batch" in (answer.remark or "")
    sound = asker.ask(RequestCode.SEND_BATCH_MESSAGE, send_fields(TOPIC, m="true"), body)
    assert sound.code == ResponseCode.SUCCESS
    assert asker.bodies(TOPIC) == [b"one", b"two"]
