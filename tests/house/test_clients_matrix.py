"""The matrix of official clients has no empty cell and claims nothing that no test shows."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from types import FunctionType

import pytest

from tests.interop.clients.registry import CLIENTS, DRIVERS, JAVA, JAVA_ROWS, LACKS, ROWS

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reference" / "clients.md"
PASSES = re.compile(r"^passes \(`(tests/[\w/]+\.py)::(test_\w+)\[(\w+)\]`\)$")
LACKING = re.compile(r"^the client lacks it \((.+)\)$")

Matrix = dict[tuple[str, str], str]
Table = tuple[list[str], list[list[str]]]


def tables_of(text: str) -> list[Table]:
    """Of each table the titles of the columns, and the rows with their names first."""
    blocks = groupby(text.splitlines(), key=lambda line: line.startswith("|"))
    return [_table_of(list(lines)) for is_table, lines in blocks if is_table]


def _table_of(lines: list[str]) -> Table:
    head, _, *rows = ([cell.strip() for cell in line.split("|")[1:-1]] for line in lines)
    return head[1:], rows


def problems_of(row: str, client: str, cell: str) -> Iterator[str]:
    """The faults of a cell; none if it is a passing test or a known lack."""
    lacking, passes = LACKING.match(cell), PASSES.match(cell)
    if lacking:
        if LACKS.get((row, client)) != lacking[1]:
            yield f"the registry does not know that it lacks {lacking[1]!r}"
    elif not passes:
        yield f"neither a passing test nor a lack: {cell!r}"
    else:
        yield from _problems_of_test(row, client, *passes.groups())


def _problems_of_test(row: str, client: str, file: str, name: str, parameter: str) -> Iterator[str]:
    if (row, client) in LACKS:
        yield f"the registry says that it lacks {LACKS[row, client]!r}"
    test = (ROWS | JAVA_ROWS)[row]
    if test != f"{file}::{name}":
        yield f"the test of this row is {test}"
    if parameter != client:
        yield f"the test of another client: {parameter}"
    if client not in clients_run(file, name):
        yield f"{file}::{name} does not run for {client}"


def clients_run(file: str, name: str) -> list[str]:
    """The clients that a test is run for; none if there is no such test, or it is not run."""
    if not (ROOT / file).exists():
        return []
    module = importlib.import_module(file.removesuffix(".py").replace("/", "."))
    function = getattr(module, name, None)
    if not isinstance(function, FunctionType):
        return []
    marks: list[pytest.Mark] = getattr(function, "pytestmark", [])
    if any(mark.name in {"skip", "skipif", "xfail", "torture"} for mark in marks):
        return []
    return [
        client
        for mark in marks
        if mark.name == "parametrize" and mark.args[0] == "client"
        for client in mark.args[1]
    ]


def matrix() -> Matrix:
    keys = {title: key for key, title in CLIENTS.items()}
    return {
        (row, keys.get(title, title)): cell
        for titles, rows in tables_of(PAGE.read_text(encoding="utf-8"))
        for row, *cells in rows
        for title, cell in zip(titles, cells, strict=True)
    }


@pytest.mark.proves("apache.clients.in-ci")
def test_every_client_and_every_row_is_in_the_table() -> None:
    everybody, java = tables_of(PAGE.read_text(encoding="utf-8"))
    assert everybody[0] == list(CLIENTS.values())
    assert [row[0] for row in everybody[1]] == list(ROWS)
    assert java[0] == [CLIENTS[client] for client in JAVA]
    assert [row[0] for row in java[1]] == list(JAVA_ROWS)
    assert set(CLIENTS) == set(DRIVERS)


@pytest.mark.proves("apache.clients.matrix")
def test_every_cell_is_a_test_that_runs_or_an_api_that_the_client_lacks() -> None:
    found = {
        (row, client): problems
        for (row, client), cell in matrix().items()
        if (problems := list(problems_of(row, client, cell)))
    }
    assert found == {}


def test_every_lack_is_one_of_a_row_and_a_client() -> None:
    rows = ROWS | JAVA_ROWS
    assert [pair for pair in LACKS if pair[0] not in rows or pair[1] not in CLIENTS] == []


SEND = "tests/interop/clients/test_send.py"


@pytest.mark.proves("apache.clients.matrix")
@pytest.mark.parametrize(
    ("client", "cell", "problem"),
    [
        ("java5", "", "neither a passing test nor a lack"),
        ("java5", "passes", "neither a passing test nor a lack"),
        ("java5", "the client lacks it ()", "neither a passing test nor a lack"),
        ("java5", "the client lacks it (`send`)", "does not know that it lacks"),
        ("java5", f"passes (`{SEND}::test_sync_send[java4]`)", "the test of another client"),
        ("java5", f"passes (`{SEND}::test_async_send[java5]`)", "the test of this row is"),
        ("java5", f"passes (`{SEND}::test_no_such_thing[java5]`)", "does not run for java5"),
        ("rust", f"passes (`{SEND}::test_sync_send[rust]`)", "does not run for rust"),
    ],
)
def test_a_wrong_cell_is_told(client: str, cell: str, problem: str) -> None:
    problems = list(problems_of("sync send", client, cell))
    assert any(problem in one for one in problems), problems


def test_a_true_cell_is_accepted() -> None:
    cell = f"passes (`{SEND}::test_sync_send[java5]`)"
    assert list(problems_of("sync send", "java5", cell)) == []
