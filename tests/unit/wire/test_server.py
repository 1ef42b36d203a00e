"""Connections of a server: ticks, caps, timeouts and how a connection ends. No sockets."""

from __future__ import annotations

import logging

import pytest

from contrail.protocol.command import (
    FLAG_ONE_WAY,
    ReceivedResponse,
    Request,
    Response,
    encode_binary_request,
    encode_request,
    encode_response,
)
from contrail.protocol.frames import Frames
from contrail.wire.connection import Connection
from contrail.wire.limits import Limits
from contrail.wire.server import Arrived, Server
from tests.fakes.transports import EchoService, FakeTransport, connected, still
from tests.unit.kernels.frame_material import BREAKERS, frame

LIMITS = Limits(
    connection_count_max=3,
    connections_per_address_max=2,
    pending_bytes_max=1000,
    first_frame_s=10,
    partial_frame_s=30,
    idle_s=120,
    slow_write_s=30,
)
PING = encode_request(Request(34, 7, {}, b"ping"))


class Bench:
    """A server without a socket whose time the test moves."""

    def __init__(self, limits: Limits = LIMITS) -> None:
        self.service = EchoService()
        self.server = still(Server(self.service, limits=limits))

    def connected(
        self, address: str = "127.0.0.1", port: int = 50_001
    ) -> tuple[Connection, FakeTransport]:
        return connected(self.server, address, port)

    def tick(self) -> None:
        self.server._tick()

    def at(self, now_s: float) -> None:
        self.server.now_s = now_s
        self.server.sweep()

    @property
    def closed(self) -> list[str]:
        return [reason for _, reason in self.service.closed]


@pytest.fixture
def bench() -> Bench:
    return Bench()


# Ticks.


class QuickService(EchoService):
    """Answers requests with code 12 at once, unless it is broken."""

    is_broken = False

    def take_before_tick(self, peer: Connection, frames: Frames) -> Frames:
        if self.is_broken:
            raise RuntimeError("this service has a bug")
        at = 0
        while at < len(frames) and isinstance(frames[at], Request) and frames[at].code == 12:
            peer.send_parts(encode_response(Response(0, "at once"), frames[at].opaque))
            at += 1
        return frames[at:]


def remarks(transport: FakeTransport) -> list[str | None]:
    return [answer.remark for answer in transport.frames()]


def test_frames_that_need_no_tick_are_answered_without_one() -> None:
    server = still(Server(service := QuickService(), limits=LIMITS))
    connection, transport = connected(server, "127.0.0.1", 50_001)
    quick = encode_request(Request(12, 1, {}, b""))
    connection.data_received(quick * 2)
    assert remarks(transport) == ["at once"] * 2
    assert service.ticks == 0
    # Behind something that waits for the tick, everything does.
    connection.data_received(quick + PING + quick)
    connection.data_received(quick)
    assert remarks(transport) == ["at once"] * 3
    server._tick()
    assert remarks(transport) == ["at once"] * 3 + [None] * 3


def test_a_failure_without_a_tick_closes_that_connection_only(
    caplog: pytest.LogCaptureFixture,
) -> None:
    server = still(Server(service := QuickService(), limits=LIMITS))
    connection, _ = connected(server, "127.0.0.1", 50_001)
    other, other_transport = connected(server, "127.0.0.1", 50_002)
    service.is_broken = True
    with caplog.at_level(logging.CRITICAL, logger="contrail.wire.server"):
        connection.data_received(PING)
    assert connection.is_closed
    service.is_broken = False
    other.data_received(PING)
    server._tick()
    assert remarks(other_transport) == [None]


@pytest.mark.proves("wire.server.one-write-per-tick")
def test_all_answers_of_a_tick_leave_in_one_write(bench: Bench) -> None:
    connection, transport = bench.connected()
    connection.data_received(PING * 5)
    connection.data_received(PING)
    assert transport.written == []
    bench.tick()
    assert len(transport.written) == 1
    assert [found.body for found in transport.frames()] == [b"ping"] * 6
    assert bench.service.ticks == 1


