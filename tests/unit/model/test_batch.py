"""Batch bodies, split and kept whole."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from contrail.errors import BatchIllegal, MessageIllegal
from contrail.model.batch import (
    BATCH_COUNT_MAX,
    BatchUnit,
    decode_batch,
    encode_batch,
    expand_inner_batch,
    inner_batch_count,
    mark_inner_batch,
    put_inner_base,
    split_batch,
)
from contrail.model.message import MessageDraft, StoredMessage
from contrail.model.properties import decode_properties
from contrail.model.record import SYS_FLAG_INNER_BATCH, SYS_FLAG_NEED_UNWRAP, TRANSACTION_PREPARED

UNITS = [BatchUnit(b"one", b"UNIQ_KEY\x01a\x02", 7), BatchUnit(b""), BatchUnit(b"three", flag=-1)]


def batch_draft(**changes: Any) -> MessageDraft:
    draft = MessageDraft(b"orders", 2, encode_batch(UNITS), b"UNIQ_KEY\x01all\x02")
    return draft._replace(**changes)


def test_a_unit_has_the_bytes_that_clients_send() -> None:
    assert encode_batch([BatchUnit(b"AB", b"C", 5)]) == bytes.fromhex(
        "00000019000000000000000000000005000000024142000143"
    )


def test_units_come_back_as_they_went_in() -> None:
    assert decode_batch(encode_batch(UNITS)) == UNITS


def test_a_batch_cut_at_any_byte_but_a_units_end_is_refused() -> None:
    data = encode_batch(UNITS)
    ends = {len(encode_batch(UNITS[:count])) for count in (1, 2, 3)}
    for length in range(len(data)):
        if length not in ends:
            with pytest.raises(BatchIllegal):
                decode_batch(data[:length])


@pytest.mark.parametrize(
    ("position", "form", "value"),
    [
        (0, ">i", -1),
        (0, ">i", 0),
        (0, ">i", 21),
        (0, ">i", 24),
        (0, ">i", 26),
        (0, ">i", 2**31 - 1),
        (16, ">i", -1),
        (16, ">i", 3),
        (16, ">i", 1),
        (16, ">i", 2**31 - 1),
        (22, ">h", -1),
        (22, ">h", 0),
        (22, ">h", 2),
    ],
)
def test_a_length_that_does_not_fit_is_refused_by_number(
    position: int, form: str, value: int
) -> None:
    first = encode_batch([BatchUnit(b"", b"")])
    data = bytearray(first + encode_batch([BatchUnit(b"AB", b"C", 5)]))
    struct.pack_into(form, data, len(first) + position, value)
    with pytest.raises(BatchIllegal, match="message 2 of the batch"):
        decode_batch(bytes(data))


def test_the_magic_and_crc_of_a_unit_are_not_checked() -> None:
    data = bytearray(encode_batch(UNITS))
    data[4:12] = b"whatever"
    assert decode_batch(bytes(data)) == UNITS


def test_an_empty_batch_is_refused() -> None:
    with pytest.raises(BatchIllegal, match="no message"):
        decode_batch(b"")


def test_properties_beyond_32767_bytes_do_not_fit_a_unit() -> None:
    assert decode_batch(encode_batch([BatchUnit(b"", bytes(32_767))]))[0].properties == bytes(
        32_767
    )
    with pytest.raises(BatchIllegal, match="message 1"):
        encode_batch([BatchUnit(b"", bytes(32_768))])


def test_a_split_batch_becomes_drafts_that_share_the_rest() -> None:
    drafts = split_batch(batch_draft(sys_flag=0x10, prepared_transaction_offset=9))
    assert [draft.body for draft in drafts] == [b"one", b"", b"three"]
    assert [draft.flag for draft in drafts] == [7, 0, -1]
    assert [draft.properties for draft in drafts] == [b"UNIQ_KEY\x01a\x02", b"", b""]
    assert {(draft.topic, draft.queue_id, draft.sys_flag) for draft in drafts} == {
        (b"orders", 2, 0x10)
    }
    assert {draft.prepared_transaction_offset for draft in drafts} == {0}


@pytest.mark.parametrize(
    "changes", [{"sys_flag": TRANSACTION_PREPARED}, {"properties": b"DELAY\x013\x02"}]
)
def test_a_batch_is_neither_transactional_nor_delayed(changes: dict[str, object]) -> None:
    for handle in (split_batch, mark_inner_batch):
        with pytest.raises(MessageIllegal, match="singly"):
            handle(batch_draft(**changes))


def test_delay_level_zero_is_no_delay() -> None:
    assert len(split_batch(batch_draft(properties=b"DELAY\x010\x02"))) == 3


def test_an_inner_batch_carries_its_flags_count_and_base() -> None:
    draft = put_inner_base(mark_inner_batch(batch_draft(sys_flag=0x1)), 500)
    assert draft.sys_flag == 0x1 | SYS_FLAG_INNER_BATCH | SYS_FLAG_NEED_UNWRAP
    properties = decode_properties(draft.properties)
    assert properties == {"UNIQ_KEY": "all", "INNER_NUM": "3", "INNER_BASE": "500"}
    assert inner_batch_count(draft.properties) == 3


def test_a_record_without_a_count_takes_one_queue_offset() -> None:
    assert inner_batch_count(b"") == 1


@pytest.mark.parametrize("text", ["0", "-1", "x", "32768", "99999999999", "٣"])
def test_an_inner_batch_count_that_is_no_number_is_refused(text: str) -> None:
    with pytest.raises(BatchIllegal, match="INNER_NUM"):
        inner_batch_count(f"INNER_NUM\x01{text}\x02".encode())


def test_a_consumer_sees_each_message_of_an_inner_batch_at_its_own_queue_offset() -> None:
    stored = StoredMessage(
        topic="orders",
        queue_id=2,
        queue_offset=500,
        physical_offset=0,
        record_bytes=200,
        body=encode_batch(UNITS),
        raw_properties=b"INNER_NUM\x013\x02",
        flag=0,
        sys_flag=SYS_FLAG_INNER_BATCH,
        body_crc=0,
        born_timestamp_ms=1,
        born_host=bytes(8),
        store_timestamp_ms=2,
        store_host=bytes(8),
        reconsume_times=0,
        prepared_transaction_offset=0,
    )
    assert stored.properties == {"INNER_NUM": "3"}
    messages = expand_inner_batch(stored)
    assert [message.queue_offset for message in messages] == [500, 501, 502]
    assert [message.body for message in messages] == [b"one", b"", b"three"]
    assert messages[0].properties == {"UNIQ_KEY": "a"}
    assert messages[0].flag == 7


def test_a_batch_of_too_many_messages_is_refused() -> None:
    unit = encode_batch([BatchUnit(b"")])
    assert len(decode_batch(unit * BATCH_COUNT_MAX)) == BATCH_COUNT_MAX
    for read in (decode_batch, lambda body: split_batch(batch_draft(body=body))):
        with pytest.raises(BatchIllegal, match="send it in parts"):
            read(unit * (BATCH_COUNT_MAX + 1))
