"""Sends the general way: checked one by one, appended as one run, answered."""

from __future__ import annotations

from typing import Any

import pytest

from contrail.errors import MessageIllegal, RequestRejected, StoreReadOnly
from contrail.protocol.codes import ResponseCode
from contrail.store import AppendedRun
from tests.unit.broker.fast.send_room import SendRoom, bodies, decoded, sends, told


@pytest.fixture
def room() -> SendRoom:
    return SendRoom()


def _take(room: SendRoom, peer: Any, first: int, last: int, busy: str | None = None) -> None:
    for send in decoded(sends(first, last)):
        room.handler.take(peer, send, busy)


def test_sends_of_several_connections_are_one_append(room: SendRoom) -> None:
    (one, one_transport), (two, two_transport) = room.connected(), room.connected(50_002)
    _take(room, one, 0, 2)
    _take(room, two, 2, 3)
    room.handler.append_run()
    assert room.store.appended == [("run", bodies(0, 3))]
    assert told(one, one_transport) == [(0, 0), (1, 0)] and told(two, two_transport) == [(2, 0)]
    assert room.ways.send_general == 3


def test_a_send_that_is_not_admitted_is_refused_alone(room: SendRoom) -> None:
    peer, transport = room.connected()
    admit = room.admission.admit

    def admitted(send: Any, address: str, *, is_unit: bool) -> Any:
        if send.opaque == 1:
            raise RequestRejected(ResponseCode.NO_PERMISSION, "closed")
        return admit(send, address, is_unit=is_unit)

    room.admission.admit = admitted
    _take(room, peer, 0, 3)
    room.handler.append_run()
    assert sorted(told(peer, transport)) == [(0, 0), (1, ResponseCode.NO_PERMISSION), (2, 0)]


def test_a_message_that_breaks_a_limit_fails_alone(
    room: SendRoom, monkeypatch: pytest.MonkeyPatch
) -> None:
    peer, transport = room.connected()
    append = room.store.append

    def limited(drafts: list[Any]) -> AppendedRun:
        if any(draft.body == b"1" for draft in drafts):
            raise MessageIllegal("too long")
        return append(drafts)

    monkeypatch.setattr(room.store, "append", limited)
    _take(room, peer, 0, 3)
    room.handler.append_run()
    assert told(peer, transport) == [(0, 0), (1, ResponseCode.MESSAGE_ILLEGAL), (2, 0)]
    assert room.store.appended == [("run", [b"0"]), ("run", [b"2"])]


@pytest.mark.parametrize("failure", [StoreReadOnly("full"), RuntimeError("a bug")])
def test_an_append_that_fails_is_told_to_every_producer(
    room: SendRoom,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    failure: Exception,
) -> None:
    def fails(drafts: list[Any]) -> AppendedRun:
        raise failure

    peer, transport = room.connected()
    monkeypatch.setattr(room.store, "append", fails)
    _take(room, peer, 0, 2)
    room.handler.append_run()
    code = ResponseCode.SERVICE_NOT_AVAILABLE
    assert told(peer, transport) == [(0, code), (1, code)]
    caplog.clear()


def test_busy_is_an_answer_and_checks_nothing(room: SendRoom) -> None:
    peer, transport = room.connected()
    _take(room, peer, 0, 1, busy="later")
    assert told(peer, transport) == [(0, ResponseCode.SYSTEM_BUSY)] and room.checked == []


def test_the_broker_is_busy_after_a_long_wait_or_with_the_disk_behind() -> None:
    room = SendRoom(waits=True)
    assert room.handler.busy_reason(0.0) is None
    assert room.handler.busy_reason(201.0) is not None
    peer, _ = room.connected()
    _take(room, peer, 0, 1)
    room.handler.append_run()
    room.clock.advance(ms=1001)
    assert room.handler.busy_reason(0.0) is not None
