"""Bodies are written as RocketMQ's serialiser writes them, and read in every client's form."""

from __future__ import annotations

import json
import math
from enum import IntEnum

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contrail.errors import RequestRejected
from contrail.model.fastjson import FastJsonError, ObjectKey, loads
from contrail.protocol.codes import ResponseCode
from contrail.protocol.json_style import (
    BODY_BYTES_MAX,
    BODY_TOKENS_MAX,
    MessageQueue,
    body_errors,
    decode_body,
    decode_message_queue,
    encode_body,
)

QUEUE = MessageQueue("orders", "broker-a", 3)


class Level(IntEnum):
    HIGH = 2


def test_keys_are_sorted_and_nulls_left_out() -> None:
    assert encode_body({"b": 1, "a": None, "A": True}) == b'{"A":true,"b":1}'


@pytest.mark.proves("wire.frames.old-java")
def test_numbers_as_keys_lose_their_quotes_unless_the_style_is_strict() -> None:
    table = {10: "c", 2: "b", 0: "a"}
    assert encode_body(table) == b'{0:"a",2:"b",10:"c"}'
    assert encode_body(table, strict=True) == b'{"0":"a","2":"b","10":"c"}'


def test_a_message_queue_is_a_raw_object_as_a_key_and_as_a_value() -> None:
    raw = b'{"brokerName":"broker-a","queueId":3,"topic":"orders"}'
    assert encode_body({QUEUE: 1}) == b"{" + raw + b":1}"
    assert encode_body([QUEUE]) == b"[" + raw + b"]"


def test_lists_tuples_and_sets_are_arrays_and_sets_come_out_sorted() -> None:
    assert encode_body({"a": (1, 2), "b": [], "c": {"y", "x"}, "d": frozenset()}) == (
        b'{"a":[1,2],"b":[],"c":["x","y"],"d":[]}'
    )


def test_a_null_inside_an_array_keeps_its_place() -> None:
    assert encode_body([1, None]) == b"[1,null]"


def test_enum_members_are_written_as_their_values() -> None:
    assert encode_body({"level": Level.HIGH, Level.HIGH: 1}) == b'{2:1,"level":2}'


def test_only_the_strict_style_escapes_characters_outside_ascii() -> None:
    assert encode_body({"k": "é中"}) == '{"k":"é中"}'.encode()
    assert encode_body({"k": "é中"}, strict=True) == rb'{"k":"\u00e9\u4e2d"}'
    assert encode_body(["\ud800"]) == rb'["\ud800"]'


@pytest.mark.parametrize("value", [math.nan, math.inf, object(), b"bytes", {1.5: 1}, {True: 1}])
def test_a_value_without_a_json_form_is_refused(value: object) -> None:
    with pytest.raises(FastJsonError):
        encode_body({"v": value})


def test_a_value_nested_too_deeply_is_refused() -> None:
    value: object = []
    for _ in range(40):
        value = [value]
    with pytest.raises(FastJsonError, match="deeper"):
        encode_body(value)


values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=15,
)


@given(values, st.booleans())
def test_a_written_body_is_read_back(value: object, strict: bool) -> None:
    assert loads(encode_body([value], strict=strict)) == [without_nulls(value)]


@given(values)
def test_the_strict_style_is_standard_json(value: object) -> None:
    assert json.loads(encode_body([{5: value}], strict=True).decode("ascii"))


def without_nulls(value: object) -> object:
    if isinstance(value, dict):
        return {key: without_nulls(item) for key, item in value.items() if item is not None}
    return [without_nulls(item) for item in value] if isinstance(value, list) else value


@pytest.mark.proves("wire.frames.object-keys")
def test_a_queue_key_is_read_raw_and_quoted() -> None:
    text = '{"brokerName":"broker-a","queueId":3,"topic":"orders"}'
    raw = loads(b"{" + text.encode() + b":1}")
    assert isinstance(raw, dict)
    (key,) = raw
    assert isinstance(key, ObjectKey)
    assert decode_message_queue(key) == QUEUE
    assert decode_message_queue(text) == QUEUE


@pytest.mark.parametrize("key", ["", "orders", "[1]", '{"queueId":"x"}'])
def test_a_key_that_is_no_queue_is_refused(key: str) -> None:
    with pytest.raises(RequestRejected, match="message queue") as caught:
        decode_message_queue(key)
    assert caught.value.code == ResponseCode.SYSTEM_ERROR


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"\xff", b"1"])
def test_a_body_that_is_no_object_is_refused_with_its_expected_content(body: bytes) -> None:
    with pytest.raises(RequestRejected, match="a Thing") as caught:
        decode_body(body, "a Thing")
    assert caught.value.code == ResponseCode.SYSTEM_ERROR


def test_a_field_of_another_type_becomes_a_refusal() -> None:
    fields = decode_body(b'{"n":"x"}', "a Thing")
    with pytest.raises(RequestRejected, match=r"a Thing.n"), body_errors("a Thing"):
        fields.integer("n", 0)


@pytest.mark.parametrize("is_table", [False, True])
@pytest.mark.parametrize(
    "body",
    [
        b'{"a":"' + b"x" * BODY_BYTES_MAX + b'"}',
        b'{"a":[' + b"1," * BODY_TOKENS_MAX + b"1]}",
    ],
    ids=["bytes", "tokens"],
)
def test_only_tables_may_be_large(body: bytes, is_table: bool) -> None:
    if is_table:
        assert decode_body(body, "a Thing", is_table=True).unknown(frozenset())
        return
    with pytest.raises(RequestRejected, match="a Thing"):
        decode_body(body, "a Thing")


def test_commas_and_brackets_within_texts_are_not_counted() -> None:
    body = json.dumps({"a": ",{[" * BODY_TOKENS_MAX}).encode()
    assert decode_body(body, "a Thing").text("a", "").startswith(",{[,{[")
