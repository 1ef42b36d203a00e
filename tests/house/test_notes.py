"""docs/reference/notes.md: every row is shown by a test, a setting or a listed difference."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from scripts.proofs import complaint_about

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "docs" / "reference"
PAGE = REFERENCE / "notes.md"
ASKED_ABOUT = (
    "dead-letter", "sendfile", "flushed asynchronously", "three wheels", "after a minute", "75 %",
    "one topic", "machine room", "magic number",
)  # fmt: skip


def rows() -> list[list[str]]:
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    cells = [
        [cell.strip() for cell in line.strip("|").split(" | ")]
        for line in lines
        if line[:2] == "| "
    ]
    return [row for row in cells if row[0] not in ("the notes", "---")]


def known() -> set[str]:
    """The ids of differences and the names of settings."""
    differences = (REFERENCE / "differences.md").read_text(encoding="utf-8")
    settings = (REFERENCE / "settings.md").read_text(encoding="utf-8")
    ids = set(re.findall(r"^\| `([a-z0-9-]+)` \|", differences, re.MULTILINE))
    return ids | set(re.findall(r"^\| `\w+` \| `(\w+)` \|", settings, re.MULTILINE))


def is_there(proof: str) -> bool:
    return complaint_about(proof) == "" if "::" in proof else proof in known()


@pytest.mark.proves("apache.notes.page")
@pytest.mark.parametrize("row", rows(), ids=lambda row: row[0][:40])
def test_a_row_is_whole_and_shown_by_something_that_is_there(row: list[str]) -> None:
    assert len(row) == 4 and all(row), row
    proofs = re.findall(r"`([^`]+)`", row[3])
    assert proofs and [proof for proof in proofs if not is_there(proof)] == []


@pytest.mark.proves("apache.notes.page")
def test_the_notes_asked_about_most_often_are_on_the_page() -> None:
    stated = [row[0].lower() for row in rows()]
    missing = [words for words in ASKED_ABOUT if not any(words in text for text in stated)]
    assert missing == []


def test_the_page_is_found_from_the_index_and_the_differences() -> None:
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    differences = (REFERENCE / "differences.md").read_text(encoding="utf-8")
    assert "reference/notes.md" in index and "(notes.md)" in differences
