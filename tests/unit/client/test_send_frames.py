"""Sends as the broker reads them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contrail.client.message import MessageQueue
from contrail.client.outgoing import Outgoing
from contrail.client.producer_settings import ProducerSettings
from contrail.client.send_frames import SendFrames
from contrail.errors import MessageInvalid
from contrail.model.properties import decode_properties
from contrail.protocol.codes import RequestCode
from contrail.protocol.command import Request
from contrail.protocol.frames import FrameDecoder, SendRequest
from contrail.protocol.sends import read_send

QUEUE = MessageQueue("100%orders", "broker-a", 3)


def sent(outgoing: Outgoing, queue: MessageQueue = QUEUE, flag: int = 0) -> SendRequest:
    frames = SendFrames("group", ProducerSettings(), "PYTHON")
    # Twice: the second frame uses the bytes that the first one cached.
    for _ in range(2):
        frame = frames.encode(outgoing, queue, opaque=41, flag=flag, now_ms=1_700_000_000_123)
    (item,) = FrameDecoder().feed(frame)
    return read_send(item, b"") if isinstance(item, Request) else item


def test_a_broker_reads_every_field() -> None:
    send = sent(Outgoing("100%orders", b"body", {"KEYS": "a b", "é": '"x"\\'}, flag=5, sys_flag=1))
    assert (send.opaque, send.flag, send.code) == (41, 0, RequestCode.SEND_MESSAGE_V2)
    assert (send.producer_group, send.default_topic) == (b"group", b"TBW102")
    assert (send.default_queue_count, send.is_batch) == (4, False)
    draft = send.draft
    assert (draft.topic, draft.queue_id, draft.body) == (b"100%orders", 3, b"body")
    assert (draft.flag, draft.sys_flag, draft.reconsume_times) == (5, 1, 0)
    assert draft.born_timestamp_ms == 1_700_000_000_123
    assert decode_properties(draft.properties) == {"KEYS": "a b", "é": '"x"\\'}


def test_a_retry_and_a_batch_carry_their_fields() -> None:
    retry = sent(
        Outgoing("t", b"x", {}, reconsume_times=3, max_reconsume_times=16, producer_group="INNER")
    )
    assert (retry.draft.reconsume_times, retry.reconsume_max) == (3, 16)
    assert retry.producer_group == b"INNER"
    batch = sent(Outgoing("t", b"x", {}, is_batch=True, code=RequestCode.SEND_BATCH_MESSAGE))
    assert (batch.code, batch.is_batch) == (RequestCode.SEND_BATCH_MESSAGE, True)


def test_one_way_is_a_flag() -> None:
    assert sent(Outgoing("t", b"x", {}), flag=2).flag == 2


def test_a_send_with_other_fields_does_not_change_the_next() -> None:
    frames = SendFrames("group", ProducerSettings(), "PYTHON")
    given: dict[str, Any] = {"opaque": 1, "flag": 0, "now_ms": 1}
    plain = frames.encode(Outgoing("t", b"x", {}), QUEUE, **given)
    frames.encode(Outgoing("t", b"x", {}, producer_group="OTHER"), QUEUE, **given)
    assert frames.encode(Outgoing("t", b"x", {}), QUEUE, **given) == plain


@given(
    properties=st.dictionaries(
        st.text(st.characters(exclude_characters="\x01\x02", codec="utf-8"), min_size=1),
        st.text(st.characters(exclude_characters="\x02", codec="utf-8"), min_size=1),
        max_size=5,
    ),
    body=st.binary(min_size=1, max_size=50),
)
def test_any_properties_arrive(properties: dict[str, str], body: bytes) -> None:
    send = sent(Outgoing("100%orders", body, properties))
    assert decode_properties(send.draft.properties) == properties
    assert send.draft.body == body


def test_a_frame_that_no_broker_takes_is_refused() -> None:
    with pytest.raises(MessageInvalid, match="send it in parts"):
        sent(Outgoing("t", bytes(16 << 20), {}))
