"""Reads of a connection that its hub takes before they are decoded."""

from __future__ import annotations

import logging

import pytest

from contrail.protocol.command import Request, encode_request
from contrail.wire.connection import Connection
from contrail.wire.server import Server
from tests.fakes.transports import EchoService, FakeTransport, connected, still


class Setting:
    """A connection whose frames of five bytes, and none else, are taken by the intake."""

    def __init__(self) -> None:
        self.service = EchoService()
        self.server = still(Server(self.service))
        self.server.intake = self.take
        self.connection = Connection(self.server)
        self.transport = FakeTransport()
        self.transport.connect(self.connection)
        self.asked: list[bytes] = []

    def take(self, peer: Connection, data: bytes) -> int:
        assert peer is self.connection
        self.asked.append(data)
        if not data.startswith(b"rapid"):
            return 0
        peer.write_parts([b"the ", memoryview(b"answer")])
        return 5


REQUEST = encode_request(Request(34, 7, {}))


def test_a_read_that_is_taken_as_a_whole_is_not_decoded() -> None:
    setting = Setting()
    setting.connection.data_received(b"rapid")
    assert b"".join(setting.transport.written) == b"the answer"
    assert setting.connection.has_sent_a_frame
    assert not setting.server.arrivals


@pytest.mark.proves("broker.fast.one-gate")
def test_frames_behind_a_run_take_the_way_of_all_frames() -> None:
    setting = Setting()
    setting.connection.data_received(b"rapid" + REQUEST[:9])
    assert setting.connection.pending_bytes == 9
    setting.connection.data_received(REQUEST[9:20])
    assert setting.asked == [b"rapid" + REQUEST[:9]], "in the middle of a frame nobody is asked"
    setting.connection.data_received(REQUEST[20:])
    assert setting.asked[1:] == [REQUEST], "what is taken begins with a frame"
    assert len(setting.server.arrivals) == 1
    setting.connection.data_received(REQUEST)
    assert setting.asked[2:] == [REQUEST]


def test_nobody_is_asked_while_requests_wait_for_their_turn() -> None:
    setting = Setting()
    setting.connection.wait_again(REQUEST)
    setting.connection.data_received(REQUEST)
    assert not setting.asked
    setting.server._tick()
    assert len(setting.transport.frames()) == 2


def test_written_parts_do_not_overtake_what_waits_to_leave() -> None:
    setting = Setting()
    setting.connection.send_whole(b"earlier ")
    setting.connection.data_received(b"rapid")
    assert not setting.transport.written
    setting.connection.flush()
    assert b"".join(setting.transport.written) == b"earlier the answer"


def test_nothing_is_written_to_a_connection_that_is_closed() -> None:
    setting = Setting()
    setting.connection.close("over")
    setting.connection.write_parts([b"late"])
    assert not setting.transport.written


def test_an_answer_that_cannot_be_written_ends_the_connection() -> None:
    setting = Setting()

    def fail(parts: object) -> None:
        raise RuntimeError("the transport is broken")

    setting.transport.writelines = fail  # type: ignore[method-assign]
    setting.connection.data_received(b"rapid" + REQUEST)
    assert setting.connection.is_closed
    assert not setting.server.arrivals


def test_an_intake_that_fails_costs_one_connection(caplog: pytest.LogCaptureFixture) -> None:
    setting = Setting()

    def take(peer: Connection, data: bytes) -> int:
        if peer is setting.connection:
            raise RuntimeError("this service has a bug")
        return 0

    setting.server.intake = take
    other, transport = connected(setting.server, "127.0.0.1", 50_002)
    with caplog.at_level(logging.CRITICAL, logger="contrail.wire.connection"):
        setting.connection.data_received(REQUEST)
    assert setting.connection.is_closed
    other.data_received(REQUEST)
    setting.server._tick()
    assert len(transport.frames()) == 1
