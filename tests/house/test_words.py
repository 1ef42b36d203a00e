"""Sentences name their actor: comments, docstrings, pages and names of tests, read by patterns.

``docs/reference/glossary.md`` has the rule and the words. Headings of pages may be questions, and
so may sentences that end with a question mark. Error texts and log lines are strings, which the
patterns do not read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.house.test_repository import ROOT, kept_files

# Pages that ``make status`` writes, from the sentences of clauses.
WRITTEN_PAGES = re.compile(r"docs/status(\.md|/(?!README)[\w-]+\.md)$")
# A glossary entry, and old names of ways that a note of changes tells.
LANES = re.compile(r"(src/contrail|tests/unit)/pipeline/|docs/reference/glossary\.md|changes/")
PATHS_OF_MESSAGES = re.compile(r"src/contrail/(broker|kernels|store|wire)/")

# A sentence that begins with a pronoun in place of a producer, pull, record or queue.
ACTORLESS = re.compile(
    r"(?:\A|[.!?:|][*_`)\"]*\s)[\s*_(\"|]*"
    r"((?:Who|Whom|Whose|Whoever|What|Whatever|Which|So|(?:[A-Z][a-z]+) (?:which|whom|whose|what))"
    r"\b[^.!?|]*[.!?|]?)"
)
# Prepositions are the only words in front of such a pronoun that make it the beginning.
PREPOSITIONS = ("At", "By", "For", "From", "In", "Of", "On", "Through", "To", "Under", "With")
ANYBODY = re.compile(r"\b[Ww]hoever\b|\b(?:for|by|of|to|from|with|than) who\b")
OTHER_WORDS = re.compile(r"(?i)\b(?:un)?tidy\b|\bunusual\b|\bthe long way\b|\bwith care\b")
LANE = re.compile(r"(?i)\blanes?\b")
USUAL = re.compile(r"(?i)\busual(?:ly)?\b")
TEST_NAME = re.compile(
    r"def (test_(?:(?:who|whom|whose|whoever|what|whatever|which|so)_|\w*_(?:whoever|tidy)_)\w*)"
)

FENCE = re.compile(r"(?ms)^ *(```|~~~).*?^ *\1")
HEADING = re.compile(r"(?m)^#+ .*$")
LIST_MARK = re.compile(r"\A\s*(?:[-*>]|\d+\.)\s+")
PARAGRAPH = re.compile(r"\n\s*\n|\n(?=\s*(?:[-*>|]|\d+\.)\s)")
DOCSTRING = re.compile(r'(?ms)^[ \t]*[rR]?"""(.*?)"""')
LINE_COMMENT = re.compile(r"(?m)(?:^[ \t]*(?:#|//)[^\n]*(?:\n|\Z))+|(?<=[ \t]{2})# [^\n]*")
BLOCK_COMMENT = re.compile(r"(?s)/\*(.*?)\*/")
COMMENT_MARK = re.compile(r"(?m)^[ \t]*(?:#:?|//+|\*)[ \t]?")


def texts_of_page(page: str) -> Iterator[str]:
    """The paragraphs, list items and table rows of a page, without code and headings."""
    for part in PARAGRAPH.split(HEADING.sub("\n", FENCE.sub("", page))):
        yield LIST_MARK.sub("", part)


def texts_of_code(code: str) -> Iterator[str]:
    """The comments and docstrings of a file of code or settings."""
    for found in DOCSTRING.finditer(code):
        yield from re.split(r"\n\s*\n", found.group(1))
    for found in BLOCK_COMMENT.finditer(code):
        yield COMMENT_MARK.sub("", found.group(1))
    for found in LINE_COMMENT.finditer(code):
        yield from re.split(r"\n\s*\n", COMMENT_MARK.sub("", found.group()))


def actorless_sentences(text: str) -> list[str]:
    found = (match.group(1) for match in ACTORLESS.finditer(text.strip()))
    return [" ".join(one.split()) for one in found if _is_refused(one)]


def _is_refused(sentence: str) -> bool:
    first, _, rest = sentence.partition(" ")
    begins_by_pronoun = rest.partition(" ")[0] not in ("which", "whom", "whose", "what")
    return not sentence.endswith("?") and (begins_by_pronoun or first in PREPOSITIONS)


def complaints(name: str, content: str) -> list[str]:
    """The sentences and words of a file that the house refuses."""
    texts = list(texts_of_page(content) if name.endswith(".md") else texts_of_code(content))
    found = [sentence for text in texts for sentence in actorless_sentences(text)]
    refused = [ANYBODY, OTHER_WORDS]
    if not LANES.match(name):
        refused.append(LANE)
    if PATHS_OF_MESSAGES.match(name):
        refused.append(USUAL)
    for text in texts:
        found += [match.group() for words in refused for match in words.finditer(text)]
    return found + TEST_NAME.findall(content)


def read_files() -> Iterator[tuple[str, str]]:
    kinds = {".py", ".pxd", ".md", ".toml", ".c", ".h", ".java", ".js", ".conf", ".service", ""}
    for path in kept_files():
        name = path.relative_to(ROOT).as_posix()
        if path.suffix in kinds and not WRITTEN_PAGES.match(name) and path != Path(__file__):
            yield name, path.read_text(encoding="utf-8", errors="replace")


@pytest.mark.proves("broker.fast.words")
def test_every_sentence_names_its_actor() -> None:
    assert {name: bad for name, content in read_files() if (bad := complaints(name, content))} == {}


@pytest.mark.parametrize(
    "text",
    [
        '"""What a frame is."""',
        "# Who begins to wait is woken.\n",
        "# A message came. What is planned is so after the commit.\n",
        "# A read that goes on\n# remembers it. So\n# many rows are old.\n",
        "size = 1  # So many bytes.\n",
        '"""Of which place the disk was told last."""',
        "/* Whatever follows the first frame. */",
        "// Which of them waits.\n",
        "# For whoever asks again.\n",
        "# The header is for who needs more.\n",
        "# Sends take the long way.\n",
        "# A lane of its own.\n",
        "def test_what_is_sent_is_stored() -> None: ...",
    ],
)
def test_a_sentence_without_an_actor_is_refused_in_code(text: str) -> None:
    assert complaints("src/contrail/broker/x.py", text) != []


@pytest.mark.parametrize(
    "text",
    [
        "Who reads on is served.",
        "- A pull waits.\n- What waits is bounded.",
        "| a cell | What it costs |",
        "**Cost.** Who looks at frames alone is misled.",
        "Sends are stored.\nSo are rows.",
    ],
)
def test_a_sentence_without_an_actor_is_refused_on_a_page(text: str) -> None:
    assert complaints("docs/x.md", text) != []


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("docs/x.md", "## What it promises\n\nA pull that finds nothing is held.\n"),
        ("docs/x.md", "Which broker answers? The master.\n"),
        ("docs/x.md", "```sh\n# What a shell prints\n```\n"),
        ("src/contrail/broker/x.py", '"""The queue in which a record stands."""'),
        ("src/contrail/broker/x.py", 'TEXT = """What to try next"""'),
        ("src/contrail/broker/x.py", "# Whether a pull waits. Where the log ends.\n"),
        ("src/contrail/pipeline/x.py", "# Messages of a lane keep their order.\n"),
    ],
)
def test_headings_questions_and_sentences_with_an_actor_pass(name: str, text: str) -> None:
    assert complaints(name, text) == []


@pytest.mark.proves("broker.fast.words")
@pytest.mark.parametrize("word", ["place", "chunk", "run", "lane", "fast", "general"])
def test_the_glossary_gives_each_word_one_meaning(word: str) -> None:
    glossary = (ROOT / "docs/reference/glossary.md").read_text(encoding="utf-8")
    rows = re.findall(r"(?m)^\| ([^|]+?) \|", glossary)
    assert rows.count(word) == 1
    words = [row for row in rows if row not in ("word", "---")]
    assert len(words) == len(set(words))
