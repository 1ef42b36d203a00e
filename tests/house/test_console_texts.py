"""The texts of the console's page: all in one catalogue, in every language, all of them used."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

UI = Path(__file__).parents[2] / "ui" / "src"
CATALOGUE = UI / "texts" / "catalogue.ts"
_ENTRY = re.compile(
    r"^  (\w+): \[\s*((?:'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"),?\s*)"
    r"((?:'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"),?\s*)\],$",
    re.MULTILINE,
)
_PLACE = re.compile(r"\{(\w+)\}")
_CHINESE = re.compile(r"[\u4e00-\u9fff]")
# Words that are the same in every language.
SAME = {"console", "brokers", "col_broker", "per_second", "shape_json"}
# A letter, behind which there is at least one more: text, not a sign.
_TEXT_OF_ELEMENT = re.compile(r">([^<>{}=;]*[^\W\d_]{2}[^<>{}=;]*)</")
_TEXT_OF_ATTRIBUTE = re.compile(r"\b(?:title|placeholder|aria-label|alt|label)=\"([^\"]+)\"")
_KEY_OF_ATTRIBUTE = re.compile(r"\b(?:label|nameLabel|titleKey)=\"(\w+)\"")
# Names that are not translated, and code that looks like an element's text.
_NAMES = {"API", "English", "中文", "Enter", "Esc"}


def entries() -> dict[str, tuple[str, str]]:
    text = CATALOGUE.read_text(encoding="utf-8")
    return {key: (english, chinese) for key, english, chinese in _ENTRY.findall(text)}


def sources() -> list[Path]:
    return [path for path in sorted(UI.rglob("*.ts*")) if path != CATALOGUE]


def hard_coded(text: str) -> list[str]:
    """Texts between tags and in attributes that people read or hear."""
    found = [one.strip() for one in _TEXT_OF_ELEMENT.findall(text)]
    found += [one.strip() for one in _TEXT_OF_ATTRIBUTE.findall(text)]
    # A component's label is a key of the catalogue, which it looks up itself.
    return [one for one in found if one and one not in _NAMES and one not in entries()]


@pytest.mark.proves("console.pages.texts")
def test_every_text_is_there_in_both_languages_with_the_same_places() -> None:
    found = entries()
    lines = CATALOGUE.read_text(encoding="utf-8")
    assert len(found) == len(re.findall(r"^  \w+: \[", lines, re.MULTILINE)), "all were read"
    for key, (english, chinese) in found.items():
        assert sorted(_PLACE.findall(english)) == sorted(_PLACE.findall(chinese)), key
        assert key in SAME or _CHINESE.search(chinese), f"{key} has no Chinese"
        assert not _CHINESE.search(english), f"{key} has Chinese in its English"


@pytest.mark.proves("console.pages.texts")
def test_every_text_that_is_shown_is_in_the_catalogue_and_every_entry_is_shown() -> None:
    used = "\n".join(path.read_text(encoding="utf-8") for path in sources())
    keys = set(entries())
    asked = set(re.findall(r"\bt\('(\w+)'", used))
    assert asked <= keys, sorted(asked - keys)
    # Others are named by tables: as a word in quotes, or by a name that begins with a template.
    templates = set(re.findall(r"`(\w+_)\$\{", used))
    words = set(re.findall(r"'(\w+)'", used)) | set(_KEY_OF_ATTRIBUTE.findall(used))
    unused = {one for one in keys - words if not one.startswith(tuple(templates))}
    assert unused == set()


@pytest.mark.proves("console.pages.texts")
def test_no_text_is_written_into_the_page_itself() -> None:
    found = {
        str(path.relative_to(UI)): texts
        for path in sources()
        if path.suffix == ".tsx" and (texts := hard_coded(path.read_text(encoding="utf-8")))
    }
    assert found == {}


def test_the_search_for_written_texts_finds_them() -> None:
    assert hard_coded("<b>Delete it</b>") == ["Delete it"]
    assert hard_coded('<input placeholder="Filter rows" />') == ["Filter rows"]
    assert hard_coded("<b>{t('yes')}</b> <kbd>?</kbd>") == []
