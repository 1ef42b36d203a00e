"""How many requests of which connections a turn of the loop handles, without sockets or time."""

from __future__ import annotations

import math

import pytest

from contrail.broker.fast.rows import rows_of
from contrail.kernels.frame_scan import is_one_send
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
LIMITS = Limits(
    turn_requests_of_one_max=ONE,
    turn_requests_max=ALL,
    turn_bytes_max=10_000,
    piece_bytes_max=1000,
    turn_handling_s=0.01,
)


class Counting(EchoService):
    """Notes the numbers of the requests that each connection had handled, turn by turn."""

    def __init__(self) -> None:
        super().__init__()
        self.handled: dict[Connection, list[int]] = {}
        self.turn: dict[Connection, int] = {}
        self.takes_before_tick = False
        # The clock that handling requests sets forward, and by how much each of them does.
        self.now_s = 100.0
        self.cost_s = 0.0
        self.pieces: list[int] = []

    def take_before_tick(self, peer: Connection, frames: Frames) -> Frames:
        if not self.takes_before_tick:
            return frames
        self.received(peer, frames, math.inf)
        return []

    def received(self, peer: Connection, frames: Frames, until_s: float) -> int:
        if self.cost_s and until_s < math.inf:
            frames = frames[: max(1, math.ceil((until_s - self.now_s) / self.cost_s))]
        self.handled.setdefault(peer, []).extend(
            frame.opaque if isinstance(frame, Request) else frame[0] for frame in frames
        )
        self.turn[peer] = self.turn.get(peer, 0) + len(frames)
        self.now_s += self.cost_s * len(frames)
        self.pieces.append(len(frames))
        return super().received(peer, frames, until_s)


class Room:
    """A server whose loop is turned by hand."""

    def __init__(self, *, takes_runs: bool = False, service: Counting | None = None) -> None:
        self.service = service or Counting()
        self.server = Server(self.service, limits=LIMITS)
        if takes_runs:
            self.server.intake = self._take
        self.loop = FakeLoop()
        self.server._loop = self.loop  # type: ignore[assignment]
        self.server.monotonic_s = lambda: self.service.now_s

    def _take(self, peer: Connection, data: bytes) -> int:
        """Leave sends as they came, as a broker does."""
        if is_one_send(data):
            self.server.arrived(peer, data, True)
            return len(data)
        rows = rows_of(data, peer.packed_host, LIMITS, b"")
        if rows is None:
            return 0
        self.server.arrived(peer, rows, True)
        return rows.end

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


@pytest.mark.proves("wire.fairness.turns")
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
        # Frames taken from reads, and frames that waited.
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


def test_frames_of_a_peer_that_closed_are_handled_in_order() -> None:
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
    room.service.takes_before_tick = True
    flood = room.connected(30)
    for connection, _ in flood:
        connection.data_received(requests(20))
    counts, room.service.turn = room.service.turn, {}
    assert sum(counts.values()) <= ALL
    assert max(counts.values()) <= ONE
    room.turns()
    assert all(room.service.handled[one] == [*range(20)] for one, _ in flood)


def test_requests_answered_without_a_tick_end_with_the_time_of_a_turn() -> None:
    room = Room()
    room.service.takes_before_tick = True
    room.service.cost_s = 0.006
    flood = room.connected(30)
    for connection, _ in flood:
        connection.data_received(requests(1))
    assert sum(room.service.turn.values()) == 2
    room.service.turn = {}
    while room.loop.soon:
        assert sum(room.turn().values()) <= 3
    assert all(room.service.handled[one] == [0] for one, _ in flood)


@pytest.mark.proves("wire.fairness.turns")
def test_a_piece_ends_behind_the_request_that_takes_it_over_its_time() -> None:
    room = Room()
    room.service.cost_s = LIMITS.piece_handling_s * 0.6
    [(connection, _)] = room.connected(1)
    connection.data_received(requests(ONE))
    room.turns()
    assert set(room.service.pieces) == {2}
    assert room.service.handled[connection] == list(range(ONE))


@pytest.mark.proves("wire.fairness.turns")
def test_one_request_does_not_wait_for_costly_ones_of_many_connections() -> None:
    room = Room()
    room.service.cost_s = 0.004
    *flood, (single, _) = room.connected(31)
    for connection, _ in flood:
        connection.data_received(requests(ONE))
    single.data_received(requests(1))
    handled_at = next(number for number, turn in enumerate(room.turns()) if single in turn)
    assert handled_at <= 1


