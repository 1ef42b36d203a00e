"""Answers to rows: now, or when they are durable."""

from __future__ import annotations

from contrail.broker.fast.row_answers import _count_codes, stored_rows
from contrail.broker.fast.rows import SendRows, rows_of
from contrail.kernels import send_rows
from contrail.protocol.codes import ResponseCode
from tests.unit.broker.fast.send_room import (
    LIMITS,
    STORE_HOST,
    SendRoom,
    decoded,
    rows,
    send,
    told,
)

DATA = send(7) + send(8, one_way=True) + send(9, e="3")


def _rows(data: bytes) -> SendRows:
    found = rows_of(data, STORE_HOST, LIMITS, b"")
    assert found is not None
    return found


def test_under_synchronous_flush_answers_wait_and_count_as_unanswered() -> None:
    room = SendRoom(waits=True)
    peer, transport = room.connected()
    room.sends.take_runs([(peer, rows(0, 3), True)], 0, 1, 0.0)
    room.sends.append_run()
    assert told(peer, transport) == [] and peer.in_flight_count == 3
    room.acknowledgements.reached(room.store.end)
    assert told(peer, transport) == [(number, 0) for number in range(3)]
    assert peer.in_flight_count == 0


def test_rows_that_were_not_made_durable_are_refused_one_by_one() -> None:
    room = SendRoom(waits=True)
    peer, transport = room.connected()
    room.sends.take_runs([(peer, rows(0, 2), True)], 0, 1, 0.0)
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
        room.sends.take_runs([(peer, rows(epoch, epoch + 1), True)], 0, 1, 0.0)
        room.sends.append_run()
    peer.flush()
    assert [answer.fields["MSG_REGION"] for answer in transport.frames()] == ["R", "S"]


def test_the_general_way_sees_the_sends_of_rows_and_their_places() -> None:
    peer, _ = SendRoom().connected()
    chunk = _rows(DATA).chunk
    for number in range(3):
        at = number * send_rows.ROW_NUMBERS
        chunk[2][at + send_rows.QUEUE_OFFSET] = 10 + number
        chunk[2][at + send_rows.PHYSICAL_OFFSET] = 1000 * number
    stored = stored_rows([peer], chunk)
    assert [one.sent.opaque for one in stored] == [7, 8, 9]
    assert [one.sent.is_two_way for one in stored] == [True, False, True]
    assert [one.sent.code for one in stored] == [310] * 3
    assert [one.sent.unique_key for one in stored] == [one.unique_key for one in decoded(DATA)]
    assert [one.sent.queue_id for one in stored] == [0, 0, 3]
    assert [one.queue_offset for one in stored] == [10, 11, 12]
    assert [one.physical_offsets for one in stored] == [[0], [1000], [2000]]


def test_one_way_sends_are_counted_apart() -> None:
    assert _count_codes([(None, _rows(DATA).chunk)]) == {620: 2, 621: 1}
    assert _count_codes([(None, _rows(send(1)).chunk)]) == {620: 1}
    assert _count_codes([(None, _rows(send(1, one_way=True)).chunk)]) == {621: 1}
