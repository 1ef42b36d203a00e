"""How a connection sends: answers in order, in one write for a tick, none after its end."""

from __future__ import annotations

import pytest

from contrail.protocol.command import FLAG_ONE_WAY, ReceivedResponse, Request, Response
from contrail.wire.connection import Connection
from contrail.wire.limits import Limits
from contrail.wire.server import Server
from tests.fakes.transports import EchoService, FakeTransport, connected, still


@pytest.fixture
def room() -> tuple[Connection, FakeTransport]:
    return connected(still(Server(EchoService())))


def test_answers_of_a_tick_leave_in_order_with_one_write(
    room: tuple[Connection, FakeTransport],
) -> None:
    connection, transport = room
    for opaque in (1, 2, 3):
        connection.reply(Request(34, opaque, {}), Response(0))
    assert transport.written == []
    connection.flush()
    assert len(transport.written) == 1
    answers = transport.frames()
    assert [one.opaque for one in answers if isinstance(one, ReceivedResponse)] == [1, 2, 3]


def test_a_one_way_request_is_not_answered(room: tuple[Connection, FakeTransport]) -> None:
    connection, transport = room
    connection.reply(Request(34, 1, {}, flag=FLAG_ONE_WAY), Response(0))
    connection.flush()
    assert transport.written == []


def test_a_lone_answer_leaves_now_and_never_before_earlier_ones(
    room: tuple[Connection, FakeTransport],
) -> None:
    connection, transport = room
    connection.send_now(b"first ")
    assert transport.written == [b"first "]
    connection.send_whole(b"second ")
    connection.send_now(b"third")
    assert transport.written == [b"first "]
    connection.flush()
    assert b"".join(transport.written) == b"first second third"


def test_an_answer_that_cannot_be_encoded_is_told_as_an_error(
    room: tuple[Connection, FakeTransport],
) -> None:
    connection, transport = room
    connection.answer(7, Response(0, None, {"name": "x" * (1 << 24)}))
    connection.flush()
    (answer,) = transport.frames()
    assert isinstance(answer, ReceivedResponse) and (answer.opaque, answer.code) == (7, 1)


def test_nothing_is_sent_after_the_end(room: tuple[Connection, FakeTransport]) -> None:
    connection, transport = room
    connection.close("over")
    connection.send([b"late"])
    connection.send_whole(b"late")
    connection.send_now(b"late")
    connection.flush()
    assert transport.written == []


def test_a_transport_that_fails_ends_its_connection_and_raises_nothing(
    room: tuple[Connection, FakeTransport], monkeypatch: pytest.MonkeyPatch
) -> None:
    connection, transport = room

    def fail(data: object) -> None:
        raise RuntimeError("the transport is broken")

    monkeypatch.setattr(transport, "write", fail)
    connection.send_now(b"answer")
    assert connection.is_closed and transport.was_aborted


def test_a_peer_with_more_unsent_bytes_than_its_bound_is_choked() -> None:
    limits = Limits(write_bytes_max=10)
    connection, _ = connected(still(Server(EchoService(), limits=limits)))
    connection.send_whole(b"x" * 10)
    assert connection.room_bytes == 0 and not connection.is_choked
    connection.send_whole(b"x")
    assert connection.is_choked
    connection.flush()
    assert not connection.is_choked
