"""Rows as the general way of answering wants to see them."""

from __future__ import annotations

from contrail.broker.fast.rows import rows_of
from contrail.broker.fast.stored_rows import count_chunk_codes, is_two_way, run_of, slim_items
from contrail.kernels import send_rows
from contrail.protocol.command import FLAG_ONE_WAY
from contrail.store.services.append import AppendedChunks
from tests.unit.broker.fast.send_room import LIMITS, STORE_HOST, items, send

DATA = send(7) + send(8, one_way=True) + send(9, e="3")
ROWS = rows_of(DATA, STORE_HOST, LIMITS, b"")
assert ROWS is not None
CHUNK = ROWS.chunk


def test_slim_items_are_the_sends_without_what_was_stored() -> None:
    slim = slim_items(CHUNK)
    assert [one[0] for one in slim] == [7, 8, 9]
    assert [bool(one[1] & FLAG_ONE_WAY) for one in slim] == [False, True, False]
    assert [one[3] for one in slim] == [310] * 3
    assert [one[10] for one in slim] == [one[10] for one in items(DATA)]
    assert [one[11][1] for one in slim] == [0, 0, 3]


def test_a_run_has_the_places_of_its_rows() -> None:
    for number in range(3):
        at = number * send_rows.ROW_NUMBERS
        CHUNK[2][at + send_rows.QUEUE_OFFSET] = 10 + number
        CHUNK[2][at + send_rows.PHYSICAL_OFFSET] = 1000 * number
    run = run_of(CHUNK, AppendedChunks(0, 3000, 77))
    assert run.queue_offsets == [10, 11, 12]
    assert run.physical_offsets == [0, 1000, 2000]
    assert (run.store_timestamp_ms, run.physical_end) == (77, 3000)


def test_one_way_sends_are_told_from_others_and_counted() -> None:
    assert [is_two_way(CHUNK, index) for index in range(3)] == [True, False, True]
    assert count_chunk_codes([(None, CHUNK)]) == {620: 2, 621: 1}
    alone = rows_of(send(1), STORE_HOST, LIMITS, b"")
    one_way = rows_of(send(1, one_way=True), STORE_HOST, LIMITS, b"")
    assert alone is not None and one_way is not None
    assert count_chunk_codes([(None, alone.chunk)]) == {620: 1}
    assert count_chunk_codes([(None, one_way.chunk)]) == {621: 1}
