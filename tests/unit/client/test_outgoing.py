"""The messages that may be sent, and how they are encoded."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from contrail.client.compression import Compression, decompress
from contrail.client.message import Message
from contrail.client.outgoing import Outgoing, OutgoingRules, prepare
from contrail.client.reserved_names import RESERVED_NAMES
from contrail.errors import MessageInvalid

NOW_MS = 1_700_000_000_000


def prepared(topic: str = "orders", body: Any = b"x", **given: Any) -> Outgoing:
    rules = given.pop("rules", OutgoingRules())
    message = Message(topic, body, **given)
    return prepare(message, unique_id="ID", rules=rules)


def test_keys_tags_and_properties_travel_together() -> None:
    outgoing = prepared(
        tags="paid", keys=["k1", "k2"], properties={"区域": "华东"}, sharding_key="s", flag=9
    )
    assert outgoing.properties == {
        "区域": "华东",
        "KEYS": "k1 k2",
        "TAGS": "paid",
        "__SHARDINGKEY": "s",
        "UNIQ_KEY": "ID",
    }
    assert (outgoing.flag, outgoing.sys_flag, outgoing.unique_id) == (9, 0, "ID")


def test_one_key_may_be_given_as_text() -> None:
    assert prepared(keys="order-1").properties["KEYS"] == "order-1"


def test_wait_store_ok_false_is_a_property() -> None:
    assert prepared(wait_store_ok=False).properties["WAIT"] == "false"
    assert "WAIT" not in prepared().properties


@pytest.mark.parametrize(
    ("given", "name", "value"),
    [
        ({"delay_level": 3}, "DELAY", "3"),
        ({"delay": 10}, "TIMER_DELAY_SEC", "10"),
        ({"delay": 1.5}, "TIMER_DELAY_MS", "1500"),
        ({"delay": timedelta(minutes=2)}, "TIMER_DELAY_SEC", "120"),
        ({"delay": 0}, "TIMER_DELAY_SEC", "0"),
        ({"deliver_at": NOW_MS}, "TIMER_DELIVER_MS", str(NOW_MS)),
        (
            {"deliver_at": datetime.fromtimestamp(NOW_MS / 1000, UTC)},
            "TIMER_DELIVER_MS",
            str(NOW_MS),
        ),
    ],
)
def test_a_delay_becomes_the_property_that_brokers_read(
    given: dict[str, Any], name: str, value: str
) -> None:
    assert prepared(**given).properties[name] == value


@pytest.mark.proves("client.shared.errors")
@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"topic": ""}, "blank"),
        ({"topic": "a b"}, "letters, digits"),
        ({"topic": "t" * 128}, "at most 127"),
        ({"topic": "SCHEDULE_TOPIC_XXXX"}, "the broker's own"),
        ({"topic": "rmq_sys_mine"}, "the broker's own"),
        ({"topic": "TBW102"}, "the broker's own"),
        ({"topic": "%RETRY%CID_RMQ_SYS_TRANS"}, "the broker's own"),
        ({"topic": None}, "as a str"),
        ({"body": b""}, "at least one byte"),
        ({"body": "text"}, r"is a str.*\.encode\(\)"),
        ({"body": None}, "give bytes"),
        ({"body": bytes((4 << 20) + 1)}, "4194305 bytes, at most 4194304.*max_message_size"),
        ({"keys": ["a b"]}, "a list, or replace the space"),
        ({"keys": [""]}, "empty"),
        ({"keys": [3]}, "give a str"),
        ({"tags": "a\x02b"}, "control character"),
        ({"properties": {"p": ""}}, "blank"),
        ({"properties": {" ": "v"}}, "blank"),
        ({"properties": {"p": 3}}, "must be str"),
        ({"properties": {"p": "a\x02b"}}, "control character"),
        ({"properties": {"p\x01": "a"}}, "control character"),
        ({"properties": {"INNER_MULTI_DISPATCH": "a/b"}}, "slash"),
        ({"properties": {"__RMQ.TRANSIENT.X": "a"}}, "RocketMQ uses it itself"),
        ({"properties": {"p": "文" * 11_000}}, "at most 32767.*into the body"),
        ({"delay_level": 1, "delay": 3}, "keep one"),
        ({"delay": 1, "deliver_at": NOW_MS}, "keep one"),
        ({"delay_level": -1}, "begin with 1"),
        ({"delay": -1}, "not below 0"),
        ({"delay": float("nan")}, "not below 0"),
        ({"deliver_at": "tomorrow"}, "a datetime or epoch milliseconds"),
    ],
)
def test_a_message_that_cannot_be_sent_is_refused_with_the_fix(
    given: dict[str, Any], told: str
) -> None:
    with pytest.raises(MessageInvalid, match=told):
        prepared(**given)


@pytest.mark.parametrize("name", sorted(RESERVED_NAMES))
def test_the_systems_own_names_are_refused(name: str) -> None:
    with pytest.raises(MessageInvalid, match=f"property '{name}'.*orders"):
        prepared(properties={name: "v"})


@pytest.mark.parametrize(
    ("name", "fix"),
    [("TAGS", "tags="), ("KEYS", "keys="), ("DELAY", "delay_level="), ("TIMER_DELAY_MS", "delay=")],
)
def test_a_reserved_property_name_is_refused_with_the_fix(name: str, fix: str) -> None:
    with pytest.raises(MessageInvalid, match=fix):
        prepared(properties={name: "v"})


@pytest.mark.parametrize(
    "name",
    [
        "__SHARDINGKEY",
        "CHECK_IMMUNITY_TIME_IN_SECONDS",
        "TRANSACTION_CHECK_TIMES",
        "__transactionId__",
        "INNER_NUM",
        "INNER_BASE",
        "INNER_MULTI_DISPATCH",
        "TRACE_CONTEXT",
        "REDIRECT",
        "PROPERTY_FORWARD_QUEUE_ID",
    ],
)
def test_the_few_system_names_that_applications_may_set_are_accepted(name: str) -> None:
    assert prepared(properties={name: "1"}).properties[name] == "1"


def test_a_value_may_hold_the_separator_of_names() -> None:
    assert prepared(properties={"p": "a\x01b"}).properties["p"] == "a\x01b"


@pytest.mark.proves("client.producer.compression")
@pytest.mark.parametrize("kind", list(Compression))
def test_a_body_from_four_kib_on_is_compressed(kind: Compression) -> None:
    rules = OutgoingRules(compression=kind)
    body = b"a" * 4096
    outgoing = prepared(body=body, rules=rules)
    assert outgoing.sys_flag == 1 | kind.value
    assert len(outgoing.body) < len(body)
    assert decompress(outgoing.body, outgoing.sys_flag) == body
    assert prepared(body=body[1:], rules=rules).sys_flag == 0


def test_a_body_that_does_not_get_smaller_is_sent_as_it_is() -> None:
    body = bytes(byte for byte in range(256) for _ in range(1))
    outgoing = prepared(body=body, rules=OutgoingRules(compress_over_bytes=1))
    assert (outgoing.body, outgoing.sys_flag) == (body, 0)


def test_buffers_are_taken_as_bytes() -> None:
    assert prepared(body=bytearray(b"ab")).body == b"ab"
    assert prepared(body=memoryview(b"ab")).body == b"ab"


@pytest.mark.parametrize(
    "given",
    [
        {"properties": {"p": "a\ud800"}},
        {"properties": {"\udcff": "a"}},
        {"tags": "\ud800"},
        {"keys": ["k", "\ud800"]},
        {"keys": "\ud800"},
        {"sharding_key": "\ud800"},
    ],
)
def test_half_a_character_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(MessageInvalid, match=r"half a character.*remove it"):
        prepared(**given)


def test_half_a_character_is_no_part_of_a_topic() -> None:
    with pytest.raises(MessageInvalid):
        prepared("a\ud800")


def test_errors_show_a_part_of_the_given_text() -> None:
    with pytest.raises(MessageInvalid) as caught:
        prepare(
            Message("orders", b"x", keys=["k " * 10_000]), unique_id="id", rules=OutgoingRules()
        )
    assert len(str(caught.value)) < 400


def test_a_topic_of_traces_may_have_a_name_of_the_systems() -> None:
    traces = OutgoingRules(trace_topic="rmq_sys_traces")
    assert prepared("rmq_sys_traces", rules=traces).topic == "rmq_sys_traces"
    for topic, rules in (("rmq_sys_traces", OutgoingRules()), ("rmq_sys_other", traces)):
        with pytest.raises(MessageInvalid, match="the broker's own"):
            prepared(topic, rules=rules)
    with pytest.raises(MessageInvalid, match="the broker's own"):
        prepared("SELF_TEST_TOPIC", rules=OutgoingRules(trace_topic="SELF_TEST_TOPIC"))
