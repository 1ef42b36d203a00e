"""The pictures of the console in the docs are of the page that is in this tree."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.console_page import digest
from scripts.console_shots import DIGEST, IMAGES, PAGES, THEMES

GUIDE = Path(__file__).parents[2] / "docs" / "guide" / "console.md"


@pytest.mark.proves("console.shown.shots")
def test_the_pictures_are_of_this_page() -> None:
    told = DIGEST.read_text(encoding="utf-8").strip()
    assert told == digest(), "the page has changed: make console-shots, and look at the pictures"


@pytest.mark.proves("console.shown.shots")
def test_there_is_a_picture_of_every_page_in_both_themes_and_the_guide_shows_it() -> None:
    guide = GUIDE.read_text(encoding="utf-8")
    for name in PAGES:
        for theme in THEMES:
            assert (IMAGES / f"{name}-{theme}.png").stat().st_size > 5_000, (name, theme)
        assert f"../images/console/{name}-" in guide, name
