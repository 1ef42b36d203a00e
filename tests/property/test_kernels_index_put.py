"""Index puts: compiled equals pure, and both equal a model that keeps lists instead of chains."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.kernels.material import i64, outcome, twins

KERNEL, PURE = twins("index_put")

key_hashes = st.integers(0, 12) | st.integers(0, 2**31 - 1)
near_times = st.integers(1_760_000_000_000, 1_760_000_200_000)
rows_in_order = st.lists(
    st.tuples(key_hashes, st.integers(0, 3), near_times | i64), max_size=30
).map(lambda steps: spread(steps))
any_rows = st.lists(st.tuples(st.integers(-(2**31), 2**31 - 1), i64, i64), max_size=12)


def spread(steps: list[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """Rows of growing physical offsets; a step of 0 is one more key of the same message."""
    physical_offset = 0
    rows = []
    for key_hash, step, store_timestamp_ms in steps:
        physical_offset += step * 100
        rows.append((key_hash, physical_offset, store_timestamp_ms))
    return rows


def packed(rows: list[tuple[int, int, int]]) -> bytes:
    return b"".join(struct.pack(">iqq", *row) for row in rows)


def put(kernel: Any, rows: bytes, slot_count: int, limit: int, before: dict[str, Any]) -> Any:
    """Put into copies of ``before`` and return every value that may have changed."""
    slots, tail = bytearray(before["slots"]), bytearray(before["tail"])
    header, dirty = list(before["header"]), bytearray(before["dirty"])
    result = outcome(kernel.put_rows, rows, slots, slot_count, tail, header, limit, dirty)
    return result, slots, tail, header, dirty


def empty_file(slot_count: int) -> dict[str, Any]:
    return {
        "slots": bytes(slot_count * 4),
        "tail": b"",
        "header": [0, 0, 0, 0, 0, 1],
        "dirty": bytes(slot_count // 1024 + 1),
    }


class Model:
    """An index file as a list of entries and, per slot, the numbers of its entries."""

    def __init__(self, slot_count: int) -> None:
        self.slot_count = slot_count
        self.header = [0, 0, 0, 0, 0, 1]
        self.entries: list[bytes] = []
        self.chains: dict[int, list[int]] = {}

    def put(self, rows: list[tuple[int, int, int]], limit: int) -> int:
        for consumed, (key_hash, physical_offset, store_timestamp_ms) in enumerate(rows):
            if self.header[5] >= limit:
                return consumed
            if physical_offset >= self.header[3]:
                self._add(key_hash, physical_offset, store_timestamp_ms)
        return len(rows)

    def _add(self, key_hash: int, physical_offset: int, store_timestamp_ms: int) -> None:
        begin, number = self.header[0], self.header[5]
        chain = self.chains.setdefault(key_hash % self.slot_count, [])
        seconds = (store_timestamp_ms - begin) // 1000 if begin > 0 else 0
        seconds = min(max(seconds, 0), 2**31 - 1)
        previous = chain[-1] if chain else 0
        self.entries.append(struct.pack(">iqii", key_hash, physical_offset, seconds, previous))
        chain.append(number)
        if number == 1:
            self.header[0], self.header[2] = store_timestamp_ms, physical_offset
        self.header[1], self.header[3] = store_timestamp_ms, physical_offset
        self.header[4], self.header[5] = len(self.chains), number + 1


def chain_of(slots: bytearray, entries: bytes, key_hash: int, slot_count: int) -> list[int]:
    """The physical offsets a query for ``key_hash`` finds, newest first."""
    (number,) = struct.unpack_from(">i", slots, key_hash % slot_count * 4)
    found = []
    while number:
        entry_hash, physical_offset, _, number = struct.unpack_from(">iqii", entries, number * 20)
        if entry_hash == key_hash:
            found.append(physical_offset)
    return found


@given(
    st.lists(rows_in_order, min_size=1, max_size=3),
    st.sampled_from([1, 5, 7, 3000]),
    st.sampled_from([1, 2, 20, 1000]),
)
def test_a_file_filled_in_several_calls_is_the_model_and_answers_queries_like_it(
    calls: list[list[tuple[int, int, int]]], slot_count: int, limit: int
) -> None:
    file = empty_file(slot_count)
    reference = Model(slot_count)
    for rows in calls:
        consumed = reference.put(rows, limit)
        result, slots, tail, header, dirty = put(KERNEL, packed(rows), slot_count, limit, file)
        assert result == ("returned", consumed)
        file = {"slots": slots, "tail": tail, "header": header, "dirty": dirty}
    assert file["header"] == reference.header
    assert bytes(file["tail"]) == b"".join(reference.entries)
    entries = bytes(20) + bytes(file["tail"])
    for key_hash in {row[0] for rows in calls for row in rows}:
        numbers = reference.chains.get(key_hash % slot_count, [])
        unpacked = [struct.unpack(">iqii", reference.entries[number - 1]) for number in numbers]
        expected = [entry[1] for entry in reversed(unpacked) if entry[0] == key_hash]
        assert chain_of(file["slots"], entries, key_hash, slot_count) == expected
    touched = {slot * 4 // 4096 for slot in reference.chains}
    assert {page for page, mark in enumerate(file["dirty"]) if mark} == touched


@pytest.mark.proves("store.reader.kernels")
@given(
    any_rows.map(packed) | rows_in_order.map(packed) | st.binary(max_size=50),
    st.sampled_from([-1, 0, 1, 5, 1500]),
    st.integers(-1, 40),
    st.lists(i64, min_size=4, max_size=4),
    st.integers(0, 30),
    st.binary(max_size=24),
)
def test_compiled_and_pure_leave_the_same_file_whatever_it_held(
    rows: bytes, slot_count: int, limit: int, header: list[int], count: int, slots: bytes
) -> None:
    before = {
        "slots": slots.ljust(max(slot_count, 0) * 4, b"\x00"),
        "tail": b"tail",
        "header": [*header, 3, count],
        "dirty": bytes(1),
    }
    assert put(KERNEL, rows, slot_count, limit, before) == put(
        PURE, rows, slot_count, limit, before
    )


@given(rows_in_order, st.sampled_from([1, 5, 3000]))
def test_slots_rebuilt_from_the_entries_are_the_slots_that_were(
    rows: list[tuple[int, int, int]], slot_count: int
) -> None:
    _, slots, tail, header, _ = put(KERNEL, packed(rows), slot_count, 1000, empty_file(slot_count))
    rebuilt = bytearray(b"\xff" * (slot_count * 4))
    assert KERNEL.rebuild_slots(bytes(20) + tail, header[5], rebuilt, slot_count) == header[4]
    assert rebuilt == slots


@given(st.binary(max_size=100), st.integers(-2, 7), st.integers(-1, 5), st.binary(max_size=20))
def test_compiled_and_pure_rebuild_alike_from_any_bytes(
    entries: bytes, entry_count: int, slot_count: int, slots: bytes
) -> None:
    compiled, pure = bytearray(slots), bytearray(slots)
    assert outcome(KERNEL.rebuild_slots, entries, entry_count, compiled, slot_count) == outcome(
        PURE.rebuild_slots, entries, entry_count, pure, slot_count
    )
    assert compiled == pure
