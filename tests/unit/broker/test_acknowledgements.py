"""Answers that are held until a position is reached, and a wall clock that is set meanwhile."""

from __future__ import annotations

import pytest

from contrail.broker.services.acknowledgements import Acknowledgements, HoldReason, doubt_fields
from contrail.clock import ManualClock
from contrail.protocol.codes import ResponseCode
from contrail.wire.server import Server
from tests.fakes.peers import FakePeer
from tests.fakes.transports import EchoService, connected, still

TIMEOUT_MS = 5000
HOUR_MS = 3_600_000


class _Room:
    def __init__(self, *, waits: bool = True) -> None:
        self.clock = ManualClock()
        self.held = Acknowledgements(self.clock, waits=waits, disk_timeout_ms=TIMEOUT_MS)
        self.told: list[ResponseCode] = []

    def hold(self, physical_end: int, reason: HoldReason = HoldReason.DISK) -> None:
        self.held.hold(physical_end, [], self.told.append, reason)


@pytest.mark.proves("broker.edges.monotonic-waits")
@pytest.mark.parametrize("step_ms", [HOUR_MS, -HOUR_MS])
def test_a_step_of_the_wall_clock_is_no_late_flush_and_hides_none(step_ms: int) -> None:
    room = _Room()
    room.held.when_safe(FakePeer(), 100, room.told.append)
    room.clock.step(step_ms)
    room.held.expire()
    assert room.told == [] and room.held.oldest_age_ms() == 0
    room.clock.advance(ms=TIMEOUT_MS + 1)
    room.held.expire()
    assert room.told == [ResponseCode.FLUSH_DISK_TIMEOUT]


@pytest.mark.parametrize(
    ("reason", "timeout_ms", "code"),
    [(HoldReason.DISK, 5000, 10), (HoldReason.SLAVE, 3000, 12), (HoldReason.GROUP, 3000, 1)],
)
def test_each_reason_has_its_deadline_and_its_code(
    reason: HoldReason, timeout_ms: int, code: int
) -> None:
    room = _Room()
    room.hold(100, reason)
    room.clock.advance(ms=timeout_ms)
    room.held.expire()
    assert room.told == []
    room.clock.advance(ms=1)
    room.held.expire()
    assert room.told == [code] and not room.held


def test_a_short_deadline_passes_behind_a_long_one() -> None:
    room = _Room()
    room.hold(100, HoldReason.DISK)
    room.hold(200, HoldReason.SLAVE)
    room.clock.advance(ms=3001)
    room.held.expire()
    assert room.told == [ResponseCode.FLUSH_SLAVE_TIMEOUT] and len(room.held) == 1
    room.held.reached(100)
    assert room.told[1:] == [ResponseCode.SUCCESS]


def test_held_requests_of_a_connection_count_until_they_are_answered() -> None:
    room = _Room()
    peer, _ = connected(still(Server(EchoService())))
    room.held.hold(100, [(peer, 3)], room.told.append)
    assert peer.in_flight_count == 3
    room.held.reached(99)
    assert peer.in_flight_count == 3 and room.told == []
    room.held.reached(100)
    assert peer.in_flight_count == 0 and room.told == [ResponseCode.SUCCESS]


def test_whether_answers_are_held_may_change_while_the_broker_runs() -> None:
    room = _Room(waits=False)
    room.held.when_safe(FakePeer(), 100, room.told.append)
    assert room.told == [ResponseCode.SUCCESS]
    room.held.waits = True
    room.held.when_safe(FakePeer(), 200, room.told.append)
    assert len(room.told) == 1 and len(room.held) == 1


def waiting_for_slaves(clock: ManualClock) -> Acknowledgements:
    return Acknowledgements(
        clock,
        waits=True,
        disk_timeout_ms=TIMEOUT_MS,
        slave_timeout_ms=700,
        reason=HoldReason.SLAVE,
    )


@pytest.mark.proves("replication.ground.held-answers")
def test_answers_that_wait_for_slaves_have_their_deadline_and_do_not_blame_the_disk() -> None:
    clock = ManualClock()
    held, told = waiting_for_slaves(clock), list[ResponseCode]()
    held.hold(100, [], told.append)
    clock.advance(ms=701)
    assert held.oldest_age_ms() == 0
    held.expire()
    assert told == [ResponseCode.FLUSH_SLAVE_TIMEOUT]


def test_a_sync_that_lets_no_answer_go_is_known_before() -> None:
    room = _Room()
    assert not room.held.lets_go(1_000)
    room.hold(100, HoldReason.SLAVE)
    assert not room.held.lets_go(99) and room.held.lets_go(100)
    room.held.reached(99)
    assert room.told == []
    room.held.reached(100)
    assert room.told == [ResponseCode.SUCCESS] and not room.held.lets_go(1_000)


def test_without_a_slave_what_the_disk_has_is_answered_so() -> None:
    held, told = waiting_for_slaves(ManualClock()), list[ResponseCode]()
    noted: list[int] = []
    held.on_held = lambda: noted.append(len(held))
    held.hold(100, [], told.append)
    held.hold(200, [], told.append)
    assert noted == [1, 2]
    held.unreplicated(150)
    assert told == [ResponseCode.SLAVE_NOT_AVAILABLE]
    assert len(held) == 1


@pytest.mark.proves("replication.ground.held-answers")
def test_a_broker_that_stops_tells_why_messages_may_not_be_safe_and_not_that_they_are_gone() -> (
    None
):
    """14 would mean that nothing was stored: the producer would send the message elsewhere, too."""
    room = _Room()
    room.hold(100, HoldReason.DISK)
    room.hold(200, HoldReason.SLAVE)
    room.held.give_up()
    assert room.told == [ResponseCode.FLUSH_DISK_TIMEOUT, ResponseCode.FLUSH_SLAVE_TIMEOUT]
    assert not room.held


@pytest.mark.proves("replication.failover.in-doubt")
@pytest.mark.parametrize("way", ["give_up", "fail", "expire"])
def test_an_appended_message_of_a_group_is_in_doubt_and_never_refused(way: str) -> None:
    """Other members may have it and commit it, whatever happens to this one."""
    room = _Room()
    room.hold(100, HoldReason.GROUP)
    room.clock.advance(ms=3001)
    getattr(room.held, way)()
    assert room.told == [ResponseCode.SYSTEM_ERROR]
    assert doubt_fields(room.told[0]) == {"contrailInDoubt": "true"}
    assert doubt_fields(ResponseCode.SERVICE_NOT_AVAILABLE) == {}
