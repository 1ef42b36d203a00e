"""A condition on a JSON body: ``$.total > 100``, ``$.user.name = "ada"``, ``$.paid``.

One path and, if wanted, one comparison (``=``, ``!=``, ``<``, ``<=``, ``>``, ``>=``, ``~`` for
"contains") with a JSON value. Bodies that are no JSON, or lack the path, do not fit.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

_CONDITION = re.compile(
    r"\s*\$(?P<path>(?:\.[^.\[\]\s=!<>~]+|\[\d+\])*)\s*"
    r"(?:(?P<operator>!=|<=|>=|=|<|>|~)\s*(?P<value>.+?))?\s*",
    re.DOTALL,
)
_STEP = re.compile(r"\.([^.\[\]\s=!<>~]+)|\[(\d+)\]")
_MISSING = object()


class ConditionInvalid(ValueError):
    """A text that is no condition."""


def parse_condition(text: str) -> Callable[[bytes], bool]:
    """Raises ``ConditionInvalid``."""
    match = _CONDITION.fullmatch(text)
    if match is None:
        raise ConditionInvalid(f'{text!r} is no condition: write it as $.total > 100 or $.a = "b"')
    steps = [int(index) if index else name for name, index in _STEP.findall(match["path"])]
    operator = match["operator"]
    if operator is None:
        return lambda body: _at(body, steps) not in (_MISSING, None, False)
    try:
        wanted = json.loads(match["value"])
    except ValueError as error:
        raise ConditionInvalid(f"{match['value']!r} is no JSON value: {error}") from error
    return lambda body: _compares(_at(body, steps), operator, wanted)


def _at(body: bytes, steps: list[str | int]) -> Any:
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return _MISSING
    for step in steps:
        if isinstance(step, int):
            if not isinstance(value, list) or step >= len(value):
                return _MISSING
            value = value[step]
        elif isinstance(value, dict) and step in value:
            value = value[step]
        else:
            return _MISSING
    return value


def _compares(value: Any, operator: str, wanted: Any) -> bool:
    if value is _MISSING:
        return False
    if operator in ("=", "!="):
        # true is no 1 here, whatever Python says.
        is_equal = value == wanted and isinstance(value, bool) == isinstance(wanted, bool)
        return is_equal == (operator == "=")
    if operator == "~":
        return isinstance(value, str | list) and isinstance(wanted, str) and wanted in value
    if not (_is_ordered(value, wanted)):
        return False
    if operator == "<":
        return bool(value < wanted)
    if operator == "<=":
        return bool(value <= wanted)
    return bool(value > wanted) if operator == ">" else bool(value >= wanted)


def _is_ordered(value: Any, wanted: Any) -> bool:
    if isinstance(value, bool) or isinstance(wanted, bool):
        return False
    numbers = isinstance(value, int | float) and isinstance(wanted, int | float)
    return numbers or (isinstance(value, str) and isinstance(wanted, str))
