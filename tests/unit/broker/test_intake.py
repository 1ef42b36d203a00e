"""The gate: which way bytes and requests go, and what the guards refuse."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from contrail.broker.fast.rows import SendRows
from contrail.broker.guards import SENDS as SEND_CODES
from contrail.broker.guards import Guard, Guards, Verdict
from contrail.broker.intake import Intake
from contrail.protocol.codes import RequestCode, ResponseCode
from contrail.protocol.command import (
    FLAG_ONE_WAY,
    ReadyAnswer,
    Request,
    Response,
    encode_request,
)
from contrail.protocol.frames import FrameDecoder, Frames, SendRequest
from contrail.wire.connection import Connection
from contrail.wire.router import GO_AWAY_VERSION, RequestRouter
from contrail.wire.server import Arrived, Server
from tests.e2e.raw_client import send_fields
from tests.fakes.transports import FakeTransport, connected, still


def send(opaque: int) -> bytes:
    fields = send_fields("t") | {"i": f"UNIQ_KEY\x01AC{opaque:04}\x02"}
    return encode_request(Request(310, opaque, fields, b"body"))


SENDS = b"".join(map(send, range(40)))
PING = encode_request(Request(34, 7, {}, b"ping"))


class FakeWay:
    """The fast path: takes what it is told to, and remembers what it was given."""

    def __init__(self) -> None:
        self.is_on = True
        self.pulls = self.tickless = self
        self.sends = SimpleNamespace(
            take=self.take_sends,
            take_runs=self.take_runs,
            append_rows=self.append_rows,
            append_run=lambda: None,
        )
        self.collected: list[Any] = []
        self.general: list[Any] = []
        self.offered: list[tuple[object, bytes]] = []
        self.taken: list[Arrived] = []
        self.left_bytes: int | None = None
        self.appended_count = 0

    def take(self, peer: Connection, data: bytes) -> int:
        self.offered.append((peer, data))
        return 0 if self.left_bytes is None else len(data) - self.left_bytes

    def take_sends(
        self, peer: Connection, sends: list[Any], waited_ms: float, is_general: bool = False
    ) -> None:
        self.collected += sends
        self.general += sends if is_general else []

    def take_runs(self, arrived: list[Arrived], at: int, end: int, waited_ms: float) -> int:
        self.taken += arrived[at:end]
        return end

    def append_rows(self) -> None:
        self.appended_count += 1

    def note_answered(self) -> None:
        """Nothing is counted here."""


class Room:
    """A gate with a server, and everything behind it made of paper."""

    def __init__(self) -> None:
        self.router = RequestRouter({}, in_flight_count_max=50)
        self.router.handle = self._handle  # type: ignore[method-assign]
        self.handled: list[int] = []
        self.closed: list[object] = []
        self.busy_answer: ReadyAnswer | None = None
        nothing: Any = SimpleNamespace(
            append_run=lambda: None,
            ends_a_recent_half=lambda frame: False,
            after_tick=lambda: None,
            catch_up=lambda: None,
            is_behind=False,
            is_noted=False,
            connection_closed=self.closed.append,
        )
        self.intake = Intake(self.router, nothing, nothing, nothing, nothing, nothing, nothing)
        self.server = still(Server(self.intake))
        self.way = FakeWay()
        fast: Any = self.way
        busy: Any = SimpleNamespace(answer=lambda peer: self.busy_answer)
        self.intake.begin(self.server, busy, fast)

    def _handle(self, request: Request, peer: Connection) -> None:
        self.handled.append(request.code)

    def connected(
        self, port: int = 50_001, *, is_fast_port: bool = False
    ) -> tuple[Connection, FakeTransport]:
        return connected(self.server, port=port, is_fast_port=is_fast_port)


@pytest.fixture
def room() -> Room:
    return Room()


@pytest.mark.proves("broker.fast.one-gate")
def test_sends_are_offered_as_they_are_read_while_one_connection_alone_sends(room: Room) -> None:
    room.way.left_bytes = 0
    connection, _ = room.connected()
    other, _ = room.connected(50_002)
    connection.data_received(SENDS)
    assert not room.way.offered, "whether others send, too, is not known yet"
    room.server._tick()
    # A request that is no send does not count.
    other.data_received(PING)
    room.server._tick()
    room.way.left_bytes = 20
    connection.data_received(SENDS + send(50)[:20])
    assert room.way.offered.pop() == (connection, SENDS + send(50)[:20])
    assert connection.pending_bytes == 20
    # Bytes that complete a frame are offered with its beginning.
    room.way.left_bytes = 0
    connection.data_received(send(50)[20:] + SENDS)
    assert room.way.offered.pop() == (connection, send(50) + SENDS)
    other.data_received(SENDS)
    assert not room.way.offered
    room.server._tick()
    other.data_received(SENDS)
    assert room.way.offered.pop() == (other, SENDS)


def test_sends_of_a_connection_that_is_gone_are_no_last_ones(room: Room) -> None:
    connection, transport = room.connected()
    connection.data_received(SENDS)
    assert room.intake.last_sender is connection
    transport.close()
    assert room.intake.last_sender is None
    assert room.closed == [connection]


def test_sends_wait_for_the_tick_as_they_came(room: Room) -> None:
    first, _ = room.connected()
    second, _ = room.connected(50_002)
    first.data_received(send(1))
    second.data_received(SENDS + send(50)[:20])
    assert second.pending_bytes == 20
    [(_, single, _), (_, rows, _)] = room.server.arrivals
    assert single == send(1)
    assert isinstance(rows, SendRows) and rows.send_count == 40 and rows.data == SENDS
    room.server._tick()
    assert [peer for peer, _, _ in room.way.taken] == [first, second]


def test_a_fast_path_that_is_off_is_given_no_bytes(room: Room) -> None:
    fast: Any = room.way
    room.way.is_on = False
    busy: Any = None
    room.intake.begin(room.server, busy, fast)
    connection, _ = room.connected()
    connection.data_received(SENDS)
    [(_, frames, _)] = room.server.arrivals
    assert isinstance(frames, list)


def test_a_template_is_asked_first(room: Room) -> None:
    connection, _ = room.connected()
    asked: list[bytes] = []
    connection.at_hand = SimpleNamespace(take=lambda data: asked.append(data) or len(data))
    connection.data_received(PING)
    assert asked == [PING] and not room.server.arrivals


def test_runs_are_left_alone_when_the_broker_goes_away(room: Room) -> None:
    connection, _ = room.connected()
    room.intake.guards.go_away()
    assert room.intake.take_runs([(connection, send(1), True)], 0) == 0
    assert not room.way.taken


def test_requests_behind_one_that_took_too_long_are_left(room: Room) -> None:
    connection, _ = room.connected()
    room.server.monotonic_s = lambda: float(len(room.handled))
    frames: Frames = [Request(34, number, {}) for number in range(5)]
    assert room.intake.received(connection, frames, 2.0) == 2
    assert len(room.handled) == 2
    assert room.intake.received(connection, frames[2:], 100.0) == 3
    assert len(room.handled) == 5


def test_sends_in_front_of_a_request_that_took_too_long_are_taken(room: Room) -> None:
    connection, _ = room.connected()
    room.server.monotonic_s = lambda: float(len(room.handled))
    [one, two] = FrameDecoder().feed(send(1) + send(2))
    request = Request(34, 3, {})
    assert room.intake.received(connection, [one, request, two], 1.0) == 2
    assert room.way.collected == [one]
    assert room.intake.received(connection, [two], 1.0) == 1
    assert room.way.collected == [one, two]


# Guards.


def served(room: Room, connection: Connection, code: int) -> list[int]:
    room.handled.clear()
    room.intake.serve(connection, Request(code, 3, {}))
    connection.flush()
    return room.handled


def test_a_request_that_no_guard_looks_at_is_handled(room: Room) -> None:
    connection, _ = room.connected()
    assert served(room, connection, RequestCode.GET_BROKER_CONFIG) == [26]


@pytest.mark.parametrize(
    "code", [RequestCode.HEART_BEAT, RequestCode.PULL_MESSAGE, RequestCode.QUERY_MESSAGE]
)
def test_of_a_peer_that_is_gone_nothing_is_left_behind(room: Room, code: int) -> None:
    connection, transport = room.connected()
    transport.close()
    assert served(room, connection, code) == []
    assert served(room, connection, RequestCode.UPDATE_CONSUMER_OFFSET) == [15]


def test_requests_that_wait_long_are_served_on_the_main_port_only(room: Room) -> None:
    connection, transport = room.connected(is_fast_port=True)
    room.busy_answer = ReadyAnswer(Response(ResponseCode.SYSTEM_BUSY, "later"))
    assert served(room, connection, RequestCode.PULL_MESSAGE) == []
    [answer] = transport.frames()
    assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "the port is asked first"
    assert served(room, connection, RequestCode.HEART_BEAT) == [34]


def test_a_pull_is_told_that_the_broker_is_busy(room: Room) -> None:
    connection, transport = room.connected()
    room.busy_answer = ReadyAnswer(Response(ResponseCode.SYSTEM_BUSY, "later"))
    assert served(room, connection, RequestCode.LITE_PULL_MESSAGE) == []
    assert [answer.code for answer in transport.frames()] == [ResponseCode.SYSTEM_BUSY]
    room.busy_answer = None
    assert served(room, connection, RequestCode.LITE_PULL_MESSAGE) == [361]


def test_requests_of_a_broker_that_goes_away_are_answered_by_the_router(room: Room) -> None:
    connection, _ = room.connected()
    room.intake.guards.go_away()
    assert served(room, connection, RequestCode.PULL_MESSAGE) == [11]
    [new] = FrameDecoder().feed(send(1))
    assert isinstance(new, SendRequest)
    old = new._replace(version=GO_AWAY_VERSION)
    room.handled.clear()
    room.intake.received(connection, [new._replace(version=GO_AWAY_VERSION + 1), old], 1.0)
    assert room.handled == [310] and room.way.general == [old]


@pytest.mark.proves("broker.fast.one-home")
def test_sends_that_a_guard_refuses_are_answered_in_front_of_both_ways(room: Room) -> None:
    connection, transport = room.connected()
    other, _ = room.connected(50_002)

    def check(guards: Guards, peer: Connection, code: int) -> Verdict:
        return None if peer is other else Response(ResponseCode.NO_PERMISSION, "not for you")

    room.intake.guards = Guards(room.router, [Guard(SEND_CODES, check)])
    arrived: list[Arrived] = [(other, send(1), True), (connection, send(2), True)]
    assert room.intake.take_runs(arrived, 0) == 1
    assert room.intake.take_runs(arrived, 1) == 1, "it is decoded, and answered alone"
    sends = FrameDecoder().feed(send(2) + send(3))
    room.intake.received(connection, sends, 1.0)
    room.intake.serve(connection, Request(10, 4, {}))
    connection.flush()
    told = [(answer.opaque, answer.code) for answer in transport.frames()]
    assert told == [(number, ResponseCode.NO_PERMISSION) for number in (2, 3, 4)]
    assert not room.way.collected and not room.handled
    room.intake.received(other, sends, 1.0)
    assert room.way.collected == sends and not room.way.general


def test_sends_that_find_no_room_are_told_but_for_those_that_want_no_answer(room: Room) -> None:
    connection, transport = room.connected()
    connection.in_flight_count = 49
    sends = [one for one in FrameDecoder().feed(SENDS) if isinstance(one, SendRequest)][:3]
    sends.append(sends[0]._replace(flag=FLAG_ONE_WAY))
    room.intake.received(connection, list(sends), 1.0)
    assert room.way.collected == [sends[0], sends[3]]
    connection.flush()
    told = [(answer.opaque, answer.code) for answer in transport.frames()]
    assert told == [(1, ResponseCode.SYSTEM_BUSY), (2, ResponseCode.SYSTEM_BUSY)]


def test_rows_in_front_of_a_general_send_are_stored_before_it(room: Room) -> None:
    connection, _ = room.connected()
    assert served(room, connection, RequestCode.HEART_BEAT) == [34]
    assert room.way.appended_count == 0
    assert served(room, connection, RequestCode.SEND_MESSAGE) == [10]
    assert room.way.appended_count == 1
