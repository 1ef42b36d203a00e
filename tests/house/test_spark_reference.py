"""docs/reference/spark.md has every option with its default and every column with its type."""

from __future__ import annotations

from pathlib import Path

import pytest

from contrail.pipeline.columns import DEFAULT_COLUMNS, MESSAGE_COLUMNS
from contrail.pipeline.options import CLUSTER_OPTIONS, SINK_OPTIONS, SOURCE_OPTIONS
from contrail.pipeline.sink_rows import SINK_COLUMNS

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "spark.md"


def rows(heading: str) -> list[list[str]]:
    """The cells of a section's table, without its heading."""
    text = PAGE.read_text(encoding="utf-8")
    section = text.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| `")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


@pytest.mark.proves("spark.source.options")
@pytest.mark.parametrize(
    ("heading", "table"),
    [
        ("Reaching a cluster", CLUSTER_OPTIONS),
        ("Source", SOURCE_OPTIONS),
        ("Sink", SINK_OPTIONS),
    ],
)
def test_every_option_is_there_with_its_default(heading: str, table: dict[str, str]) -> None:
    found = [row[:2] for row in rows(heading)]
    assert found == [[f"`{name}`", f"`{text}`" if text else "none"] for name, text in table.items()]
    assert all(len(row) == 3 and row[2] for row in rows(heading))


def test_every_column_of_the_source_is_there_with_its_type() -> None:
    assert [row[:3] for row in rows("Columns of the source")] == [
        [f"`{name}`", f"`{kind}`", "yes" if name in DEFAULT_COLUMNS else "no"]
        for name, kind in MESSAGE_COLUMNS.items()
    ]


def test_every_column_of_the_sink_is_there_with_its_type() -> None:
    assert [row[:2] for row in rows("Columns of the sink")] == [
        [f"`{name}`", f"`{kind}`"] for name, kind in SINK_COLUMNS.items()
    ]
