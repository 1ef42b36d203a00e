"""The clauses that tests prove, by the marks ``@pytest.mark.proves("store.log.segments")``.

The mark stands on a test, on a class or in the ``pytestmark`` of a file or class; there it counts
for all tests inside. ``case="java4"`` names the one case of a parametrized test that proves the
clause. Test files are parsed, never imported.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
MARK = "pytest.mark."
PROVES = f"{MARK}proves"
TEST_ID = re.compile(r"^(tests/[\w/]+\.py)::((?:Test\w+::)?test_\w+)(?:\[.*\])?$")
SKIPS = {"skip", "pytest.skip", "mark.skip", "pytest.mark.skip"}

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class MarkedTest:
    """A test with the names of all marks that count for it: its own, its class's, its file's."""

    name: str
    marks: frozenset[str]
    is_skipped: bool


@dataclass(frozen=True, slots=True)
class Proof:
    """One mark for one clause, and the tests that it counts for."""

    clause: str
    file: str
    line: int
    name: str
    case: str
    tests: tuple[MarkedTest, ...]

    def __str__(self) -> str:
        place = f"{self.file}::{self.name}" if self.name else self.file
        return f"{place}[{self.case}]" if self.case else place


@dataclass(frozen=True, slots=True)
class Found:
    """The proofs of test files, and complaints about marks that prove nothing."""

    proofs: list[Proof] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)


def proofs_of(root: Path = ROOT) -> Found:
    """The proofs of every test file, in the order of files and lines."""
    found = Found()
    for path in sorted((root / "tests").rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if PROVES in text:
            one = proofs_in(path.relative_to(root).as_posix(), text)
            found.proofs.extend(one.proofs)
            found.complaints.extend(one.complaints)
    return found


def proofs_in(file: str, text: str) -> Found:
    """The proofs of one test file."""
    tree = ast.parse(text)
    # Pytest collects tests from files of this name only; a file that imports one shares its marks.
    places = _places(tree) if Path(file).name.startswith("test_") else []
    found, counted = Found(), set[ast.expr]()
    for place in places:
        for mark in filter(_is_sound, _marks(place.node) if place.tests else []):
            counted.add(mark.func)
            found.proofs.extend(_proofs(file, place, mark))
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and ast.unparse(node) == PROVES and node not in counted:
            found.complaints.append(
                f"{file}:{node.lineno}: {PROVES} counts on a test, a class of tests or as"
                " pytestmark of a test file, with ids of clauses, and perhaps case=, as plain texts"
            )
    return Found(sorted(found.proofs, key=lambda proof: proof.line), found.complaints)


def all_tests(tree: ast.Module) -> tuple[MarkedTest, ...]:
    """Every test of a file."""
    return _places(tree)[0].tests


def complaint_about(test_id: str, root: Path = ROOT) -> str:
    """The fault of a test that a page or table names; empty if it exists and runs."""
    match = TEST_ID.match(test_id)
    if match is None:
        return f"{test_id!r} is not tests/….py::test_name"
    path, name = root / match[1], match[2]
    if not path.exists():
        return f"there is no {match[1]}"
    tests = {test.name: test for test in all_tests(ast.parse(path.read_text(encoding="utf-8")))}
    if name not in tests:
        return f"{match[1]} has no {name}"
    return f"{test_id} is always skipped" if tests[name].is_skipped else ""


class _Scope(NamedTuple):
    """The marks that a file or class gives to the tests in it."""

    name: str = ""
    marks: frozenset[str] = frozenset()
    is_skipped: bool = False

    def within(self, name: str, node: ast.Module | ast.ClassDef | Function) -> _Scope:
        marks = [ast.unparse(_callee(mark)) for mark in _marks(node)]
        return _Scope(
            f"{self.name}::{name}" if self.name else name,
            self.marks.union(mark.removeprefix(MARK) for mark in marks if mark.startswith(MARK)),
            self.is_skipped or not SKIPS.isdisjoint([*marks, *_calls(node.body)]),
        )


class _Place(NamedTuple):
    """Where a mark may stand, and the tests that it would count for there."""

    name: str
    node: ast.Module | ast.ClassDef | Function
    tests: tuple[MarkedTest, ...]


def _places(tree: ast.Module) -> list[_Place]:
    """The file, its classes and its tests; the file comes first."""
    return _places_within(tree, _Scope().within("", tree))


def _places_within(node: ast.Module | ast.ClassDef | Function, scope: _Scope) -> list[_Place]:
    if isinstance(node, Function):
        return [_Place(scope.name, node, (MarkedTest(*scope),))]
    inside = [
        place
        for child in node.body
        if (isinstance(child, ast.ClassDef) and child.name.startswith("Test"))
        or (isinstance(child, Function) and child.name.startswith("test"))
        for place in _places_within(child, scope.within(child.name, child))
    ]
    tests = [place.tests[0] for place in inside if isinstance(place.node, Function)]
    return [_Place(scope.name, node, tuple(tests)), *inside]


def _marks(node: ast.AST) -> list[ast.expr]:
    """The decorators of a function or class, and the ``pytestmark`` of a file or class."""
    found = list(getattr(node, "decorator_list", []))
    for statement in getattr(node, "body", []):
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "pytestmark":
            value = statement.value
            found += value.elts if isinstance(value, ast.List | ast.Tuple) else [value]
    return found


def _callee(mark: ast.expr) -> ast.expr:
    return mark.func if isinstance(mark, ast.Call) else mark


def _calls(body: list[ast.stmt]) -> list[str]:
    """The names of the functions that a body always calls, on its own level."""
    values = [statement.value for statement in body if isinstance(statement, ast.Expr)]
    return [ast.unparse(value.func) for value in values if isinstance(value, ast.Call)]


def _is_sound(mark: ast.expr) -> bool:
    """Whether a mark says in plain texts which clauses are proven."""
    return (
        isinstance(mark, ast.Call)
        and ast.unparse(mark.func) == PROVES
        and bool(mark.args)
        and all(_text(given) for given in [*mark.args, *(word.value for word in mark.keywords)])
        and all(word.arg == "case" for word in mark.keywords)
    )


def _proofs(file: str, place: _Place, mark: ast.Call) -> Iterator[Proof]:
    case = "".join(_text(word.value) for word in mark.keywords)
    for clause in map(_text, mark.args):
        yield Proof(clause, file, mark.lineno, place.name, case, place.tests)


def _text(value: ast.expr) -> str:
    return value.value if isinstance(value, ast.Constant) and isinstance(value.value, str) else ""
