"""The Node client ``ali-ons``, driven by ``node/driver.js``."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from tests.interop.clients.driver import Driver
from tests.interop.clients.fetched import built_once, cache_folder, fetch, require_tools

_SOURCES = Path(__file__).parent / "node"
_PACKAGE_FILES = ("package.json", "package-lock.json")
_INSTALL = "apt-get install --no-install-recommends nodejs npm"


class NodeDriver(Driver):
    """``ali-ons`` with its dependencies, at the versions of ``package-lock.json``."""

    def __init__(self, homes: Path) -> None:
        super().__init__(homes)
        require_tools(("node", "npm"), _INSTALL)
        packages = [(_SOURCES / name).read_bytes() for name in _PACKAGE_FILES]
        self._modules = built_once("node", packages, _install) / "node_modules"

    def command_line(self, home: Path) -> list[str]:
        return ["node", str(_SOURCES / "driver.js")]

    def environment(self, home: Path) -> dict[str, str]:
        return super().environment(home) | {"NODE_PATH": str(self._modules)}


def _install(folder: Path) -> None:
    for name in _PACKAGE_FILES:
        shutil.copy(_SOURCES / name, folder)
    command = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
    command += ["--cache", str(cache_folder("npm"))]
    fetch(command, cwd=folder, install=_INSTALL)


def version() -> str:
    """The version that ``package.json`` pins."""
    package = json.loads((_SOURCES / "package.json").read_text(encoding="utf-8"))
    return str(package["dependencies"]["ali-ons"])


def node(homes: Path) -> Driver:
    return NodeDriver(homes)
