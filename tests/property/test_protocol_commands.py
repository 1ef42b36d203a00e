"""Requests and responses over all inputs: encoded and decoded again, in both header forms."""

from __future__ import annotations

import json
import struct
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from contrail.errors import RemoteProtocolError
from contrail.model.fastjson import ObjectKey
from contrail.protocol.command import (
    LANGUAGES,
    ReadyAnswer,
    ReceivedResponse,
    Request,
    Response,
    decode_frame,
    encode_binary_request,
    encode_request,
    encode_response,
)
from contrail.protocol.frames import FrameDecoder
from contrail.protocol.json_style import (
    MessageQueue,
    decode_body,
    decode_message_queue,
    encode_body,
)
from tests.unit.kernels.frame_material import (
    binary_headers,
    bodies,
    frame,
    json_headers,
    mutated,
    opaques,
    quoted,
    requests,
    texts,
)
from tests.unit.kernels.material import i32, i64

# Plain requests: the kernel takes sends apart, and binary headers drop fields without a value.
plain = requests.filter(lambda request: request.code not in (310, 320) and request.code >= 0).map(
    lambda request: request._replace(
        fields={k: v for k, v in request.fields.items() if k and v}, remark=request.remark or None
    )
)


def received(*data: bytes) -> list[object]:
    decoder = FrameDecoder()
    found: list[object] = []
    for piece in data:
        found += decoder.feed(piece)
    assert decoder.failure is None and decoder.pending_bytes == 0
    return found


def without_references(request: Request) -> Request:
    return request._replace(fields={k: v for k, v in request.fields.items() if k != "$ref"})


@pytest.mark.proves("wire.frames.header-forms")
@given(plain.map(without_references))
def test_a_json_request_is_received_as_it_was_sent(request: Request) -> None:
    assert received(encode_request(request)) == [request]


@pytest.mark.proves("wire.frames.header-forms")
@given(plain)
def test_a_binary_request_is_received_as_it_was_sent(request: Request) -> None:
    assert received(encode_binary_request(request)) == [request]


@pytest.mark.proves("wire.frames.header-forms")
@given(
    st.builds(
        Response,
        code=i32,
        remark=st.none() | texts,
        fields=st.none() | st.dictionaries(texts.filter(lambda n: n != "$ref"), texts, max_size=5),
        body=bodies | st.lists(bodies, max_size=3),
    ),
    opaques,
)
def test_a_response_is_received_as_it_was_sent(response: Response, opaque: int) -> None:
    (found,) = received(b"".join(encode_response(response, opaque)))
    body = response.body if isinstance(response.body, bytes) else b"".join(response.body)
    assert found == ReceivedResponse(
        response.code, opaque, response.remark, response.fields or {}, body, 479, "JAVA"
    )


@given(
    st.integers(-(1 << 15), 1 << 15),
    st.none() | st.text(max_size=40) | st.just('"language":"JAVA","opaque":0'),
    st.none() | st.dictionaries(st.text(max_size=8), st.text(max_size=30), max_size=3),
    st.integers(-(1 << 31), (1 << 31) - 1),
)
def test_an_answer_kept_ready_is_the_one_that_is_encoded(
    code: int, remark: str | None, fields: dict[str, str] | None, opaque: int
) -> None:
    response = Response(code, remark, fields)
    assert ReadyAnswer(response).frame(opaque) == b"".join(encode_response(response, opaque))


@pytest.mark.proves("wire.frames.mixed-headers")
@given(st.lists(st.tuples(plain.map(without_references), st.booleans()), max_size=6))
def test_both_header_forms_may_take_turns_on_one_connection(
    sent: list[tuple[Request, bool]],
) -> None:
    data = [
        encode_binary_request(request) if is_binary else encode_request(request)
        for request, is_binary in sent
    ]
    assert received(b"".join(data)) == received(*data) == [request for request, _ in sent]


