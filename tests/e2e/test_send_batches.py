"""Batches that are split, written and answered together, and what stops them."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator

import pytest

from contrail.model.batch import BatchUnit, encode_batch
from contrail.protocol.codes import RequestCode, ResponseCode
from contrail.protocol.command import FLAG_ONE_WAY, ReceivedResponse
from contrail.store.log import MessageStore
from contrail.testing import LocalCluster, eventually
from tests.e2e.asking import Asker
from tests.e2e.raw_client import RawClient, send_fields

TOPIC = "batches"


@pytest.fixture(params=["ASYNC_FLUSH", "SYNC_FLUSH"])
def broker(request: pytest.FixtureRequest, fast_path: str) -> Iterator[Asker]:
    """Segments so small that batches go over their ends."""
    properties = {
        "contrailFastPath": fast_path,
        "flushDiskType": request.param,
        "mappedFileSizeCommitLog": "65536",
    }
    with LocalCluster(properties=properties) as running:
        asker = Asker(running)
        asker.make_topic(TOPIC, read=2, write=2)
        # The first batch of a topic and the first message of a queue take the general way.
        with RawClient(asker.broker.port) as client:
            client.send(batch(0, b"first"))
            assert client.next_frame().code == ResponseCode.SUCCESS
        yield asker


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many batches each append of fast batches stored."""
    counts: list[int] = []
    append = MessageStore.append_chunks

    def counted(store: MessageStore, chunks: list[tuple]) -> object:  # type: ignore[type-arg]
        appended = append(store, chunks)
        counts.append(0 if appended is None else len(chunks))
        return appended

    monkeypatch.setattr(MessageStore, "append_chunks", counted)
    return counts


def unit(body: bytes, more: bytes = b"") -> BatchUnit:
    return BatchUnit(body, b"UNIQ_KEY\x01AC" + body[:20] + b"\x02" + more)


def batch(opaque: int, *bodies: bytes, flag: int = 0, code: int = 320, more: bytes = b"") -> bytes:
    """A batch as a Java client writes it."""
    properties = f"UNIQ_KEY\x01AC{opaque:04}\x02WAIT\x01true\x02"
    return framed(code, opaque, flag, properties, encode_batch(unit(b, more) for b in bodies))


def framed(
    code: int, opaque: int, flag: int, properties: str, body: bytes, is_batch: bool = True
) -> bytes:
    fields = send_fields(TOPIC, i=properties, m="true" if is_batch else "false")
    header = {"code": code, "extFields": fields, "flag": flag, "language": "JAVA", "opaque": opaque}
    text = json.dumps(header, separators=(",", ":")).encode()
    return struct.pack(">II", 4 + len(text) + len(body), len(text)) + text + body


def answers(client: RawClient, count: int) -> list[ReceivedResponse]:
    return [client.next_frame() for _ in range(count)]


@pytest.mark.proves("broker.fast.end-end-tests")
@pytest.mark.parametrize("code", [310, 320])
def test_batches_of_one_write_are_stored_in_order_and_answered(
    broker: Asker, fast_path: str, taken: list[int], code: int
) -> None:
    bodies = [b"%03d" % number for number in range(24)]
    with RawClient(broker.broker.port) as client:
        client.send(b"".join(batch(n, *bodies[4 * n : 4 * n + 4], code=code) for n in range(6)))
        found = answers(client, 6)
    assert [answer.opaque for answer in found] == list(range(6))
    assert {answer.code for answer in found} == {ResponseCode.SUCCESS}
    assert [answer.fields["queueOffset"] for answer in found] == [str(n) for n in range(1, 25, 4)]
    assert found[3].fields["transactionId"] == "AC0003"
    assert found[3].fields["queueId"] == "0"
    assert broker.bodies(TOPIC) == [b"first", *bodies]
    # A change of topics or settings meanwhile sends the next one the general way.
    assert sum(taken) >= 5 or fast_path == "off", f"not all of them were fast: {taken}"


