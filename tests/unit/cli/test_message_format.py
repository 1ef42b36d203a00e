"""The format language of messages, their JSON, and places to start from."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contrail.cli.message_format import (
    DEFAULT_FORMAT,
    compile_format,
    for_terminal,
    message_fields,
)
from contrail.cli.places import PlaceKind, StartPlace, newest_places, parse_place
from contrail.client.message import MessageQueue, ReceivedMessage
from contrail.errors import ConfigError, OptionInvalid
from contrail.model.host import pack_host


def message(body: bytes = b"paid 5", **properties: str) -> ReceivedMessage:
    return ReceivedMessage(
        topic="orders",
        body=body,
        queue=MessageQueue("orders", "broker-a", 3),
        queue_offset=12,
        message_id="AC11",
        offset_message_id="7F00",
        properties=properties or {"KEYS": "o-1 o-2", "TAGS": "paid", "region": "eu"},
        reconsume_times=2,
        born_timestamp_ms=1_000,
        store_timestamp_ms=2_001,
        flag=0,
        sys_flag=0,
        physical_offset=0,
        packed_born_host=pack_host("127.0.0.1", 1234),
        packed_store_host=pack_host("127.0.0.1", 10911),
    )


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("%t %q@%o %k %b\\n", b"orders 3@12 o-1 o-2 paid 5\n"),
        ("%T|%B", b"1970-01-01T00:00:02.001Z|1970-01-01T00:00:01.000Z"),
        ("%g;%i;%h;%s;%r", b"paid;AC11;broker-a;6;2"),
        ("%p", b"KEYS=o-1 o-2,TAGS=paid,region=eu"),
        ("100%%\\t\\0\\\\\\r", b"100%\t\0\\\r"),
        ("käse %t", "käse orders".encode()),
        ("", b""),
    ],
)
def test_each_letter_and_escape_is_replaced_by_its_value(text: str, shown: bytes) -> None:
    assert compile_format(text)(message()) == shown


def test_a_missing_field_is_empty() -> None:
    assert compile_format("[%k][%g]")(message(UNIQ_KEY="x")) == b"[][]"


@pytest.mark.parametrize("text", ["%x", "%", "a%z", "% "])
def test_an_unknown_letter_is_refused_and_the_known_ones_are_named(text: str) -> None:
    with pytest.raises(ConfigError, match="means nothing, the letters are %t %q %o %k %b"):
        compile_format(text)


@pytest.mark.parametrize("text", ["\\x", "\\"])
def test_an_unknown_escape_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="means nothing, there are"):
        compile_format(text)


def test_the_default_shows_place_tags_keys_and_body_on_a_line() -> None:
    line = compile_format(DEFAULT_FORMAT)(message())
    assert line == b"1970-01-01T00:00:02.001Z broker-a:3@12 tags=paid keys=o-1 o-2 paid 5\n"


@given(st.binary())
def test_a_body_is_shown_byte_for_byte(body: bytes) -> None:
    assert compile_format("<%b>%s")(message(body)) == b"<" + body + b">%d" % len(body)


@given(st.text())
def test_text_without_percent_signs_is_printed_unchanged(text: str) -> None:
    plain = text.replace("%", "").replace("\\", "")
    assert compile_format(plain)(message()) == plain.encode()


def test_json_has_the_body_as_text_or_as_base64() -> None:
    text, raw = message_fields(message(b"gr\xc3\xbc")), message_fields(message(b"\xff\x00"))
    assert text["body"] == "grü" and "body_base64" not in text
    assert raw["body_base64"] == "/wA=" and "body" not in raw
    assert raw["body_bytes"] == 2
    assert json.loads(json.dumps(text))["keys"] == ["o-1", "o-2"]


def test_a_body_cannot_steer_the_terminal() -> None:
    assert for_terminal(b"\x1b[2Jred\n") == "\\x1b[2Jred\n"


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("earliest", StartPlace(PlaceKind.EARLIEST)),
        ("latest", StartPlace(PlaceKind.LATEST)),
        ("-10", StartPlace(PlaceKind.NEWEST, 10)),
        ("1200", StartPlace(PlaceKind.OFFSET, 1200)),
        ("@1970-01-01T00:01", StartPlace(PlaceKind.TIME, 60_000)),
        ("@5", StartPlace(PlaceKind.TIME, 5)),
    ],
)
def test_places_to_start_from(text: str, place: StartPlace) -> None:
    assert parse_place("-o", text) == place


@pytest.mark.parametrize("text", ["", "-", "begin", "@noon", "1.5", "--3"])
def test_an_invalid_place_is_refused(text: str) -> None:
    with pytest.raises(OptionInvalid, match="-o "):
        parse_place("-o", text)


def test_the_newest_of_all_queues_are_found_by_their_time() -> None:
    stored = {0: [(10, 4), (40, 5)], 1: [(20, 7), (30, 8)], 2: []}
    ends = {0: 6, 1: 9, 2: 3}
    assert newest_places(stored, ends, 3) == {0: 5, 1: 7, 2: 3}
    assert newest_places(stored, ends, 0) == ends
    assert newest_places(stored, ends, 99) == {0: 4, 1: 7, 2: 3}
