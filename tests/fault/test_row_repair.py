"""Damaged rows that a read waits for are derived again; a row without a record is passed over."""

from __future__ import annotations

from pathlib import Path

import pytest

from contrail.store.log import MessageStore
from contrail.store.state.reading import GetStatus
from tests.fault.store_setup import append_numbers, numbers_of, small_config

COUNT = 60


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "store"
    with MessageStore.open(small_config(root)) as store:
        append_numbers(store, 0, COUNT)
    return root


def overwrite_row(root: Path, number: int, data: bytes) -> None:
    start = number * 20 // 1000 * 1000
    with (root / "consumequeue/orders/0" / f"{start:020d}").open("r+b") as file:
        file.seek(number * 20 - start)
        file.write(data)


@pytest.mark.proves("store.repairs.taken-in-again")
@pytest.mark.parametrize("row", [bytes(20), b"\x7f" * 20, (300).to_bytes(8, "big") + bytes(12)])
def test_a_row_that_a_read_waits_for_is_derived_within_a_tick(root: Path, row: bytes) -> None:
    overwrite_row(root, 7, row * 2)
    with MessageStore.open(small_config(root)) as store:
        waiting = store.get(b"orders", 0, 7)
        assert waiting.status is GetStatus.QUEUE_ENTRY_DAMAGED
        assert waiting.next_queue_offset == 7
        store.tick()
        assert numbers_of(store) == list(range(COUNT))
        assert store.scrubber.counters.repaired_rows >= 2


def test_repair_row_derives_a_row_before_it_returns(root: Path) -> None:
    overwrite_row(root, 7, bytes(60))
    with MessageStore.open(small_config(root)) as store:
        assert store.row_is_damaged(b"orders", 0, 8)
        assert store.repair_row(b"orders", 0, 8)
        assert numbers_of(store) == list(range(COUNT))


def test_a_row_whose_record_is_damaged_too_is_passed_over_in_the_end(root: Path) -> None:
    with MessageStore.open(small_config(root)) as store:
        (row,) = store.rows(b"orders", 0, 7, 1)
    overwrite_row(root, 7, bytes(20))
    with (root / "commitlog" / ("0" * 20)).open("r+b") as file:
        file.seek(row.physical_offset)
        file.write(b"\x55" * row.byte_count)
    with MessageStore.open(small_config(root)) as store:
        assert store.row_is_damaged(b"orders", 0, 7)
        store.tick()
        assert numbers_of(store) == [number for number in range(COUNT) if number != 7]
        assert store.get(b"orders", 0, 7).status is GetStatus.MESSAGE_DAMAGED


def test_a_row_that_leads_below_the_log_is_damaged_if_the_row_before_it_does_not(
    root: Path,
) -> None:
    """Retention did not remove its record: it would have removed the older one, too."""
    with MessageStore.open(small_config(root)) as store:
        first = next(
            row.queue_offset
            for row in store.rows(b"orders", 0, 0, 50)
            if row.physical_offset >= 8192
        )
    (root / "commitlog" / ("0" * 20)).unlink()
    overwrite_row(root, first + 3, bytes(20))
    with MessageStore.open(small_config(root)) as store:
        assert store.queue_offset_min(b"orders", 0) == first
        assert store.get(b"orders", 0, first + 3).status is GetStatus.QUEUE_ENTRY_DAMAGED
        store.tick()
        assert numbers_of(store) == list(range(first, COUNT))


@pytest.mark.proves("store.repairs.taken-in-again")
def test_a_stretch_of_the_log_is_read_past_damage(root: Path) -> None:
    with MessageStore.open(small_config(root)) as store:
        (row,) = store.rows(b"orders", 0, 7, 1)
    with (root / "commitlog" / ("0" * 20)).open("r+b") as file:
        file.seek(row.physical_offset)
        file.write(b"\x55" * row.byte_count)
    with MessageStore.open(small_config(root)) as store:
        found = store.messages_between(0, store.visible_end)
        assert [m.queue_offset for m in found] == [n for n in range(COUNT) if n != 7]
        assert len(store.damage.records) == 1
