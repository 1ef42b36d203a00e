"""Held pulls over a store, an admission and peers of paper, and a loop turned by hand."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from contrail.broker.handlers.held_pulls import HeldPulls, request_of
from contrail.broker.state.pull_plan import FLAG_SUSPEND, PullPlan
from contrail.clock import ManualClock
from contrail.protocol.codes import ResponseCode
from contrail.protocol.command import Request, Response
from contrail.runtime.turns import STEPS_IN_A_ROW
from contrail.store import Arrival, GetResult, GetStatus
from tests.fakes.loops import FakeLoop

TOPIC = b"orders"
PLAN = PullPlan("billing", "orders", TOPIC, 0, 5, 32, FLAG_SUSPEND, None, None, 0, 0)
HOLD_MS = 15_000


class PaperPeer:
    """Keeps the opaques of the pulls that it gets answers to."""

    def __init__(self) -> None:
        self.address, self.is_closed = "10.0.0.1:5", False
        self.answered: list[int] = []

    def reply(self, request: Request, response: Response) -> None:
        assert response.code == ResponseCode.PULL_NOT_FOUND
        self.answered.append(request.opaque)


class Room:
    """``HeldPulls`` of one broker; ``found`` is the outcome of every filtered read."""

    def __init__(self) -> None:
        self.loop, self.clock, self.peer = FakeLoop(), ManualClock(), PaperPeer()
        self.config = SimpleNamespace(
            long_polling=True, short_polling_ms=1000, parked_pulls_max=100
        )
        self.queue_offset_max = 5
        self.waits_told = 0
        self.refused: set[str] = set()
        self.reads: list[int] = []
        self.found = GetResult(GetStatus.NO_MATCHED_MESSAGE, 9, 0, 9, [], 0, 0)
        store: Any = SimpleNamespace(
            somebody_waits=self._somebody_waits,
            queue_offset_max=lambda topic, queue_id: self.queue_offset_max,
        )
        self.held = HeldPulls(
            cast(Any, SimpleNamespace(config=self.config)),
            store,
            self.clock,
            self.loop,
            read=self._read,
            final_answer=lambda pull: Response(ResponseCode.PULL_NOT_FOUND),
            may_stay=lambda request, peer, group: group not in self.refused,
        )

    def _somebody_waits(self) -> None:
        self.waits_told += 1

    def _read(self, plan: PullPlan) -> GetResult:
        self.reads.append(plan.queue_offset)
        return self.found

    def park(self, opaque: int, hold_ms: int = HOLD_MS, **changes: Any) -> bool:
        plan = PLAN._replace(**changes)
        return self.held.park(Request(11, opaque, {}), cast(Any, self.peer), plan, hold_ms)

    def arrived(self, queue_offset_max: int, topic: bytes = TOPIC) -> None:
        self.held.arrived([Arrival(topic, 0, queue_offset_max, 1)])


@pytest.fixture
def room() -> Room:
    return Room()


def test_an_arrival_answers_the_pulls_of_its_queue_alone(room: Room) -> None:
    assert room.park(1) and room.park(2, queue_id=1) and room.waits_told == 2
    room.arrived(6)
    assert room.peer.answered == [1]
    assert len(room.held.parked) == 1


def test_an_arrival_that_a_pull_has_seen_does_not_wake_it(room: Room) -> None:
    room.park(1)
    room.arrived(5)
    assert room.peer.answered == []


def test_pulls_with_one_filter_are_read_for_once_and_stay_held_without_a_match(room: Room) -> None:
    for opaque in (1, 2):
        room.park(opaque, tag_codes=frozenset({7}))
    room.arrived(9)
    assert room.peer.answered == [] and room.reads == [5]
    room.found = GetResult(GetStatus.FOUND, 10, 0, 10, [], 1, 3)
    room.arrived(10)
    assert room.peer.answered == [1, 2]
    assert room.reads == [5, 9], "messages that did not match are not read again"


def test_a_filter_that_fails_wakes_its_own_pull(
    room: Room, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(plan: PullPlan) -> GetResult:
        raise RuntimeError("a bug")

    monkeypatch.setattr(room.held, "_read", fails)
    room.park(1, tag_codes=frozenset({7}))
    room.park(2)
    room.arrived(6)
    assert room.peer.answered == [1, 2]
    assert "a held pull of 10.0.0.1:5 could not be looked at" in caplog.text


def test_many_pulls_of_a_queue_are_woken_a_bounded_number_in_a_turn(room: Room) -> None:
    room.config.parked_pulls_max = 2000
    for opaque in range(1000):
        room.park(opaque)
    room.arrived(6)
    assert room.peer.answered == []
    room.loop.turn()
    assert STEPS_IN_A_ROW <= len(room.peer.answered) < 1000
    room.loop.settle()
    assert room.peer.answered == list(range(1000))


def test_a_pull_beyond_the_bounds_is_not_held(room: Room) -> None:
    room.config.parked_pulls_max = 1
    assert room.park(1) and not room.park(2)


def test_a_pull_is_answered_when_its_time_is_over_and_once(room: Room) -> None:
    room.park(1)
    assert room.held.end_in_ms() is not None
    room.held.expire(room.clock.elapsed_ms() + HOLD_MS - 1)
    room.loop.settle()
    assert room.peer.answered == []
    end_ms = room.clock.elapsed_ms() + HOLD_MS + 1000
    for _ in range(2):
        room.held.expire(end_ms)
    room.arrived(6)
    room.loop.settle()
    assert room.peer.answered == [1] and room.held.end_in_ms() is None


def test_a_short_hold_has_a_timer_of_its_own(room: Room) -> None:
    room.park(1, hold_ms=200)
    (delay_s, _), *others = room.loop.later
    assert 0.2 <= delay_s < 1 and not others
    room.clock.advance(ms=1000)
    room.loop.ring()
    room.loop.settle()
    assert room.peer.answered == [1]


def test_without_long_polling_the_broker_decides_how_long_a_pull_is_held(room: Room) -> None:
    room.config.long_polling = False
    room.park(1)
    end_ms = room.held.end_in_ms()
    assert end_ms is not None and end_ms < HOLD_MS


def test_a_changed_topic_answers_its_pulls_and_no_others(room: Room) -> None:
    room.park(1)
    room.park(2, topic=b"returns", topic_name="returns")
    room.held.wake_topic(TOPIC)
    room.loop.settle()
    assert room.peer.answered == [1]


def test_lost_rights_answer_the_pulls_of_the_group(room: Room) -> None:
    room.park(1)
    room.park(2, group="audit")
    room.refused = {"billing"}
    room.held.check_held("audit")
    room.loop.settle()
    assert room.peer.answered == []
    room.held.check_held()
    room.loop.settle()
    assert room.peer.answered == [1]


def test_a_sweep_drops_pulls_of_closed_connections_unanswered(room: Room) -> None:
    room.park(1)
    room.held.sweep()
    room.loop.settle()
    assert len(room.held.parked) == 1
    room.peer.is_closed = True
    room.held.sweep()
    room.loop.settle()
    assert len(room.held.parked) == 0 and room.peer.answered == []


def test_a_sweep_answers_a_pull_whose_filter_has_fallen_behind(room: Room) -> None:
    room.park(1, tag_codes=frozenset({7}))
    room.queue_offset_max = 6
    room.held.sweep()
    room.loop.settle()
    assert room.peer.answered == [1]


def test_a_broker_that_stops_answers_every_pull(room: Room) -> None:
    for opaque in range(3):
        room.park(opaque)
    asyncio.run(room.held.release_all())
    assert room.peer.answered == [0, 1, 2]


def test_a_general_pull_keeps_its_own_request(room: Room) -> None:
    room.park(1)
    (pull,) = room.held.parked
    assert request_of(pull) is pull.request
