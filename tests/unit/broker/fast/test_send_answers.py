"""Answers to rows: now, or when they are durable."""

from __future__ import annotations

from contrail.protocol.codes import ResponseCode
from tests.unit.broker.fast.send_room import SendRoom, rows, told


def test_under_synchronous_flush_answers_wait_and_count_as_unanswered() -> None:
    room = SendRoom(waits_for_flush=True)
    peer, transport = room.connected()
    room.sends.take_runs([(peer, rows(0, 3), True)], 0, 0.0)
    room.sends.append_run()
    assert told(peer, transport) == [] and peer.in_flight_count == 3
    room.acknowledgements.flushed(room.store.end)
    assert told(peer, transport) == [(number, 0) for number in range(3)]
    assert peer.in_flight_count == 0


def test_rows_that_were_not_made_durable_are_refused_one_by_one() -> None:
    room = SendRoom(waits_for_flush=True)
    peer, transport = room.connected()
    room.sends.take_runs([(peer, rows(0, 2), True)], 0, 0.0)
    room.sends.append_run()
    room.acknowledgements.fail()
    code = ResponseCode.SERVICE_NOT_AVAILABLE
    assert told(peer, transport) == [(0, code), (1, code)]
    assert peer.in_flight_count == 0


def test_fields_follow_the_settings() -> None:
    room = SendRoom()
    peer, transport = room.connected()
    for epoch, region in ((1, "R"), (2, "S")):
        room.settings.epoch, room.settings.config.region = epoch, region
        room.sends.take_runs([(peer, rows(epoch, epoch + 1), True)], 0, 0.0)
        room.sends.append_run()
    peer.flush()
    assert [answer.fields["MSG_REGION"] for answer in transport.frames()] == ["R", "S"]
