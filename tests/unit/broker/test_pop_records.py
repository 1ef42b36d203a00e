"""The records of pops: Apache's bytes, both ways."""

from __future__ import annotations

import pytest

from contrail.broker.state.pop_records import (
    Checkpoint,
    ack_draft,
    checkpoint_draft,
    read_ack,
    read_checkpoint,
)
from contrail.model.fastjson import FastJsonError

NOW_MS = 1_760_000_000_000
HOST = b"\x7f\x00\x00\x01\x00\x00\x2a\x9f"
# Checked with PopCheckPoint, AckMsg and BatchAckMsg of RocketMQ 5.5.
CK = (
    b'{"bm":0,"bn":"broker-a","c":"g1","d":[0,1,3],"it":60000,"n":3,"pt":1760000000000,"q":2,'
    b'"reviveTime":1760000060000,"ro":0,"so":100,"sp":false,"t":"orders"}'
)
ACK = b'{"ao":101,"bn":"broker-a","c":"g1","pt":1760000000000,"q":2,"so":100,"t":"orders"}'
BATCH_ACK = (
    b'{"ao":-1,"aol":[100,103],"bn":"broker-a","c":"g1","pt":1760000000000,"q":2,"so":100,'
    b'"t":"orders"}'
)


def checkpoint(**changes: object) -> Checkpoint:
    fields: dict[str, object] = {
        "group": "g1",
        "topic": "orders",
        "queue_id": 2,
        "start_offset": 100,
        "pop_time_ms": NOW_MS,
        "invisible_ms": 60_000,
        "offsets": (100, 101, 103),
        "broker_name": "broker-a",
        "revive_queue": 5,
    }
    return Checkpoint(**{**fields, **changes})  # type: ignore[arg-type]


@pytest.mark.proves("kinds.pop.records")
def test_a_checkpoint_is_written_as_apache_writes_it() -> None:
    draft, properties = checkpoint_draft(checkpoint(), "rmq_sys_REVIVE_LOG_c", NOW_MS, HOST)
    assert draft.body == CK
    assert (draft.topic, draft.queue_id, draft.born_host) == (b"rmq_sys_REVIVE_LOG_c", 5, HOST)
    assert properties == {
        "TAGS": "ck",
        "UNIQ_KEY": "orders@2@100@g1@1760000000000@broker-a@ck",
        "TIMER_DELIVER_MS": "1760000059000",
    }


@pytest.mark.proves("kinds.pop.records")
@pytest.mark.parametrize(
    ("offsets", "body", "tag", "named"),
    [([101], ACK, "ack", "101"), ([100, 103], BATCH_ACK, "bAck", "-1")],
)
def test_an_acknowledgement_is_written_as_apache_writes_it(
    offsets: list[int], body: bytes, tag: str, named: str
) -> None:
    draft, properties = ack_draft(checkpoint(), offsets, "revive", NOW_MS, HOST)
    assert draft.body == body
    assert properties == {
        "TAGS": tag,
        "UNIQ_KEY": f"orders@2@{named}@g1@1760000000000@broker-a@ack",
        "TIMER_DELIVER_MS": "1760000060000",
    }
    ack = read_ack(body)
    assert (ack.key, ack.offsets, ack.broker_name) == (
        checkpoint().key,
        tuple(offsets),
        "broker-a",
    )


@pytest.mark.proves("kinds.pop.records")
def test_a_checkpoint_of_any_writer_is_read_back() -> None:
    read = read_checkpoint(CK, 5)
    assert read.key == checkpoint().key
    assert (read.offsets, read.invisible_ms, read.revive_queue) == ((100, 101, 103), 60_000, 5)
    assert read.visible_ms == NOW_MS + 60_000
    # Older writers leave the distances out; newer ones may add fields.
    older = b'{"so":7,"n":3,"pt":1,"it":2,"q":0,"t":"t","c":"g","bn":"b","bm":2,"new":[1]}'
    read = read_checkpoint(older, 0)
    assert (read.offsets, read.settled, read.open_offsets) == ((7, 8, 9), 2, [7, 9])
    again = read_checkpoint(CK.replace(b'"ro"', b'"rp":"3","ro"').replace(b"false", b"true"), 0)
    assert (again.re_put_count, again.is_suspended) == (3, True)
    # One that a buffer wrote: no broker's name.
    assert read_ack(b'{"ao":0,"aol":[1,2],"c":"g","t":"t","so":1}').offsets == (1, 2)


@pytest.mark.parametrize(
    "body", [b"", b"[]", b'{"d":[%s]}' % b",".join([b"1"] * 33), b'{"so":"x"}']
)
def test_other_bodies_are_no_checkpoints(body: bytes) -> None:
    with pytest.raises(FastJsonError):
        read_checkpoint(body, 0)
