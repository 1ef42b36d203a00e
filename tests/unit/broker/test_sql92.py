"""The rules of SQL92 filters, by example; tests/interop compares them with RocketMQ's by number."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contrail.broker.state.sql92 import compile_sql
from contrail.errors import FilterInvalid

TEXTS = st.text("ab'5.L+-=<>(),# \n/*eE\U0001f600", max_size=30) | st.lists(
    st.sampled_from(
        "a b 5 5.5 'x' NULL TRUE NOT AND OR IN BETWEEN IS CONTAINS = <> > ( ) + - ,".split()  # noqa: SIM905
    ),
    max_size=14,
).map(" ".join)


def answer(text: str, **properties: str) -> object:
    """TRUE, FALSE or None; a failed evaluation is named "error"."""
    given_answer = compile_sql(text).evaluate(properties)
    return "error" if isinstance(given_answer, Exception) else given_answer


def remark(text: str) -> str:
    with pytest.raises(FilterInvalid) as refusal:
        compile_sql(text)
    return str(refusal.value)


@pytest.mark.parametrize(
    ("text", "left_missing", "right_missing", "both_missing"),
    [
        ("a = b", None, False, True),
        ("a <> b", None, True, False),
        ("a > b", None, None, None),
        ("a <= b", None, None, None),
        ("a IS NULL", True, False, True),
        ("a IS NOT NULL", False, True, False),
        ("a BETWEEN b AND 9", None, None, None),
        ("a IN ('1')", None, True, None),
        ("a NOT IN ('1')", None, False, None),
        ("a CONTAINS '1'", False, True, False),
        ("a NOT CONTAINS '1'", False, False, False),
        ("-a > 1", None, None, None),
    ],
)
def test_a_missing_property_is_unknown_false_or_true_by_its_place(
    text: str, left_missing: object, right_missing: object, both_missing: object
) -> None:
    assert answer(text, b="1") is left_missing
    assert answer(text, a="1") is right_missing
    assert answer(text) is both_missing


@pytest.mark.proves("broker.pull.sql92-logic")
@pytest.mark.parametrize(
    ("left", "right", "conjunction", "disjunction"),
    [
        ("TRUE", "TRUE", True, True),
        ("TRUE", "FALSE", False, True),
        ("TRUE", "NULL", None, True),
        ("FALSE", "FALSE", False, False),
        ("FALSE", "NULL", False, None),
        ("NULL", "NULL", None, None),
    ],
)
def test_logic_has_three_values(
    left: str, right: str, conjunction: object, disjunction: object
) -> None:
    for first, second in ((left, right), (right, left)):
        assert answer(f"{first} AND {second}") is conjunction
        assert answer(f"{first} OR {second}") is disjunction


@pytest.mark.proves("broker.pull.sql92-logic")
def test_not_unknown_is_unknown() -> None:
    assert answer("NOT NULL") is None


def test_only_true_passes() -> None:
    compiled = compile_sql("a > 5")
    assert compiled.matches({"a": "6"})
    assert not compiled.matches({"a": "5"})
    assert not compiled.matches({})
    assert not compiled.matches({"a": "six"})


@pytest.mark.proves("broker.pull.sql92-coercions")
def test_a_property_is_read_as_the_type_of_the_number_beside_it() -> None:
    assert answer("a > 5", a="7.5") == "error"
    assert answer("a > 5.0", a="7.5") is True
    assert answer("a > 5", a="2147483648") == "error"
    assert answer("a > 2147483648", a="2147483649") is True
    assert answer("a < 9223372036854775807", a="9223372036854775808") == "error"


@pytest.mark.parametrize("text", ["5", "+5", "005", "\uff15", "0" * 5000 + "5"])
def test_an_integer_may_have_a_plus_zeros_and_digits_of_any_script(text: str) -> None:
    assert answer("a = 5", a=text) is True


@pytest.mark.parametrize("text", ["", " 5", "5 ", "5L", "5.0", "5_0", "0x5", "+", "\U0001d7d3"])
def test_an_integer_has_nothing_else(text: str) -> None:
    assert answer("a = 5", a=text) == "error"


@pytest.mark.parametrize("text", ["8", " 8.0\t", "8d", "8F", "8.", "+.8e1", "0x1p3", "0X.8P4f"])
def test_a_double_may_have_blanks_a_suffix_and_hexadecimal_digits(text: str) -> None:
    assert answer("a = 8.0", a=text) is True


@pytest.mark.parametrize("text", ["", ".", "8_0", "nan", "inf", "infinity", "0x8", "8dd", "\uff18"])
def test_a_double_has_nothing_else(text: str) -> None:
    assert answer("a = 8.0", a=text) == "error"


def test_doubles_are_ordered_with_nan_last_and_minus_zero_before_zero() -> None:
    assert answer("a > b", a="NaN", b="Infinity") is True
    assert answer("a >= b", a="NaN", b="NaN") is True
    assert answer("a < b", a="-0.0", b="0.0") is True
    assert answer("a > 1e300", a="1e400") is True


def test_two_properties_are_equal_as_strings_and_ordered_as_doubles() -> None:
    assert answer("a = b", a="5", b="5.0") is False
    assert answer("a >= b", a="5", b="5.0") is True
    assert answer("a < b", a="x", b="y") == "error"


def test_true_on_the_right_reads_the_property_and_on_the_left_fails() -> None:
    assert answer("a = TRUE", a="tRuE") is True
    assert answer("a = FALSE", a="anything") is True
    assert answer("TRUE = a", a="true") == "error"


def test_a_bare_property_is_never_true() -> None:
    assert answer("a", a="true") is False
    assert answer("a") is None
    assert answer("NOT a", a="true") is True


def test_not_binds_tighter_than_a_comparison() -> None:
    # (NOT a) is a boolean, and a boolean is never equal to a number.
    assert answer("NOT a = 1", a="1") is False
    assert answer("NOT (a = 1)", a="2") is True


def test_numbers_of_different_types_are_compared_by_value() -> None:
    assert answer("5 = 5.0") is True
    assert answer("2147483648 > 5") is True
    assert answer("9007199254740993 = 9007199254740992.0") is True
    assert answer("-5 < 5L") is True


def test_an_empty_search_string_is_found_nowhere() -> None:
    for word in ("CONTAINS", "STARTSWITH", "ENDSWITH"):
        assert answer(f"a {word} ''", a="x") is False
        assert answer(f"a NOT {word} ''", a="x") is False


def test_strings_are_searched_by_utf_16_units() -> None:
    assert answer("a CONTAINS '\U0001f600'", a="x\U0001f600y") is True
    assert answer("a ENDSWITH '\ude00'", a="x\U0001f600") is True


def test_a_quote_is_doubled_in_a_string() -> None:
    assert answer("a = 'it''s'", a="it's") is True


def test_keywords_have_any_case_and_names_their_own() -> None:
    assert answer("a is Not nuLL aNd A iS NULL", a="1") is True


def test_comments_are_blanks_but_a_line_comment_needs_its_line_end() -> None:
    assert answer("a /* > 9 */ = -- the rest\n 1", a="1") is True
    # Two minus signs and a property: twice the negation of a string is unknown.
    assert answer("a <> --b", a="1", b="1") is True


def test_text_behind_a_complete_expression_is_not_looked_at() -> None:
    assert answer("a = '1' whatever # ' (", a="1") is True


def test_but_the_first_token_behind_it_must_be_one() -> None:
    assert remark("a = '1' # x").startswith(
        "org.apache.rocketmq.filter.parser.TokenMgrError: Lexical error at line 1, column 9."
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a = NULL", "java.lang.RuntimeException: 'NULL' cannot be compared."),
        ("TRUE = 5", "java.lang.RuntimeException: 'TRUE' cannot be compared with '5'"),
        ("a > 'x'", "java.lang.RuntimeException: Value ''x'' cannot be compared."),
        ("(a = 1) < 5", "java.lang.RuntimeException: Value '(a == 1)' cannot be compared."),
        (
            "a BETWEEN 5 AND 1",
            "java.lang.RuntimeException: Illegal values of between, left value(5) must less than "
            "or equal to right value(1)",
        ),
        (
            "5 IN ('x')",
            "java.lang.RuntimeException: Expected a property for In expression, got: 5",
        ),
        (
            "5.50",
            "org.apache.rocketmq.filter.parser.ParseException: "
            "Expression will not result in a boolean value: 5.5",
        ),
        ("a > 0.0", "java.lang.RuntimeException: 0.0 is less than 4.9E-324"),
        (
            "a > 9223372036854775808",
            'java.lang.NumberFormatException: For input string: "9223372036854775808"',
        ),
    ],
)
def test_operands_are_checked_when_the_filter_is_compiled(text: str, expected: str) -> None:
    assert remark(text) == expected


@pytest.mark.proves("broker.pull.sql92-errors")
def test_a_remark_on_syntax_says_where_and_what_could_have_been() -> None:
    assert remark("a IS\n5") == (
        'org.apache.rocketmq.filter.parser.ParseException: Encountered " <DECIMAL_LITERAL> "5 "" '
        'at line 2, column 1.\nWas expecting one of:\n    "NOT" ...\n    "NULL" ...\n    '
    )


@pytest.mark.parametrize(
    "text",
    [
        "(" * 101 + "a = 1" + ")" * 101,
        "NOT " * 300 + "a",
        "a" + " IS NULL" * 300,
        "a BETWEEN (" * 101,
        "a = '" + "x" * 65_536 + "'",
    ],
)
def test_a_filter_beyond_a_limit_is_refused_by_name(text: str) -> None:
    assert "org.apache" not in remark(text)


def test_the_deepest_filter_is_compiled_evaluated_and_printed() -> None:
    chain = "a" + " IS NULL" * 190
    assert "cannot be compared" in remark("a BETWEEN (" * 99 + f"({chain}) > 1")
    assert answer("(" * 100 + chain + ")" * 100) is False
    assert answer("NOT (" * 99 + "a IS NULL" + ")" * 99) is False


def test_a_long_chain_of_or_is_not_deep() -> None:
    text = " OR ".join(f"a = '{number}'" for number in range(1000))
    assert answer(text, a="999") is True


def test_nested_ranges_are_evaluated_once_each() -> None:
    text = "a BETWEEN 1 AND 2"
    for _ in range(60):
        text = f"-({text}) BETWEEN 1 AND 2"
    assert answer(text, a="1") is None
    assert remark(f"({text}) > 1").endswith(
        "'(an expression too long to print)' cannot be compared."
    )


@given(TEXTS)
def test_any_text_is_compiled_or_refused(text: str) -> None:
    try:
        compiled = compile_sql(text)
    except FilterInvalid:
        return
    for properties in ({}, {"a": "5", "b": "x"}, {"a": "NaN", "b": ""}):
        assert compiled.matches(properties) is (compiled.evaluate(properties) is True)


stored_values = st.sampled_from(
    ["", "1", "5", "5.5", "x", "7.5", "TRUE", "1\x01", "größe", "x" * 200]
)


@given(TEXTS, st.dictionaries(st.sampled_from("abc"), stored_values))
def test_a_sieve_decides_by_stored_values_what_the_filter_decides_by_properties(
    text: str, properties: dict[str, str]
) -> None:
    try:
        compiled = compile_sql(text)
    except FilterInvalid:
        return
    assert compiled.sieve is not None
    names, verdicts, _ = compiled.sieve
    key = b"\x02".join(properties.get(name.decode(), "").encode() for name in names)
    # A value stored empty is missing when it is read.
    read = {name: value for name, value in properties.items() if value}
    for _ in range(2):
        assert verdicts[key] is compiled.matches(read)


def test_a_sieve_names_each_property_once_and_forgets_before_it_grows_large() -> None:
    sieve = compile_sql("a > 5 AND (b = 'x' OR a IN ('7') OR $c IS NULL)").sieve
    assert sieve is not None
    assert sieve.names == (b"a", b"b", b"$c")
    for number in range(5000):
        assert sieve.verdicts[b"%d\x02\x02" % number] is (number > 5)
    assert sieve.verdicts[b"7\x02%s\x02z" % (b"y" * 500)] is True
    assert len(sieve.verdicts) <= 1024
    assert max(map(len, sieve.verdicts)) <= 128


def test_a_filter_of_very_many_properties_has_no_sieve() -> None:
    text = " AND ".join(f"p{number} = 1" for number in range(17))
    assert compile_sql(text).sieve is None
    assert compile_sql("1 = 1").sieve is not None
