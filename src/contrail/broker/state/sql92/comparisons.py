"""Comparisons: which operands may be compared, how they are brought to one type, and how ordered.

A property is a string. Beside a number it is read as a number *of that number's type*, so "7.5" is
an error beside ``5`` and fine beside ``5.0``. Two properties are read as doubles to be ordered and
left alone to be equal.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from contrail.broker.state.sql92.expressions import (
    NUMBER_EXCEPTION,
    NUMBERS,
    RUNTIME_EXCEPTION,
    EvaluationFailed,
    Expression,
    Properties,
    Truth,
    Type,
    Value,
    boolean,
    conjunction,
    disjunction,
)
from contrail.broker.state.sql92.java_numbers import (
    NumberInvalid,
    compare_doubles,
    double_text,
    parse_double,
    parse_int32,
    parse_int64,
)
from contrail.broker.state.sql92.lexer import utf16_units
from contrail.errors import FilterInvalid

# The operands' static types vouch for a comparer's arguments.
Comparer = Callable[[Any, Any], int]

_STRINGS = (Type.PROPERTY, Type.STRING)
_PARSERS: dict[Type, Callable[[str], int | float]] = {
    Type.INT32: parse_int32,
    Type.INT64: parse_int64,
    Type.DOUBLE: parse_double,
}
_ORDERS: dict[str, Callable[[Any, Any], bool]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}
_CAST_FAILED = (
    "class java.lang.Boolean cannot be cast to class java.lang.String (java.lang.Boolean and "
    "java.lang.String are in module java.base of loader 'bootstrap')"
)


def equal(left: Expression, right: Expression) -> Expression:
    """``left = right``: unknown if only the left is missing, FALSE if only the right is."""
    _check_equal_operand(left)
    _check_equal_operand(right)
    literals = left.is_literal and right.is_literal
    if literals and left.type is Type.BOOLEAN and right.type is not Type.BOOLEAN:
        raise _refused(f"'{left}' cannot be compared with '{right}'")
    if left.type is Type.PROPERTY and right.type is Type.STRING:
        run = _equals_string(left.name, right.value)
    elif left.type is Type.PROPERTY and right.type in NUMBERS:
        run = _property_to_number(left.name, operator.eq, right)
    else:
        run = _equals(left, right)
    return boolean(run, lambda: f"({left.print()} == {right.print()})", left, right)


def ordered(left: Expression, symbol: str, right: Expression) -> Expression:
    """``left symbol right`` for one of ``> >= < <=``: unknown if either is missing."""
    _check_ordered_operand(left)
    _check_ordered_operand(right)
    if left.type is Type.PROPERTY and right.type in NUMBERS:
        run = _property_to_number(left.name, _ORDERS[symbol], right)
    else:
        run = _ordered(left, symbol, right)
    return boolean(run, lambda: f"({left.print()} {symbol} {right.print()})", left, right)


def between(value: Expression, low: Expression, high: Expression) -> Expression:
    """``value BETWEEN low AND high``; two literals must be in order."""
    if low.is_literal and high.is_literal:
        _check_bounds(low, high)
    parts = ordered(value, ">=", low), ordered(value, "<=", high)
    return _of_one_value(value, conjunction(parts))


def not_between(value: Expression, low: Expression, high: Expression) -> Expression:
    """``value NOT BETWEEN low AND high``, in any order of the two."""
    parts = ordered(value, "<", low), ordered(value, ">", high)
    return _of_one_value(value, disjunction(parts))


def _of_one_value(value: Expression, whole: Expression) -> Expression:
    """``whole``, but asking a value that is always unknown once: nested, it would be 2ⁿ times."""
    if value.type is not Type.NOTHING:
        return whole
    inner = value.run

    def run(properties: Properties) -> Truth:
        inner(properties)
        return None

    return Expression(Type.BOOLEAN, run, whole.print, whole.depth, whole.weight)


def _equals_string(name: str, wanted: Value) -> Callable[[Properties], Truth]:
    def run(properties: Properties) -> Truth:
        value = properties.get(name)
        return None if value is None else value == wanted

    return run


def _equals(left: Expression, right: Expression) -> Callable[[Properties], Truth]:
    left_run, right_run = left.run, right.run
    compare = _comparer(left.type, right.type)

    def run(properties: Properties) -> Truth:
        left_value, right_value = left_run(properties), right_run(properties)
        if left_value is None:
            return True if right_value is None else None
        if right_value is None:
            return False
        return compare(left_value, right_value) == 0

    return run


def _property_to_number(
    name: str, relation: Callable[[Any, Any], bool], right: Expression
) -> Callable[[Properties], Truth]:
    """The comparison that most filters are made of, without a step that it does not need."""
    limit, parse = right.value, _PARSERS[right.type]

    def run(properties: Properties) -> Truth:
        text = properties.get(name)
        if text is None:
            return None
        number = parse(text)
        # Python agrees with Java but for zeros, which a double literal never is, and for NaN,
        # which is greater than any number.
        return relation(number, limit) if number == number else relation(1, 0)

    return run


def _ordered(left: Expression, symbol: str, right: Expression) -> Callable[[Properties], Truth]:
    left_run, right_run, in_order = left.run, right.run, _ORDERS[symbol]
    compare = _comparer(left.type, right.type)
    if left.type in _STRINGS and right.type in _STRINGS:
        compare = _compare_as_doubles

    def run(properties: Properties) -> Truth:
        left_value = left_run(properties)
        if left_value is None:
            return None
        right_value = right_run(properties)
        return None if right_value is None else in_order(compare(left_value, right_value), 0)

    return run


def _comparer(left: Type, right: Type) -> Comparer:
    """How values of two types are compared; types that never meet count as "less"."""
    if left in _STRINGS:
        return _string_comparer(right)
    if right in _STRINGS:
        return _comparer_to_string(left)
    if Type.DOUBLE in (left, right) and left in NUMBERS and right in NUMBERS:
        return lambda number, other: compare_doubles(float(number), float(other))
    comparable = left is right or (left in NUMBERS and right in NUMBERS)
    return _compare if comparable else _always_less


def _string_comparer(right: Type) -> Comparer:
    if right in _STRINGS:
        return _compare_strings
    if right is Type.BOOLEAN:
        return lambda text, truth: _compare(text.lower() == "true", truth)
    if (parse := _PARSERS.get(right)) is None:
        return _always_less
    order = compare_doubles if right is Type.DOUBLE else _compare
    return lambda text, number: order(parse(text), number)


def _comparer_to_string(left: Type) -> Comparer:
    if left is Type.BOOLEAN:
        return _cannot_be_cast
    if (parse := _PARSERS.get(left)) is None:
        return _always_less
    order = compare_doubles if left is Type.DOUBLE else _compare
    return lambda number, text: order(number, parse(text))


def _compare(left: Any, right: Any) -> int:
    return int(left > right) - int(left < right)


def _compare_strings(left: str, right: str) -> int:
    return 0 if left == right else _compare(utf16_units(left), utf16_units(right))


def _compare_as_doubles(left: str, right: str) -> int:
    return compare_doubles(parse_double(left), parse_double(right))


def _always_less(_left: Value, _right: Value) -> int:
    return -1


def _cannot_be_cast(left: Value, right: Value) -> int:
    # RocketMQ casts the wrong operand here: TRUE = a fails for every property a.
    raise EvaluationFailed(_CAST_FAILED)


def _check_equal_operand(operand: Expression) -> None:
    if operand.is_literal and operand.value is None:
        raise _refused(f"'{operand}' cannot be compared.")


def _check_ordered_operand(operand: Expression) -> None:
    literal_of_no_number = operand.is_literal and operand.type not in NUMBERS
    if literal_of_no_number or operand.type is Type.BOOLEAN:
        raise _refused(f"Value '{operand}' cannot be compared.")


def _check_bounds(low: Expression, high: Expression) -> None:
    if low.value is None or high.value is None:
        raise _refused("Illegal values of between, values can not be null!")
    try:
        order = _comparer(high.type, low.type)(high.value, low.value)
    except NumberInvalid as problem:
        raise _refused(f"{NUMBER_EXCEPTION}{problem}") from problem
    except EvaluationFailed as problem:
        raise FilterInvalid(f"java.lang.ClassCastException: {problem}") from problem
    if order < 0:
        raise _refused(
            f"Illegal values of between, left value({_value_text(low.value)}) must less than or "
            f"equal to right value({_value_text(high.value)})"
        )


def _value_text(value: Value) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return double_text(value) if isinstance(value, float) else str(value)


def _refused(remark: str) -> FilterInvalid:
    return FilterInvalid(RUNTIME_EXCEPTION + remark)
