"""The ways of sends to the log, and that one connection's sends keep their order."""

from __future__ import annotations

import pytest

from contrail.errors import StoreError, StoreReadOnly
from contrail.protocol.codes import ResponseCode
from contrail.wire.server import Arrived
from tests.unit.broker.fast.send_room import (
    SendRoom,
    batch,
    bodies,
    decoded,
    rows,
    send,
    sends,
    told,
)


@pytest.fixture
def room() -> SendRoom:
    return SendRoom()


def test_rows_are_stored_as_they_are_and_answered(room: SendRoom) -> None:
    peer, transport = room.connected()
    assert room.sends.take_runs([(peer, rows(0, 5), True)], 0, 1, 0.0) == 1
    assert room.stored() == [("rows", bodies(0, 5))]
    assert told(peer, transport) == [(number, 0) for number in range(5)]
    assert room.ways.send_rows == 5 and not room.checked


@pytest.mark.parametrize("count", [1, 2, 4])
def test_one_send_each_of_several_connections_is_one_chunk(room: SendRoom, count: int) -> None:
    opened = [room.connected(50_000 + number) for number in range(count)]
    arrived: list[Arrived] = [(peer, send(n), True) for n, (peer, _) in enumerate(opened)]
    assert room.sends.take_runs(arrived, 0, len(arrived), 0.0) == count
    assert room.stored() == [("rows", bodies(0, count))]
    assert [told(*one) for one in opened] == [[(number, 0)] for number in range(count)]
    assert room.ways.send_rows == count


def test_one_of_several_that_is_no_fast_send_is_decoded_alone(room: SendRoom) -> None:
    opened = [room.connected(50_000 + number) for number in range(3)]
    arrived: list[Arrived] = [
        (peer, send(n, m="true" if n == 1 else "false"), True) for n, (peer, _) in enumerate(opened)
    ]
    assert room.sends.take_runs(arrived, 0, len(arrived), 0.0) == 1
    assert isinstance(arrived[1][1], list)
    assert room.sends.take_runs(arrived, 2, len(arrived), 0.0) == 3
    assert room.stored() == [("rows", [b"0", b"2"])]


def test_sends_of_one_way_are_stored_before_those_of_another(room: SendRoom) -> None:
    peer, _ = room.connected()
    room.sends.take_runs([(peer, rows(0, 2), True)], 0, 1, 0.0)
    room.sends.take(peer, decoded(sends(2, 4)))
    room.sends.take_runs([(peer, rows(4, 6), True)], 0, 1, 0.0)
    room.sends.take(peer, decoded(batch(30, b"x", b"y")))
    room.sends.take(peer, decoded(sends(6, 8)))
    assert room.stored() == [
        ("rows", bodies(0, 2)),
        ("run", bodies(2, 4)),
        ("rows", [*bodies(4, 6), b"x", b"y"]),
        ("run", bodies(6, 8)),
    ]


def test_rows_behind_a_batch_are_stored_behind_it(room: SendRoom) -> None:
    peer, transport = room.connected()
    room.sends.take(peer, decoded(batch(30, b"x", b"y")))
    room.sends.take_runs([(peer, rows(4, 6), True)], 0, 1, 0.0)
    assert room.stored() == [("rows", [b"x", b"y"]), ("rows", bodies(4, 6))]
    assert told(peer, transport) == [(30, 0), (4, 0), (5, 0)]
    assert (room.ways.send_batches, room.ways.send_rows) == (1, 2)


@pytest.mark.parametrize("failure", [None, StoreReadOnly("the disk is full")])
def test_rows_that_the_store_does_not_take_join_the_run(
    room: SendRoom, failure: Exception | None
) -> None:
    peer, transport = room.connected()
    room.store.failure, room.store.leaves_rows = failure, True
    room.sends.take_runs([(peer, rows(0, 3), True)], 0, 1, 0.0)
    assert room.stored() == [("run", bodies(0, 3))]
    assert told(peer, transport) == [(number, 0) for number in range(3)]


def test_everybody_is_told_of_a_failure_that_nobody_foresaw(
    room: SendRoom, caplog: pytest.LogCaptureFixture
) -> None:
    peer, transport = room.connected()
    room.store.failure = RuntimeError("a bug")
    opened = [room.connected(50_010 + number) for number in range(4)]
    arrived: list[Arrived] = [(one, send(5 + n), True) for n, (one, _) in enumerate(opened)]
    room.sends.take_runs([(peer, rows(0, 2), True), *arrived], 0, 5, 0.0)
    assert room.stored() == []
    code = ResponseCode.SERVICE_NOT_AVAILABLE
    assert told(peer, transport) == [(0, code), (1, code)]
    assert [told(*one) for one in opened] == [[(5 + number, code)] for number in range(4)]
    assert [entry.getMessage() for entry in caplog.records] == ["6 sends could not be appended"]
    caplog.clear()


def test_a_topic_that_was_not_checked_is_left_for_a_look(room: SendRoom) -> None:
    peer, _ = room.connected()
    room.admission.fast_topics.clear()
    assert room.sends.take_runs([(peer, rows(0, 2), True)], 0, 1, 0.0) == 0
    room.admission.split_topics.clear()
    room.sends.take(peer, decoded(sends(0, 2)))
    assert room.checked == [0, 1] and room.ways.send_general == 2
    assert room.stored() == [("run", bodies(0, 2))]


def test_more_than_a_connection_may_have_unanswered_is_left(room: SendRoom) -> None:
    peer, _ = room.connected()
    peer.in_flight_count = 99
    assert room.sends.take_runs([(peer, rows(0, 2), True)], 0, 1, 0.0) == 0


def test_sends_that_waited_too_long_are_answered_busy(room: SendRoom) -> None:
    peer, transport = room.connected()
    assert room.sends.take_runs([(peer, rows(0, 2), True)], 0, 1, 201.0) == 0
    room.sends.take(peer, decoded(sends(0, 2)), waited_ms=201.0)
    assert room.stored() == []
    assert [code for _, code in told(peer, transport)] == [ResponseCode.SYSTEM_BUSY] * 2


def test_with_everybody_watched_nothing_is_stored_as_rows_or_batches() -> None:
    room = SendRoom(is_watched=True)
    peer, _ = room.connected()
    assert room.sends.take_runs([(peer, rows(0, 2), True)], 0, 1, 0.0) == 0
    room.sends.take(peer, decoded(sends(0, 1) + send(30, m="true")))
    assert [how for how, _ in room.stored()] == ["run"]


@pytest.mark.parametrize("failure", [None, StoreError("no room")])
def test_batches_that_the_store_does_not_take_are_checked(
    room: SendRoom, failure: Exception | None
) -> None:
    peer, _ = room.connected()
    room.store.failure, room.store.leaves_rows = failure, True
    room.sends.take(peer, decoded(batch(30, b"x")))
    assert room.checked == []
    room.stored()
    assert room.checked == [30]
