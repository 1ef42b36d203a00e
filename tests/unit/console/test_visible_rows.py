"""Lists: what is looked for, in which order, from where on."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from contrail.console.state.visible_rows import SortUnknown, Visible, visible_rows


@dataclass
class Row:
    name: str
    lag: int | None = 0
    topics: list[str] = field(default_factory=list)


ROWS = [Row("b", 5), Row("A", None, ["x"]), Row("c", 9, ["a", "b"]), Row("bb", 5)]


def names(**wanted: object) -> list[str]:
    found: Visible[Row] = visible_rows(
        ROWS,
        named="name",
        fields=("name", "lag", "topics"),
        **wanted,  # type: ignore[arg-type]
    )
    return [row.name for row in found.rows]


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ({}, ["b", "A", "c", "bb"]),
        ({"q": "B"}, ["b", "bb"]),
        ({"sort": "lag"}, ["b", "bb", "c", "A"]),
        ({"sort": "-lag"}, ["c", "b", "bb", "A"]),
        ({"sort": "topics"}, ["b", "bb", "A", "c"]),
        ({"first": 1, "limit": 2}, ["A", "c"]),
        ({"first": 9}, []),
    ],
)
def test_rows_are_found_sorted_and_cut(wanted: dict[str, object], expected: list[str]) -> None:
    assert names(**wanted) == expected


def test_the_total_counts_the_rows_that_fit() -> None:
    found = visible_rows(ROWS, named="name", fields=("name",), q="b", limit=1)
    assert (len(found.rows), found.total) == (1, 2)


def test_an_unknown_field_is_refused() -> None:
    with pytest.raises(SortUnknown, match="there are name, lag"):
        visible_rows(ROWS, named="name", fields=("name", "lag"), sort="-colour")
