"""Expressions: the value of each part of a filter for the properties of one message.

The type of everything but a missing property is known when the filter is compiled, so each
expression is one closure made for its operands. A closure returns its value, None for unknown, or
raises :class:`EvaluationFailed` or :class:`NumberInvalid` where RocketMQ's evaluation fails.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import cast

from contrail.broker.state.sql92.java_numbers import (
    DOUBLE_MAX_TEXT,
    DOUBLE_MIN_TEXT,
    INT32_MAX,
    NumberInvalid,
    double_text,
    parse_double,
    parse_int64,
)
from contrail.broker.state.sql92.lexer import utf16_units
from contrail.errors import FilterInvalid
from contrail.kernels.java_hash import java_hash

Properties = Mapping[str, str]
Value = bool | int | float | str | None
Truth = bool | None
Run = Callable[[Properties], Value]
Decide = Callable[[Properties], Truth]

RUNTIME_EXCEPTION = "java.lang.RuntimeException: "
NUMBER_EXCEPTION = "java.lang.NumberFormatException: "
# Evaluation recurses once per level. Chains of AND or OR are one level however long.
DEPTH_MAX = 200
# A remark repeats the refused expression, and BETWEEN repeats its operand, each time twofold.
_PRINTED_WEIGHT_MAX = 262_144
_HASHED_FROM = 5
_SURROGATE = re.compile("[\ud800-\udfff]").search


class EvaluationFailed(ValueError):
    """The operands have types that cannot be compared, with any values."""


class Type(Enum):
    """The type of an expression's value, if it is not unknown."""

    PROPERTY = auto()
    STRING = auto()
    INT32 = auto()
    INT64 = auto()
    DOUBLE = auto()
    BOOLEAN = auto()
    NOTHING = auto()


NUMBERS = (Type.INT32, Type.INT64, Type.DOUBLE)


@dataclass(frozen=True, slots=True)
class Expression:
    """A compiled part of a filter.

    ``is_literal`` is told apart from a known ``value``: ``-5`` has a value but is not checked like
    the literal ``5``. ``name`` is a property's. ``weight`` grows with the printed form.
    """

    type: Type
    run: Run
    print: Callable[[], str]
    depth: int
    weight: int
    value: Value = None
    is_literal: bool = False
    name: str = ""

    def __post_init__(self) -> None:
        if self.depth > DEPTH_MAX:
            raise FilterInvalid(
                f"the expression is a chain of more than {DEPTH_MAX} operators; put it in parts"
            )

    def __str__(self) -> str:
        if self.weight > _PRINTED_WEIGHT_MAX:
            return "(an expression too long to print)"
        return self.print()


def boolean(
    run: Decide, text: Callable[[], str], *operands: Expression, weight: int = 1
) -> Expression:
    """An expression that yields TRUE, FALSE or unknown."""
    depth = 1 + max(operand.depth for operand in operands)
    weight += sum(operand.weight for operand in operands)
    return Expression(Type.BOOLEAN, run, text, depth, weight)


def decide_of(expression: Expression) -> Decide:
    """The closure of a boolean expression, which yields truths only."""
    assert expression.type is Type.BOOLEAN
    return cast(Decide, expression.run)


def property_named(name: str) -> Expression:
    """A message's property: a string, or unknown where it is missing."""
    return Expression(
        Type.PROPERTY,
        lambda properties: properties.get(name),
        lambda: name,
        1,
        len(name),
        name=name,
    )


def string_literal(text: str) -> Expression:
    """A string as written between quotes."""
    quoted = "'" + text.replace("'", "''") + "'"
    return _literal(Type.STRING, text, quoted)


def integer_literal(image: str) -> Expression:
    """An integer: of 32 bits if it fits, else of 64. The suffix ``L`` changes nothing."""
    digits = image.rstrip("lL")
    try:
        value = parse_int64(digits)
    except NumberInvalid as problem:
        raise FilterInvalid(f"{NUMBER_EXCEPTION}{problem}") from problem
    return _literal(Type.INT32 if value <= INT32_MAX else Type.INT64, value, str(value))


def float_literal(image: str) -> Expression:
    """A double. Zero is refused, as everything below the smallest double above it is."""
    value = parse_double(image)
    if value == float("inf"):
        raise FilterInvalid(f"{RUNTIME_EXCEPTION}{image} is greater than {DOUBLE_MAX_TEXT}")
    if value == 0:
        raise FilterInvalid(f"{RUNTIME_EXCEPTION}{image} is less than {DOUBLE_MIN_TEXT}")
    return _literal(Type.DOUBLE, value, double_text(value))


def boolean_literal(value: Truth) -> Expression:
    """``TRUE``, ``FALSE``, or ``NULL``, which is an unknown boolean."""
    return _literal(Type.BOOLEAN, value, {True: "TRUE", False: "FALSE", None: "NULL"}[value])


