"""Tests wait with `contrail.testing`'s `eventually`, and have no such function of their own."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
Function = ast.FunctionDef | ast.AsyncFunctionDef


def private_waits(text: str) -> Iterator[str]:
    """Functions that sleep until a parameter that they call is true."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, Function):
            given = {one.arg for one in [*node.args.args, *node.args.kwonlyargs]}
            loops = [inner for inner in ast.walk(node) if isinstance(inner, ast.While)]
            if any(_asks(loop.test, given) and "sleep(" in ast.unparse(loop) for loop in loops):
                yield node.name


def _asks(test: ast.expr, given: set[str]) -> bool:
    return any(
        isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in given
        for node in ast.walk(test)
    )


@pytest.mark.proves("house.tests.eventually")
def test_no_test_has_a_way_to_wait_of_its_own() -> None:
    found = {
        path.relative_to(TESTS).as_posix(): names
        for path in sorted(TESTS.rglob("*.py"))
        if (names := list(private_waits(path.read_text(encoding="utf-8"))))
    }
    assert found == {}


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("def until(is_so):\n    while not is_so():\n        sleep(1)\n", ["until"]),
        (
            "async def until(is_so):\n    while not await is_so():\n        await sleep(1)\n",
            ["until"],
        ),
        ("def until(is_so):\n    while not is_so():\n        socket.recv(1)\n", []),
        ("def read(stream):\n    while stream.read():\n        pass\n", []),
        ("def until(is_so):\n    eventually(is_so)\n", []),
    ],
)
def test_a_private_wait_is_seen(text: str, names: list[str]) -> None:
    assert list(private_waits(text)) == names
