"""Whose requests a turn of the loop handles, and how many: counted, without sockets or time."""

from __future__ import annotations

from contrail.protocol.command import FLAG_ONE_WAY, Request, encode_request
from contrail.protocol.frames import Frames
from contrail.wire.connection import Connection
from contrail.wire.limits import Limits
from contrail.wire.server import Arrived, Server
from contrail.wire.turns import Turns
from tests.e2e.raw_client import send_fields
from tests.fakes.loops import FakeLoop
from tests.fakes.transports import EchoService, FakeTransport, connected

ONE, ALL = 8, 40
LIMITS = Limits(turn_requests_of_one_max=ONE, turn_requests_max=ALL, turn_bytes_max=10_000)


class Counting(EchoService):
    """Notes the numbers of the requests that each connection had handled, turn by turn."""

    def __init__(self) -> None:
        super().__init__()
        self.handled: dict[Connection, list[int]] = {}
        self.turn: dict[Connection, int] = {}
        self.takes_at_once = False

    def take_at_once(self, peer: Connection, frames: Frames) -> Frames:
        if not self.takes_at_once:
            return frames
        self.received(peer, frames)
        return []

    def received(self, peer: Connection, frames: Frames) -> None:
        self.handled.setdefault(peer, []).extend(
            frame.opaque if isinstance(frame, Request) else frame[0] for frame in frames
        )
        self.turn[peer] = self.turn.get(peer, 0) + len(frames)
        super().received(peer, frames)


class Room:
    """A server whose loop is turned by hand."""

    def __init__(self, *, takes_plain_sends: bool = False, service: Counting | None = None) -> None:
        self.service = service or Counting()
        self.server = Server(self.service, limits=LIMITS, takes_plain_sends=takes_plain_sends)
        self.loop = FakeLoop()
        self.server._loop = self.loop  # type: ignore[assignment]

    def connected(self, count: int) -> list[tuple[Connection, FakeTransport]]:
        return [connected(self.server, port=50_000 + number) for number in range(count)]

    def turn(self) -> dict[Connection, int]:
        """One turn; how many requests of each connection it has handled."""
        self.loop.turn()
        counts, self.service.turn = self.service.turn, {}
        return counts

    def turns(self) -> list[dict[Connection, int]]:
        """All turns until nothing is due."""
        found = []
        while self.loop.soon:
            found.append(self.turn())
        return found


def requests(count: int, first: int = 0) -> bytes:
    return b"".join(encode_request(Request(34, first + n, {}, b"x")) for n in range(count))


def test_one_connection_has_a_bounded_number_of_requests_handled_in_a_turn() -> None:
    room = Room()
    [(connection, transport)] = room.connected(1)
    connection.data_received(requests(100))
    assert transport.is_reading_paused
    counts = [turn.get(connection, 0) for turn in room.turns()]
    assert max(counts) <= 2 * ONE and max(counts[1:]) <= ONE
    assert room.service.handled[connection] == [*range(100)]
    assert not transport.is_reading_paused
    assert [frame.opaque for frame in transport.frames()] == [*range(100)]


def test_all_connections_together_have_a_bounded_number_handled() -> None:
    room = Room()
    flood = room.connected(30)
    for connection, _ in flood:
        connection.data_received(requests(20))
    for counts in room.turns():
        # What was taken from reads, and what waited.
        assert sum(counts.values()) <= 2 * ALL
        assert max(counts.values()) <= 2 * ONE
    assert all(room.service.handled[one] == [*range(20)] for one, _ in flood)


def test_a_request_beside_connections_that_wait_is_handled_in_the_turn_that_reads_it() -> None:
    room = Room()
    *flood, (quiet, _) = room.connected(31)
    for connection, _ in flood:
        connection.data_received(requests(100))
    for number in range(10):
        room.turn()
        quiet.data_received(requests(1, first=number))
        assert room.turn().get(quiet) == 1
    assert room.service.handled[quiet] == [*range(10)]
    room.turns()
    assert all(room.service.handled[one] == [*range(100)] for one, _ in flood)


def test_connections_that_wait_go_on_beside_a_stream_of_new_ones() -> None:
    room = Room()
    [(old, _), *others] = room.connected(ALL * 2)
    old.data_received(requests(30))
    for number in range(200):
        for connection, transport in others:
            if not transport.is_reading_paused:
                connection.data_received(requests(1, first=number))
        room.turn()
    assert room.service.handled[old] == [*range(30)]


def test_what_a_peer_sent_before_it_closed_is_handled_in_order() -> None:
    room = Room()
    [(connection, transport)] = room.connected(1)
    one_way = [Request(34, number, {}, b"x", FLAG_ONE_WAY) for number in range(50)]
    connection.data_received(b"".join(encode_request(request) for request in one_way))
    transport.close()
    room.turns()
    assert room.service.handled[connection] == [*range(50)]


