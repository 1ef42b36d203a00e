"""The product neither unpickles, nor runs other programs, nor evaluates text as code.

``cli`` and ``testing`` are compositions that may start processes; every other room is searched.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "contrail"
FREE_ROOMS = {"cli", "testing"}
MODULES = {"pickle", "_pickle", "cPickle", "marshal", "shelve", "dill", "subprocess"}
BUILTINS = {"eval", "exec", "__import__"}
OS_PREFIXES = ("system", "popen", "exec", "spawn", "posix_spawn", "fork")


def forbidden_in(text: str) -> list[str]:
    """Name each forbidden thing that ``text`` imports or calls."""
    return [found for node in ast.walk(ast.parse(text)) for found in _judge(node)]


def _judge(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Import):
        names = [alias.name for alias in node.names]
        yield from (name for name in names if name.partition(".")[0] in MODULES)
    elif isinstance(node, ast.ImportFrom) and node.module:
        yield from _judge_import_from(node.module, [alias.name for alias in node.names])
    elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        yield from _judge_member(node.value.id, node.attr)
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        yield from ({node.func.id} & BUILTINS)


def _judge_import_from(module: str, names: list[str]) -> Iterator[str]:
    if module.partition(".")[0] in MODULES:
        yield module
    for name in names:
        yield from _judge_member(module, name)


def _judge_member(owner: str, name: str) -> Iterator[str]:
    if owner == "os" and name.startswith(OS_PREFIXES):
        yield f"os.{name}"
    if owner == "yaml" and name in {"load", "load_all", "unsafe_load", "full_load"}:
        yield f"yaml.{name}"


def searched_files() -> list[Path]:
    files = sorted(SOURCE.rglob("*.py"))
    return [path for path in files if path.relative_to(SOURCE).parts[0] not in FREE_ROOMS]


@pytest.mark.proves("house.rules.nothing-evaluated")
def test_no_room_uses_a_forbidden_thing() -> None:
    found = {
        str(path.relative_to(SOURCE)): names
        for path in searched_files()
        if (names := forbidden_in(path.read_text(encoding="utf-8")))
    }
    assert found == {}


def test_the_search_sees_the_rooms() -> None:
    rooms = {path.relative_to(SOURCE).parts[0] for path in searched_files()}
    assert {"kernels", "model", "runtime", "store", "errors.py"} <= rooms


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("import pickle", "pickle"),
        ("import marshal as m", "marshal"),
        ("from shelve import open", "shelve"),
        ("import subprocess", "subprocess"),
        ("from subprocess import run", "subprocess"),
        ("import os; os.system('x')", "os.system"),
        ("import os; os.execv('x', [])", "os.execv"),
        ("from os import popen", "os.popen"),
        ("eval('1')", "eval"),
        ("exec('1')", "exec"),
        ("import yaml; yaml.load('x')", "yaml.load"),
    ],
)
def test_the_search_finds(text: str, found: str) -> None:
    assert forbidden_in(text) == [found]


def test_the_search_leaves_harmless_code_alone() -> None:
    assert forbidden_in("import os, re\nos.pwrite(1, b'', 0)\nre.compile('x')\nself.exec()") == []
