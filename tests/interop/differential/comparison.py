"""Two normalised answers, compared: where they differ, and which differences are explained."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from tests.interop.differential.explained import ABSENT, RULES
from tests.interop.differential.normal import Normal, canonical
from tests.interop.differential.requests import Request

SUCCESS = 0


@dataclass(frozen=True, slots=True)
class Difference:
    """One place where the answers to a request differ; ``row`` names the documented difference."""

    request: Request
    path: str
    theirs: Any
    ours: Any
    row: str | None

    def __str__(self) -> str:
        theirs, ours = (canonical(value)[:400] for value in (self.theirs, self.ours))
        return f"{self.request}\n  at {self.path}\n    theirs {theirs}\n    ours   {ours}"


def differences(request: Request, theirs: Normal, ours: Normal) -> list[Difference]:
    """Every place where the two differ; the rule of a refusal also covers all missing fields."""
    found = [
        Difference(request, path, left, right, _explanation(request, path, left, right))
        for path, left, right in _compare("", theirs, ours)
    ]
    refusal = next((one.row for one in found if one.path == "code" and one.row is not None), None)
    if refusal is None or not (_refuses(theirs) or _refuses(ours)):
        return found
    return [replace(one, row=refusal) for one in found]


def _refuses(answer: Normal) -> bool:
    """One answer is missing: every field of the other differs."""
    return answer.get("code") != SUCCESS and answer.get("body") is None


def _explanation(request: Request, path: str, theirs: Any, ours: Any) -> str | None:
    for rule in RULES:
        if rule.explains(request, path, theirs, ours):
            return rule.row
    return None


def _compare(path: str, theirs: Any, ours: Any) -> Iterator[tuple[str, Any, Any]]:
    if theirs == ours:
        return
    if isinstance(theirs, dict) and isinstance(ours, dict):
        for name in sorted(theirs.keys() | ours.keys()):
            inner = f"{path}.{name}" if path else name
            yield from _compare(inner, theirs.get(name, ABSENT), ours.get(name, ABSENT))
    elif isinstance(theirs, list) and isinstance(ours, list):
        yield from _compare_lists(path, theirs, ours)
    else:
        yield path, theirs, ours


def _compare_lists(path: str, theirs: list[Any], ours: list[Any]) -> Iterator[tuple[str, Any, Any]]:
    """Elements of one list alone; the order was settled when the answers were normalised."""
    left, right = Counter(map(canonical, theirs)), Counter(map(canonical, ours))
    for one in (left - right).elements():
        yield f"{path}[]", one, ABSENT
    for one in (right - left).elements():
        yield f"{path}[]", ABSENT, one
