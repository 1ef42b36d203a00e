"""The record's bytes, written out by hand, and each limit with its own error."""

from __future__ import annotations

import zlib
from typing import Any

import pytest

from contrail.errors import (
    BodyTooLarge,
    ContrailError,
    HostIllegal,
    MessageIllegal,
    PropertiesTooLarge,
    TopicMissing,
    TopicTooLong,
)
from contrail.kernels.record_build import build_run, measure_run
from contrail.model.message import MessageDraft
from tests.unit.kernels.material import IPV4, IPV6

DRAFT = MessageDraft(
    topic=b"TopicTest",
    queue_id=3,
    body=b"hello",
    properties=b"TAGS\x01TagA\x02",
    flag=-2,
    sys_flag=0x31,
    born_timestamp_ms=0x0102030405060708,
    born_host=bytes.fromhex("c0a80001 00002a9f"),
    reconsume_times=7,
    prepared_transaction_offset=0x1112131415161718,
)
GOLDEN_V1 = bytes.fromhex(
    "00000073"  # 115 bytes: 91 fixed, 5 body, 9 topic, 10 properties
    "daa320a7"
    "3610a686"  # CRC-32 of b"hello", its sign bit already clear
    "00000003"
    "fffffffe"
    "0000000000000005"
    "0000000000001000"
    "00000001"  # the IPv6 bits that came in are cleared, the compression bit stays
    "0102030405060708"
    "c0a80001 00002a9f"
    "2122232425262728"
    "7f000001 00002a9f"
    "00000007"
    "1112131415161718"
    "00000005 68656c6c6f"
    "09 546f70696354657374"
    "000a 54414753 01 54616741 02"
)


def built(draft: MessageDraft, *, store_host: bytes = IPV4, record_crc: bool = False) -> bytes:
    return b"".join(build_run([draft], [5], 0x1000, 0x2122232425262728, store_host, record_crc))


def test_a_record_has_the_bytes_of_the_format() -> None:
    assert built(DRAFT) == GOLDEN_V1
    assert measure_run([DRAFT], 5, False, 8) == [len(GOLDEN_V1)]


def test_a_record_is_handed_over_as_header_body_topic_and_properties() -> None:
    parts = build_run([DRAFT], [5], 0x1000, 0x2122232425262728, IPV4, False)
    assert (len(parts[0]), parts[1]) == (88, b"hello")
    assert parts[2] + parts[3] == GOLDEN_V1[-22:]


def test_ipv6_hosts_take_twelve_bytes_more_each_and_set_their_bits() -> None:
    record = built(DRAFT._replace(born_host=IPV6), store_host=IPV6)
    assert record[:4] == (len(GOLDEN_V1) + 24).to_bytes(4, "big")
    assert record[36:40] == bytes.fromhex("00000031")
    assert record[48:68] == IPV6
    assert record[68:76] == bytes.fromhex("2122232425262728")
    assert record[76:96] == IPV6
    assert record[96:] == GOLDEN_V1[72:]


def test_a_topic_over_127_bytes_makes_a_version_two_record() -> None:
    topic = b"%RETRY%" + b"g" * 121
    record = built(DRAFT._replace(topic=topic))
    assert record[4:8] == bytes.fromhex("daa320ab")
    assert record[88:93] == b"hello"
    assert record[93:] == b"\x00\x80" + topic + b"\x00\x0aTAGS\x01TagA\x02"
    assert record[:4] == len(record).to_bytes(4, "big")


def test_an_empty_body_has_a_crc_of_zero() -> None:
    record = built(DRAFT._replace(body=b""))
    assert (record[8:12], record[84:88]) == (bytes(4), bytes(4))


def test_the_sign_bit_of_a_body_crc_is_cleared() -> None:
    assert zlib.crc32(b"a") == 0xE8B7BE43
    assert built(DRAFT._replace(body=b"a"))[8:12] == bytes.fromhex("68b7be43")


def test_each_record_of_a_run_carries_its_own_place() -> None:
    parts = build_run([DRAFT, DRAFT], [5, 9], 0x1000, 0, IPV4, False)
    assert parts[0][20:36] == bytes.fromhex("0000000000000005 0000000000001000")
    assert parts[4][20:36] == bytes.fromhex("0000000000000009 0000000000001073")


def test_the_record_crc_ends_the_properties_least_significant_digit_first() -> None:
    record = built(DRAFT, record_crc=True)
    crc = zlib.crc32(record[:-20]) & 0x7FFFFFFF
    assert record[-20:] == b"__CRC32#\x01" + str(crc)[::-1].ljust(10, "0").encode() + b"\x02"
    assert record[:4] == (len(GOLDEN_V1) + 20).to_bytes(4, "big")
    assert record[-32:-20] == b"\x00\x1eTAGS\x01TagA\x02"


