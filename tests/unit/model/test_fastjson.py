"""RocketMQ's JSON dialect."""

from __future__ import annotations

import pytest

from contrail.model.fastjson import (
    DEPTH_MAX,
    DIALECT_CHARS_MAX,
    FastJsonError,
    Fields,
    JsonValue,
    ObjectKey,
    dumps,
    loads,
)


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        ('{"a":1}', {"a": 1}),
        ("{0:12,1:7\n\t}", {"0": 12, "1": 7}),
        ("{ -1 : 2 , 1.5 : 3}", {"-1": 2, "1.5": 3}),
        ("{name:'it\\'s', other_2 : \"x\"}", {"name": "it's", "other_2": "x"}),
        ("{,a:1,,b:[,1,,2,],}", {"a": 1, "b": [1, 2]}),
        ("{a:{},b:[],c:null,d:true,e:false}", {"a": {}, "b": [], "c": None, "d": True, "e": False}),
        ("[0,-7,1.5,-2e3,007]", [0, -7, 1.5, -2000.0, 7]),
        (r"{a:'\u0041\x42\/\b\f\n\r\t\v\0\7\\'}", {"a": "AB/\b\f\n\r\t\v\x00\x07\\"}),
        (r"{a:'\ud83d\ude00'}", {"a": "\U0001f600"}),
        ('{"a":"line\nbreak"}', {"a": "line\nbreak"}),
        ('{"a":1,"a":2}', {"a": 2}),
        ('\ufeff{"a":1}', {"a": 1}),
        ("12", 12),
    ],
)
def test_the_reader_accepts_what_fastjson_writes(document: str, expected: JsonValue) -> None:
    assert loads(document.encode()) == expected


@pytest.mark.parametrize(
    "document",
    [
        "",
        " ",
        "{",
        "[",
        '{"a"',
        '{"a":',
        '{"a":1',
        '{"a":"b',
        '{"a":"b\\',
        "{'a",
        "{a}",
        "{a:}",
        "{:1}",
        "[1 2]",
        "{a:1 b:2}",
        "{a:1]",
        "[1}",
        "{}{}",
        "{} x",
        "{name:'it''s':1}",
        "-",
        "1.",
        "+1",
        "NaN",
        "[Infinity]",
        "1e999",
        "9" * 5000,
        "[word]",
        "'\\q'",
        "'\\u12'",
        "{a:1}\x00",
        "\x00" * 100,
        "[" * 100_000,
        '{"a":' * 100_000,
        "{{" * 50_000,
    ],
    ids=lambda document: repr(document[:12]),
)
def test_a_malformed_document_raises_the_one_error(document: str) -> None:
    with pytest.raises(FastJsonError):
        loads(document)


def test_bytes_that_are_no_utf8_are_refused_with_their_position() -> None:
    with pytest.raises(FastJsonError, match="byte 2 "):
        loads(b'{"\xff":1}')


def test_a_raw_object_key_becomes_its_text_and_is_written_back_raw() -> None:
    document = b'{{"brokerName":"b","queueId":0}:{"lock":true}}'
    table = loads(document)
    assert table == {'{"brokerName":"b","queueId":0}': {"lock": True}}
    assert isinstance(table, dict)
    assert [type(key) for key in table] == [ObjectKey]
    assert dumps(table, pretty=False) == document
    assert loads(rb'{"{\"brokerName\":\"b\",\"queueId\":0}":{"lock":true}}') == table


@pytest.mark.parametrize("opening", ["[", "{a:", '{"a":'])
def test_nesting_is_bounded_the_same_way_for_both_parsers(opening: str) -> None:
    closing = "]" if opening == "[" else "}"
    inner = "[]"
    most = DEPTH_MAX - 1
    assert loads(opening * most + inner + closing * most)
    with pytest.raises(FastJsonError, match="deeper than 32"):
        loads(opening * DEPTH_MAX + inner + closing * DEPTH_MAX)


def test_a_document_beyond_the_size_bound_is_not_parsed() -> None:
    with pytest.raises(FastJsonError, match="has 10 bytes, at most 9"):
        loads(b"[        ]", bytes_max=9)


def test_a_reference_gives_the_object_it_points_to() -> None:
    document = r'{"t":{"my-topic.a":{"at":{"x":"y"}},"b":{"at":{"$ref":"$.t.my\\-topic\\.a.at"}}}}'
    assert loads(document) == {"t": {"my-topic.a": {"at": {"x": "y"}}, "b": {"at": {"x": "y"}}}}
    assert loads('[[1],{"$ref":"$[0]"}]') == [[1], [1]]
    assert loads('{0:{a:1},1:{"$ref":"$.0"}}') == {"0": {"a": 1}, "1": {"a": 1}}


@pytest.mark.parametrize(
    "path", ["$", "@", "..", "$.nothing", "$.a.b", "$.later", "$[0]", "", "$.b"]
)
def test_a_reference_to_nothing_or_to_itself_is_refused(path: str) -> None:
    with pytest.raises(FastJsonError, match="reference"):
        loads(f'{{"b":null,"a":{{"b":{{"$ref":"{path}"}}}},"later":{{}}}}')