def negate(operand: Expression) -> Expression:
    """``-operand``: unknown for everything but numbers."""
    depth, weight = operand.depth + 1, operand.weight + 1
    inner = operand.run

    def text() -> str:
        return f"(- {operand.print()})"

    if operand.type in NUMBERS:
        assert isinstance(operand.value, int | float)
        value = -operand.value
        return Expression(operand.type, lambda _: value, text, depth, weight, value)

    def run(properties: Properties) -> None:
        inner(properties)  # An evaluation that fails makes the whole expression fail.

    return Expression(Type.NOTHING, run, text, depth, weight)


def negation(operand: Expression) -> Expression:
    """``NOT operand``."""
    inner = operand.run

    def run(properties: Properties) -> Truth:
        value = inner(properties)
        return None if value is None else not value

    return boolean(run, lambda: f"(NOT {operand.print()})", operand)


def boolean_cast(operand: Expression) -> Expression:
    """A property where a boolean must stand: strings are never true."""
    name = operand.name

    def run(properties: Properties) -> Truth:
        return None if properties.get(name) is None else False

    return boolean(run, lambda: name, operand)


def conjunction(operands: Sequence[Expression]) -> Expression:
    """``AND`` of all: FALSE if one is, else unknown if one is."""
    runs = tuple(operand.run for operand in operands)

    def run(properties: Properties) -> Truth:
        answer: Truth = True
        for decide in runs:
            value = decide(properties)
            if value is None:
                answer = None
            elif not value:
                return False
        return answer

    return boolean(run, lambda: _chain_text(operands, "&&"), *operands)


def disjunction(operands: Sequence[Expression]) -> Expression:
    """``OR`` of all: TRUE if one is, else unknown if one is."""
    runs = tuple(operand.run for operand in operands)

    def run(properties: Properties) -> Truth:
        answer: Truth = False
        for decide in runs:
            value = decide(properties)
            if value is None:
                answer = None
            elif value:
                return True
        return answer

    return boolean(run, lambda: _chain_text(operands, "||"), *operands)


def is_null(operand: Expression) -> Expression:
    """``operand IS NULL``, which is never unknown."""
    inner = operand.run
    return boolean(
        lambda properties: inner(properties) is None,
        lambda: f"({operand.print()} == NULL)",
        operand,
    )


def string_test(
    operand: Expression, test: Callable[[str, str], bool], search: str, *, word: str, negated: bool
) -> Expression:
    """``operand [NOT] word 'search'``: FALSE, negated or not, for a value that is no string."""
    inner = operand.run
    # Java searches UTF-16 units, so half a character can be found: a lone surrogate.
    units = utf16_units if _SURROGATE(search) else str

    def run(properties: Properties) -> Truth:
        value = inner(properties)
        return isinstance(value, str) and test(units(value), search) is not negated

    prefix = "NOT " if negated else ""
    decide: Decide = run if search else lambda _: False
    return boolean(decide, lambda: f"({prefix}{word} {operand.print()})", operand)


def membership(operand: Expression, strings: Sequence[str], *, negated: bool) -> Expression:
    """``operand [NOT] IN (strings)``, for a property only."""
    if operand.type is not Type.PROPERTY:
        raise FilterInvalid(
            f"{RUNTIME_EXCEPTION}Expected a property for In expression, got: {operand}"
        )
    name, members = operand.name, frozenset(strings)

    def run(properties: Properties) -> Truth:
        value = properties.get(name)
        return None if value is None else (value in members) is not negated

    def text() -> str:
        return f"{name} {'NOT IN' if negated else 'IN'} ( {', '.join(_hash_order(strings))} )"

    return boolean(run, text, operand, weight=sum(map(len, strings)) + len(strings))


def _literal(kind: Type, value: Value, text: str) -> Expression:
    return Expression(kind, lambda _: value, lambda: text, 1, len(text), value, is_literal=True)


def _chain_text(operands: Sequence[Expression], symbol: str) -> str:
    first, *others = [operand.print() for operand in operands]
    return "(" * len(others) + first + "".join(f" {symbol} {other})" for other in others)


def _hash_order(strings: Sequence[str]) -> list[str]:
    """The strings as RocketMQ prints them: from five on they come out of a hash table."""
    if len(strings) < _HASHED_FROM:
        return list(strings)
    buckets = 16
    while buckets < max(len(strings) / 0.75 + 1, 16):
        buckets *= 2

    def bucket(text: str) -> int:
        hash_code = java_hash(text.encode("utf-8", "surrogatepass")) & 0xFFFFFFFF
        return (hash_code ^ hash_code >> 16) & (buckets - 1)

    return sorted(dict.fromkeys(strings), key=bucket)
