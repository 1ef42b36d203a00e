"""Receipts and the lists of an answer."""

from __future__ import annotations

import pytest

from contrail.errors import RequestRejected
from contrail.protocol.bodies.pop import BatchAck, BatchAcks, decode_batch_acks, encode_batch_acks
from contrail.protocol.pop_info import (
    PopTextInvalid,
    Receipt,
    read_offsets,
    read_start_offsets,
    real_topic,
    retry_flag,
)

TEXT = "100 1760000000000 60000 3 1 broker-a 2 103"


def test_a_receipt_is_read_as_it_is_written() -> None:
    receipt = Receipt.decode(TEXT)
    assert receipt == Receipt(100, 1760000000000, 60000, 3, "1", "broker-a", 2, 103)
    assert receipt.encode() == TEXT and not receipt.in_order
    assert Receipt.decode("100 1 2 999 0 b 2").queue_offset == -1
    assert Receipt.decode("100 1 2 999 0 b 2").in_order


@pytest.mark.parametrize("text", ["", "1 2 3", "x 1 2 3 0 b 2 3", "1 2 3 4 0 b q 3"])
def test_other_texts_are_no_receipts(text: str) -> None:
    with pytest.raises(PopTextInvalid):
        Receipt.decode(text)


def test_lists_name_a_queue_once() -> None:
    assert read_start_offsets("0 2 100;1 0 7") == {("0", 2): 100, ("1", 0): 7}
    assert read_offsets("0 2 100,101,103") == {("0", 2): [100, 101, 103]}
    assert read_offsets("") == {}
    for text in ("0 2 1;0 2 3", "0 2", "0 x 1"):
        with pytest.raises(PopTextInvalid):
            read_offsets(text)


def test_flags_stand_for_topics() -> None:
    for topic, flag in (("t", "0"), ("%RETRY%g_t", "1"), ("%RETRY%g+t", "2")):
        assert retry_flag(topic) == flag
        assert real_topic("t", "g", flag) == topic


def test_a_batch_is_read_by_short_and_by_long_names() -> None:
    ack = BatchAck("g1", "orders", "0", 100, 2, 3, 1700000000000, 60000, (100, 101, 103))
    body = encode_batch_acks(BatchAcks("broker-a", [ack]))
    assert body == (
        b'{"acks":[{"b":"Cw==","c":"g1","it":60000,"pt":1700000000000,"q":2,"r":"0","rq":3,'
        b'"so":100,"t":"orders"}],"brokerName":"broker-a"}'
    )
    long = (
        b'{"acks":[{"bitSet":"Cw==","consumerGroup":"g1","invisibleTime":60000,'
        b'"popTime":1700000000000,"queueId":2,"retry":"0","reviveQueueId":3,"startOffset":100,'
        b'"topic":"orders"}],"brokerName":"broker-a"}'
    )
    assert decode_batch_acks(body) == decode_batch_acks(long) == BatchAcks("broker-a", [ack])
    with pytest.raises(RequestRejected):
        decode_batch_acks(body.replace(b"Cw==", b"C!"))
