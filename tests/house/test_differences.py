"""docs/reference/differences.md: every row has an id, and what refers to rows finds them."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from tests.interop.differential.explained import RULES

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "differences.md"
ROW = re.compile(r"^\| `([a-z0-9-]+)` \| (.*) \|$", re.MULTILINE)


def rows() -> list[tuple[str, list[str]]]:
    """The id of each row and its other cells."""
    found = ROW.findall(PAGE.read_text(encoding="utf-8"))
    return [(name, [cell.strip() for cell in cells.split(" | ")]) for name, cells in found]


def test_every_row_has_an_id_of_its_own_and_all_its_cells() -> None:
    counts = Counter(name for name, _ in rows())
    assert len(counts) > 50
    assert [name for name, count in counts.items() if count > 1] == []
    assert [name for name, cells in rows() if len(cells) != 4 or not all(cells)] == []


@pytest.mark.proves("apache.broker.explained")
def test_every_rule_of_the_comparison_has_its_row() -> None:
    names = {name for name, _ in rows()}
    assert sorted({rule.row for rule in RULES} - names) == []
