"""Apache's Go client, driven by the program under ``go/``."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from tests.interop.clients.driver import Driver
from tests.interop.clients.fetched import built_once, cache_folder, call, fetch, require_tools

_SOURCES = Path(__file__).parent / "go"
_PIN = re.compile(r"github\.com/apache/rocketmq-client-go/v2 v(\S+)")
_INSTALL = "apt-get install --no-install-recommends golang-go"


class GoDriver(Driver):
    """``github.com/apache/rocketmq-client-go/v2``, at the version of ``go.mod``."""

    def __init__(self, homes: Path) -> None:
        super().__init__(homes)
        require_tools(("go",), _INSTALL)
        sources = [path.read_bytes() for path in sorted(_SOURCES.iterdir())]
        self._program = built_once("go", sources, _build) / "driver"

    def command_line(self, home: Path) -> list[str]:
        return [str(self._program)]


def _build(folder: Path) -> None:
    """Fetch the modules of ``go.sum``, then compile with them and this machine's Go."""
    settings = {
        "GOCACHE": str(cache_folder("go-build")),
        "GOMODCACHE": str(cache_folder("go-modules")),
        "GOFLAGS": "-modcacherw -buildvcs=false",
        "GOTOOLCHAIN": "local",
        "GOWORK": "off",
    }
    for source in _SOURCES.iterdir():
        shutil.copy(source, folder)
    fetch(["go", "mod", "download"], cwd=folder, install=_INSTALL, **settings)
    call(["go", "build", "-o", "driver", "."], cwd=folder, **settings)


def version() -> str:
    """The version that ``go.mod`` pins."""
    pinned = _PIN.search((_SOURCES / "go.mod").read_text(encoding="utf-8"))
    assert pinned is not None
    return pinned[1]


def go(homes: Path) -> Driver:
    return GoDriver(homes)
