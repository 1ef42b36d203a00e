"""The rows of a list that are shown: those that fit a text, in an order, from one on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Generic, TypeVar

R = TypeVar("R")

ROWS_MAX = 1_000
ROWS_DEFAULT = 100


class SortUnknown(ValueError):
    """There is no such field to sort by."""


@dataclass(frozen=True, slots=True)
class Visible(Generic[R]):
    """Some rows, and how many fit in all."""

    rows: list[R]
    total: int


def visible_rows(
    rows: Sequence[R],
    *,
    named: str,
    fields: Sequence[str],
    q: str = "",
    sort: str = "",
    first: int = 0,
    limit: int = ROWS_DEFAULT,
) -> Visible[R]:
    """``named`` is the field that ``q`` is looked for in; a ``sort`` of ``-field`` goes downwards.

    Rows without a value come last in either direction, rows of one value by their name.

    Raises:
        SortUnknown: ``sort`` is none of the ``fields``.
    """
    name = attrgetter(named)
    wanted = q.casefold()
    found = [row for row in rows if wanted in name(row).casefold()] if wanted else list(rows)
    total = len(found)
    field = sort.removeprefix("-")
    if field:
        if field not in fields:
            raise SortUnknown(f"sort={sort!r}: there are {', '.join(fields)}")
        found = _sorted(sorted(found, key=name), attrgetter(field), sort.startswith("-"))
    return Visible(found[first : first + limit], total)


def _sorted(rows: list[R], value: Any, downwards: bool) -> list[R]:
    known = [row for row in rows if value(row) is not None]
    unknown = [row for row in rows if value(row) is None]
    return sorted(known, key=lambda row: _key(value(row)), reverse=downwards) + unknown


def _key(value: Any) -> Any:
    # Lists, such as the topics of a group, are in the order of their length.
    return (len(value), value) if isinstance(value, list) else value