@pytest.mark.proves("wire.hostile.round-trips")
@given(
    json_headers() | mutated(json_headers()) | binary_headers() | st.binary(max_size=60),
    bodies,
    st.sampled_from([0, 0, 1, 1, 2, 255]),
)
@example(b'{"code":1,"extFields":{"a":{"$ref":"$.extFields"}}}', b"", 0)
def test_any_header_is_decoded_or_refused_with_a_reason(
    header: bytes, body: bytes, header_type: int
) -> None:
    try:
        found = decode_frame(header_type, header, body)
    except RemoteProtocolError as error:
        found = None
        refusal = (error.reason, str(error))
    if found is None:
        assert all(refusal)
        return
    assert found.body == body
    assert all(isinstance(k, str) and isinstance(v, str) for k, v in found.fields.items())
    assert found.language in LANGUAGES


@given(binary_headers() | mutated(binary_headers()))
def test_a_binary_header_never_holds_more_text_than_it_has_bytes(header: bytes) -> None:
    try:
        found = decode_frame(1, header, b"")
    except RemoteProtocolError:
        return
    texts_bytes = sum(len(k) + len(v) for k, v in found.fields.items()) + len(found.remark or "")
    assert texts_bytes <= len(header)


# The dialect.


@pytest.mark.proves("wire.frames.plain-values")
@given(st.dictionaries(st.sampled_from(["topic", "queueId", "a"]), st.booleans() | i64 | texts))
def test_numbers_and_booleans_in_fields_arrive_as_text(fields: dict[str, object]) -> None:
    header = json.dumps({"code": 11, "extFields": fields}, ensure_ascii=False)
    found = decode_frame(0, header.encode("utf-8", "replace"), b"")
    expected = {
        name: value if isinstance(value, str) else json.dumps(value)
        for name, value in fields.items()
    }
    assert found.fields == expected


@pytest.mark.proves("wire.frames.numeric-enums")
@given(st.integers(-3, 20) | st.sampled_from([*LANGUAGES, "KLINGON", "java", ""]))
def test_a_language_is_taken_by_number_or_name(language: int | str) -> None:
    found = decode_frame(0, json.dumps({"code": 1, "language": language}).encode(), b"")
    if isinstance(language, int):
        known = 0 <= language < len(LANGUAGES)
        assert found.language == (LANGUAGES[language] if known else "OTHER")
    else:
        assert found.language == (language if language in LANGUAGES else "OTHER")


@given(st.sampled_from(["code", "flag", "opaque", "version"]), i32)
def test_header_numbers_may_be_text(name: str, value: int) -> None:
    header = f'{{"code":1,{quoted(name)}:{quoted(str(value))}}}'.encode()
    as_number = f'{{"code":1,{quoted(name)}:{value}}}'.encode()
    assert decode_frame(0, header, b"") == decode_frame(0, as_number, b"")


queues = st.builds(MessageQueue, texts, texts, st.integers(0, 2**31 - 1))


@pytest.mark.proves("wire.frames.object-keys")
@given(st.dictionaries(queues, st.integers(0, 2**62), max_size=5), st.booleans())
def test_a_map_by_queue_is_read_back(table: dict[MessageQueue, int], strict: bool) -> None:
    fields = decode_body(encode_body({"offsetTable": table}), "a table").child("offsetTable")
    assert fields is not None
    assert {decode_message_queue(k): n for k, n in fields.as_integers().items()} == table


@pytest.mark.proves("wire.frames.integer-keys")
@given(st.dictionaries(i32, i64, max_size=6), st.booleans())
def test_a_map_by_number_is_read_back_in_both_styles(table: dict[int, int], strict: bool) -> None:
    fields = decode_body(encode_body({"table": table}, strict=strict), "a table")
    assert fields.integers("table") == {str(key): value for key, value in table.items()}


def test_an_object_key_stays_apart_from_a_text_that_looks_like_one() -> None:
    fields = decode_body(b'{{"queueId":1}:5}', "a table").unknown(frozenset())
    assert [type(key) for key in fields] == [ObjectKey]


# Bounds of a header. Each is met from both sides.


def header_of(**fields: str) -> bytes:
    return encode_request(Request(11, 1, fields))[8:]