def test_the_ids_of_an_answer_find_the_messages(broker: Asker, taken: list[int]) -> None:
    with RawClient(broker.broker.port) as client:
        client.send(batch(7, b"one", b"two", b"three"))
        (answer,) = answers(client, 1)
    assert sum(taken) <= 1
    places = [int(message_id[16:], 16) for message_id in answer.fields["msgId"].split(",")]
    found = [
        broker.done(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": str(place)}).body for place in places
    ]
    assert [[body in record for body in (b"one", b"two", b"three")] for record in found] == [
        [True, False, False],
        [False, True, False],
        [False, False, True],
    ]


def test_a_batch_at_the_end_of_a_segment_stays_whole(broker: Asker) -> None:
    bodies = [b"%03d" % number * 300 for number in range(200)]
    with RawClient(broker.broker.port) as client:
        for first in range(0, 200, 20):
            runs = [bodies[at : at + 5] for at in range(first, first + 20, 5)]
            client.send(b"".join(batch(number, *run) for number, run in enumerate(runs)))
            assert {answer.code for answer in answers(client, 4)} == {ResponseCode.SUCCESS}
    assert broker.bodies(TOPIC) == [b"first", *bodies]


def test_nobody_waits_for_a_one_way_batch(broker: Asker) -> None:
    flags = [FLAG_ONE_WAY if number % 2 else 0 for number in range(4)]
    with RawClient(broker.broker.port) as client:
        client.send(b"".join(batch(n, b"a", b"b", flag=flag) for n, flag in enumerate(flags)))
        assert [answer.opaque for answer in answers(client, 2)] == [0, 2]
        eventually(lambda: len(broker.bodies(TOPIC)) == 9, "all are stored")


def test_one_batch_that_cannot_be_stored_does_not_change_the_others(broker: Asker) -> None:
    frames = [batch(number, b"%d" % number, b"x") for number in range(5)]
    frames[2] = batch(2, b"late", b"later", more=b"DELAY\x013\x02")
    frames[3] = framed(320, 3, 0, "UNIQ_KEY\x01k\x02", b"\x00\x00\x00\x05short")
    with RawClient(broker.broker.port) as client:
        client.send(b"".join(frames))
        codes = {answer.opaque: answer.code for answer in answers(client, 5)}
    assert codes == {
        0: ResponseCode.SUCCESS,
        1: ResponseCode.SUCCESS,
        2: ResponseCode.MESSAGE_ILLEGAL,
        3: ResponseCode.SYSTEM_ERROR,
        4: ResponseCode.SUCCESS,
    }
    assert broker.bodies(TOPIC) == [b"first", b"0", b"x", b"1", b"x", b"4", b"x"]


def test_batches_and_single_sends_of_a_connection_keep_their_order(broker: Asker) -> None:
    def single(number: int) -> bytes:
        return framed(310, number, 0, f"UNIQ_KEY\x01S{number}\x02", b"%d" % number, is_batch=False)

    frames = [
        batch(0, b"0"), batch(1, b"1"), single(2), single(3), batch(4, b"4"), single(5),
        batch(6, b"6"),
    ]  # fmt: skip
    with RawClient(broker.broker.port) as client:
        client.send(b"".join(frames))
        client.send(b"".join(single(number) for number in range(7, 13)))
        client.send(batch(13, b"13"))
        assert {answer.code for answer in answers(client, 14)} == {ResponseCode.SUCCESS}
    assert broker.bodies(TOPIC) == [b"first", *(b"%d" % number for number in range(14))]


def test_an_unexpected_failure_is_told_to_every_producer(
    broker: Asker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(store: MessageStore, messages: object) -> object:
        raise RuntimeError("broken for the test")

    for way in ("append_batch", "append_chunks"):
        monkeypatch.setattr(MessageStore, way, broken)
    with RawClient(broker.broker.port) as client:
        client.send(b"".join(batch(number, b"x") for number in range(3)))
        found = answers(client, 3)
        assert {answer.code for answer in found} == {ResponseCode.SERVICE_NOT_AVAILABLE}
        assert "broken for the test" in (found[0].remark or "")
        monkeypatch.undo()
        client.send(b"".join(batch(number, b"y") for number in range(3)))
        assert {answer.code for answer in answers(client, 3)} == {ResponseCode.SUCCESS}
    assert broker.bodies(TOPIC) == [b"first", b"y", b"y", b"y"]


def test_batches_of_several_connections_join_one_run(
    broker: Asker, fast_path: str, taken: list[int]
) -> None:
    clients = [RawClient(broker.broker.port) for _ in range(4)]
    try:
        for number, client in enumerate(clients):
            client.send(b"".join(batch(n, b"%d-%d" % (number, n)) for n in range(10)))
        for client in clients:
            found = answers(client, 10)
            assert {answer.code for answer in found} == {ResponseCode.SUCCESS}
    finally:
        for client in clients:
            client.close()
    assert sum(taken) == (40 if fast_path == "on" else 0)
    stored = broker.bodies(TOPIC)
    for number in range(4):
        own = [body for body in stored if body.startswith(b"%d-" % number)]
        assert own == [b"%d-%d" % (number, n) for n in range(10)]


def test_a_split_batchs_message_may_have_a_property_named_like_an_inner_batchs(
    broker: Asker,
) -> None:
    """It means nothing there, as to Apache's broker: the message takes one place of its queue."""
    with RawClient(broker.broker.port) as client:
        marked = b"INNER_NUM\x015\x02INNER_BASE\x0190\x02"
        client.send(batch(1, b"one", b"two", more=marked) + batch(2, b"three"))
        found = answers(client, 2)
    assert [answer.fields["queueOffset"] for answer in found] == ["1", "3"]
    assert broker.bodies(TOPIC) == [b"first", b"one", b"two", b"three"]
