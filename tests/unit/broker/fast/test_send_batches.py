"""Tidy batches of a tick: collected, appended together, or left to the general way."""

from __future__ import annotations

import pytest

from contrail.errors import StoreError
from contrail.protocol.codes import ResponseCode
from tests.unit.broker.fast.send_room import SendRoom, items, send, sends, told

BATCHES = items(send(1, m="true") + send(2, m="true"))


@pytest.fixture
def room() -> SendRoom:
    return SendRoom()


def test_batches_of_a_tick_are_appended_together_and_answered(room: SendRoom) -> None:
    first, first_transport = room.connected()
    second, second_transport = room.connected(50_002)
    room.sends.take(first, BATCHES[:1])
    room.sends.take(second, BATCHES[1:])
    assert room.stored() == [("batches", [b"1", b"2"])]
    assert told(first, first_transport) == [(1, 0)]
    assert told(second, second_transport) == [(2, 0)]
    assert room.ways.send_batches == 2


def test_only_batches_to_topics_that_split_are_counted(room: SendRoom) -> None:
    batches = room.sends._batches
    assert batches.count([*BATCHES, *items(sends(3, 5))], 0) == 2
    room.admission.splitting_topics.clear()
    assert batches.count(BATCHES, 0) == 0


def test_everybody_is_told_of_a_failure_that_nobody_foresaw(
    room: SendRoom, caplog: pytest.LogCaptureFixture
) -> None:
    first, first_transport = room.connected()
    second, second_transport = room.connected(50_002)
    room.store.failure = RuntimeError("a bug")
    room.sends.take(first, BATCHES[:1])
    room.sends.take(second, BATCHES[1:])
    assert room.stored() == []
    code = ResponseCode.SERVICE_NOT_AVAILABLE
    assert told(first, first_transport) == [(1, code)]
    assert told(second, second_transport) == [(2, code)]
    assert [entry.getMessage() for entry in caplog.records] == ["2 sends could not be appended"]
    caplog.clear()


def test_a_failure_that_the_store_names_is_met_again_by_the_general_way(room: SendRoom) -> None:
    peer, _ = room.connected()
    room.store.failure = StoreError("no room")
    room.sends.take(peer, BATCHES)
    room.stored()
    assert room.checked == [1, 2]


def test_answers_to_batches_wait_for_the_flush() -> None:
    room = SendRoom(waits_for_flush=True)
    peer, transport = room.connected()
    room.sends.take(peer, BATCHES)
    room.stored()
    assert told(peer, transport) == [] and peer.in_flight_count == 2
    room.acknowledgements.flushed(room.store.end)
    assert told(peer, transport) == [(1, 0), (2, 0)] and peer.in_flight_count == 0


def test_batches_that_were_not_made_durable_are_refused_one_by_one() -> None:
    room = SendRoom(waits_for_flush=True)
    first, first_transport = room.connected()
    second, second_transport = room.connected(50_002)
    room.sends.take(first, BATCHES[:1])
    room.sends.take(second, BATCHES[1:])
    room.stored()
    room.acknowledgements.fail()
    code = ResponseCode.SERVICE_NOT_AVAILABLE
    assert told(first, first_transport) == [(1, code)]
    assert told(second, second_transport) == [(2, code)]
    assert first.in_flight_count == second.in_flight_count == 0


def test_batches_that_are_durable_too_late_are_told_their_place() -> None:
    room = SendRoom(waits_for_flush=True)
    peer, transport = room.connected()
    room.sends.take(peer, BATCHES)
    room.stored()
    room.acknowledgements.expire(room.clock.elapsed_ms() + 60_000)
    code = ResponseCode.FLUSH_DISK_TIMEOUT
    assert told(peer, transport) == [(1, code), (2, code)]
    assert all(answer.fields["msgId"] for answer in transport.frames())
