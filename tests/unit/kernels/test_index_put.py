"""An index file's slots, entries and header after puts made by hand."""

from __future__ import annotations

import struct

import pytest

from contrail.kernels.index_put import put_rows, rebuild_slots

BEGIN_MS = 1_760_000_000_000


class File:
    """The image of an index file of ten slots."""

    def __init__(self) -> None:
        self.slots = bytearray(40)
        self.tail = bytearray()
        self.header = [0, 0, 0, 0, 0, 1]
        self.dirty = bytearray(1)

    def put(self, *rows: tuple[int, int, int], limit: int = 100) -> int:
        packed = b"".join(struct.pack(">iqq", *row) for row in rows)
        return put_rows(packed, self.slots, 10, self.tail, self.header, limit, self.dirty)

    def entries(self) -> list[tuple[int, int, int, int]]:
        return list(struct.iter_unpack(">iqii", self.tail))


def test_the_first_entry_is_number_one_and_sets_where_the_file_begins() -> None:
    file = File()
    assert file.put((27, 500, BEGIN_MS)) == 1
    assert file.tail == bytes.fromhex("0000001b 00000000000001f4 00000000 00000000")
    assert file.slots == bytes(28) + b"\x00\x00\x00\x01" + bytes(8)
    assert file.header == [BEGIN_MS, BEGIN_MS, 500, 500, 1, 2]
    assert file.dirty == b"\x01"


def test_keys_of_one_slot_are_chained_and_use_it_once() -> None:
    file = File()
    file.put((27, 500, BEGIN_MS), (7, 600, BEGIN_MS + 2999), (8, 600, BEGIN_MS + 3000))
    assert file.entries() == [(27, 500, 0, 0), (7, 600, 2, 1), (8, 600, 3, 0)]
    assert file.header == [BEGIN_MS, BEGIN_MS + 3000, 500, 600, 2, 4]


def test_rows_before_the_end_of_the_file_are_passed_over_and_counted() -> None:
    file = File()
    file.put((1, 500, BEGIN_MS))
    assert file.put((2, 499, BEGIN_MS), (3, 500, BEGIN_MS)) == 2
    assert [entry[:2] for entry in file.entries()] == [(1, 500), (3, 500)]


def test_a_full_file_takes_no_more_and_says_how_far_it_came() -> None:
    file = File()
    rows = [(number, 500 + number, BEGIN_MS) for number in range(5)]
    assert file.put(*rows, limit=3) == 2
    assert file.header[5] == 3
    assert file.put(*rows[2:], limit=3) == 0


@pytest.mark.parametrize(
    ("later_ms", "seconds"), [(-1, 0), (999, 0), (1000, 1), (10**18, 2**31 - 1)]
)
def test_seconds_since_the_begin_are_clamped(later_ms: int, seconds: int) -> None:
    file = File()
    file.put((1, 500, BEGIN_MS), (2, 600, BEGIN_MS + later_ms))
    assert file.entries()[1][2] == seconds


def test_a_file_that_follows_another_measures_its_first_entry_from_that_ones_end() -> None:
    file = File()
    file.header = [BEGIN_MS, BEGIN_MS, 500, 500, 0, 1]
    file.put((1, 600, BEGIN_MS + 5000), (2, 700, BEGIN_MS + 6000))
    assert [entry[2] for entry in file.entries()] == [5, 1]
    assert file.header[0] == BEGIN_MS + 5000


@pytest.mark.parametrize("value", [-1, 3])
def test_a_slot_with_a_number_out_of_range_counts_as_empty(value: int) -> None:
    file = File()
    file.header = [BEGIN_MS, BEGIN_MS, 500, 500, 1, 2]
    struct.pack_into(">i", file.slots, 4, value)
    file.put((1, 600, BEGIN_MS))
    assert file.entries() == [(1, 600, 0, 0)]
    assert file.header[4] == 2


def test_only_the_touched_pages_are_marked() -> None:
    dirty = bytearray(3)
    rows = struct.pack(">iqq", 2048, 1, 1)
    put_rows(rows, bytearray(12000), 3000, bytearray(), [0, 0, 0, 0, 0, 1], 100, dirty)
    assert dirty == b"\x00\x00\x01"


def test_rebuilt_slots_name_the_newest_entry_of_each_chain() -> None:
    file = File()
    file.put((27, 500, BEGIN_MS), (7, 600, BEGIN_MS), (8, 600, BEGIN_MS))
    slots = bytearray(b"\xff" * 40)
    assert rebuild_slots(bytes(20) + file.tail, 4, slots, 10) == 2
    assert slots == file.slots


def test_buffers_that_do_not_fit_together_are_refused() -> None:
    header = [0, 0, 0, 0, 0, 1]
    with pytest.raises(ValueError, match="21 bytes are not whole rows"):
        put_rows(bytes(21), bytearray(40), 10, bytearray(), header, 100, bytearray(1))
    with pytest.raises(ValueError, match="39 bytes do not hold 10 slots"):
        put_rows(bytes(20), bytearray(39), 10, bytearray(), header, 100, bytearray(1))
    with pytest.raises(ValueError, match="0 page marks are too few"):
        put_rows(bytes(20), bytearray(40), 10, bytearray(), header, 100, bytearray())
    with pytest.raises(ValueError, match="59 bytes do not hold 3 entries"):
        rebuild_slots(bytes(59), 3, bytearray(40), 10)
