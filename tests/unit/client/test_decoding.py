"""Records of a pull as messages: the quick way reads what the long way reads."""

from __future__ import annotations

import struct
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contrail.client.decoding import decode_messages, received_message, received_messages
from contrail.client.message import MessageQueue, ReceivedMessage
from contrail.errors import ClientError, RecordDamaged
from contrail.model.properties import encode_properties
from contrail.model.record import MAGIC_V1, MAGIC_V2, split_record_run

HOST_V4 = bytes([10, 0, 0, 1]) + struct.pack(">i", 10_911)
HOST_V6 = bytes(range(16)) + struct.pack(">i", 10_911)
PROPERTIES = encode_properties({"TAGS": "red", "KEYS": "a b", "UNIQ_KEY": "0A0B", "名": "值"})


def record(
    body: bytes = b"hello",
    *,
    topic: bytes = b"orders",
    properties: bytes = PROPERTIES,
    magic: int = MAGIC_V1,
    host: bytes = HOST_V4,
    sys_flag: int = 0,
) -> bytes:
    sys_flag |= 0x30 * (len(host) == 20)
    crc = zlib.crc32(body) & 0x7FFFFFFF
    rest = b"".join(
        [
            struct.pack(">IIIiqqi", magic, crc, 3, -9, 77, 4096, sys_flag),
            struct.pack(">q", 1_760_000_000_001) + host,
            struct.pack(">q", 1_760_000_000_002) + host,
            struct.pack(">iqi", 2, 1234, len(body)) + body,
            len(topic).to_bytes(1 if magic == MAGIC_V1 else 2, "big") + topic,
            len(properties).to_bytes(2, "big") + properties,
        ]
    )
    return struct.pack(">i", len(rest) + 4) + rest


def content(message: ReceivedMessage) -> tuple[object, ...]:
    names = [name for name in ReceivedMessage.__slots__ if not name.startswith("_")]
    values = [getattr(message, name) for name in names]
    return (*values, message.properties, message.message_id, message.offset_message_id)


def read_slowly(body: bytes) -> list[ReceivedMessage]:
    return [received_message(stored, "broker-a") for stored in split_record_run(body)]


KINDS = st.builds(
    record,
    st.binary(max_size=30),
    topic=st.sampled_from([b"t", b"orders", "主题".encode(), b"x" * 127]),
    properties=st.sampled_from([b"", PROPERTIES, b"\xff\x01\xfe\x02"]),
    magic=st.sampled_from([MAGIC_V1, MAGIC_V2]),
    host=st.sampled_from([HOST_V4, HOST_V6]),
)


@given(st.lists(KINDS, max_size=4))
def test_the_quick_way_reads_what_the_long_way_reads(records: list[bytes]) -> None:
    body = b"".join(records)
    quick = received_messages(body, "broker-a")
    assert [content(one) for one in quick] == [content(one) for one in read_slowly(body)]


@given(KINDS, st.data())
def test_a_damaged_record_is_refused_by_both_or_read_alike(
    whole: bytes, data: st.DataObject
) -> None:
    place = data.draw(st.integers(0, len(whole) - 1))
    damaged = bytearray(whole)
    damaged[place] ^= data.draw(st.integers(1, 255))
    # Not those that ask for something else than reading: compressed or inner batches.
    if struct.unpack_from(">i", damaged, 36)[0] & 0x41:
        return
    try:
        expected = [content(one) for one in read_slowly(bytes(damaged))]
    except RecordDamaged:
        with pytest.raises(RecordDamaged):
            received_messages(bytes(damaged), "broker-a")
    else:
        assert [content(one) for one in received_messages(bytes(damaged), "broker-a")] == expected


@given(KINDS, st.data())
def test_a_record_cut_short_is_refused(whole: bytes, data: st.DataObject) -> None:
    cut = data.draw(st.integers(1, len(whole) - 1))
    with pytest.raises(RecordDamaged):
        received_messages(whole[:cut], "broker-a")


def test_messages_are_of_the_wanted_kind_and_queue() -> None:
    class Own(ReceivedMessage):
        __slots__ = ()

    queue = MessageQueue("orders", "broker-b", 9)
    (message,) = decode_messages(record(), "broker-a", Own, queue)
    assert type(message) is Own
    assert message.queue is queue


def test_a_compressed_body_is_read_and_a_broken_one_named() -> None:
    packed = record(zlib.compress(b"plain" * 100), sys_flag=0x301)
    assert received_messages(packed, "b")[0].body == b"plain" * 100
    with pytest.raises(ClientError, match="compressed"):
        received_messages(record(b"no zlib", sys_flag=0x301), "b")


def test_one_property_is_read_without_the_others() -> None:
    (message,) = received_messages(record(), "b")
    assert message.peek_property("TAGS") == "red"
    assert message.properties["名"] == "值"
    assert message.peek_property("KEYS") == "a b"
    assert message.keys == ["a", "b"]
    assert message.message_id == "0A0B"


def test_a_message_without_an_id_is_named_after_its_place() -> None:
    (message,) = received_messages(record(properties=b""), "b")
    assert message.message_id == message.offset_message_id
    assert message.message_id in repr(message)
