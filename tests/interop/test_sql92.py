"""Apache RocketMQ's SQL92 filter and ours are asked the same questions and give the same answers.

Compared for every expression: whether it compiles; if so the answer for each message (TRUE, FALSE,
null or a failed evaluation); if not the remark, exactly, whether lexer, parser or the checks of
operands refuse it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from contrail.broker.state.sql92 import compile_sql
from contrail.errors import FilterInvalid
from tests.interop.peers import JavaPeer, java_peer
from tests.interop.sql_generator import (
    BAD_NUMBERS,
    FLOATS,
    INTEGERS,
    NUMBERS_OF_STRINGS,
    ODD_TOKENS,
    ORDERS,
    STRINGS,
    SqlGenerator,
    quoted,
)

SEED = int(os.environ.get("CONTRAIL_INTEROP_SEED", "20240229"))
EXPRESSION_COUNT = int(os.environ.get("CONTRAIL_SQL92_EXPRESSIONS", "12000"))
MESSAGE_COUNT = 60
MESSAGES_PER_EXPRESSION = 6
RUN_TIMEOUT_S = 600
SHOWN_DIFFERENCES = 12

# Every rule of the grammar, with a blank between any two tokens.
PLAIN = (
    "+ ( a NOT BETWEEN - 1 AND 2 ) OR b IS NOT NULL AND c NOT IN ( 'x' , 'y' ) = "
    "( d CONTAINS 'z' ) <> NOT TRUE"
)


@dataclass(frozen=True, slots=True)
class Question:
    """An expression, and the messages it is asked about, by their places in the list of all."""

    text: str
    messages: tuple[int, ...]


@pytest.fixture(scope="module")
def peer() -> JavaPeer:
    return java_peer("apache-5-filter")


@pytest.mark.proves("broker.pull.sql92-as-apache")
def test_generated_expressions_have_apaches_answers_and_remarks(
    peer: JavaPeer, tmp_path: Path
) -> None:
    generator = SqlGenerator(SEED)
    messages = [generator.message() for _ in range(MESSAGE_COUNT)]
    questions = [
        Question(generator.expression(), tuple(_some_messages(number)))
        for number in range(EXPRESSION_COUNT)
    ]
    refused = _assert_same_answers(peer, tmp_path, messages, questions)
    assert EXPRESSION_COUNT * 0.2 < refused < EXPRESSION_COUNT * 0.8


@pytest.mark.proves("broker.pull.sql92-coercions")
def test_every_text_is_read_as_the_number_that_java_reads(peer: JavaPeer, tmp_path: Path) -> None:
    texts = tuple(dict.fromkeys((*NUMBERS_OF_STRINGS, *STRINGS)))
    messages = [{"a": text, "b": other} for text in texts for other in texts]
    # Pairs with equal parts stand for all where an expression reads only one property.
    single = tuple(range(0, len(messages), len(texts) + 1))
    literals = (*INTEGERS, *FLOATS, "-5", "-5.5", "-2147483648", "TRUE", "FALSE", "''", "'5'")
    questions = [
        Question(text, single)
        for literal in literals
        for symbol in ("=", "<>", *ORDERS)
        for text in (f"a {symbol} {literal}", f"{literal} {symbol} a")
    ]
    questions += [
        Question(f"a {symbol} b", tuple(range(len(messages)))) for symbol in ("=", "<>", *ORDERS)
    ]
    _assert_same_answers(peer, tmp_path, messages, questions)


def test_literals_meet_each_other_as_in_apache(peer: JavaPeer, tmp_path: Path) -> None:
    literals = [*INTEGERS, *FLOATS, *BAD_NUMBERS, "TRUE", "FALSE", "NULL", "'x'", "'5'", "''", "a"]
    literals += ("-5", "-5.5", "- a", "(a = 1)", "-(a = 1)", "-(TRUE = a)", "a IN ('x')", "NOT a")
    shapes = ["{} = {}", "{} <> {}", "{} > {}", "{} <= {}", "a BETWEEN {} AND {}", "{} AND {}"]
    shapes += ("a NOT BETWEEN {} AND {}", "{} BETWEEN a AND {}", "{} OR {}", "-({}) = {}")
    questions = [
        Question(shape.format(left, right), (0, 1, 2))
        for shape in shapes
        for left in literals
        for right in literals
    ]
    messages = [{}, {"a": "5"}, {"a": "x"}]
    _assert_same_answers(peer, tmp_path, messages, questions)


@pytest.mark.proves("broker.pull.sql92-errors")
def test_every_odd_token_in_every_place_has_apaches_remark(peer: JavaPeer, tmp_path: Path) -> None:
    plain = PLAIN.split()
    texts = []
    for place in range(len(plain) + 1):
        for odd in (*ODD_TOKENS, "IN ('x')", "\r\n\t#", "\r\r 'a", "5"):
            texts.append(" ".join([*plain[:place], odd, *plain[place:]]))
            texts.append(" ".join([*plain[:place], odd, *plain[place + 1 :]]))
            texts.append(" ".join([*plain[:place], odd]))
            texts.append("".join([*plain[:place], odd]))
    questions = [Question(text, (0, 1)) for text in dict.fromkeys(texts)]
    messages = [{"a": "1", "b": "2", "c": "x", "d": "z"}, {"a": "3", "c": "q"}]
    _assert_same_answers(peer, tmp_path, messages, questions)


def test_picked_expressions_have_apaches_answers_and_remarks(
    peer: JavaPeer, tmp_path: Path
) -> None:
    many = ", ".join(quoted(f"value-{number}") for number in range(40))
    texts = [
        "",
        " ",
        "\n",
        "a",
        "NOT a",
        "NULL",
        "NULL IS NULL",
        "a = 5 b # c",
        "a = 5 #",
        "a = 5 -- c",
        "a = -- c",
        "a = 5 /* c",
        f"(a IN ({many})) > 5",
        f"-(a NOT IN ({many}))",
        "(a IN ('x', 'x', 'it''s', 'y', 'z', 'x')) > 5",
        "-(a BETWEEN 1 AND 2 AND b OR c)",
        "+" * 50 + "a = 5",
        "+" * 50 + "(",
        "-" * 51 + "5 < 0",
        "NOT " * 30 + "a",
        "+(" * 20 + "a = 5" + ")" * 20,
        "+(" * 20 + "a = )" + ")" * 20,
        "(" * 90 + "a = '5'" + ")" * 90,
        " OR ".join(f"a = '{number}'" for number in range(1000)),
        "a = 'x" + "y" * 5000 + "' AND a CONTAINS '\U0001f600'",
        "a" + " " * 5000 + "= 5 AND #",
        "a IS" + " IS NULL" * 3,
        "a = 5" + "\n" * 10 + "AND\t(\tb\r\n= )",
    ]
    messages = [{}, {"a": "5", "b": "x"}, {"a": "x" + "y" * 5000}, {"a": "it's"}]
    questions = [Question(text, tuple(range(len(messages)))) for text in texts]
    _assert_same_answers(peer, tmp_path, messages, questions)


def _some_messages(number: int) -> Iterator[int]:
    for step in range(MESSAGES_PER_EXPRESSION):
        yield (number * 7 + step * 11) % MESSAGE_COUNT


def _assert_same_answers(
    peer: JavaPeer,
    folder: Path,
    messages: Sequence[dict[str, str]],
    questions: Sequence[Question],
) -> int:
    """Compare all answers and return how many expressions both refused."""
    theirs = _apaches_answers(peer, folder, messages, questions)
    ours = [_our_answer(question, messages) for question in questions]
    different = [
        f"{question.text!r}\n  Apache: {their!r}\n  ours:   {our!r}"
        for question, their, our in zip(questions, theirs, ours, strict=True)
        if their != our
    ]
    refused = sum(answer.startswith("ERROR") for answer in theirs)
    answers = sum(len(question.messages) for question in questions)
    print(
        f"{len(questions)} expressions, {refused} refused, at most {answers} answers, seed {SEED}"
    )
    assert not different, f"{len(different)} differences, seed {SEED}\n" + "\n".join(
        different[:SHOWN_DIFFERENCES]
    )
    return refused


def _apaches_answers(
    peer: JavaPeer,
    folder: Path,
    messages: Sequence[dict[str, str]],
    questions: Sequence[Question],
) -> list[str]:
    properties, expressions, answers = (
        folder / name for name in ("properties.tsv", "expressions.tsv", "answers.tsv")
    )
    lines = ["\t".join(map(_encoded, sum(message.items(), ()))) for message in messages]
    properties.write_text("".join(f"{line}\n" for line in lines), encoding="ascii")
    lines = ["\t".join((_encoded(q.text), *map(str, q.messages))) for q in questions]
    expressions.write_text("".join(f"{line}\n" for line in lines), encoding="ascii")
    arguments = [str(properties), str(expressions), str(answers)]
    peer.run("FilterOracle", arguments, home=folder / "home", timeout_s=RUN_TIMEOUT_S)
    return answers.read_text(encoding="ascii").splitlines()


def _our_answer(question: Question, messages: Sequence[dict[str, str]]) -> str:
    try:
        compiled = compile_sql(question.text)
    except FilterInvalid as refusal:
        return f"ERROR\t{_encoded(str(refusal))}"
    letters = []
    for place in question.messages:
        answer = compiled.evaluate(messages[place])
        assert compiled.matches(messages[place]) is (answer is True)
        letters.append("E" if isinstance(answer, Exception) else str(answer)[0])
    return f"OK\t{''.join(letters)}"


def _encoded(text: str) -> str:
    """``text`` in printable ASCII without tabs, as the oracle reads and writes it."""
    return re.sub(r"[^ -\[\]-~]", _encoded_units, text)


def _encoded_units(found: re.Match[str]) -> str:
    units = found[0].encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[place : place + 4]}" for place in range(0, len(units), 4))
