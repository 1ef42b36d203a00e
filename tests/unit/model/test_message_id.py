"""Both kinds of message id."""

from __future__ import annotations

import pytest

from contrail.errors import HostIllegal, MessageIllegal
from contrail.model.host import pack_host
from contrail.model.message_id import (
    OffsetMessageId,
    UniqueId,
    build_unique_id,
    decode_offset_message_id,
    decode_unique_id,
    encode_offset_message_id,
)


def test_an_offset_id_is_the_host_and_the_physical_offset_in_hex() -> None:
    host = pack_host("10.0.0.1", 10_911)
    message_id = encode_offset_message_id(host, 0x1234ABCD)
    assert message_id == "0A00000100002A9F000000001234ABCD"
    assert decode_offset_message_id(message_id) == OffsetMessageId(host, 0x1234ABCD)
    assert decode_offset_message_id(message_id.lower()) == OffsetMessageId(host, 0x1234ABCD)


def test_an_ipv6_offset_id_has_56_digits() -> None:
    host = pack_host("2001:db8::1", 10_911)
    message_id = encode_offset_message_id(host, 7)
    assert len(message_id) == 56
    assert decode_offset_message_id(message_id) == OffsetMessageId(host, 7)


def test_a_host_of_another_length_has_no_id() -> None:
    with pytest.raises(HostIllegal):
        encode_offset_message_id(b"1234", 7)


@pytest.mark.parametrize(
    "message_id", ["", "0A", "G" * 32, "0" * 31, "0" * 33, " " * 32, "0 " * 16, "é" * 32]
)
def test_a_text_that_is_no_message_id_is_refused_by_name(message_id: str) -> None:
    with pytest.raises(MessageIllegal, match="32 or 56"):
        decode_offset_message_id(message_id)
    with pytest.raises(MessageIllegal, match="32 or 56"):
        decode_unique_id(message_id)


def unique(now_ms: int, counter: int = 0) -> str:
    return build_unique_id(
        address=bytes([10, 0, 0, 1]),
        process_id=0x12345,
        process_hash=-2,
        month_start_ms=1_000_000,
        now_ms=now_ms,
        counter=counter,
    )


def test_a_unique_id_holds_its_parts_cut_to_their_width() -> None:
    message_id = unique(1_000_255, counter=0x10001)
    assert message_id == "0A0000012345FFFFFFFE000000FF0001"
    parts = UniqueId(bytes([10, 0, 0, 1]), 0x2345, 0xFFFFFFFE, 255, 1)
    assert decode_unique_id(message_id) == parts


def test_a_clock_that_steps_back_a_little_before_the_month_counts_as_its_start() -> None:
    assert decode_unique_id(unique(999_000)).month_ms == 0
    assert decode_unique_id(unique(0)).month_ms == (-1_000_000) & 0xFFFFFFFF
