"""The record layout, against bytes put together by hand."""

from __future__ import annotations

import struct
import zlib

import pytest

from contrail.errors import RecordDamaged
from contrail.model.record import (
    BLANK_MAGIC,
    MAGIC_V1,
    MAGIC_V2,
    RECORD_BYTES_MIN,
    SYS_FLAG_BORN_HOST_V6,
    SYS_FLAG_STORE_HOST_V6,
    TRANSACTION_COMMIT,
    decode_record,
    encode_blank,
    split_record_run,
    transaction_type,
)

BORN_V4 = bytes([10, 0, 0, 7]) + struct.pack(">i", 50_123)
STORE_V4 = bytes([10, 0, 0, 1]) + struct.pack(">i", 10_911)
HOST_V6 = bytes(range(16)) + struct.pack(">i", 10_911)


def build(
    topic: bytes = b"orders",
    body: bytes = b"hello",
    properties: bytes = b"TAGS\x01red\x02",
    *,
    magic: int = MAGIC_V1,
    born_host: bytes = BORN_V4,
    store_host: bytes = STORE_V4,
    physical_offset: int = 4096,
) -> bytes:
    """A record written field by field, as the layout table lists them."""
    flags = 0x10 * (len(born_host) == 20) | 0x20 * (len(store_host) == 20) | TRANSACTION_COMMIT
    topic_length = bytes([len(topic)]) if magic == MAGIC_V1 else len(topic).to_bytes(2, "big")
    rest = b"".join(
        [
            magic.to_bytes(4, "big"),
            (zlib.crc32(body) & 0x7FFFFFFF).to_bytes(4, "big"),
            (3).to_bytes(4, "big"),  # queue id
            (-9).to_bytes(4, "big", signed=True),  # flag
            (77).to_bytes(8, "big"),  # queue offset
            physical_offset.to_bytes(8, "big"),
            flags.to_bytes(4, "big"),
            (1_760_000_000_001).to_bytes(8, "big"),
            born_host,
            (1_760_000_000_002).to_bytes(8, "big"),
            store_host,
            (2).to_bytes(4, "big"),  # reconsume times
            (1234).to_bytes(8, "big"),  # prepared transaction offset
            len(body).to_bytes(4, "big") + body,
            topic_length + topic,
            len(properties).to_bytes(2, "big") + properties,
        ]
    )
    return (len(rest) + 4).to_bytes(4, "big") + rest


def test_every_field_of_a_v1_record_is_read() -> None:
    record = build()
    message = decode_record(record)
    assert message.topic == "orders"
    assert message.body == b"hello"
    assert message.raw_properties == b"TAGS\x01red\x02"
    assert message.properties == {"TAGS": "red"}
    assert message.queue_id == 3
    assert message.flag == -9
    assert message.queue_offset == 77
    assert message.physical_offset == 4096
    assert transaction_type(message.sys_flag) == TRANSACTION_COMMIT
    assert message.born_timestamp_ms == 1_760_000_000_001
    assert message.born_host == BORN_V4
    assert message.store_timestamp_ms == 1_760_000_000_002
    assert message.store_host == STORE_V4
    assert message.reconsume_times == 2
    assert message.prepared_transaction_offset == 1234
    assert message.body_crc == zlib.crc32(b"hello") & 0x7FFFFFFF
    assert message.record_bytes == len(record) == 91 + 6 + 5 + 9


def test_a_v2_record_has_a_topic_of_more_than_127_bytes() -> None:
    topic = b"%RETRY%" + b"g" * 200
    message = decode_record(build(topic, magic=MAGIC_V2))
    assert message.topic == topic.decode()
    assert message.properties == {"TAGS": "red"}


@pytest.mark.parametrize(
    ("born_host", "store_host", "flags"),
    [
        (HOST_V6, STORE_V4, SYS_FLAG_BORN_HOST_V6),
        (BORN_V4, HOST_V6, SYS_FLAG_STORE_HOST_V6),
        (HOST_V6, HOST_V6, SYS_FLAG_BORN_HOST_V6 | SYS_FLAG_STORE_HOST_V6),
    ],
)
def test_ipv6_hosts_move_what_follows_them(born_host: bytes, store_host: bytes, flags: int) -> None:
    message = decode_record(build(born_host=born_host, store_host=store_host))
    assert (message.born_host, message.store_host) == (born_host, store_host)
    assert message.sys_flag & 0x30 == flags
    assert message.body == b"hello"
    assert message.store_timestamp_ms == 1_760_000_000_002


def test_the_smallest_record_has_no_topic_body_or_properties() -> None:
    record = build(b"", b"", b"")
    assert len(record) == RECORD_BYTES_MIN
    assert decode_record(record).body == b""


def test_a_record_may_stand_anywhere_in_a_buffer_of_any_kind() -> None:
    buffer = b"junk" + build() + b"more"
    for view in (buffer, bytearray(buffer), memoryview(buffer)):
        message = decode_record(view, 4)
        assert (message.topic, type(message.body)) == ("orders", bytes)


def test_a_record_cut_at_any_byte_is_refused_with_its_physical_offset() -> None:
    record = build()
    for length in range(len(record)):
        with pytest.raises(RecordDamaged, match="physical offset 4096") as caught:
            decode_record(record[:length], physical_offset=4096)
        assert caught.value.physical_offset == 4096


def test_a_record_at_another_physical_offset_than_its_own_is_refused() -> None:
    assert decode_record(build(), physical_offset=4096).physical_offset == 4096
    with pytest.raises(RecordDamaged, match="says it starts at 4096"):
        decode_record(build(), physical_offset=8192)


def test_a_changed_body_is_refused_unless_its_crc_is_not_checked() -> None:
    record = build().replace(b"hello", b"hallo")
    with pytest.raises(RecordDamaged, match="body does not match"):
        decode_record(record)
    assert decode_record(record, check_body_crc=False).body == b"hallo"


@pytest.mark.parametrize(
    ("position", "value", "problem"),
    [
        (0, 90, "below the smallest record"),
        (0, 5000, "takes 5000 bytes"),
        (0, 110, "properties reaches 1 bytes past"),
        (4, 0, "unknown magic 00000000"),
        (4, BLANK_MAGIC, "blank record"),
        (84, -1 & 0xFFFFFFFF, "negative length"),
        (84, 4, "topic"),
    ],
)
def test_lengths_that_do_not_fit_are_refused(position: int, value: int, problem: str) -> None:
    record = bytearray(build())
    struct.pack_into(">I", record, position, value)
    with pytest.raises(RecordDamaged, match=problem):
        decode_record(record)


def test_a_record_with_room_to_spare_is_refused() -> None:
    record = bytearray(build() + b"\x00")
    struct.pack_into(">i", record, 0, len(record))
    with pytest.raises(RecordDamaged, match="its parts take"):
        decode_record(record)


def test_a_pull_body_is_split_into_its_records() -> None:
    run = build(body=b"a") + build(b"t" * 130, magic=MAGIC_V2) + build(body=b"")
    assert [message.body for message in split_record_run(run)] == [b"a", b"hello", b""]
    assert list(split_record_run(b"")) == []


def test_a_pull_body_with_a_bad_end_gives_its_whole_records_and_then_raises() -> None:
    records = split_record_run(build() + build()[:-1])
    assert next(records).body == b"hello"
    with pytest.raises(RecordDamaged):
        next(records)


def test_the_blank_record_holds_the_bytes_left_and_its_magic() -> None:
    assert encode_blank(300) == bytes.fromhex("0000012CCBD43194")
    with pytest.raises(AssertionError):
        encode_blank(7)
