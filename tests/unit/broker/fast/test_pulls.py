"""Where a pull goes that the frame kernel has taken apart."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest

from contrail.broker.fast.known_pulls import Outcome
from contrail.broker.fast.pulls import FastPulls
from contrail.broker.state.ways import Ways
from contrail.kernels.frame_scan import Item
from contrail.protocol.codes import ResponseCode
from contrail.protocol.command import ReadyAnswer, Request, Response
from contrail.wire.connection import Connection
from contrail.wire.limits import Limits
from contrail.wire.server import Server
from tests.fakes.transports import EchoService, FakeTransport, connected
from tests.unit.broker.fast.pull_room import pull


class FakeKnown:
    """Knows what is asked of it to know."""

    def __init__(self) -> None:
        self.outcome = Outcome.ANSWERED
        self.can_hold = False
        self.remembered: list[int] = []
        self.committed: list[int] = []
        self.log_fits_memory = False
        self.answered: dict[int, int] = {}
        self.refused: dict[tuple[int, int], int] = {}

    def answer_run(self, frames: list[Any], at: int, peer: Connection) -> tuple[int, Outcome]:
        return (len(frames) if self.outcome is Outcome.ANSWERED else at), self.outcome

    def refusal(self, answer: ReadyAnswer, opaque: int, code: int) -> bytes:
        return answer.frame(opaque)

    def note_held(self, item: Item) -> object:
        plan = SimpleNamespace(_replace=lambda **changes: None)
        return SimpleNamespace(plan=plan, hold_ms=9) if self.can_hold else None

    def remember(self, item: Item, request: Request) -> None:
        self.remembered.append(item[0])

    def commit_far(self, item: Item) -> None:
        self.committed.append(item[0])

    def note_given_again(self) -> None:
        """Nothing is shown here."""


class Room:
    """Fast pulls before a handler of paper."""

    def __init__(self) -> None:
        self.known = FakeKnown()
        self.parked: list[Item] = []
        self.in_line: list[Any] = []
        self.served: list[Request] = []
        self.busy: ReadyAnswer | None = None
        self.ways = Ways()
        self.server = Server(EchoService(), limits=Limits(in_flight_count_max=2))
        held = SimpleNamespace(parked=_Parked(self.parked), park=self._park, answer_fast=None)
        cold_reads = SimpleNamespace(take=lambda pull, **limits: self.in_line.append(pull) or True)
        self.handler: Any = SimpleNamespace(
            held=held, cold_reads=cold_reads, log_fits_memory=True, sweep=lambda now_ms: None
        )
        known: Any = self.known
        router: Any = SimpleNamespace(is_going_away=False)
        self.router = router
        config = SimpleNamespace(parked_pulls_max=3)
        settings: Any = SimpleNamespace(config=config)
        busy: Any = SimpleNamespace(answer=lambda peer: self.busy)
        nothing: Any = None
        self.pulls = FastPulls(
            self.handler,
            known,
            self.server,
            router,
            nothing,
            settings,
            busy,
            None,
            serve=lambda peer, request: self.served.append(request),
            ways=self.ways,
        )

    def _park(self, request: Request, peer: Any, plan: Any, hold_ms: int, *, fast: Item) -> bool:
        self.parked.append(fast)
        return True

    def connected(self, *, is_fast_port: bool = False) -> tuple[Connection, FakeTransport]:
        return connected(self.server, is_fast_port=is_fast_port)

    def taken(self, peer: Connection, frames: list[Any], until_s: float = math.inf) -> int:
        return self.pulls.take(peer, frames, 0, until_s)

    @property
    def general(self) -> list[int]:
        return [request.opaque for request in self.served]


class _Parked:
    def __init__(self, items: list[Item]) -> None:
        self._items = items

    def __len__(self) -> int:
        return len(self._items)

    def count_of(self, peer: object) -> int:
        return len(self._items)


@pytest.fixture
def room() -> Room:
    return Room()


def test_known_pulls_are_answered_and_what_follows_is_left(room: Room) -> None:
    peer, _ = room.connected()
    other: Any = Request(34, 9, {})
    assert room.taken(peer, [pull(1), pull(2)]) == 2
    room.known.outcome = Outcome.GENERAL
    assert room.taken(peer, [pull(1), other]) == 1
    assert room.general == [1] and room.known.remembered == [1]


def test_pulls_behind_one_that_took_too_long_are_left(room: Room) -> None:
    peer, _ = room.connected()
    room.known.outcome = Outcome.GENERAL
    room.server.monotonic_s = lambda: float(len(room.served))
    frames = [pull(number) for number in range(1, 6)]
    assert room.taken(peer, frames, until_s=2.0) == 2
    assert room.general == [1, 2]
    assert room.taken(peer, frames[2:], until_s=2.0) == 1, "one is taken whatever the time"


def test_a_pull_at_the_end_of_its_queue_is_held(room: Room) -> None:
    peer, _ = room.connected()
    room.known.outcome, room.known.can_hold = Outcome.GENERAL, True
    assert room.taken(peer, [pull(1)]) == 1
    assert [item[0] for item in room.parked] == [1] and room.ways.pull_held == 1
    peer.in_flight_count = 2
    room.taken(peer, [pull(2)])
    assert len(room.parked) == 1 and room.general == [2], "too many are unanswered"


def test_no_more_pulls_are_held_than_may_be(room: Room) -> None:
    peer, _ = room.connected()
    room.known.can_hold = True
    assert [room.pulls.hold(pull(number), peer) for number in range(5)] == [True] * 3 + [False] * 2


def test_old_messages_are_waited_for_in_line_and_the_offset_is_written_now(room: Room) -> None:
    peer, _ = room.connected()
    room.known.outcome = Outcome.FAR
    room.taken(peer, [pull(1)])
    [waiting] = room.in_line
    assert room.known.committed == [1] and not room.served
    waiting.general()
    [request] = room.served
    assert request.fields["commitOffset"] == "-1", "it was written already"


def test_a_busy_broker_says_so(room: Room) -> None:
    peer, transport = room.connected()
    room.busy = ReadyAnswer(Response(ResponseCode.SYSTEM_BUSY, "later"))
    assert room.taken(peer, [pull(1), pull(2)]) == 2
    peer.flush()
    assert [(one.opaque, one.code) for one in transport.frames()] == [(1, 2), (2, 2)]


def test_guards_of_the_general_way_leave_pulls_to_it(room: Room) -> None:
    fast_port, _ = room.connected(is_fast_port=True)
    gone, transport = room.connected()
    transport.close()
    peer, _ = room.connected()
    room.taken(fast_port, [pull(1)])
    room.taken(gone, [pull(2)])
    room.router.is_going_away = True
    room.taken(peer, [pull(3)])
    assert room.general == [1, 2, 3]


def test_a_sweep_tells_whether_the_log_fits_memory(room: Room) -> None:
    assert room.known.log_fits_memory
    room.handler.log_fits_memory = False
    room.pulls.sweep(0)
    assert not room.known.log_fits_memory