@pytest.mark.proves("wire.fairness.turns")
def test_connections_whose_requests_took_long_stand_behind_the_others() -> None:
    room = Room()
    room.service.cost_s = 0.004
    *flood, (single, _) = room.connected(31)
    for _ in range(3):
        for connection, _transport in flood:
            connection.data_received(requests(1))
        room.turns()
    for connection, _ in flood:
        connection.data_received(requests(1))
    single.data_received(requests(1))
    room.service.handled.clear()
    room.turns()
    assert list(room.service.handled).index(single) == 0
    room.service.now_s += 60
    flood[0][0].data_received(requests(1))
    single.data_received(requests(1))
    room.service.handled.clear()
    room.turn()
    assert list(room.service.handled) == [flood[0][0], single]


@pytest.mark.proves("wire.fairness.turns")
def test_frames_that_come_while_requests_wait_stay_in_order() -> None:
    room = Room()
    room.service.cost_s = 0.003
    [(busy, _), (other, _)] = room.connected(2)
    for start in range(0, 60, 6):
        busy.data_received(requests(6, first=start))
        other.data_received(requests(2, first=start))
        room.turn()
    room.turns()
    assert room.service.handled[busy] == list(range(60))


def test_sends_that_are_not_stored_as_rows_wait_for_turns() -> None:
    room = Room(takes_runs=True)
    [(connection, _)] = room.connected(1)
    sends = [Request(310, number, send_fields("t"), b"body") for number in range(50)]
    data = b"".join(encode_request(send) for send in sends)
    connection.data_received(data + requests(1, first=50)[:30])
    [(_, read, may_join)] = room.server.arrivals
    assert may_join and not isinstance(read, list), "they were left as rows"
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

    room = Room(takes_runs=True, service=Storing())
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
        def received(self, peer: Connection, frames: Frames, until_s: float) -> int:
            waited.append(room.server.waited_s)
            return super().received(peer, frames, until_s)

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
        turns.wait(number, comes_first=True)
    assert turns.call_up() == 1
    assert _all_next(turns) == [*range(ALL)]
    turns.wait_on(0)
    turns.call_up()
    assert 0 in _all_next(turns)


def _all_next(turns: Turns[int]) -> list[int]:
    found = []
    while (number := turns.next_one()) is not None:
        found.append(number)
    return found


def test_a_turn_that_is_over_still_has_one_connection_and_the_others_keep_their_places() -> None:
    turns: Turns[str] = Turns(LIMITS)
    for name in ("old-1", "old-2"):
        turns.wait_on(name)
    found = []
    for number in range(12):
        turns.begin()
        turns.spend(1.0)
        turns.wait(f"new-{number}", comes_first=True)
        turns.call_up()
        found.append(turns.next_one())
        assert turns.next_one() is None
    # Every fourth is one that has waited for longer.
    assert found[3] == "old-1" and found[7] == "old-2"
    assert [name for name in found if str(name).startswith("new")] == [
        f"new-{number}" for number in range(10)
    ]


def test_a_connection_that_waits_again_in_a_turn_is_not_handled_twice_in_it() -> None:
    turns: Turns[int] = Turns(LIMITS)
    turns.wait(1, comes_first=True)
    turns.call_up()
    assert turns.next_one() == 1
    turns.wait_on(1)
    assert turns.next_one() is None
    turns.call_up()
    assert turns.next_one() == 1


def costly(count: int, first: int = 0, byte_count: int = 900) -> bytes:
    return b"".join(
        encode_request(Request(34, first + number, {}, bytes(byte_count)))
        for number in range(count)
    )


@pytest.mark.proves("wire.fairness.turns")
def test_requests_are_handed_over_in_pieces_of_a_bounded_number_of_bytes() -> None:
    room = Room()
    [(connection, _)] = room.connected(1)
    connection.data_received(costly(5, byte_count=300) + costly(2, 5, 1500) + requests(3, 7))
    room.turns()
    # Two of 300 bytes and their headers, then each large one alone.
    assert room.service.pieces == [2, 2, 1, 1, 1, 3]
    assert room.service.handled[connection] == [*range(10)]