@pytest.mark.parametrize(
    ("properties", "stored"),
    [
        (b"", b""),
        (b"a\x01b", b"a\x01b\x02"),
        (b"__CRC32#\x011234\x02", b""),
        (b"__CRC32#\x011234", b""),
        (b"a\x01b\x02__CRC32#\x011234\x02c\x01d\x02", b"a\x01b\x02c\x01d\x02"),
        (b"a\x01b\x02__CRC32#\x011234", b"a\x01b\x02"),
        (b"x__CRC32#\x011234\x02", b"x__CRC32#\x011234\x02"),
    ],
)
def test_an_old_record_crc_is_removed_and_open_properties_are_closed(
    properties: bytes, stored: bytes
) -> None:
    draft = DRAFT._replace(properties=properties)
    record = built(draft, record_crc=True)
    assert record[103:-20] == (len(stored) + 20).to_bytes(2, "big") + stored
    assert measure_run([draft], 5, True, 8) == [len(record)]


def test_a_record_crc_of_the_senders_is_dropped_even_when_the_store_adds_none() -> None:
    draft = DRAFT._replace(properties=b"a\x01b\x02__CRC32#\x010123456789\x02")
    record = built(draft, record_crc=False)
    assert record[103:] == b"\0\4a\x01b\x02"
    assert measure_run([draft], 5, False, 8) == [len(record)]


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"topic": b""}, TopicMissing, "names no topic"),
        ({"topic": b"t" * 128}, TopicTooLong, "128 bytes; name it with at most 127"),
        ({"topic": b"%RETRY%" + b"t" * 249}, TopicTooLong, "256 bytes; name it with at most 255"),
        ({"topic": b"%DLQ%" + b"t" * 251}, TopicTooLong, "256 bytes; name it with at most 255"),
        ({"body": b"sixsix"}, BodyTooLarge, "6 bytes; send at most maxMessageSize = 5"),
        ({"properties": b"p" * 32768}, PropertiesTooLarge, "need 32768 bytes; send at most 32767"),
        ({"born_host": b"1234567"}, HostIllegal, "7 bytes; use 8"),
        ({"queue_id": 2**31}, MessageIllegal, "queue_id 2147483648"),
        ({"flag": -(2**31) - 1}, MessageIllegal, "flag -2147483649"),
        ({"born_timestamp_ms": 2**63}, MessageIllegal, "born_timestamp_ms 9223372036854775808"),
    ],
)
def test_each_limit_has_its_own_error(
    change: dict[str, Any], error: type[ContrailError], words: str
) -> None:
    with pytest.raises(error, match=words):
        measure_run([DRAFT, DRAFT._replace(**change)], 5, False, 8)


@pytest.mark.parametrize(
    "change",
    [
        {"topic": b"t" * 127},
        {"topic": b"%RETRY%" + b"t" * 248},
        {"topic": b"%DLQ%" + b"t" * 250},
        {"properties": b"p" * 32767},
        {"queue_id": 2**31 - 1, "flag": -(2**31), "born_timestamp_ms": -(2**63)},
    ],
)
def test_the_largest_that_is_allowed_is_stored(change: dict[str, Any]) -> None:
    draft = DRAFT._replace(**change)
    assert measure_run([draft], 5, False, 8) == [len(built(draft))]


def test_the_record_crc_counts_towards_the_properties_limit() -> None:
    fits = DRAFT._replace(properties=b"p" * 32745 + b"\x02")
    open_ended = DRAFT._replace(properties=b"p" * 32747)
    assert measure_run([fits], 5, True, 8) == [len(built(fits, record_crc=True))]
    with pytest.raises(PropertiesTooLarge, match="need 32768 bytes"):
        measure_run([open_ended], 5, True, 8)


def test_a_store_host_of_another_length_is_refused() -> None:
    with pytest.raises(HostIllegal, match="9 bytes"):
        measure_run([], 5, False, 9)
    with pytest.raises(HostIllegal, match="4 bytes"):
        build_run([DRAFT], [0], 0, 0, b"1234", False)


def test_queue_offsets_must_be_as_many_as_drafts() -> None:
    with pytest.raises(ValueError, match="2 drafts need as many queue offsets"):
        build_run([DRAFT, DRAFT], [5], 0, 0, IPV4, False)
