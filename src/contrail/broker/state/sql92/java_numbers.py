"""Numbers as Java reads, orders and prints them.

A filter compares property strings with literals by Java's parsers, so the texts they accept ("1d",
"0x1p3", "+5", digits of other scripts) and refuse ("1_000", "nan", " 5" as an integer) counts.
"""

from __future__ import annotations

import re
from decimal import Decimal
from math import copysign, inf, isnan, nan

INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1
DOUBLE_MAX_TEXT = "1.7976931348623157E308"
DOUBLE_MIN_TEXT = "4.9E-324"

# Most texts are ASCII digits: these need neither a range check nor a second look.
_PLAIN_INT32 = re.compile(r"[+-]?[0-9]{1,9}").fullmatch
_PLAIN_INT64 = re.compile(r"[+-]?[0-9]{1,18}").fullmatch
_PLAIN_DECIMAL = re.compile(r"[+-]?[0-9]+(?:\.[0-9]+)?").fullmatch
_INTEGER = re.compile(r"[+-]?[0-9]{1,18}").fullmatch
_INTEGER = re.compile(r"([+-]?)(\d+)").fullmatch
_DECIMAL = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?[fFdD]?").fullmatch
_HEXADECIMAL = re.compile(
    r"([+-]?0[xX](?:[0-9a-fA-F]+\.?|[0-9a-fA-F]*\.[0-9a-fA-F]+)[pP])([+-]?[0-9]+)[fFdD]?"
).fullmatch
_NONZERO_DIGIT = re.compile("[1-9a-f]").search
_NAMED = {"NaN": nan, "Infinity": inf}
# String.trim takes away every character up to the space, control characters included.
_TRIMMED = "".join(map(chr, range(0x21)))


class NumberInvalid(ValueError):
    """The text is no number of the wanted type; the message is Java's."""


def parse_int32(text: str) -> int:
    """Read a text as ``Integer.valueOf`` reads it."""
    return int(text) if _PLAIN_INT32(text) else _parse_integer(text, INT32_MAX)


def parse_int64(text: str) -> int:
    """Read a text as ``Long.valueOf`` reads it."""
    return int(text) if _PLAIN_INT64(text) else _parse_integer(text, INT64_MAX)


def parse_double(text: str) -> float:
    """Read a text as ``Double.valueOf`` reads it."""
    if _PLAIN_DECIMAL(text):
        return float(text)
    trimmed = text.strip(_TRIMMED)
    if _DECIMAL(trimmed):
        return float(trimmed.rstrip("fFdD"))
    if (hexadecimal := _HEXADECIMAL(trimmed)) is not None:
        return _hexadecimal(hexadecimal)
    unsigned = trimmed[1:] if trimmed[:1] in ("+", "-") else trimmed
    if (named := _NAMED.get(unsigned)) is not None:
        return -named if trimmed[0] == "-" else named
    raise _not_a_double(trimmed)


def compare_doubles(left: float, right: float) -> int:
    """Order like ``Double.compare``: -0.0 before 0.0, and NaN equal to itself and after all."""
    if left < right:
        return -1
    if left > right:
        return 1
    left_rank, right_rank = _rank(left), _rank(right)
    return (left_rank > right_rank) - (left_rank < right_rank)


def double_text(value: float) -> str:
    """Print like ``Double.toString``, for the finite numbers that literals are."""
    mantissa, exponent = _digits(abs(value))
    sign = "-" if value < 0 else ""
    if -3 <= exponent < 7:
        return sign + _plain(mantissa, exponent)
    return f"{sign}{mantissa[0]}.{mantissa[1:] or '0'}E{exponent}"


def _parse_integer(text: str, value_max: int) -> int:
    found = _INTEGER(text)
    # Java looks at UTF-16 units, so digits outside the basic plane are none to it.
    if found is None or max(text) > "\uffff":
        raise _not_a_number(text)
    digits = "".join(str(int(digit)) for digit in found[2]).lstrip("0")
    if len(digits) > len(str(value_max)):
        raise _not_a_number(text)
    value = int(found[1] + (digits or "0"))
    if not -value_max - 1 <= value <= value_max:
        raise _not_a_number(text)
    return value


def _hexadecimal(found: re.Match[str]) -> float:
    significand, exponent = found[1], found[2]
    negative = significand[0] == "-"
    if not _NONZERO_DIGIT(significand.lower(), significand.lower().index("x") + 1):
        return -0.0 if negative else 0.0
    if len(exponent.lstrip("+-0")) > 10:
        return copysign(0.0 if exponent[0] == "-" else inf, -1.0 if negative else 1.0)
    try:
        return float.fromhex(significand + exponent)
    except OverflowError:
        return -inf if negative else inf


def _not_a_number(text: str) -> NumberInvalid:
    return NumberInvalid(f'For input string: "{text}"')


def _not_a_double(trimmed: str) -> NumberInvalid:
    if not trimmed:
        return NumberInvalid("empty String")
    if re.match(r"[+-]?[0-9]*\.[0-9]*\.", trimmed):
        return NumberInvalid("multiple points")
    return _not_a_number(trimmed)


def _rank(value: float) -> int:
    if isnan(value):
        return 1
    return -1 if value == 0 and copysign(1.0, value) < 0 else 0


def _digits(value: float) -> tuple[str, int]:
    """The shortest digits that name ``value``, and the power of ten of the first."""
    named = Decimal(repr(value)).normalize()
    if len(named.as_tuple().digits) == 1:
        # Java always prints two, and takes the nearest pair: 4.9E-324 where the shortest is 5e-324.
        named = Decimal(f"{value:.1e}").normalize()
    return "".join(map(str, named.as_tuple().digits)), named.adjusted()


def _plain(digits: str, exponent: int) -> str:
    if exponent < 0:
        return "0." + "0" * (-exponent - 1) + digits
    whole = digits[: exponent + 1].ljust(exponent + 1, "0")
    return f"{whole}.{digits[exponent + 1 :] or '0'}"
