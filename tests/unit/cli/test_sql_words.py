"""SQL92 expressions that brokers refuse or misread, explained in plain words."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contrail.cli.filters import expression_of
from contrail.cli.sql_words import sql_problem
from contrail.errors import ConfigError

_WORDS = [
    "a",
    "b",
    "=",
    "<>",
    ">",
    "!",
    "AND",
    "OR",
    "NOT",
    "IN",
    "(",
    ")",
    "'x'",
    "3",
    "0.0",
    "IS",
]
_OF_THE_PARSER = re.compile(r"Exception|Error|<[A-Z_]+>|EOF|Encountered|Was expecting|java|\n")


@pytest.mark.proves("cli.small-rules.words-and-exit-codes")
@pytest.mark.parametrize(
    ("expression", "words"),
    [
        ("a >", "ends too soon: a property, a number"),
        ("(a = 1", "a closing parenthesis is missing"),
        ("a = 'x", "no closing quote"),
        ("a != 3", "column 3: '!' means nothing here; write <>"),
        ('x = "eu"', "single quotes"),
        ("a == 3", "column 4: a property, a number"),
        ("a IN (1, 2)", "column 7: a text in single quotes must stand there, not 1"),
        ("a IN ('x' 'y')", "column 11: a comma or a closing parenthesis must stand there, not 'y'"),
        ("a IS 3", "NULL or NOT NULL"),
        ("a = NULL", "IS NULL"),
        ("a > 'x'", "'x' is no number"),
        ("a BETWEEN 3 AND 1", "the lower number comes first"),
        ("3", "3 is no condition"),
        ("1 IN ('a')", "IN needs a property"),
        ("a > 99999999999999999999", "too large"),
        ("a > 0.0", "write 0"),
        ("a LIKE 'x%'", "there is no LIKE"),
        ("a = 1)", "no parenthesis was opened"),
        ("a + 1 > 3", "no arithmetic"),
        ("a = 1 b = 2", "brokers read no further than to 'b = 2'"),
    ],
)
def test_an_error_is_explained_in_plain_words(expression: str, words: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        expression_of(None, expression)
    text = str(refusal.value)
    assert text.startswith(f"--sql {expression!r}: ") and words in text
    assert not _OF_THE_PARSER.search(text.removeprefix(f"--sql {expression!r}: "))


@pytest.mark.parametrize(
    "expression", ["a = 1", "a", "a IN ('x', 'y') -- what\n AND b > 3", "/* c */ NOT (a IS NULL)"]
)
def test_an_expression_that_brokers_read_whole_is_accepted(expression: str) -> None:
    assert sql_problem(expression) is None


@given(st.lists(st.sampled_from(_WORDS), max_size=8).map(" ".join) | st.text(max_size=12))
def test_no_error_has_the_parsers_words(expression: str) -> None:
    problem = sql_problem(expression)
    if problem is not None:
        assert not _OF_THE_PARSER.search(problem.replace(expression, ""))
