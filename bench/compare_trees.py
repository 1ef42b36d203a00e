"""The two trees of a comparison: the working tree, and a commit built beside it.

The commit is unpacked to ``build/compare/COMMIT`` and its kernels are compiled there by its own
``setup.py``, once. A program is run from a tree by putting the tree's ``src`` first on its path;
the load and the harness are those of the working tree for both.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tarfile
from dataclasses import dataclass
from pathlib import Path

from bench.harness import REPOSITORY, BenchError

_FOLDER = REPOSITORY / "build" / "compare"
_BUILT = ".built"
_BUILD_TIMEOUT_S = 900
_REPORT = (
    "import contrail, contrail.kernels as k, json;"
    "print(json.dumps([contrail.__file__, k.compiled_kernels()]))"
)


@dataclass(frozen=True, slots=True)
class Tree:
    """A source tree whose kernels are compiled."""

    name: str
    root: Path
    commit: str

    @property
    def source(self) -> Path:
        return self.root / "src"

    def environment(self) -> dict[str, str]:
        """Python finds this tree's product first, then the harness."""
        path = os.pathsep.join([str(self.source), str(REPOSITORY)])
        return {**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": "0"}


def both_trees(base: str) -> tuple[Tree, Tree]:
    """The commit that ``base`` names, built when needed, and the working tree."""
    commit = _git("rev-parse", "--verify", f"{base}^{{commit}}").decode().strip()
    head = _git("rev-parse", "HEAD").decode().strip()
    is_dirty = bool(_git("status", "--porcelain", "--untracked-files=no").strip())
    built = Tree("base", _built(commit), commit)
    working = Tree("head", REPOSITORY, head + ("-dirty" if is_dirty else ""))
    for tree in (built, working):
        _require_compiled(tree)
    return built, working


def _built(commit: str) -> Path:
    root = _FOLDER / commit[:12]
    if (root / _BUILT).exists():
        return root
    print(f"building {commit[:12]} in {root.relative_to(REPOSITORY)} ...", file=sys.stderr)
    root.mkdir(parents=True, exist_ok=True)
    with tarfile.open(fileobj=io.BytesIO(_git("archive", commit))) as archive:
        archive.extractall(root, filter="data")
    command = [sys.executable, "setup.py", "--quiet", "build_ext", "--inplace", "--parallel", "2"]
    environment = {**os.environ, "CONTRAIL_KERNELS": "required"}
    done = subprocess.run(
        command,
        cwd=root,
        env=environment,
        capture_output=True,
        text=True,
        timeout=_BUILD_TIMEOUT_S,
        check=False,
    )
    if done.returncode != 0:
        raise BenchError(f"{commit[:12]} could not be built:\n{done.stderr[-4000:]}")
    (root / _BUILT).touch()
    return root


def _require_compiled(tree: Tree) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _REPORT],
        cwd=tree.root,
        env=tree.environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    if done.returncode != 0:
        raise BenchError(f"{tree.root} cannot be imported:\n{done.stderr[-2000:]}")
    package, kernels = json.loads(done.stdout)
    if not Path(package).is_relative_to(tree.source):
        raise BenchError(f"the product of {tree.root} would be imported from {package}")
    if interpreted := [name for name, is_compiled in kernels.items() if not is_compiled]:
        raise BenchError(
            f"kernels {', '.join(interpreted)} of {tree.root} are interpreted; build them with "
            "CONTRAIL_KERNELS=required make setup"
        )


def _git(*arguments: str) -> bytes:
    done = subprocess.run(["git", *arguments], cwd=REPOSITORY, capture_output=True, check=False)
    if done.returncode != 0:
        raise BenchError(f"git {' '.join(arguments)}: {done.stderr.decode().strip()}")
    return done.stdout