@pytest.mark.proves("wire.fairness.turns")
def test_a_turn_ends_when_its_requests_have_taken_their_time() -> None:
    room = Room()
    room.service.cost_s = 0.006
    flood = room.connected(16)
    for connection, _ in flood:
        connection.data_received(costly(8))
    while room.loop.soon:
        began_s = room.service.now_s
        room.turn()
        # The last piece before the time was over, and one of those that wait.
        assert room.service.now_s - began_s <= 0.012 + 0.006 + 1e-9
    assert all(room.service.handled[one] == [*range(8)] for one, _ in flood)


@pytest.mark.proves("wire.fairness.turns")
def test_costly_requests_delay_no_send_by_more_than_a_turn() -> None:
    """Rows of sends are taken in the turn that reads them, whatever waits."""
    taken: list[Connection] = []

    class Storing(Counting):
        def take_runs(self, arrived: list[Arrived], at: int) -> int:
            while at < len(arrived) and arrived[at][2]:
                taken.append(arrived[at][0])
                at += 1
            return at

    room = Room(takes_runs=True, service=Storing())
    room.service.cost_s = 0.006
    *flood, (quiet, _) = room.connected(17)
    for connection, _ in flood:
        connection.data_received(costly(8))
    send = encode_request(Request(310, 1, send_fields("t"), b"body"))
    for number in range(10):
        quiet.data_received(send)
        room.turn()
        assert taken == [quiet] * (number + 1)
    room.turns()
    assert all(room.service.handled[one] == [*range(8)] for one, _ in flood)


def test_connections_that_wait_go_on_beside_reads_that_take_the_whole_time() -> None:
    room = Room()
    room.service.cost_s = 0.02
    [(old, _), *others] = room.connected(4)
    old.data_received(costly(5))
    for number in range(60):
        for connection, transport in others:
            if not transport.is_reading_paused:
                connection.data_received(requests(1, first=number))
        room.turn()
    assert room.service.handled[old] == [*range(5)]


def test_sends_behind_requests_that_wait_for_another_turn_wait_with_them() -> None:
    order: list[tuple[Connection, int]] = []

    class Storing(Counting):
        def take_runs(self, arrived: list[Arrived], at: int) -> int:
            while at < len(arrived) and arrived[at][2]:
                order.append((arrived[at][0], 310))
                at += 1
            return at

        def received(self, peer: Connection, frames: Frames, until_s: float) -> int:
            taken = super().received(peer, frames, until_s)
            order.extend(
                (peer, frame.code if isinstance(frame, Request) else frame[3])
                for frame in frames[:taken]
            )
            return taken

    room = Room(takes_runs=True, service=Storing())
    room.service.cost_s = 0.02
    [(first, _), (mixed, transport), (sender, _)] = room.connected(3)
    send = encode_request(Request(310, 1, send_fields("t"), b"body"))
    first.data_received(requests(1))
    mixed.data_received(requests(1))
    mixed.data_received(send)
    mixed.data_received(send * 3)
    sender.data_received(send)
    # Frames of a peer that is gone are handled as well.
    transport.close()
    room.turns()
    assert [code for peer, code in order if peer is mixed] == [34, 310, 310, 310, 310]
    assert order.index((sender, 310)) < order.index((mixed, 34))


def test_requests_that_wait_decoded_count_as_held_bytes_and_are_forgotten_with_a_failure() -> None:
    room = Room()
    room.service.cost_s = 0.02
    [(first, _), (second, _), (third, _)] = room.connected(3)
    for connection in (first, second, third):
        connection.data_received(costly(1, byte_count=5000))
    room.turn()
    assert first.pending_bytes == 0 and third.pending_bytes == 5000
    room.service.fails_for = third
    room.turns()
    assert third.is_closed and third.pending_bytes == 0


@pytest.mark.proves("wire.fairness.turns")
def test_a_run_whose_time_is_over_waits_in_front_of_requests_that_were_put_off() -> None:
    room = Room()
    room.service.cost_s = LIMITS.turn_handling_s * 2
    (first, _), (second, _) = room.connected(2)

    def sends(numbers: range) -> bytes:
        return b"".join(encode_request(Request(310, n, send_fields("t"), b"x")) for n in numbers)

    first.data_received(sends(range(2)))
    first.data_received(sends(range(2, 3)))
    second.data_received(sends(range(2)))
    second.data_received(requests(1, first=2))
    room.turns()
    assert room.service.handled[first] == [0, 1, 2]
    assert room.service.handled[second] == [0, 1, 2]
