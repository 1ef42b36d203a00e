"""Places: one object for each queue that fast sends go to, which gives out its queue offsets."""

from __future__ import annotations

from array import array
from typing import Any

import pytest

from contrail.kernels import send_rows
from contrail.kernels.send_places import (
    QueuePlace,
    are_watched,
    borrow_offsets,
    commit_places,
    place_chunk,
    plan_offsets,
    return_lent,
)

ORDERS, RETURNS = (b"orders", 0), (b"returns", 3)
RECORD_BYTES = 100


def chunk_of(places: list[QueuePlace]) -> Any:
    """A chunk with one send of ``RECORD_BYTES`` for each place."""
    rows = array("q", bytes(8 * send_rows.ROW_NUMBERS * len(places)))
    for index in range(len(places)):
        rows[index * send_rows.ROW_NUMBERS + send_rows.RECORD_BYTES] = RECORD_BYTES
    return (b"", len(places), rows, b"", [], places)


def column(chunk: Any, name: int) -> list[int]:
    return [int(number) for number in chunk[2][name :: send_rows.ROW_NUMBERS]]


@pytest.fixture
def orders() -> QueuePlace:
    return QueuePlace(*ORDERS)


@pytest.fixture
def returns() -> QueuePlace:
    return QueuePlace(*RETURNS)


def test_a_run_takes_offsets_behind_those_that_it_has_planned() -> None:
    planned: dict[tuple[bytes, int], int] = {}
    table = {ORDERS: 7}
    new: list[tuple[bytes, int]] = []
    assert plan_offsets(planned, table, ORDERS, 2, new) == 7
    assert plan_offsets(planned, table, ORDERS, 1, new) == 9
    assert (planned, table, new) == ({ORDERS: 10}, {ORDERS: 7}, [])


def test_a_new_queue_begins_at_0_where_new_queues_are_listed() -> None:
    planned: dict[tuple[bytes, int], int] = {}
    new: list[tuple[bytes, int]] = []
    assert plan_offsets(planned, {}, RETURNS, 1, None) == -1 and planned == {}
    assert plan_offsets(planned, {}, RETURNS, 3, new) == 0
    assert (planned, new) == ({RETURNS: 3}, [RETURNS])


def test_offsets_are_lent_placed_committed_and_returned(
    orders: QueuePlace, returns: QueuePlace
) -> None:
    table, lent = {ORDERS: 7, RETURNS: 40}, list[QueuePlace]()
    chunk = chunk_of([orders, returns, orders])
    assert borrow_offsets(chunk, table, lent)
    assert table == {} and lent == [orders, returns]
    assert place_chunk(chunk, 1000) == 1000 + 2 * RECORD_BYTES
    assert column(chunk, send_rows.QUEUE_OFFSET) == [7, 40, 8]
    assert column(chunk, send_rows.PHYSICAL_OFFSET) == [1000, 1100, 1200]
    commit_places([chunk])
    return_lent(lent, table)
    assert table == {ORDERS: 9, RETURNS: 41} and lent == []
    assert not orders.is_lent and not returns.is_lent


def test_a_plan_that_is_not_committed_gives_its_offsets_out_again(orders: QueuePlace) -> None:
    table, lent = {ORDERS: 7}, list[QueuePlace]()
    chunk = chunk_of([orders, orders])
    for _ in range(2):
        assert borrow_offsets(chunk, table, lent)
        place_chunk(chunk, 0)
        assert column(chunk, send_rows.QUEUE_OFFSET) == [7, 8]
    return_lent(lent, table)
    assert table == {ORDERS: 7}


def test_a_queue_without_a_next_offset_is_not_borrowed(
    orders: QueuePlace, returns: QueuePlace
) -> None:
    table, lent = {ORDERS: 7}, list[QueuePlace]()
    assert not borrow_offsets(chunk_of([orders, returns]), table, lent)
    return_lent(lent, table)
    assert table == {ORDERS: 7}


def test_a_chunk_with_too_few_numbers_is_refused(orders: QueuePlace) -> None:
    chunk = (b"", 2, array("q", bytes(8 * send_rows.ROW_NUMBERS)), b"", [], [orders, orders])
    with pytest.raises(IndexError):
        place_chunk(chunk, 0)


def test_a_watched_queue_is_found_among_the_places(orders: QueuePlace, returns: QueuePlace) -> None:
    chunks = [chunk_of([orders]), chunk_of([orders, returns])]
    assert are_watched(chunks, {RETURNS: object()})
    assert not are_watched(chunks, {(b"returns", 0): object()})


def test_counts_are_kept_by_kind_and_size_and_taken_once(orders: QueuePlace) -> None:
    assert orders.count(0, 2, 3, 900)
    assert not orders.count(1, 8, 1, 50)
    normal, fifo = orders.take_counts()
    assert normal == [3, 900, 3, 0, 0, 0, 0, 0, 0] and fifo == [1, 50, 0, 0, 0, 0, 0, 0, 1]
    assert orders.take_counts() == ([0] * 9, [0] * 9)
    assert orders.count(0, 2, 1, 1), "the first ones since the counts were taken"
