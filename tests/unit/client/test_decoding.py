"""Records of a pull as messages: one unpacking reads the same as ``model.record``."""

from __future__ import annotations

import struct
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contrail.client.decoding import (
    decode_messages,
    decode_run,
    received_message,
    received_messages,
)
from contrail.client.message import MessageQueue, ReceivedMessage
from contrail.errors import MessageUnreadable, RecordDamaged
from contrail.model.batch import BatchUnit, encode_batch
from contrail.model.properties import encode_properties
from contrail.model.record import BLANK_MAGIC, MAGIC_V1, MAGIC_V2, split_record_run

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
    queue_offset: int = 77,
) -> bytes:
    sys_flag |= 0x30 * (len(host) == 20)
    crc = zlib.crc32(body) & 0x7FFFFFFF
    rest = b"".join(
        [
            struct.pack(">IIIiqqi", magic, crc, 3, -9, queue_offset, 4096, sys_flag),
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
def test_one_unpacking_reads_the_same_as_model_record(records: list[bytes]) -> None:
    body = b"".join(records)
    quick = received_messages(body, "broker-a")
    assert [content(one) for one in quick] == [content(one) for one in read_slowly(body)]


@given(KINDS, st.data())
def test_both_ways_report_a_damaged_record_or_read_it_alike(
    whole: bytes, data: st.DataObject
) -> None:
    place = data.draw(st.integers(0, len(whole) - 1))
    damaged = bytearray(whole)
    damaged[place] ^= data.draw(st.integers(1, 255))
    # Not flags that change the body: compressed or inner batches.
    if struct.unpack_from(">i", damaged, 36)[0] & 0x41:
        return
    messages = received_messages(bytes(damaged), "broker-a")
    try:
        expected = [content(one) for one in read_slowly(bytes(damaged))]
    except RecordDamaged:
        assert all(error_of(one).is_record_damaged for one in messages)
        assert len(messages) == 1
    else:
        assert [content(one) for one in messages] == expected


@given(KINDS, st.data())
def test_a_record_cut_short_is_one_message_that_cannot_be_decoded(
    whole: bytes, data: st.DataObject
) -> None:
    cut = data.draw(st.integers(1, len(whole) - 1))
    (message,) = received_messages(whole[:cut], "broker-a")
    assert error_of(message).is_record_damaged
    assert message.body == whole[:cut]


@given(st.binary(min_size=1, max_size=300))
def test_decoding_raises_for_no_bytes_whatever(body: bytes) -> None:
    for message in received_messages(body, "broker-a"):
        assert message.message_id is not None
        assert message.born_host
        assert message.properties is not None
        assert "ReceivedMessage" in repr(message)


# Damages of one record that leave its neighbours as they are.


def overwritten(whole: bytes, place: int, value: bytes) -> bytes:
    return whole[:place] + value + whole[place + len(value) :]


def small_bomb() -> bytes:
    """Inflates to more than any body may have."""
    packing = zlib.compressobj(9)
    parts = [packing.compress(bytes(1 << 20)) for _ in range(65)]
    return b"".join(parts) + packing.flush()


BOMB = small_bomb()
NUMBERED = encode_properties({"INNER_NUM": "2", "UNIQ_KEY": "0A0B"})
BAD_RECORDS: dict[str, bytes] = {
    "no zlib": record(b"no zlib", sys_flag=0x301),
    "zlib without a type": record(b"no zlib", sys_flag=0x1),
    "zlib cut short": record(zlib.compress(b"plain" * 100)[:-7], sys_flag=0x301),
    "inflates over the limit": record(BOMB, sys_flag=0x301),
    "no lz4": record(b"no lz4 frame", sys_flag=0x101),
    "no zstd": record(b"no zstd frame", sys_flag=0x201),
    "unknown compression": record(b"whatever", sys_flag=0x701),
    "nothing, compressed": record(b"", sys_flag=0x301),
    "wrong checksum": overwritten(record(), 8, b"\0\0\0\0"),
    "wrong checksum of IPv6 hosts": overwritten(record(host=HOST_V6), 8, b"\0\0\0\0"),
    "unknown magic": overwritten(record(), 4, b"what"),
    "blank magic": overwritten(record(), 4, struct.pack(">I", BLANK_MAGIC)),
    "negative body length": overwritten(record(), 84, b"\xff\xff\xff\xff"),
    "body past the end": overwritten(record(), 84, struct.pack(">i", 1 << 20)),
    "topic past the end": overwritten(record(), 93, b"\x7f"),
    "hosts of another family": overwritten(record(), 36, struct.pack(">i", 0x30)),
    "an inner batch that is none": record(sys_flag=0xC0, properties=NUMBERED),
    "an inner batch cut short": record(
        encode_batch([BatchUnit(b"a"), BatchUnit(b"b")])[:-3], sys_flag=0xC0, properties=NUMBERED
    ),
    "a batch of no number": record(
        sys_flag=0xC0, properties=encode_properties({"INNER_NUM": "many"})
    ),
}


@pytest.mark.proves("client.undecodable.delivered")
@pytest.mark.parametrize("bad", BAD_RECORDS.values(), ids=BAD_RECORDS)
@pytest.mark.parametrize("host", [HOST_V4, HOST_V6], ids=["IPv4", "IPv6"])
def test_a_damaged_record_keeps_no_other_message_away(bad: bytes, host: bytes) -> None:
    before, after = record(b"before", host=host), record(b"after", host=host)
    queue = MessageQueue("orders", "broker-a", 3)
    first, message, last = received_messages(before + bad + after, "broker-a", queue)
    assert (first.body, first.decode_error) == (b"before", None)
    assert (last.body, last.decode_error) == (b"after", None)
    assert message.body in bad
    assert "cannot be decoded: " in str(error_of(message))
    assert "of topic 'orders'" in str(error_of(message))
    assert "not decoded" in repr(message)


def test_a_size_that_leads_into_another_record_is_not_trusted() -> None:
    forged = record(b"never sent")
    bad = overwritten(record(b"x" * 9 + forged), 0, struct.pack(">i", 97))
    run = decode_run(record(b"a") + bad + record(b"z"), "broker-a", ReceivedMessage)
    assert [one.body for one in run.messages if one.decode_error is None] == [b"a"]
    assert run.damage is not None


def error_of(message: ReceivedMessage) -> MessageUnreadable:
    assert message.decode_error is not None
    return message.decode_error


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
    (message,) = received_messages(record(b"no zlib", sys_flag=0x301), "b")
    assert "compressed" in str(error_of(message))
    assert (message.body, error_of(message).is_record_damaged) == (b"no zlib", False)


def test_a_missing_library_is_named_with_the_message(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr("contrail.client.compression.import_module", missing)
    first, last = received_messages(record(b"zstd", sys_flag=0x201) + record(), "b")
    assert "pip install" in str(error_of(first))
    assert (last.body, last.decode_error) == (b"hello", None)


def test_one_property_is_read_without_the_others() -> None:
    (message,) = received_messages(record(), "b")
    assert message.peek_property("TAGS") == "red"
    assert message.properties["名"] == "值"
    assert message.peek_property("KEYS") == "a b"
    assert message.keys == ["a", "b"]
    assert message.message_id == "0A0B"


def test_a_message_without_a_unique_id_has_its_offset_id() -> None:
    (message,) = received_messages(record(properties=b""), "b")
    assert message.message_id == message.offset_message_id
    assert message.message_id in repr(message)
