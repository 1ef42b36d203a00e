"""The status pages claim nothing that nobody can check, and are what `make status` writes."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.status import ROOT, Ledger, front_page, pages, room_page
from tests.house.test_proofs import SAMPLE

DOCS = ROOT / "docs"


@pytest.fixture(scope="module")
def ledger() -> Ledger:
    return Ledger()


@pytest.mark.proves("house.tests.generated")
def test_every_clause_has_its_proof_and_every_mark_its_clause(ledger: Ledger) -> None:
    assert ledger.clauses
    assert ledger.complaints() == []


@pytest.mark.proves("house.tests.generated")
def test_the_committed_pages_are_what_make_status_writes(ledger: Ledger) -> None:
    written = pages(ledger)
    stale = [
        name
        for name, text in written.items()
        if not (DOCS / name).exists() or (DOCS / name).read_text(encoding="utf-8") != text
    ]
    assert stale == [], "run: make status"
    kept = {f"status/{path.name}" for path in (DOCS / "status").glob("*.md")}
    assert kept - written.keys() == {"status/README.md"}


def a_tree(root: Path, clauses: str, sample: str = SAMPLE) -> Ledger:
    """The ledger of a tree with one section of clauses and one file of tests."""
    (root / "tests").mkdir()
    (root / "tests" / "test_sample.py").write_text(sample)
    (root / "Makefile").write_text("bench: setup\ntorture: setup\n")
    folder = root / "docs" / "status"
    (folder / "a").mkdir(parents=True)
    (folder / "rooms.toml").write_text('[a]\ntitle = "A room"\nsections = ["b"]\n')
    (folder / "a" / "b.toml").write_text(f'title = "A part, here"\n{clauses}')
    return Ledger(root)


@pytest.mark.parametrize(
    ("name", "state", "proofs", "wrong"),
    [
        ("real", "done", [], ""),
        ("case", "done", [], ""),
        ("group", "done", [], ""),
        ("member", "done", [], ""),
        ("sometimes", "done", [], ""),
        ("other", "done", ["make bench SUITE=store"], ""),
        ("other", "open", [], ""),
        ("other", "open: two hours of six", ["make torture"], ""),
        ("other", "differs: we sync by default", ["make torture"], ""),
        ("marked", "done", [], "test_marked is always skipped"),
        ("called", "done", [], "test_called is always skipped"),
        ("within", "done", [], "TestSkipped::test_member is always skipped"),
        ("other", "done", [], "no test has its mark"),
        ("other", "differs: we sync by default", [], "no test has its mark"),
        ("other", "done", ["make peace"], "no target 'peace'"),
        ("other", "done", ["trust me"], "no make command"),
        ("other", "done", ["tests/test_sample.py::test_real"], "named by its mark"),
        ("real", "mostly", [], "none of done, open"),
        ("real", "differs:", [], "none of done, open"),
        ("real", "differs", [], "none of done, open"),
        ("real", "open:", [], "none of done, open"),
        ("real", "open or so", [], "none of done, open"),
        ("real", "done: nearly", [], "none of done, open"),
    ],
)
def test_a_clause_is_judged(
    tmp_path: Path, name: str, state: str, proofs: list[str], wrong: str
) -> None:
    clauses = f'[{name}]\nclause = "A"\nstate = "{state}"\nproofs = {proofs}\n'
    said = [line for line in a_tree(tmp_path, clauses).complaints() if f"a.b.{name}: " in line]
    assert wrong in "\n".join(said)
    assert len(said) == bool(wrong)


def test_a_mark_for_an_unknown_clause_and_a_file_in_no_room_are_told(tmp_path: Path) -> None:
    mark = '@pytest.mark.proves("a.b.reel")\ndef test_real(): assert 1\n'
    clauses = '[real]\nclause = "A"\nstate = "open"\n'
    ledger = a_tree(tmp_path, clauses, mark)
    [said] = ledger.complaints()
    assert said == "tests/test_sample.py:1: there is no clause a.b.reel; is a.b.real meant?"
    (tmp_path / "docs" / "status" / "a" / "c.toml").write_text('title = "C"\n')
    assert "c.toml" in "\n".join(Ledger(tmp_path).complaints())


def test_the_pages_show_clauses_proofs_and_what_is_not_done(tmp_path: Path) -> None:
    clauses = (
        '[real]\nclause = "It [works](design/x.md)"\nstate = "done"\nnote = "7 ways"\n'
        f'[rest]\nclause = "… and the rest"\nstate = "open: {"far " * 60}"\n'
        '[other]\nclause = "A | B"\nstate = "differs: as `C`"\nproofs = ["make bench"]\n'
    )
    ledger = a_tree(tmp_path, clauses)
    page = room_page(ledger.rooms[0])
    assert "## A part, here" in page
    proofs = "`tests/test_sample.py::test_real`, `tests/test_sample.py::TestGroup::test_member`"
    assert f"| `a.b.real` | It [works](../design/x.md) | {proofs} (7 ways) | done |" in page
    assert r"| `a.b.other` | A \| B | `make bench` | differs: as `C` |" in page
    front = front_page(ledger)
    assert front.startswith("# Status\n\n3 clauses: 1 done, 1 differs, 1 open.")
    inside = "[A part, here](status/a.md#a-part-here)"
    assert f"| [A room](status/a.md) | 3 | 1 | 1 | 1 | {inside} |" in front
    assert "| It works … and the rest | far far" in front
    assert max(map(len, front.splitlines())) < 300
