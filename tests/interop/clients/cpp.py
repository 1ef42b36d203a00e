"""The C++ client inside PyPI's ``rocketmq``, driven by ``cpp/driver.py``."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.interop.clients.driver import Driver
from tests.interop.clients.fetched import built_once, call, fetch

VERSION = "0.4.4"

_PROGRAM = Path(__file__).parent / "cpp" / "driver.py"
_INSTALL = "apt-get install --no-install-recommends python3-venv"


class CppDriver(Driver):
    """Its compiled library, called by the Python of a virtual environment that has it alone."""

    def __init__(self, homes: Path) -> None:
        super().__init__(homes)
        made_of = [VERSION.encode(), sys.version.encode(), sys.executable.encode()]
        self._python = built_once("cpp", made_of, _install) / "bin" / "python"

    def command_line(self, home: Path) -> list[str]:
        return [str(self._python), "-B", str(_PROGRAM)]

    def judges_exit_code(self) -> bool:
        """The library crashes in about half of its shutdowns, after the work is done."""
        return False


def _install(folder: Path) -> None:
    call([sys.executable, "-m", "venv", str(folder)], cwd=folder)
    pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--no-deps"]
    command = [*pip, "--only-binary", ":all:", f"rocketmq=={VERSION}"]
    fetch(command, cwd=folder, install=_INSTALL)


def cpp(homes: Path) -> Driver:
    return CppDriver(homes)
