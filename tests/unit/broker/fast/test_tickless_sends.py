"""Sends that need no tick: when they are taken, and what leaves them to the tick."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from contrail.broker.fast.tickless_sends import TicklessSends
from contrail.broker.guards import SENDS, Guard, Guards, Verdict
from contrail.errors import StoreReadOnly
from contrail.protocol.codes import ResponseCode
from contrail.protocol.command import Response
from contrail.wire.connection import Connection
from tests.fakes.transports import FakeTransport
from tests.unit.broker.fast.send_room import SendRoom, bodies, send, sends, told


class Setting:
    """Tickless sends of one connection."""

    def __init__(self) -> None:
        self.room = SendRoom()
        self.derived = 0
        deriving: Any = SimpleNamespace(after_tick=self._derive)
        store: Any = self.room.store
        self.tickless = TicklessSends(
            self.room.server,
            self.room.guards,
            self.room.handler,
            self.room.answers,
            self.room.admission,
            store,
            self.room.stats,
            deriving,
            ways=self.room.ways,
        )
        self.peer: Connection
        self.transport: FakeTransport
        self.peer, self.transport = self.room.connected()

    def _derive(self) -> None:
        self.derived += 1


@pytest.fixture
def setting() -> Setting:
    return Setting()


def test_sends_are_stored_and_answered_where_they_are_read(setting: Setting) -> None:
    data = sends(0, 3)
    assert setting.tickless.take(setting.peer, data + send(4)[:20]) == len(data)
    assert setting.room.store.appended == [("rows", bodies(0, 3))]
    assert told(setting.peer, setting.transport) == [(number, 0) for number in range(3)]
    assert setting.derived == 1 and setting.room.ways.send_tickless == 3


def _arrived(setting: Setting) -> None:
    setting.room.server.arrivals.append((setting.peer, b"", True))


def _may_not(setting: Setting) -> None:
    def verdict(guards: Guards, peer: Connection, code: int) -> Verdict:
        return Response(ResponseCode.NO_PERMISSION, "") if peer is setting.peer else None

    setting.tickless._guards = Guards(setting.room.router, [Guard(SENDS, verdict)])


def _goes_away(setting: Setting) -> None:
    setting.room.guards.go_away()


def _waited(setting: Setting) -> None:
    server = setting.room.server
    server.took_s, server.ended_s = 10.0, server.monotonic_s() + 60.0


def _unknown(setting: Setting) -> None:
    setting.room.admission.fast_topics.clear()


def _no_room(setting: Setting) -> None:
    setting.peer.in_flight_count = 99


def _left(setting: Setting) -> None:
    setting.room.store.leaves_rows = True


def _refused(setting: Setting) -> None:
    setting.room.store.failure = StoreReadOnly("the disk is full")


@pytest.mark.parametrize(
    "guard", [_arrived, _may_not, _goes_away, _waited, _unknown, _no_room, _left, _refused]
)
def test_sends_that_a_guard_stops_are_left_to_the_tick(setting: Setting, guard: Any) -> None:
    guard(setting)
    assert setting.tickless.take(setting.peer, sends(0, 2)) == 0
    assert setting.room.store.appended == [] and told(setting.peer, setting.transport) == []
    assert setting.room.ways.send_tickless == 0


def test_sends_in_front_of_another_kind_are_taken(setting: Setting) -> None:
    data = sends(0, 2)
    assert setting.tickless.take(setting.peer, data + send(3, m="true")) == len(data)
    assert setting.tickless.take(setting.peer, send(3, m="true") + data) == 0
    assert setting.room.store.appended == [("rows", bodies(0, 2))]


def test_a_failure_that_nobody_foresaw_is_told_at_once(
    setting: Setting, caplog: pytest.LogCaptureFixture
) -> None:
    setting.room.store.failure = RuntimeError("a bug")
    data = sends(0, 2)
    assert setting.tickless.take(setting.peer, data) == len(data)
    assert len(told(setting.peer, setting.transport)) == 2
    caplog.clear()
