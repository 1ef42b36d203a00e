"""Sends to a real broker: every form of them, every refusal, and what becomes of the messages."""

from __future__ import annotations

import zlib
from collections.abc import Iterator

import pytest

from contrail.model.batch import BatchUnit, encode_batch
from contrail.model.host import pack_host
from contrail.model.message_id import decode_offset_message_id
from contrail.model.record import SYS_FLAG_COMPRESSED, decode_record
from contrail.protocol.codes import RequestCode, ResponseCode
from contrail.protocol.sends import LETTERS
from contrail.testing import LocalCluster, eventually
from tests.e2e.asking import Asker, messages, properties_text, route
from tests.e2e.raw_client import send_fields


@pytest.fixture(scope="module", params=["on", "off"])
def cluster(request: pytest.FixtureRequest) -> Iterator[LocalCluster]:
    """With the fast path, and by the general way alone."""
    properties = {"maxMessageSize": "65536", "contrailFastPath": request.param}
    with LocalCluster(properties=properties) as running:
        yield running


@pytest.fixture
def broker(cluster: LocalCluster) -> Asker:
    return Asker(cluster)


def spelled_out(topic: str) -> dict[str, str]:
    return {LETTERS[letter]: text for letter, text in send_fields(topic).items()}


@pytest.mark.proves("broker.send.forms", "broker.fast.end-end-tests")
def test_each_form_of_a_send_is_stored_and_answered(broker: Asker) -> None:
    first = broker.done(RequestCode.SEND_MESSAGE, spelled_out("forms"), b"first")
    second = broker.done(RequestCode.SEND_MESSAGE_V2, send_fields("forms"), b"second")
    units = encode_batch([BatchUnit(b"third"), BatchUnit(b"fourth")])
    third = broker.done(RequestCode.SEND_BATCH_MESSAGE, send_fields("forms", m="true"), units)
    offsets = [answer.fields["queueOffset"] for answer in (first, second, third)]
    assert offsets == ["0", "1", "2"]
    assert broker.bodies("forms") == [b"first", b"second", b"third", b"fourth"]
    assert {"MSG_REGION", "TRACE_ON", "msgId", "queueId"} <= first.fields.keys()


@pytest.mark.proves("broker.send.forms")
def test_a_batch_takes_consecutive_offsets(broker: Asker) -> None:
    broker.stored("batches", b"before")
    units = [BatchUnit(b"%d" % number) for number in range(5)]
    fields = send_fields("batches", m="true")
    answer = broker.done(RequestCode.SEND_BATCH_MESSAGE, fields, encode_batch(units))
    assert answer.fields["queueOffset"] == "1"
    assert len(answer.fields["msgId"].split(",")) == 5
    assert broker.stored("batches", b"after") == 6


@pytest.mark.proves("broker.send.checks")
@pytest.mark.parametrize(
    ("topic", "body", "changes", "code"),
    [
        ("no such", b"x", {}, ResponseCode.INVALID_PARAMETER),
        ("t" * 128, b"x", {}, ResponseCode.INVALID_PARAMETER),
        ("SCHEDULE_TOPIC_XXXX", b"x", {}, ResponseCode.NO_PERMISSION),
        ("unknown", b"x", {"c": "no-template"}, ResponseCode.TOPIC_NOT_EXIST),
        ("ruled", b"x", {"e": "4"}, ResponseCode.INVALID_PARAMETER),
        ("ruled", b"", {}, ResponseCode.SYSTEM_ERROR),
        ("ruled", b"x", {"e": "first"}, ResponseCode.SYSTEM_ERROR),
        ("ruled", b"x" * 65_537, {}, ResponseCode.MESSAGE_ILLEGAL),
        ("ruled", b"x", {"i": "p\x01" + "v" * 33_000}, ResponseCode.MESSAGE_ILLEGAL),
        (
            "ruled",
            b"x",
            {"i": "TRAN_MSG\x01true\x02DELAY\x013\x02"},
            ResponseCode.MESSAGE_ILLEGAL,
        ),
        ("ruled", b"x", {"i": "TIMER_DELAY_MS\x01soon\x02"}, ResponseCode.MESSAGE_ILLEGAL),
        ("ruled", b"x", {"i": "TIMER_DELAY_SEC\x01259201\x02"}, ResponseCode.MESSAGE_ILLEGAL),
        ("ruled", b"x", {"f": "4"}, ResponseCode.MESSAGE_ILLEGAL),
        ("ruled", b"no batch", {"m": "true"}, ResponseCode.SYSTEM_ERROR),
        ("%RETRY%not a group", b"x", {}, ResponseCode.INVALID_PARAMETER),
    ],
)
def test_a_send_that_breaks_a_rule_is_answered_with_its_code(
    broker: Asker, topic: str, body: bytes, changes: dict[str, str], code: int
) -> None:
    broker.make_topic("ruled")
    fields = {**send_fields(topic), **changes}
    answer = broker.ask(RequestCode.SEND_MESSAGE_V2, fields, body)
    assert (answer.code, bool(answer.remark)) == (code, True), answer.remark
    assert broker.bodies("ruled") == []


