"""The store's door: every name it offers exists, and type checkers see the same names."""

from __future__ import annotations

import ast
from importlib import import_module
from pathlib import Path

import pytest

from contrail import store


@pytest.mark.parametrize("name", store.__all__)
def test_every_name_of_the_door_is_the_object_its_module_defines(name: str) -> None:
    assert getattr(store, name) is getattr(import_module(store._PUBLIC[name]), name)


def test_type_checkers_see_the_same_names_as_the_door_offers() -> None:
    tree = ast.parse(Path(store.__file__).read_text(encoding="utf-8"))
    [typed] = [node for node in tree.body if isinstance(node, ast.If)]
    told = {
        alias.asname: node.module
        for node in typed.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert told == store._PUBLIC


@pytest.mark.parametrize("name", ["Nothing", "import_modules"])
def test_a_name_that_is_not_offered_is_refused(name: str) -> None:
    with pytest.raises(AttributeError, match=f"no attribute '{name}'"):
        getattr(store, name)
    assert dir(store) == sorted(store.__all__)