def test_the_writer_sorts_quotes_indents_and_omits_nulls() -> None:
    value = {"b": {10: 1, 9: 2}, "a": [1, {"x": "é\n"}], "gone": None, "e": {}, "l": []}
    assert (
        dumps(value)
        == (
            '{\n\t"a":[\n\t\t1,\n\t\t{\n\t\t\t"x":"é\\n"\n\t\t}\n\t],\n'
            '\t"b":{\n\t\t"9":2,\n\t\t"10":1\n\t},\n\t"e":{},\n\t"l":[]\n}'
        ).encode()
    )
    compact = '{"a":[1,{"x":"é\\n"}],"b":{"9":2,"10":1},"e":{},"l":[]}'
    assert dumps(value, pretty=False).decode() == compact


def test_an_unpaired_surrogate_is_written_as_its_escape() -> None:
    assert dumps(["\ud800"], pretty=False) == rb'["\ud800"]'
    assert loads(dumps(["\ud800"])) == ["\ud800"]


@pytest.mark.parametrize(
    "value",
    [object(), {1.5: 2}, {True: 1}, [float("nan")], [float("inf")], [10**5000], {"a": {1, 2}}],
)
def test_a_value_without_json_form_raises_the_one_error(value: object) -> None:
    with pytest.raises(FastJsonError):
        dumps(value)


def test_a_value_that_contains_itself_is_refused() -> None:
    value: list[object] = []
    value.append(value)
    with pytest.raises(FastJsonError, match="deeper"):
        dumps(value)


FIELDS = Fields(
    {"n": 5, "s": "7", "t": "x", "b": "TRUE", "o": {"k": 1, "z": None}, "l": [1], "z": None},
    "doc",
)


def test_fields_are_read_with_the_tolerance_of_fastjson() -> None:
    assert (FIELDS.integer("n", 0), FIELDS.integer("s", 0), FIELDS.integer("z", 9)) == (5, 7, 9)
    assert FIELDS.boolean("b", False) is True
    assert FIELDS.boolean("missing", True) is True
    assert FIELDS.text("t", "") == "x"
    assert FIELDS.texts("o") == {"k": "1"}
    assert FIELDS.integers("o") == {"k": 1}
    assert FIELDS.array("l") == [1]
    assert FIELDS.array("missing") == []
    assert FIELDS.child("z") is None
    assert FIELDS.children("missing") == {}
    assert FIELDS.unknown(frozenset("nstbolz")) == {}
    assert FIELDS.unknown(frozenset("nstblz")) == {"o": {"k": 1, "z": None}}


def test_a_field_of_another_type_is_named() -> None:
    with pytest.raises(FastJsonError, match=r"doc\.t must be a 64-bit whole number, it is 'x'"):
        FIELDS.integer("t", 0)
    with pytest.raises(FastJsonError, match=r"doc\.t must be true or false"):
        FIELDS.boolean("t", False)
    with pytest.raises(FastJsonError, match=r"doc\.n must be text"):
        FIELDS.text("n", "")
    with pytest.raises(FastJsonError, match=r"doc\.n must be an array"):
        FIELDS.array("n")
    with pytest.raises(FastJsonError, match=r"doc\.n must be an object"):
        FIELDS.child("n")


@pytest.mark.parametrize("value", [2**63, -(2**63) - 1, 1.0, True, "1.5", "", [], {}])
def test_a_number_that_is_no_64_bit_integer_is_refused(value: JsonValue) -> None:
    with pytest.raises(FastJsonError, match="64-bit"):
        Fields({"n": value}, "doc").integer("n", 0)


@pytest.mark.proves("broker.slices.sliced")
def test_a_peers_document_is_standard_json_unless_it_is_short() -> None:
    """The tolerant parser takes thirty times as long, and other requests wait meanwhile."""
    for many in ("'x'," * 3000, "{1:2}," * 1000):
        document = f"[{many}]"
        assert len(loads(document)) >= 1000  # type: ignore[arg-type]
        with pytest.raises(FastJsonError, match=r"not standard JSON .* 2000 commas and brackets"):
            loads(document, dialect_is_short=True)
    long = "['" + r"\x41" * DIALECT_CHARS_MAX + "']"
    assert loads(long) == ["A" * DIALECT_CHARS_MAX]
    with pytest.raises(FastJsonError, match=f"at most {DIALECT_CHARS_MAX} characters"):
        loads(long, dialect_is_short=True)
    assert loads("{1:'x',}", dialect_is_short=True) == {"1": "x"}
    assert loads("[" + "1," * 9999 + "1]", dialect_is_short=True) == [1] * 10_000


def test_a_rate_may_have_decimals_and_is_0_when_absent() -> None:
    fields = Fields({"tps": 1.5, "whole": 2, "odd": "3", "truth": True, "none": None}, "stats")
    assert [fields.rate(name) for name in ("tps", "whole", "none", "gone")] == [1.5, 2.0, 0.0, 0.0]
    for name in ("odd", "truth"):
        with pytest.raises(FastJsonError, match=rf"stats\.{name} must be a number"):
            fields.rate(name)