def test_bytes_that_arrive_while_requests_wait_are_handled_behind_them() -> None:
    room = Room()
    [(connection, _)] = room.connected(1)
    stream = requests(60)
    connection.data_received(stream[:1000])
    connection.data_received(stream[1000:1503])
    room.turn()
    connection.data_received(stream[1503:])
    room.turns()
    assert room.service.handled[connection] == [*range(60)]


def test_requests_in_front_of_bytes_that_are_no_frame_are_handled_and_then_it_is_closed() -> None:
    room = Room()
    [(connection, _)] = room.connected(1)
    connection.data_received(requests(20) + bytes(40))
    room.turns()
    assert room.service.handled[connection] == [*range(20)]
    assert connection.is_closed and connection.close_reason == "frame_length"


def test_a_service_that_fails_serves_nothing_more_of_the_connection() -> None:
    room = Room()
    [(broken, _), (other, _)] = room.connected(2)
    broken.data_received(requests(20))
    other.data_received(requests(20))
    room.service.fails_for = broken
    room.turns()
    assert broken.is_closed and not other.is_closed
    assert room.service.handled[other] == [*range(20)]


def test_requests_answered_without_a_tick_are_bounded_too() -> None:
    room = Room()
    room.service.takes_at_once = True
    flood = room.connected(30)
    for connection, _ in flood:
        connection.data_received(requests(20))
    counts, room.service.turn = room.service.turn, {}
    assert sum(counts.values()) <= ALL
    assert max(counts.values()) <= ONE
    room.turns()
    assert all(room.service.handled[one] == [*range(20)] for one, _ in flood)


def test_sends_that_are_not_stored_as_rows_wait_for_turns() -> None:
    room = Room(takes_plain_sends=True)
    [(connection, _)] = room.connected(1)
    sends = [Request(310, number, send_fields("t"), b"body") for number in range(50)]
    data = b"".join(encode_request(send) for send in sends)
    connection.data_received(data + requests(1, first=50)[:30])
    [(_, frames, only_sends)] = room.server.arrivals
    assert only_sends and not isinstance(frames, list), "they were left as rows"
    counts = [turn.get(connection, 0) for turn in room.turns()]
    assert max(counts) <= ONE
    connection.data_received(requests(1, first=50)[30:])
    room.turns()
    assert room.service.handled[connection] == [*range(51)]


def test_runs_of_sends_that_a_service_stores_as_rows_stay_whole() -> None:
    taken: list[int] = []

    class Storing(Counting):
        def take_runs(self, arrived: list[Arrived], at: int) -> int:
            taken.extend(getattr(frames, "send_count", 0) for _, frames, _ in arrived[at:])
            return len(arrived)

    room = Room(takes_plain_sends=True, service=Storing())
    [(connection, transport)] = room.connected(1)
    sends = [Request(310, number, send_fields("t"), b"body") for number in range(30)]
    connection.data_received(b"".join(encode_request(send) for send in sends))
    room.turns()
    assert taken == [30]
    assert not transport.is_reading_paused


def test_a_connection_that_gave_a_full_read_is_read_again_in_the_next_turn() -> None:
    room = Room()
    [(connection, transport)] = room.connected(1)
    body = bytes(12_000)
    connection.data_received(encode_request(Request(34, 1, {}, body)))
    assert transport.is_reading_paused
    room.turn()
    assert not transport.is_reading_paused


def test_reading_goes_on_only_when_no_reason_against_it_is_left() -> None:
    room = Room()
    [(connection, transport)] = room.connected(1)
    connection.data_received(requests(20))
    connection.hold()
    connection.pause_writing()
    room.turns()
    assert transport.is_reading_paused
    connection.release()
    assert transport.is_reading_paused
    connection.resume_writing()
    assert not transport.is_reading_paused


def test_a_connection_that_waits_for_its_turn_is_not_idle() -> None:
    room = Room()
    [(connection, _)] = room.connected(1)
    connection.data_received(requests(20))
    room.server.now_s = 1000.0
    room.server.sweep()
    assert not connection.is_closed


def test_requests_that_waited_for_their_turn_count_as_waiting_for_so_long() -> None:
    waited: list[float] = []

    class Watching(Counting):
        def received(self, peer: Connection, frames: Frames) -> None:
            waited.append(room.server.waited_s)
            super().received(peer, frames)

    room = Room(service=Watching())
    now_s = 100.0
    room.server.monotonic_s = lambda: now_s
    [(connection, _)] = room.connected(1)
    connection.data_received(requests(ONE * 4))
    while room.loop.soon:
        now_s += 1.0
        room.turn()
    assert waited == [1.0, 1.0, 2.0, 3.0]


def test_shares_shrink_with_the_number_of_connections_and_are_never_nothing() -> None:
    turns: Turns[int] = Turns(LIMITS)
    assert [turns.share(count) for count in (1, 5, 10, 40, 1000)] == [ONE, ONE, 4, 1, 1]
    for number in range(ALL * 2):
        turns.wait(number)
    assert turns.take() == [(number, 1) for number in range(ALL)]
    turns.wait_on(0)
    assert turns.take()[-1] == (0, 1)
