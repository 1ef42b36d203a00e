"""The kernels' build modes, and the switch between compiled and interpreted at run time."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
KERNELS = ROOT / "src" / "contrail" / "kernels"

KERNEL = '''
def twice(value: int) -> int:
    """Twice the value."""
    return value * 2
'''
KERNEL_TYPES = "cpdef long twice(long value)\n"
ASK = "import json; from contrail.kernels import compiled_kernels as k; print(json.dumps(k()))"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of the build files around one small kernel, and one that has no C types."""
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path)
    kernels = tmp_path / "src" / "contrail" / "kernels"
    kernels.mkdir(parents=True)
    shutil.copy(ROOT / "src/contrail/__init__.py", kernels.parent)
    shutil.copy(KERNELS / "__init__.py", kernels)
    (kernels / "doubling.py").write_text(KERNEL)
    (kernels / "doubling.pxd").write_text(KERNEL_TYPES)
    (kernels / "untyped.py").write_text(KERNEL)
    return tmp_path


def build(tree: Path, mode: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "setup.py", "build_ext", "--inplace"]
    return run(tree, command, CONTRAIL_KERNELS=mode, **environment)


def kernels_of(tree: Path, mode: str) -> dict[str, bool]:
    """The kernels as a fresh interpreter over ``tree`` lists them."""
    source = str(tree / "src")
    done = run(tree, [sys.executable, "-c", ASK], CONTRAIL_KERNELS=mode, PYTHONPATH=source)
    assert done.returncode == 0, done.stderr
    found: dict[str, bool] = json.loads(done.stdout)
    return found


def run(tree: Path, command: list[str], **extra: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **extra}
    return subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True)


def has_extension(tree: Path) -> bool:
    return any((tree / "src/contrail/kernels").glob("*.so"))


@pytest.mark.proves("house.rules.kernels-beside-source")
def test_a_kernel_with_c_types_is_compiled_beside_its_source(tree: Path) -> None:
    if shutil.which("cc") is None:
        pytest.skip("there is no C compiler here")
    done = build(tree, "required")
    assert done.returncode == 0, done.stderr
    assert kernels_of(tree, "auto") == {"doubling": True, "untyped": False}
    assert kernels_of(tree, "pure") == {"doubling": False, "untyped": False}
    assert not list((tree / "src").rglob("*.c")), "C files belong in build/"


@pytest.mark.proves("house.rules.build-without-compiler")
def test_auto_without_a_compiler_says_so_and_goes_on(tree: Path) -> None:
    done = build(tree, "auto", CC="no-such-compiler")
    assert done.returncode == 0, done.stderr
    assert "kernels will run interpreted, because the C compiler 'no-such-compiler'" in done.stdout
    assert "apt-get install build-essential python3-dev" in done.stdout
    assert not has_extension(tree)


@pytest.mark.proves("house.rules.kernels-required")
@pytest.mark.parametrize("compiler", ["no-such-compiler", "false"])
def test_required_without_a_compiler_fails_and_names_the_remedy(tree: Path, compiler: str) -> None:
    done = build(tree, "required", CC=compiler)
    assert done.returncode != 0
    assert f"kernels must be compiled, but the C compiler {compiler!r}" in done.stderr
    assert "apt-get install build-essential python3-dev" in done.stderr


def test_pure_builds_nothing(tree: Path) -> None:
    assert build(tree, "pure").returncode == 0
    assert not has_extension(tree)


def test_an_unknown_mode_is_refused(tree: Path) -> None:
    done = build(tree, "fast")
    assert done.returncode != 0
    assert "CONTRAIL_KERNELS='fast' is not one of auto, pure, required" in done.stderr


@pytest.mark.proves("house.rules.stale-kernel")
def test_no_kernel_of_this_tree_is_older_than_its_source() -> None:
    stale = [path.name for path in KERNELS.glob("*.py") if _is_stale(path)]
    assert not stale, f"run `make setup`: the built kernels are older than {stale}"


def _is_stale(source: Path) -> bool:
    sources = (source, source.with_suffix(".pxd"))
    written = max(path.stat().st_mtime for path in sources if path.exists())
    built = [source.with_name(source.stem + suffix) for suffix in EXTENSION_SUFFIXES]
    return any(path.exists() and path.stat().st_mtime < written for path in built)
