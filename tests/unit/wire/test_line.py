"""Lines: one request at a time by the thread that wants its answer, over a socket in its place."""

from __future__ import annotations

from typing import Any, cast

import pytest

from contrail.errors import CallTimedOut
from contrail.protocol.command import ReceivedResponse, Response, encode_response
from contrail.protocol.frames import FrameDecoder
from contrail.wire import line as line_module
from contrail.wire.line import Line, Lines

ADDRESS = "broker:10911"


class FakeSocket:
    """Reads what it is given, one piece per call; an exception is raised instead."""

    def __init__(self) -> None:
        self.to_read: list[bytes | BaseException] = []
        self.written: list[bytes] = []
        self.peeked: bytes | BaseException = BlockingIOError()
        self.write_error: OSError | None = None
        self.is_closed = self.is_shut = False

    def settimeout(self, timeout_s: float) -> None:
        assert timeout_s >= 0

    def sendall(self, data: bytes) -> None:
        if self.write_error is not None:
            raise self.write_error
        self.written.append(data)

    def recv(self, size: int, flags: int = 0) -> bytes:
        given = self.peeked if flags else self.to_read.pop(0)
        if isinstance(given, BaseException):
            raise given
        return given

    def shutdown(self, how: int) -> None:
        self.is_shut = True

    def close(self) -> None:
        self.is_closed = True

    def fileno(self) -> int:
        return -1 if self.is_closed else 7


def answer(opaque: int, code: int = 0) -> bytes:
    return b"".join(encode_response(Response(code), opaque))


def line_over(fake: FakeSocket) -> Line:
    return Line(ADDRESS, cast(Any, fake), FrameDecoder())


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch) -> list[FakeSocket]:
    """The sockets that were connected."""
    made: list[FakeSocket] = []

    def connect(peer: str) -> FakeSocket:
        made.append(FakeSocket())
        return made[-1]

    monkeypatch.setattr(line_module, "_connect", connect)
    return made


def make(lines: Lines) -> Line | None:
    """A line, after as many wishes as it takes."""
    for _ in range(line_module._WISHES_MIN):
        found = lines.make(ADDRESS, "127.0.0.1:10911", FrameDecoder())
        if found is not None:
            return found
    return None


# One line.


def test_an_answer_in_pieces_is_put_together() -> None:
    fake = FakeSocket()
    whole = answer(5, 12)
    fake.to_read = [whole[:3], whole[3:20], whole[20:]]
    line = line_over(fake)
    got = line.ask(5, b"frame", 310, 1_000)
    assert isinstance(got, ReceivedResponse) and got.code == 12
    assert fake.written == [b"frame"] and not line.is_broken


def test_answers_to_others_are_passed_over() -> None:
    fake = FakeSocket()
    fake.to_read = [answer(4, 1) + answer(5, 0)]
    got = line_over(fake).ask(5, b"frame", 310, 1_000)
    assert isinstance(got, ReceivedResponse) and got.opaque == 5


def test_a_request_that_could_not_be_written_was_not_sent() -> None:
    fake = FakeSocket()
    fake.write_error = BrokenPipeError()
    line = line_over(fake)
    assert line.ask(1, b"frame", 310, 1_000) is None
    assert line.is_broken


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (b"", "broker:10911 closed the connection before it answered"),
        (ConnectionResetError(), "broker:10911 closed the connection before it answered"),
        (b"\xff" * 64, "broker:10911 closed the connection before it answered"),
        (TimeoutError(), "broker:10911 did not answer request 310 within 1000 ms"),
    ],
)
def test_without_an_answer_the_request_is_in_doubt_and_the_line_broken(
    given: bytes | BaseException, told: str
) -> None:
    fake = FakeSocket()
    fake.to_read = [given]
    line = line_over(fake)
    got = line.ask(1, b"frame", 310, 1_000)
    assert isinstance(got, CallTimedOut) and str(got) == told
    assert line.is_broken


def test_an_interrupted_wait_breaks_the_line() -> None:
    fake = FakeSocket()
    fake.to_read = [KeyboardInterrupt()]
    line = line_over(fake)
    with pytest.raises(KeyboardInterrupt):
        line.ask(1, b"frame", 310, 1_000)
    assert line.is_broken


# All of them.


def test_the_first_wishes_make_no_line(fakes: list[FakeSocket]) -> None:
    lines = Lines()
    for _ in range(line_module._WISHES_MIN - 1):
        assert lines.make(ADDRESS, "127.0.0.1:10911", FrameDecoder()) is None
    assert not fakes
    assert lines.make(ADDRESS, "127.0.0.1:10911", FrameDecoder()) is not None


def test_a_line_in_use_is_nobody_elses(fakes: list[FakeSocket]) -> None:
    lines = Lines()
    line = make(lines)
    assert line is not None and lines.take(ADDRESS) is None and make(lines) is None
    lines.give_back(line)
    assert lines.take(ADDRESS) is line
    assert len(fakes) == 1 and lines.socket_numbers() == [7]


def test_a_broken_line_is_closed_when_given_back_and_another_made(fakes: list[FakeSocket]) -> None:
    lines = Lines()
    line = make(lines)
    assert line is not None
    line.is_broken = True
    lines.give_back(line)
    assert fakes[0].is_closed and lines.take(ADDRESS) is None
    assert make(lines) is not None and len(fakes) == 2


@pytest.mark.parametrize("peeked", [b"", b"x", ConnectionResetError()])
def test_a_line_that_the_peer_closed_or_spoke_on_is_not_used(
    fakes: list[FakeSocket], peeked: bytes | BaseException
) -> None:
    lines = Lines()
    line = make(lines)
    assert line is not None
    lines.give_back(line)
    fakes[0].peeked = peeked
    assert lines.take(ADDRESS) is None
    assert fakes[0].is_closed


def test_an_idle_line_is_not_used_any_more(
    fakes: list[FakeSocket], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = Lines()
    line = make(lines)
    assert line is not None
    lines.give_back(line)
    monkeypatch.setattr(line_module, "_IDLE_S_MAX", -1.0)
    assert lines.take(ADDRESS) is None
    assert fakes[0].is_closed


def test_a_failed_attempt_is_not_repeated_until_the_connection_is_renewed(
    fakes: list[FakeSocket], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as failing:
        failing.setattr(line_module, "_connect", lambda peer: None)
        lines = Lines()
        assert make(lines) is None
    assert make(lines) is None and not fakes
    lines.forget(ADDRESS)
    assert make(lines) is not None


def test_a_line_that_was_forgotten_while_in_use_is_closed_by_its_user(
    fakes: list[FakeSocket],
) -> None:
    lines = Lines()
    line = make(lines)
    assert line is not None
    lines.forget(ADDRESS)
    assert [fake.is_closed for fake in fakes] == [False]
    lines.give_back(line)
    assert [fake.is_closed for fake in fakes] == [True]
    assert lines.take(ADDRESS) is None


def test_closing_hangs_up_on_who_waits_and_makes_no_lines_any_more(
    fakes: list[FakeSocket],
) -> None:
    lines = Lines()
    line = make(lines)
    assert line is not None
    lines.close()
    assert [(fake.is_shut, fake.is_closed) for fake in fakes] == [(True, False)]
    lines.give_back(line)
    assert [fake.is_closed for fake in fakes] == [True]
    assert make(lines) is None and not lines.socket_numbers()
