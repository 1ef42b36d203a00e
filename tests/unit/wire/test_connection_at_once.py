"""What a connection does with reads that are answered before they are decoded."""

from __future__ import annotations

from contrail.protocol.command import Request, encode_request
from contrail.wire.connection import Connection
from contrail.wire.server import Server
from tests.fakes.transports import EchoService, FakeTransport


class Setting:
    """A connection whose frames of five bytes, and none else, are answered at once."""

    def __init__(self) -> None:
        self.service = EchoService()
        self.server = Server(self.service)
        self.connection = Connection(self.server)
        self.transport = FakeTransport()
        self.transport.connect(self.connection)
        self.asked: list[bytes] = []
        self.connection.at_once = self.answer

    def answer(self, data: bytes) -> tuple[list[bytes | memoryview], int] | None:
        self.asked.append(data)
        if not data.startswith(b"quick"):
            return None
        return [b"the ", memoryview(b"answer")], 5


REQUEST = encode_request(Request(34, 7, {}))


def test_a_read_that_is_answered_as_a_whole_is_not_decoded() -> None:
    setting = Setting()
    setting.connection.data_received(b"quick")
    assert b"".join(setting.transport.written) == b"the answer"
    assert setting.connection.has_sent_a_frame
    assert not setting.server.arrivals


def test_what_follows_takes_the_way_of_all_frames() -> None:
    setting = Setting()
    setting.connection.data_received(b"quick" + REQUEST[:9])
    assert setting.connection.pending_bytes == 9
    setting.connection.data_received(REQUEST[9:])
    assert setting.asked == [b"quick" + REQUEST[:9]], "in the middle of a frame nobody is asked"
    assert len(setting.server.arrivals) == 1
    setting.connection.data_received(REQUEST)
    assert setting.asked[1:] == [REQUEST]


def test_nothing_overtakes_what_waits_to_leave_and_nothing_is_added_for_a_slow_peer() -> None:
    setting = Setting()
    setting.connection.send_whole(b"earlier")
    setting.connection.data_received(REQUEST)
    assert not setting.asked
    setting.connection.flush()
    setting.connection.pause_writing()
    setting.connection.data_received(REQUEST)
    assert not setting.asked
    setting.connection.resume_writing()
    setting.connection.data_received(REQUEST)
    assert setting.asked == [REQUEST]


def test_an_answer_that_cannot_be_written_ends_the_connection() -> None:
    setting = Setting()

    def fail(parts: object) -> None:
        raise RuntimeError("the transport is broken")

    setting.transport.writelines = fail  # type: ignore[method-assign]
    setting.connection.data_received(b"quick" + REQUEST)
    assert setting.connection.is_closed
    assert not setting.server.arrivals
