"""Fast batches of a tick: collected, appended together, or left to the general way."""

from __future__ import annotations

import pytest

from contrail.broker.fast.send_batches import send_batch
from contrail.errors import StoreError
from contrail.protocol.codes import ResponseCode
from contrail.protocol.frames import SendRequest
from tests.unit.broker.fast.send_room import SendRoom, batch, decoded, sends, told

BATCHES = decoded(batch(1, b"1") + batch(2, b"2"))


@pytest.fixture
def room() -> SendRoom:
    return SendRoom()


def test_batches_of_a_tick_are_appended_together_and_answered(room: SendRoom) -> None:
    first, first_transport = room.connected()
    second, second_transport = room.connected(50_002)
    room.sends.take(first, BATCHES[:1])
    room.sends.take(second, BATCHES[1:])
    assert room.stored() == [("rows", [b"1", b"2"])]
    assert told(first, first_transport) == [(1, 0)]
    assert told(second, second_transport) == [(2, 0)]
    assert room.ways.send_batches == 2


def is_fast(room: SendRoom, send: SendRequest) -> bool:
    peer, _ = room.connected()
    return send_batch(peer, send, room.admission, 1 << 20) is not None


@pytest.mark.proves("broker.fast.one-body")
def test_a_batch_has_a_row_for_each_message_and_one_answer(room: SendRoom) -> None:
    peer, _ = room.connected()
    [send] = decoded(batch(7, b"one", b"three"))
    taken = send_batch(peer, send, room.admission, 1 << 20)
    assert taken is not None and taken.chunk[1] == 2
    room.store.append_chunks([taken.chunk])
    stored = taken.stored()
    assert (stored.sent.opaque, stored.sent.unique_key) == (7, b"AC0007")
    assert stored.physical_offsets == [0, 100]


def test_only_batches_to_topics_that_split_are_fast(room: SendRoom) -> None:
    assert [is_fast(room, one) for one in [*BATCHES, *decoded(sends(3, 4))]] == [
        True,
        True,
        False,
    ]
    room.admission.split_topics.clear()
    assert not is_fast(room, BATCHES[0])


@pytest.mark.parametrize(
    ("bodies", "properties"),
    [((b"x", b""), b""), ((b"x",), b"DELAY\x013\x02"), ((b"x" * (1 << 20), b"y"), b"")],
)
def test_a_batch_whose_messages_must_be_checked_is_not_fast(
    room: SendRoom, bodies: tuple[bytes, ...], properties: bytes
) -> None:
    [send] = decoded(batch(1, *bodies, properties=properties))
    assert not is_fast(room, send)


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
    room = SendRoom(waits=True)
    peer, transport = room.connected()
    room.sends.take(peer, BATCHES)
    room.stored()
    assert told(peer, transport) == [] and peer.in_flight_count == 2
    room.acknowledgements.reached(room.store.end)
    assert told(peer, transport) == [(1, 0), (2, 0)] and peer.in_flight_count == 0


def test_batches_that_were_not_made_durable_are_refused_one_by_one() -> None:
    room = SendRoom(waits=True)
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
    room = SendRoom(waits=True)
    peer, transport = room.connected()
    room.sends.take(peer, BATCHES)
    room.stored()
    room.clock.advance(ms=60_000)
    room.acknowledgements.expire()
    code = ResponseCode.FLUSH_DISK_TIMEOUT
    assert told(peer, transport) == [(1, code), (2, code)]
    assert all(answer.fields["msgId"] for answer in transport.frames())
