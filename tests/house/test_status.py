"""docs/status.md claims nothing that nobody can check."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
STATUS = ROOT / "docs" / "status.md"
HEADER = ["clause", "proof", "state"]
TEST_ID = re.compile(r"^(tests/[\w/]+\.py)::(?:(Test\w+)::)?(test_\w+)(?:\[.*\])?$")
MAKE_COMMAND = re.compile(r"^make ([a-z-]+)(?: [A-Z]+=\S+)*$")
UNCONDITIONAL_SKIPS = {"skip", "pytest.skip", "pytest.mark.skip", "mark.skip"}


class Row(NamedTuple):
    clause: str
    proofs: list[str]
    state: str


def status_rows(text: str) -> list[Row]:
    """Every row of every table that has the status columns."""
    rows, inside = [], False
    for line in text.splitlines():
        cells = _cells(line)
        if cells == HEADER:
            inside = True
        elif not cells:
            inside = False
        elif inside and set("".join(cells)) - set("-: "):
            rows.append(_row(line, cells))
    return rows


def _cells(line: str) -> list[str]:
    line = line.strip()
    if not line.startswith("|"):
        return []
    return [cell.strip() for cell in line.strip("|").split("|")]


def _row(line: str, cells: list[str]) -> Row:
    assert len(cells) == len(HEADER), f"not three cells: {line}"
    clause, proof, state = cells
    return Row(clause, re.findall(r"`([^`]+)`", proof), state)


def complaint(row: Row, root: Path = ROOT) -> str:
    """What is wrong with a row; empty when it stands."""
    if not re.fullmatch(r"done|open(: \S.*)?|differs: \S.*", row.state):
        return f"state {row.state!r} is none of done, open, open: where it stands, differs: why"
    if not row.state.startswith("open") and not row.proofs:
        return "it is not open and gives no proof in backquotes"
    complaints = [_proof_complaint(proof, root) for proof in row.proofs]
    return "; ".join(filter(None, complaints))


def _proof_complaint(proof: str, root: Path) -> str:
    if match := TEST_ID.match(proof):
        return _test_complaint(root / match[1], match[2], match[3])
    if match := MAKE_COMMAND.match(proof):
        known = re.search(rf"^{match[1]}:", (root / "Makefile").read_text(), re.MULTILINE)
        return "" if known else f"the Makefile has no target {match[1]!r}"
    return f"{proof!r} is neither tests/….py::test_name nor a make command"


def _test_complaint(path: Path, owner: str | None, name: str) -> str:
    if not path.exists():
        return f"there is no {path.name}"
    tree: ast.AST = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and node.name == owner:
            tree = node
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == name:
            return f"{name} is always skipped" if _is_always_skipped(node) else ""
    return f"{path.name} has no {name}"


def _is_always_skipped(test: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    marks = [mark.func if isinstance(mark, ast.Call) else mark for mark in test.decorator_list]
    body = [statement.value for statement in test.body if isinstance(statement, ast.Expr)]
    calls = [value.func for value in body if isinstance(value, ast.Call)]
    return any(ast.unparse(place) in UNCONDITIONAL_SKIPS for place in [*marks, *calls])


def test_every_row_names_a_proof_that_exists() -> None:
    rows = status_rows(STATUS.read_text(encoding="utf-8"))
    assert rows, "docs/status.md has no table with the columns clause, proof, state"
    wrong = {row.clause: said for row in rows if (said := complaint(row))}
    assert wrong == {}


SAMPLE = """
def test_real(): assert 1
@pytest.mark.skip(reason="later")
def test_marked(): ...
def test_called():
    pytest.skip("later")
@pytest.mark.skipif(BIG, reason="small machine")
def test_sometimes(): assert 1
class TestGroup:
    def test_member(self): assert 1
"""


@pytest.mark.parametrize(
    ("proof", "state", "wrong"),
    [
        ("`tests/sample.py::test_real`", "done", ""),
        ("`tests/sample.py::test_real[case-1]`", "done", ""),
        ("`tests/sample.py::TestGroup::test_member`", "done", ""),
        ("`tests/sample.py::test_sometimes`", "done", ""),
        ("`make bench SUITE=store`", "done", ""),
        ("", "open", ""),
        ("`make torture`", "open: two hours of six", ""),
        ("`make torture`", "differs: we sync by default", ""),
        ("`tests/sample.py::test_marked`", "done", "always skipped"),
        ("`tests/sample.py::test_called`", "done", "always skipped"),
        ("`tests/sample.py::test_absent`", "done", "has no test_absent"),
        ("`tests/absent.py::test_real`", "done", "there is no absent.py"),
        ("`make peace`", "done", "no target 'peace'"),
        ("`trust me`", "done", "neither"),
        ("trust me", "done", "gives no proof"),
        ("`make torture`", "mostly", "none of done, open"),
        ("`make torture`", "differs:", "none of done, open"),
        ("`make torture`", "open:", "none of done, open"),
        ("`make torture`", "open or so", "none of done, open"),
    ],
)
def test_a_row_is_judged(tmp_path: Path, proof: str, state: str, wrong: str) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "sample.py").write_text(SAMPLE)
    (tmp_path / "Makefile").write_text("bench: setup\ntorture: setup\n")
    table = f"| clause | proof | state |\n| --- | --- | --- |\n| a | {proof} | {state} |\n"
    [row] = status_rows(table)
    said = complaint(row, tmp_path)
    assert wrong in said
    assert bool(wrong) == bool(said)
