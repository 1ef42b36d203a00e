"""Every module between socket and log, and every kernel it calls, has a test file of its name."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = "contrail"

# Where a send or a pull goes between socket and log; new modules are found by place and name.
CORRIDOR = (
    "wire/connection.py",
    "broker/intake.py",
    "broker/fast/*.py",
    "broker/handlers/*send*.py",
    "broker/handlers/*pull*.py",
)
KERNELS = "kernels"


def corridor(source: Path) -> set[Path]:
    """The modules of the corridor, as paths below the package, and the kernels that they import."""
    found = {path for pattern in CORRIDOR for path in source.glob(pattern)}
    kernels, more = set[Path](), {path for one in found for path in kernels_of(one, source)}
    while more:
        kernels |= more
        more = {path for one in more for path in kernels_of(one, source)} - kernels
    return {path.relative_to(source) for path in found | kernels if path.name != "__init__.py"}


def kernels_of(module: Path, source: Path) -> set[Path]:
    tree = ast.parse(module.read_text(encoding="utf-8"))
    named = (name for node in ast.walk(tree) for name in imported(node))
    prefix = f"{PACKAGE}.{KERNELS}."
    names = {
        name.removeprefix(prefix).partition(".")[0] for name in named if name.startswith(prefix)
    }
    return {path for name in names if (path := source / KERNELS / f"{name}.py").exists()}


def imported(node: ast.AST) -> Iterable[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom) and node.module:
        return [f"{node.module}.{alias.name}" for alias in node.names]
    return []


def has_test_file(module: Path, tests: Path) -> bool:
    """A unit file in its folder or in its room; a kernel may have its property file instead."""
    places = [tests / "unit" / module.parent, tests / "unit" / module.parts[0]]
    files = [place / f"test_{module.name}" for place in places]
    if module.parts[0] == KERNELS:
        files.append(tests / "property" / f"test_kernels_{module.name}")
    return any(file.exists() for file in files)


@pytest.mark.proves("broker.fast.unit-files")
def test_every_module_of_the_corridor_has_a_test_file_of_its_name() -> None:
    modules = corridor(ROOT / "src" / PACKAGE)
    without = [
        str(module) for module in sorted(modules) if not has_test_file(module, ROOT / "tests")
    ]
    assert without == []


def test_each_pattern_of_the_corridor_finds_modules() -> None:
    source = ROOT / "src" / PACKAGE
    assert [pattern for pattern in CORRIDOR if not list(source.glob(pattern))] == []


def test_a_kernel_that_the_corridor_imports_belongs_to_it(tmp_path: Path) -> None:
    files = {
        "broker/fast/sends.py": "from contrail.kernels import send_rows",
        "broker/handlers/topics.py": "from contrail.kernels.java_hash import java_string_hash",
        "kernels/send_rows.py": "from contrail.kernels.record_layout import MAGIC",
        "kernels/record_layout.py": "",
        "kernels/java_hash.py": "",
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    found = {str(path) for path in corridor(tmp_path)}
    assert found == {"broker/fast/sends.py", "kernels/send_rows.py", "kernels/record_layout.py"}
