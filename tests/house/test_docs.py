"""The docs hold together: links resolve, every page can be reached, and the examples run.

In an example, ``python`` blocks of one page share their names, and each line of a ``console``
block that starts with ``$ contrail`` is run; both in one empty folder per page. A page whose
examples need more than that names the test that runs them: ``<!-- examples: tests/... -->``.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "changes" / "README.md", *sorted(DOCS.rglob("*.md"))]
FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]+\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
ELSEWHERE = re.compile(r"^<!-- examples: (\S+) -->$", re.MULTILINE)
COMMAND = re.compile(r"^\$ (?:\.venv/bin/)?contrail (.*)$", re.MULTILINE)


class Example(NamedTuple):
    language: str
    text: str


def examples(text: str) -> list[Example]:
    if ELSEWHERE.search(text):
        return []
    found = [Example(language, body) for language, body in FENCE.findall(text)]
    return [block for block in found if is_run(block)]


def is_run(block: Example) -> bool:
    return block.language == "python" or bool(
        block.language == "console" and COMMAND.search(block.text)
    )


def links(page: Path) -> list[str]:
    """Where a page points to inside the repository; code is not searched."""
    prose = re.sub(r"`[^`\n]*`", "", FENCE.sub("", page.read_text(encoding="utf-8")))
    return [link for link in LINK.findall(prose) if not re.match(r"[a-z]+:", link)]


def anchors(page: Path) -> set[str]:
    """The anchors a renderer makes of a page's headings."""
    headings = HEADING.findall(FENCE.sub("", page.read_text(encoding="utf-8")))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def target(page: Path, link: str) -> Path:
    path = link.partition("#")[0]
    return (page.parent / path).resolve() if path else page


def is_broken(page: Path, link: str) -> bool:
    goal, anchor = target(page, link), link.partition("#")[2]
    return not goal.exists() or bool(anchor and anchor not in anchors(goal))


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.proves("house.rules.links-and-examples", "house.folded.mechanisms-page")
@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_the_links_of_a_page_resolve(page: Path) -> None:
    assert [link for link in links(page) if is_broken(page, link)] == []


@pytest.mark.proves(
    "house.folded.mechanisms-page",
    "client.shown.guide",
    "spark.shown.guide",
    "cli.administration.docs",
)
def test_every_page_is_reached_from_the_readme() -> None:
    reached: set[Path] = set()
    waiting = [ROOT / "README.md"]
    while waiting:
        page = waiting.pop()
        if page in reached or page.suffix != ".md":
            continue
        reached.add(page)
        waiting += [target(page, link) for link in links(page)]
    assert [name_of(page) for page in PAGES if page not in reached] == []


@pytest.mark.proves("house.rules.links-and-examples", "client.shown.guide")
@pytest.mark.parametrize(
    "page", [page for page in PAGES if examples(page.read_text("utf-8"))], ids=name_of
)
def test_the_examples_of_a_page_run(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "__main__"}
    for example in examples(page.read_text(encoding="utf-8")):
        if example.language == "python":
            exec(compile(example.text, name_of(page), "exec"), names)
        else:
            run_commands(example.text)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_examples_that_are_run_elsewhere_are(page: Path) -> None:
    for path in ELSEWHERE.findall(page.read_text(encoding="utf-8")):
        assert page.name in (ROOT / path).read_text(encoding="utf-8"), f"{path} does not run them"


def run_commands(text: str) -> None:
    for arguments in COMMAND.findall(text):
        command = [sys.executable, "-m", "contrail.cli", *shlex.split(arguments, comments=True)]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, f"contrail {arguments}\n{done.stdout}{done.stderr}"


def test_a_broken_link_and_a_broken_anchor_are_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# A title, here\n[a](page.md#a-title-here) [b](gone.md) [c](#gone) `[d](x)`\n")
    assert [link for link in links(page) if is_broken(page, link)] == ["gone.md", "#gone"]


def test_examples_are_found_by_language() -> None:
    text = (
        "```python\nx = 1\n```\n```console\n$ make demo\n```\n```console\n$ contrail version\n```\n"
    )
    assert [block.language for block in examples(text)] == ["python", "console"]


def test_examples_of_a_page_that_are_run_elsewhere_are_left_out() -> None:
    text = "<!-- examples: tests/spark/test_guide.py -->\n```python\nx = 1\n```\n"
    assert examples(text) == []
