"""Messages as a slave hands them to brokers of other names."""

from __future__ import annotations

import pytest

from contrail.broker.state.escapes import (
    Target,
    escape_of,
    half_escape,
    send_fields,
    targets,
)
from contrail.broker.state.transaction_records import read_half
from contrail.errors import MessageIllegal
from contrail.model.message import MessageDraft, StoredMessage
from contrail.model.properties import decode_properties, encode_properties
from contrail.model.record import TRANSACTION_PREPARED
from contrail.protocol.bodies.routes import BrokerData, QueueData, TopicRouteData

HERE = Target("10.0.0.2:10911", "broker-b", 3)


def draft(topic: str = "orders", **properties: str) -> MessageDraft:
    return MessageDraft(
        topic.encode(), 1, b"body", encode_properties(properties), 5, 0x30 | 1, 77, b"", 2, -9
    )


def names(one: MessageDraft) -> dict[str, str]:
    return dict(decode_properties(one.properties))


def test_a_delivered_message_goes_without_the_delay_that_it_has_served() -> None:
    sent = escape_of(
        draft(DELAY="3", REAL_TOPIC="orders", REAL_QID="1", TIMER_DELIVER_MS="5", KEYS="k")
    )
    assert sent.topic == b"orders"
    assert names(sent) == {"KEYS": "k"}


def test_a_message_that_is_rolled_on_waits_at_the_other_broker() -> None:
    sent = escape_of(
        draft(
            "rmq_sys_wheel_timer",
            REAL_TOPIC="orders",
            REAL_QID="1",
            TIMER_DELIVER_MS="99000",
            TIMER_DELAY_SEC="7",
            TIMER_OUT_MS="1",
            TIMER_ROLL_TIMES="2",
            KEYS="k",
        )
    )
    assert sent.topic == b"orders"
    assert names(sent) == {"TIMER_DELIVER_MS": "99000", "KEYS": "k"}


def test_a_timed_message_without_a_place_to_go_is_not_sent() -> None:
    with pytest.raises(MessageIllegal, match="REAL_TOPIC"):
        escape_of(draft("rmq_sys_wheel_timer", TIMER_DELIVER_MS="1"))


def half(**changes: str) -> StoredMessage:
    properties = {"REAL_TOPIC": "orders", "REAL_QID": "4", "PGROUP": "payers", "UNIQ_KEY": "k1"}
    return StoredMessage(
        topic="RMQ_SYS_TRANS_HALF_TOPIC",
        queue_id=0,
        queue_offset=8,
        physical_offset=100,
        body=b"body",
        raw_properties=encode_properties({**properties, **changes}),
        flag=0,
        sys_flag=TRANSACTION_PREPARED,
        born_timestamp_ms=50,
        born_host=b"\x7f\0\0\1\0\0\0\1",
        store_timestamp_ms=60,
        store_host=b"\x7f\0\0\1\0\0\0\1",
        reconsume_times=0,
        prepared_transaction_offset=0,
        body_crc=0,
        record_bytes=200,
    )


def test_a_half_message_is_sent_as_its_producer_sent_it() -> None:
    message = half(
        TRANSACTION_CHECK_TIMES="4", TRAN_PREPARED_QUEUE_OFFSET="2", CONTRAIL_FIRST_STORED_MS="9"
    )
    sent = half_escape(message, read_half(message))
    assert (sent.topic, sent.queue_id) == (b"orders", 4)
    assert names(sent) == {"PGROUP": "payers", "UNIQ_KEY": "k1", "TRAN_MSG": "true"}
    assert sent.sys_flag == TRANSACTION_PREPARED
    assert sent.born_timestamp_ms == 50


def test_a_half_message_without_a_place_to_go_is_not_sent() -> None:
    message = half(REAL_QID="x")
    with pytest.raises(MessageIllegal, match="queue"):
        half_escape(message, read_half(message))


def test_the_fields_of_a_send_name_the_producer_group_and_no_forms_of_hosts() -> None:
    fields = send_fields(draft(KEYS="k"), HERE, "escapes")
    assert (fields["producerGroup"], fields["topic"], fields["queueId"]) == (
        "escapes",
        "orders",
        "3",
    )
    assert (fields["sysFlag"], fields["flag"], fields["reconsumeTimes"]) == ("1", "5", "2")
    assert fields["properties"] == "KEYS\x01k\x02"
    assert send_fields(draft(PGROUP="payers"), HERE, "escapes")["producerGroup"] == "payers"


def test_messages_go_to_writable_queues_of_other_names_whose_master_is_there() -> None:
    route = TopicRouteData(
        (
            QueueData("broker-a", 4, 4, 6),
            QueueData("broker-b", 4, 2, 6),
            QueueData("broker-c", 4, 4, 4),
            QueueData("broker-d", 4, 4, 6),
        ),
        (
            BrokerData("broker-a", "c", {0: "a0", 1: "a1"}),
            BrokerData("broker-b", "c", {0: "b0"}),
            BrokerData("broker-c", "c", {0: "c0"}),
            BrokerData("broker-d", "c", {1: "d1"}),
        ),
    )
    assert targets(route, "broker-a") == [Target("b0", "broker-b", 0), Target("b0", "broker-b", 1)]
    assert targets(TopicRouteData(), "broker-a") == []
