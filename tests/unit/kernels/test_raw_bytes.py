"""The functions with which kernels read and write bytes, as ``raw_bytes`` defines them."""

from __future__ import annotations

from array import array

import pytest

from contrail.kernels import raw_bytes
from contrail.kernels.java_hash import java_hash

I32_ENDS = [0, 1, -1, 0x7F, 0x80, 0x7FFFFFFF, -0x80000000]
I64_ENDS = [*I32_ENDS, 0x80000000, (1 << 63) - 1, -(1 << 63)]


@pytest.mark.parametrize("value", I32_ENDS)
def test_32_bits_are_read_as_they_were_written(value: int) -> None:
    target = bytearray(b"......")
    raw_bytes.put_i32(target, 1, value)
    assert target[1:5] == value.to_bytes(4, "big", signed=True)
    assert raw_bytes.i32(target, 1) == value
    assert raw_bytes.u32(target, 1) == value & 0xFFFFFFFF
    assert (target[:1], target[5:]) == (b".", b".")


@pytest.mark.parametrize("value", I64_ENDS)
def test_64_bits_are_read_as_they_were_written(value: int) -> None:
    target = bytearray(10)
    raw_bytes.put_i64(target, 1, value)
    assert raw_bytes.i64(target, 1) == value
    assert (target[0], target[9]) == (0, 0)


@pytest.mark.parametrize("value", [0, 1, 0x7FFF, 0x8000, 0xFFFF])
def test_16_bits_are_unsigned(value: int) -> None:
    target = bytearray(4)
    raw_bytes.put_i16(target, 1, value)
    assert raw_bytes.u16(target, 1) == value


def test_numbers_that_fit_32_bits_are_told_from_others() -> None:
    assert all(raw_bytes.is_i32(value) for value in I32_ENDS)
    assert not raw_bytes.is_i32(1 << 31) and not raw_bytes.is_i32(-(1 << 31) - 1)


@pytest.mark.parametrize("value", I64_ENDS)
def test_digits_are_written_and_their_end_returned(value: int) -> None:
    target = bytearray(24)
    end = raw_bytes.put_decimal(target, 2, value)
    assert target[2:end] == str(value).encode()
    end = raw_bytes.put_hex(target, 2, value)
    assert target[2:end] == b"%016X" % (value & 0xFFFFFFFFFFFFFFFF)


def test_a_copy_ends_where_it_says_and_an_empty_one_writes_nothing() -> None:
    target = bytearray(b"......")
    assert raw_bytes.copy(target, 1, b"abcdef", 2, 4) == 3
    assert raw_bytes.copy(target, 4, b"abcdef", 5, 3) == 4
    assert raw_bytes.put_text(target, 4, b"z") == 5
    assert target == b".cd.z."


def test_room_is_added_at_the_end_and_cut_from_it() -> None:
    target = bytearray(b"ab")
    assert raw_bytes.grow(target, 3) == 2 and len(target) == 5
    raw_bytes.cut(target, 1)
    assert target == b"a"
    assert len(raw_bytes.blank(7)) == 7 and raw_bytes.first(bytearray(b"abc"), 2) == b"ab"


def test_rows_with_too_few_numbers_are_refused() -> None:
    rows = array("q", [1, 2, 3])
    assert raw_bytes.numbers(rows, 3) is rows
    with pytest.raises(IndexError, match="3 numbers where there should be 4"):
        raw_bytes.numbers(rows, 4)
    assert len(raw_bytes.blank_rows(rows, 5)) == 5


def test_texts_are_compared_where_they_stand() -> None:
    source = b"topic\x01orders\x02"
    assert raw_bytes.stands(source, 6, b"orders") and not raw_bytes.stands(source, 5, b"orders")
    assert raw_bytes.spells(source, 0, 5, b"topic") and not raw_bytes.spells(source, 0, 4, b"topic")
    assert raw_bytes.holds(source, 1, 13, b"order", 0)
    assert not raw_bytes.holds(source, 7, 13, b"order", 0)
    assert raw_bytes.same(b"abcabd", 0, 3, 2) and not raw_bytes.same(b"abcabd", 0, 3, 3)


def test_the_place_of_an_absent_byte_is_the_end() -> None:
    assert raw_bytes.place_of(b"a\x01b\x01", 0, 4, 1) == 1
    assert raw_bytes.place_of(b"a\x01b\x01", 2, 3, 1) == 3


def test_the_hash_is_javas_and_goes_on_from_a_seed() -> None:
    text = b"%RETRY%a-long-group-name#key"
    whole = raw_bytes.ascii_hash(text, 0, len(text), 0)
    assert whole == java_hash(text) & 0xFFFFFFFF
    seed = raw_bytes.ascii_hash(text, 0, 9, 0)
    assert raw_bytes.ascii_hash(text, 9, len(text), seed) == whole
    assert raw_bytes.ascii_hash("ä".encode(), 0, 2, 0) == -1