@pytest.mark.proves("wire.server.answered-bounds")
@pytest.mark.parametrize("is_binary", [False, True], ids=["json", "binary"])
@pytest.mark.parametrize(
    ("sound", "over", "reason"),
    [
        ({f"f{i}": "1" for i in range(256)}, {f"f{i}": "1" for i in range(257)}, "too_many_fields"),
        ({"k" * 256: "1"}, {"k" * 257: "1"}, "field_name_too_long"),
        ({"k": "v" * 65_536}, {"k": "v" * 65_537}, "field_too_long"),
    ],
    ids=["fields", "name", "value"],
)
def test_a_header_at_a_bound_is_taken_and_one_over_it_refused(
    sound: dict[str, str], over: dict[str, str], reason: str, is_binary: bool
) -> None:
    encode = encode_binary_request if is_binary else encode_request
    (found,) = received(encode(Request(11, 1, sound)))
    assert isinstance(found, Request) and found.fields == sound
    decoder = FrameDecoder()
    assert decoder.feed(encode(Request(11, 2, over))) == []
    assert decoder.failure is not None and decoder.failure.reason == reason


def test_a_header_may_have_256_kib_and_no_byte_more() -> None:
    decoder = FrameDecoder()
    sound = b'{"code":11,"remark":"%s"}' % (b"r" * ((256 << 10) - 23))
    assert len(sound) == 256 << 10
    (found,) = decoder.feed(frame(sound))
    assert isinstance(found, Request)
    decoder.feed(frame(sound[:-1] + b" }"))
    assert decoder.failure is not None and decoder.failure.reason == "header_too_long"


@pytest.mark.parametrize("depth", [31, 32])
def test_a_header_nested_deeper_than_32_levels_is_refused(depth: int) -> None:
    header = b'{"code":11,"x":' + b"[" * depth + b"]" * depth + b"}"
    decoder = FrameDecoder()
    found = decoder.feed(frame(header))
    assert (len(found), decoder.failure is None) == ((1, True) if depth < 32 else (0, False))


@pytest.mark.parametrize(
    "inside",
    ["{},", "[],", "1,", "[{}],", '{"a":1},'],
)
def test_a_header_of_many_small_values_is_refused_before_it_is_built(inside: str) -> None:
    count = ((256 << 10) - 40) // len(inside)
    header = '{"code":11,"x":[' + (inside * count)[:-1] + "]}"
    with pytest.raises(RemoteProtocolError, match="commas and brackets"):
        decode_frame(0, header.encode(), b"")


def repeated(levels: int, width: int) -> str:
    """An object whose references repeat each level ``width`` times in the next."""
    rows = ['"r0":[1,1]']
    for level in range(1, levels):
        item = f'{{"$ref":"$.x.r{level - 1}"}}'
        rows.append(f'"r{level}":[{",".join([item] * width)}]')
    return "{" + ",".join(rows) + "}"


@pytest.mark.proves("wire.hostile.memory")
@pytest.mark.parametrize(("levels", "width"), [(30, 2), (200, 1)], ids=["wide", "deep"])
def test_references_cannot_make_a_small_header_large(levels: int, width: int) -> None:
    header = f'{{"code":11,"x":{repeated(levels, width)},"extFields":{{"a":{{"$ref":"$.x"}}}}}}'
    with pytest.raises(RemoteProtocolError, match="references repeat"):
        decode_frame(0, header.encode(), b"")


def test_a_few_references_are_followed() -> None:
    header = f'{{"code":11,"x":{repeated(2, 2)},"extFields":{{"a":{{"$ref":"$.x.r1"}}}}}}'
    assert decode_frame(0, header.encode(), b"").fields == {"a": "[[1,1],[1,1]]"}


def test_a_wrong_remark_length_allocates_nothing() -> None:
    for remark_bytes in (-1, 1 << 20, (1 << 31) - 1):
        header = struct.pack(">hBhiii", 11, 0, 479, 1, 0, remark_bytes) + b"x"
        with pytest.raises(RemoteProtocolError, match="reaches past"):
            decode_frame(1, header, b"")


def test_a_response_keeps_no_fields_apart_from_empty_fields() -> None:
    response = Response(0, None, None)
    without = b"".join(encode_response(response, 1))
    empty = b"".join(encode_response(replace(response, fields={}), 1))
    assert b"extFields" not in without and b'"extFields":{}' in empty