@pytest.mark.proves("broker.send.auto-created-topics")
def test_the_first_send_makes_a_topic_of_tbw102(cluster: LocalCluster, broker: Asker) -> None:
    broker.stored("newcomer", b"hello", d="3")
    eventually(lambda: route(cluster, "newcomer") is not None, "the NameServer hears of the topic")
    found = route(cluster, "newcomer")
    assert found is not None
    [queues] = found.queues
    assert (queues.read_queue_count, queues.write_queue_count, queues.perm) == (3, 3, 6)


@pytest.mark.proves("broker.send.queue-counts")
def test_queues_are_written_and_read_by_their_own_counts(broker: Asker) -> None:
    broker.make_topic("uneven", read=2, write=4)
    broker.stored("uneven", b"last", queue_id=3)
    refused = broker.pull("uneven", 0, queueId="3")
    assert refused.code == ResponseCode.INVALID_PARAMETER
    broker.make_topic("uneven", read=4, write=2)
    assert broker.bodies("uneven", 3) == [b"last"]


@pytest.mark.proves("broker.send.grow-and-shrink")
def test_queues_grow_and_shrink_without_losing_a_message(broker: Asker) -> None:
    sent: dict[int, list[bytes]] = {queue_id: [] for queue_id in range(8)}

    def fill(queue_count: int, word: bytes) -> None:
        for queue_id in range(queue_count):
            broker.stored("elastic", word, queue_id=queue_id)
            sent[queue_id].append(word)

    for queue_count, word in ((4, b"few"), (8, b"many"), (2, b"fewer")):
        # As an operator shrinks a topic: readers keep the old queues until they are empty.
        broker.make_topic("elastic", read=8, write=queue_count)
        fill(queue_count, word)
    assert {queue_id: broker.bodies("elastic", queue_id) for queue_id in range(8)} == sent
    broker.make_topic("elastic", read=2, write=2)
    broker.make_topic("elastic", read=8, write=8)
    fill(8, b"back")
    assert {queue_id: broker.bodies("elastic", queue_id) for queue_id in range(8)} == sent


@pytest.mark.proves("broker.send.compression-flags")
def test_a_compressed_body_and_its_flags_come_out_as_they_went_in(broker: Asker) -> None:
    body = zlib.compress(b"the same again " * 100)
    # Bits 8 to 10 name the algorithm; 3 is zlib.
    sys_flag = SYS_FLAG_COMPRESSED | 3 << 8
    broker.stored("packed", body, f=str(sys_flag))
    [message] = messages(broker.pull("packed", 0))
    assert (message.body, message.sys_flag) == (body, sys_flag)


@pytest.mark.proves("broker.send.message-ids")
def test_a_message_id_says_where_the_message_lies(broker: Asker) -> None:
    answer = broker.send("placed", b"here")
    place = decode_offset_message_id(answer.fields["msgId"])
    fields = {"offset": str(place.physical_offset)}
    record = broker.done(RequestCode.VIEW_MESSAGE_BY_ID, fields).body
    assert decode_record(record, 0).body == b"here"
    assert place.store_host == pack_host("127.0.0.1", broker.broker.port)


@pytest.mark.proves("broker.topics.query-by-unique-key")
def test_a_message_is_found_by_its_key_and_its_unique_key(broker: Asker) -> None:
    properties = {"KEYS": "order-7 customer-3", "UNIQ_KEY": "7F00000100000000C0FFEE00000000AA"}
    broker.stored("asked", b"found", properties=properties)
    broker.stored("asked", b"another", properties={"KEYS": "order-8"})
    fields = {"topic": "asked", "maxNum": "32", "beginTimestamp": "0", "endTimestamp": "9" * 15}
    asked = [("order-7", "false"), ("customer-3", "false"), (properties["UNIQ_KEY"], "true")]
    for key, unique in asked:
        question = {**fields, "key": key, "_UNIQUE_KEY_QUERY": unique}
        found = messages(broker.done(RequestCode.QUERY_MESSAGE, question))
        assert [message.body for message in found] == [b"found"], key
    missing = broker.ask(RequestCode.QUERY_MESSAGE, {**fields, "key": "order-9"})
    assert missing.code == ResponseCode.QUERY_NOT_FOUND


@pytest.mark.proves("broker.topics.write-permission")
def test_a_broker_without_write_permission_refuses_sends_and_is_in_no_route_for_producers(
    cluster: LocalCluster, broker: Asker
) -> None:
    broker.make_topic("loose")
    broker.make_topic("strict", order=True)
    broker.stored("strict", b"before")
    broker.change_settings("brokerPermission=4\n")
    try:
        assert broker.send("strict").code == ResponseCode.NO_PERMISSION
        assert broker.send("loose").code == ResponseCode.NO_PERMISSION

        def is_closed() -> bool:
            found = route(cluster, "loose")
            return found is not None and found.queues[0].perm == 4

        eventually(is_closed, "the route loses its write permission")
    finally:
        broker.change_settings("brokerPermission=6\n")
    broker.stored("strict", b"after", i=properties_text({}))
    assert broker.bodies("strict") == [b"before", b"after"]
