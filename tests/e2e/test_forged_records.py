"""A record that somebody forged inside a message's body is served to nobody."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator

import pytest

from contrail.model.host import pack_host
from contrail.model.message_id import decode_offset_message_id, encode_offset_message_id
from contrail.model.record import MAGIC_V1, decode_record
from contrail.model.topic import HALF_TOPIC, TRANSACTION_EXHAUSTED_TOPIC
from contrail.protocol.codes import RequestCode, ResponseCode
from contrail.testing import LocalCluster
from tests.e2e.asking import Asker
from tests.e2e.raw_client import RawClient, heartbeat

BODY_AT = 88
HOST = pack_host("127.0.0.1", 1)
FORGED_BODY = b"nobody sent this"
PROPERTIES = b"PGROUP\x01thieves\x02UNIQ_KEY\x017F0000010000000000000000000000BB\x02"


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster() as running:
        yield running


@pytest.fixture(scope="module")
def broker(cluster: LocalCluster) -> Asker:
    asker = Asker(cluster)
    asker.stored("orders", b"first")
    return asker


def forged(topic: str, physical_offset: int) -> bytes:
    """A whole record with the right checksum that says it lies at ``physical_offset``."""
    crc = zlib.crc32(FORGED_BODY) & 0x7FFFFFFF
    tail = struct.pack(">i", len(FORGED_BODY)) + FORGED_BODY
    tail += bytes([len(topic)]) + topic.encode()
    tail += struct.pack(">h", len(PROPERTIES)) + PROPERTIES
    numbers = struct.pack(">Iiiiqqiq", MAGIC_V1, crc, 0, 0, 0, physical_offset, 0, 1)
    middle = HOST + struct.pack(">q", 1) + HOST + struct.pack(">iq", 0, 0)
    size = 4 + len(numbers) + len(middle) + len(tail)
    return struct.pack(">i", size) + numbers + middle + tail


def placed(broker: Asker, topic: str) -> int:
    """Where the store reads a forged record of ``topic``, which a message carries as its body."""
    probe = forged(topic, 0)
    before = broker.send("orders", probe)
    place = decode_offset_message_id(before.fields["msgId"]).physical_offset
    record = broker.done(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": str(place)}).body
    where = place + len(record) + BODY_AT
    answer = broker.send("orders", forged(topic, where))
    assert decode_offset_message_id(answer.fields["msgId"]).physical_offset == where - BODY_AT
    found = broker.broker.app.store.record(where)
    assert (found.topic, found.body) == (topic, FORGED_BODY), "the record is not forged well"
    return where


@pytest.mark.proves("broker.forged.refused")
@pytest.mark.parametrize("topic", ["orders", "unheard-of", HALF_TOPIC, TRANSACTION_EXHAUSTED_TOPIC])
@pytest.mark.parametrize(
    "code",
    [
        RequestCode.VIEW_MESSAGE_BY_ID,
        RequestCode.CONSUMER_SEND_MSG_BACK,
        RequestCode.END_TRANSACTION,
        RequestCode.RESUME_CHECK_HALF_MESSAGE,
        RequestCode.DECIDE_TRANSACTION,
        RequestCode.CONSUME_MESSAGE_DIRECTLY,
    ],
)
def test_no_request_takes_a_record_that_lies_in_a_body(
    broker: Asker, code: RequestCode, topic: str
) -> None:
    place = placed(broker, topic)
    message_id = encode_offset_message_id(HOST, place)
    fields = {
        "offset": str(place),
        "group": "readers",
        "delayLevel": "0",
        "unitMode": "false",
        "producerGroup": "thieves",
        "tranStateTableOffset": "0",
        "commitLogOffset": str(place),
        "commitOrRollback": "8",
        "msgId": message_id,
        "fate": "commit",
        "consumerGroup": "readers",
        "clientId": "reader@1",
    }
    with RawClient(broker.broker.port) as reader:
        reader.call(RequestCode.HEART_BEAT, {}, heartbeat("reader@1"))
        stored_before = broker.broker.app.store.physical_end
        answer = broker.ask(code, fields)
        served = (ResponseCode.SUCCESS, ResponseCode.CONSUME_MSG_TIMEOUT)
        assert answer.code not in served, (answer.code, answer.body)
    assert FORGED_BODY not in answer.body
    assert broker.broker.app.store.physical_end == stored_before


@pytest.mark.proves("broker.forged.refused")
def test_real_records_are_still_found(broker: Asker) -> None:
    answer = broker.send("orders", b"real")
    place = decode_offset_message_id(answer.fields["msgId"]).physical_offset
    record = broker.done(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": str(place)}).body
    assert decode_record(record, 0).body == b"real"