@pytest.mark.proves("wire.server.one-way")
def test_a_one_way_request_gets_no_answer(bench: Bench) -> None:
    connection, transport = bench.connected()
    connection.data_received(encode_request(Request(34, 7, {}, b"x", FLAG_ONE_WAY)))
    bench.tick()
    assert transport.written == []


def test_both_header_forms_are_answered_in_json(bench: Bench) -> None:
    connection, transport = bench.connected()
    connection.data_received(PING + encode_binary_request(Request(34, 8, {}, b"pong")))
    bench.tick()
    assert [found.opaque for found in transport.frames()] == [7, 8]
    assert transport.written[0][4] == 0


def test_an_answer_too_large_for_a_frame_becomes_an_error(bench: Bench) -> None:
    connection, transport = bench.connected()
    connection.answer(9, Response(0, None, None, bytes(16 << 20)))
    connection.flush()
    (found,) = transport.frames()
    assert isinstance(found, ReceivedResponse)
    assert (found.code, found.opaque, found.body) == (1, 9, b"")


def test_a_failing_service_costs_one_connection_and_not_the_others(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bad, bad_transport = bench.connected()
    good, good_transport = bench.connected(port=50_002)
    bench.service.fails_for = bad
    bad.data_received(PING)
    good.data_received(PING)
    with caplog.at_level(logging.CRITICAL):
        bench.tick()
    assert bad_transport.is_closing() and bench.closed == ["internal_error"]
    assert len(good_transport.frames()) == 1


def test_sends_that_cannot_be_taken_leave_nobody_waiting(
    bench: Bench, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(arrived: list[Arrived], at: int) -> int:
        raise RuntimeError("this service has a bug")

    monkeypatch.setattr(bench.service, "take_runs", fail)
    connected = [bench.connected(), bench.connected(port=50_002)]
    for connection, _ in connected:
        bench.server.arrived(connection, [], True)
    with caplog.at_level(logging.CRITICAL):
        bench.tick()
    assert all(transport.is_closing() for _, transport in connected)
    assert bench.service.ticks == 1, "what was taken is stored"


def test_nothing_is_handed_over_for_a_connection_that_is_gone(bench: Bench) -> None:
    connection, transport = bench.connected()
    connection.data_received(PING)
    connection.connection_lost(None)
    bench.tick()
    assert transport.written == []


def test_an_unasked_answer_is_left_to_the_service(bench: Bench) -> None:
    connection, _ = bench.connected()
    connection.data_received(b"".join(encode_response(Response(0), 99)))
    bench.tick()
    (found,) = bench.service.others
    assert isinstance(found, ReceivedResponse)
    assert connection.answered(found) is False


# Bytes that break framing.


@pytest.mark.proves("wire.server.framing-bounds")
@pytest.mark.parametrize(("name", "data"), BREAKERS.items(), ids=BREAKERS.keys())
def test_bytes_that_are_no_frame_close_the_connection_with_a_counted_reason(
    bench: Bench, name: str, data: bytes
) -> None:
    reason = name.partition(" ")[0]
    connection, transport = bench.connected()
    connection.data_received(data)
    bench.tick()
    assert transport.is_closing() and transport.written == []
    assert bench.server.counts[f"closed_{reason}"] == 1
    assert bench.closed == [reason]
    connection.data_received(PING)
    assert bench.server.connections == set()


@pytest.mark.proves("wire.server.framing-bounds")
def test_a_length_over_the_limit_is_not_waited_for_in_pieces(bench: Bench) -> None:
    connection, transport = bench.connected()
    connection.data_received(b"\x7f\xff\xff\xff")
    connection.data_received(bytes(100))
    assert transport.is_closing() and bench.closed == ["frame_length"]


# Caps.


@pytest.mark.proves("wire.server.connection-bounds")
def test_one_connection_more_than_allowed_is_closed(bench: Bench) -> None:
    opened = [bench.connected(port=50_000 + number) for number in range(4)]
    assert [transport.is_closing() for _, transport in opened] == [False, False, False, True]
    assert bench.server.counts["closed_too_many_connections"] == 1
    assert len(bench.service.opened) == 3
    opened[0][1].close()
    assert not bench.connected()[1].is_closing()


@pytest.mark.proves("wire.server.connection-bounds")
def test_strangers_are_capped_by_address_and_this_host_is_not(bench: Bench) -> None:
    assert not bench.connected("192.0.2.7", 1)[1].is_closing()
    _, transport = bench.connected("192.0.2.7", 2)
    assert not transport.is_closing()
    transport.close()
    assert not bench.connected("192.0.2.7", 3)[1].is_closing()
    assert bench.connected("192.0.2.7", 4)[1].is_closing()
    assert bench.server.counts["closed_too_many_connections_of_one_address"] == 1

    other = Bench()
    assert [other.connected(port=n)[1].is_closing() for n in range(1, 4)] == [False] * 3


@pytest.mark.proves("broker.edges.unknown-clients")
@pytest.mark.parametrize(
    ("address", "is_this_host"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("192.0.2.1", False),
        ("::ffff:192.0.2.1", False),
        ("2001:db8::1", False),
        # Our own end of the connection has this address, too.
        ("203.0.113.1", True),
        ("::ffff:203.0.113.1", True),
        ("203.0.113.11", False),
    ],
)
def test_peers_of_this_host_are_told_apart(bench: Bench, address: str, is_this_host: bool) -> None:
    assert bench.connected(address)[0].is_this_host is is_this_host


# Time.


@pytest.mark.proves("wire.server.slow-peers")
def test_a_peer_without_a_frame_is_closed_after_ten_seconds(bench: Bench) -> None:
    connection, transport = bench.connected()
    bench.at(9)
    connection.data_received(PING[:6])
    assert not transport.is_closing()
    bench.at(10.5)
    assert transport.was_aborted and bench.closed == ["no_first_frame"]


@pytest.mark.proves("wire.server.slow-peers")
def test_a_frame_must_be_complete_within_thirty_seconds(bench: Bench) -> None:
    connection, transport = bench.connected()
    connection.data_received(PING + PING[:10])
    for now_s in (10, 20, 30):
        bench.at(now_s)
        connection.data_received(PING[10:11] if now_s == 10 else b"")
        assert not transport.is_closing()
    bench.at(30.5)
    assert bench.closed == ["partial_frame_timeout"]


def test_a_busy_peer_whose_bytes_always_end_within_a_frame_is_left_alone(bench: Bench) -> None:
    connection, transport = bench.connected()
    connection.data_received(PING[:10])
    for now_s in range(5, 200, 5):
        bench.at(now_s)
        connection.data_received(PING[10:] + PING[:10])
        bench.tick()
    assert not transport.is_closing()


@pytest.mark.proves("wire.server.idle-timeout")
def test_an_idle_peer_is_closed_after_two_minutes(bench: Bench) -> None:
    connection, transport = bench.connected()
    connection.data_received(PING)
    bench.at(120)
    assert not transport.is_closing()
    bench.at(120.5)
    assert bench.closed == ["idle"]


@pytest.mark.proves("wire.server.idle-timeout")
def test_a_peer_that_sends_now_and_then_is_not_idle(bench: Bench) -> None:
    connection, transport = bench.connected()
    for now_s in range(0, 1000, 100):
        bench.at(now_s)
        connection.data_received(PING)
    assert not transport.is_closing()


@pytest.mark.proves("wire.server.slow-peers")
def test_a_peer_that_does_not_read_its_answers_is_not_read_and_closed_in_the_end(
    bench: Bench,
) -> None:
    connection, transport = bench.connected()
    assert transport.write_bytes_max == 8 << 20
    connection.data_received(PING)
    connection.pause_writing()
    assert transport.is_reading_paused
    bench.at(29)
    connection.resume_writing()
    assert not transport.is_reading_paused
    connection.pause_writing()
    bench.at(58)
    assert not transport.is_closing()
    bench.at(60)
    assert transport.was_aborted and bench.closed == ["slow_reader"]


# Too much at once.


def test_reading_stops_while_unfinished_frames_hold_too_much(bench: Bench) -> None:
    large = frame(b"{}", bytes(5000))
    opened = [bench.connected(port=number) for number in range(1, 4)]
    for connection, _ in opened:
        connection.data_received(PING)
    opened[0][0].data_received(large[:1200])
    bench.at(1)
    assert [transport.is_reading_paused for _, transport in opened] == [True, False, False]
    # A peer that begins a frame while others are held back is held back too.
    opened[1][0].data_received(large[:10])
    bench.at(2)
    assert [transport.is_reading_paused for _, transport in opened] == [True, True, False]
    assert bench.server.counts["held_back"] == 1

    opened[0][1].close()
    bench.at(3)
    assert not opened[1][1].is_reading_paused


@pytest.mark.proves("broker.edges.unknown-clients")
def test_reading_stops_before_the_next_sweep(bench: Bench) -> None:
    """A fast peer sends a gigabyte from one sweep to the next."""
    large = frame(b"{}", bytes(5000))
    opened = [bench.connected(port=number) for number in range(1, 4)]
    for connection, transport in opened[:2]:
        connection.data_received(PING)
        for at in range(0, 1000, 200):
            if not transport.is_reading_paused:
                connection.data_received(large[at : at + 200])
    assert [transport.is_reading_paused for _, transport in opened] == [True, True, False]
    assert sum(connection.pending_bytes for connection, _ in opened) <= 1000 + 200
    # Also frames that begin now; whole ones are read on.
    opened[2][0].data_received(PING)
    assert not opened[2][1].is_reading_paused
    opened[2][0].data_received(large[:10])
    assert opened[2][1].is_reading_paused
    for _, transport in opened[:2]:
        transport.close()
    bench.at(1)
    assert not opened[2][1].is_reading_paused


def test_frames_that_come_in_pieces_and_end_do_not_count(bench: Bench) -> None:
    connection, transport = bench.connected()
    large = frame(b"{}", bytes(600))
    for _ in range(20):
        connection.data_received(large[:500])
        connection.data_received(large[500:])
    assert not transport.is_reading_paused
    assert bench.server.counts["held_back"] == 0


def test_a_slow_reader_that_is_held_back_is_read_again_only_after_both(bench: Bench) -> None:
    connection, transport = bench.connected()
    other, other_transport = bench.connected(port=2)
    connection.data_received(PING + PING[:20])
    other.data_received(PING + frame(b"{}", bytes(5000))[:2000])
    bench.at(1)
    connection.pause_writing()
    connection.resume_writing()
    assert transport.is_reading_paused
    connection.pause_writing()
    other_transport.close()
    bench.at(2)
    assert transport.is_reading_paused
    connection.resume_writing()
    assert not transport.is_reading_paused


# The end.


def test_closing_sends_what_was_queued_first(bench: Bench) -> None:
    connection, transport = bench.connected()
    connection.answer(3, Response(0))
    connection.close("done")
    assert len(transport.frames()) == 1
    connection.answer(4, Response(0))
    connection.close("again")
    assert len(transport.frames()) == 1 and bench.closed == ["done"]


def test_aborting_drops_what_was_queued(bench: Bench) -> None:
    connection, transport = bench.connected()
    connection.answer(3, Response(0))
    connection.abort("enough")
    bench.tick()
    assert transport.written == [] and bench.closed == ["enough"]


def test_a_lost_connection_is_counted_by_how_it_was_lost(bench: Bench) -> None:
    first, _ = bench.connected()
    second, _ = bench.connected(port=2)
    first.connection_lost(None)
    second.connection_lost(ConnectionResetError())
    assert bench.closed == ["peer_closed", "reset"]
    assert bench.server.counts["opened"] == 2
