"""The differences we stand by: each rule names its row in ``docs/reference/differences.md``."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.interop.differential.requests import Request

ABSENT = "<absent>"


def _always(request: Request, theirs: Any, ours: Any) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class Rule:
    """Explains differences of some codes at some paths, where a condition holds."""

    row: str
    codes: frozenset[int]
    path: str
    holds: Callable[[Request, Any, Any], bool] = _always

    def explains(self, request: Request, path: str, theirs: Any, ours: Any) -> bool:
        return (
            (not self.codes or request.code in self.codes)
            and re.fullmatch(self.path, path) is not None
            and self.holds(request, theirs, ours)
        )


def _refused_by_us_alone(request: Request, theirs: Any, ours: Any) -> bool:
    """A required field is missing, or a value is not of its type: ours says so."""
    return ours == 1 and theirs != 1 and _is_malformed(request)


def _is_malformed(request: Request) -> bool:
    return request.what.startswith(("without ", "body ", "no fields")) or "=" in request.what


def _one_is_absent(request: Request, theirs: Any, ours: Any) -> bool:
    return ABSENT in (theirs, ours)


def _closed_list(request: Request, theirs: Any, ours: Any) -> bool:
    return theirs == 0 and ours in (1, 16)


def _about_wrong_requests(request: Request, theirs: Any, ours: Any) -> bool:
    return "wrong" in f"{theirs} {ours}".lower()


def _their_exception(request: Request, theirs: Any, ours: Any) -> bool:
    return theirs == 1 and ours in (0, 3, 22)


def _invalid_parameter(request: Request, theirs: Any, ours: Any) -> bool:
    return ours == 29 and "=" in request.what


def _broken_sql(request: Request, theirs: Any, ours: Any) -> bool:
    return ours == 23 and (request.fields or {}).get("expressionType") == "SQL92"


def _rocksdb_topic(request: Request, theirs: Any, ours: Any) -> bool:
    return "RMQ_SYS_ROCKSDB" in str(theirs) and ours == ABSENT


# Apache ends these in an exception where a field or list it needs is not there.
_FAILING_THERE = frozenset({12, 18, 21, 42, 201, 225, 345, 905})

RULES: tuple[Rule, ...] = (
    Rule("malformed-requests", frozenset(), "code", _refused_by_us_alone),
    Rule("malformed-requests", frozenset(), r".*[Ww]rong.*|.*WRONG.*"),
    Rule("malformed-requests", frozenset(), r".*\[\]", _about_wrong_requests),
    Rule(
        "their-exceptions",
        frozenset({12, 18, 21, 42, 201, 225, 345, 905}),
        "code",
        _their_exception,
    ),
    Rule("topic-settings-checked", frozenset({17}), "code", _invalid_parameter),
    Rule("broken-sql-in-a-pull", frozenset({11, 361}), "code", _broken_sql),
    Rule("settings-listed", frozenset({26, 319}), r"body\.\w+", _one_is_absent),
    Rule("settings-changed", frozenset({25, 318}), "code", _closed_list),
    Rule("system-topics", frozenset({21, 201}), r".*RMQ_SYS_ROCKSDB.*"),
    Rule("system-topics", frozenset({206, 224, 305}), r".*\[\]", _rocksdb_topic),
    Rule("system-topics", frozenset({21}), r"fields\.totalTopicNum"),
)
