"""The stored form of properties."""

from __future__ import annotations

import pytest

from contrail.errors import MessageIllegal
from contrail.model.properties import (
    CRC32,
    CRC32_PROPERTY_BYTES,
    decode_properties,
    encode_properties,
    put_property,
    read_property,
    remove_properties,
    remove_property,
)


def test_each_pair_ends_with_byte_2_and_keeps_its_order() -> None:
    assert encode_properties({"KEYS": "a b", "TAGS": "é"}) == b"KEYS\x01a b\x02TAGS\x01\xc3\xa9\x02"
    assert encode_properties({}) == b""


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", {}),
        (b"A\x01b", {"A": "b"}),
        (b"A\x01b\x02\x02C\x01d\x02", {"A": "b", "C": "d"}),
        (b"A\x01\x02B\x01c\x02", {"B": "c"}),
        (b"\x01v\x02B\x01c\x02", {"B": "c"}),
        (b"novalue\x02B\x01c\x02", {"B": "c"}),
        (b"A\x01b\x01c\x02", {"A": "b\x01c"}),
        (b"A\x01old\x02A\x01new\x02", {"A": "new"}),
        (b"A\x01\xff\x02", {"A": "\ufffd"}),
    ],
)
def test_the_reader_takes_what_rocketmq_takes(data: bytes, expected: dict[str, str]) -> None:
    assert decode_properties(data) == expected


@pytest.mark.parametrize(("name", "value"), [("a\x01b", "c"), ("a\x02", "c"), ("a", "b\x02c\x01d")])
def test_a_separator_inside_a_property_is_refused_by_name(name: str, value: str) -> None:
    with pytest.raises(MessageIllegal, match="property 'a"):
        encode_properties({name: value})


def test_one_property_is_read_without_decoding_all() -> None:
    data = b"TAGS\x01x\x02XTAGS\x01y\x02TAGS\x01z\x02TAGS\x01\x02"
    assert read_property(data, "TAGS") == "z"
    assert read_property(data, "KEYS") is None


def test_a_property_is_replaced_at_the_end_and_the_others_keep_their_bytes() -> None:
    data = b"A\x01\xff\x02TAGS\x01x\x02B\x01c"
    assert put_property(data, "TAGS", "y") == b"A\x01\xff\x02B\x01c\x02TAGS\x01y\x02"
    assert put_property(b"", "TAGS", "y") == b"TAGS\x01y\x02"
    assert remove_property(data, "TAGS") == b"A\x01\xff\x02B\x01c"
    assert remove_property(data, "KEYS") == data


def test_several_properties_are_removed_in_one_pass() -> None:
    data = b"TAGS\x01a\x02TAGSX\x01b\x02KEYS\x02KEYS\x01c\x02D\x01e"
    kept = b"TAGSX\x01b\x02KEYS\x02D\x01e"
    assert remove_properties(data, ("TAGS", "KEYS")) == kept
    assert remove_property(remove_property(data, "TAGS"), "KEYS") == kept
    assert remove_properties(data, ("other",)) is data


def test_the_record_crc_property_takes_twenty_bytes() -> None:
    assert len(encode_properties({CRC32: "0123456789"})) == CRC32_PROPERTY_BYTES
