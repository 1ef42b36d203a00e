"""Find the test files of the part `interpreted` that reach no kernel; `make test` leaves them out.

    python -m scripts.reach_no_kernel

runs that part on interpreted kernels and writes tests/reach_no_kernel.txt. A test reaches a kernel
when a function of `contrail/kernels` is called while it runs, or when it starts another process.
A file that is not listed is run: a new test needs no entry.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from scripts.parts import REACH_NO_KERNEL, ROOT, read_plan

KERNELS = str(ROOT / "src" / "contrail" / "kernels")
CHILDREN = ("subprocess.Popen", "os.fork", "os.posix_spawn", "os.forkpty")
HEADER = """\
# Test files that reach no kernel, and so are not run again on interpreted kernels by `make test`.
# Made by `python -m scripts.reach_no_kernel`.
"""


class Reach:
    """Hears of every call while a test runs, until the first one into a kernel."""

    def __init__(self) -> None:
        self.is_reached = False

    def begin(self) -> None:
        self.is_reached = False
        threading.settrace(self._called)
        sys.settrace(self._called)

    def end(self) -> bool:
        sys.settrace(None)
        threading.settrace(None)  # type: ignore[arg-type]
        return self.is_reached

    def heard(self, event: str, _: Any) -> None:
        if event in CHILDREN:
            self.is_reached = True

    def _called(self, frame: FrameType, *_: Any) -> None:
        code = frame.f_code
        # Constants of a module are computed when it is imported, which is no test's doing.
        if code.co_filename.startswith(KERNELS) and code.co_name != "<module>":
            self.is_reached = True
        if self.is_reached:
            sys.settrace(None)


class Plugin:
    """Notes for each file whether one of its tests reached a kernel."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self._files: dict[str, bool] = {}
        self._reach = Reach()
        sys.addaudithook(self._reach.heard)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self._reach.begin()
        try:
            return (yield)
        finally:
            file = item.nodeid.partition("::")[0]
            self._files[file] = self._reach.end() or self._files.get(file, False)

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items.sort(key=lambda item: item.nodeid.partition("::")[0])

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        if self._files.get(item.nodeid.partition("::")[0]):
            pytest.skip("a test of this file has reached a kernel")

    def pytest_sessionfinish(self) -> None:
        self._place.write_text(json.dumps(self._files), encoding="utf-8")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Plugin(Path(os.environ["CONTRAIL_REACHED"])))


def main() -> int:
    run = read_plan().whole("interpreted")
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "reached.json"
        command = [sys.executable, "-m", "pytest", "-q", "-p", "scripts.reach_no_kernel"]
        done = subprocess.run(
            [*command, "-m", run.marks, *run.files],
            cwd=ROOT,
            env=os.environ | run.environment | {"CONTRAIL_REACHED": str(place)},
        )
        if done.returncode:
            return done.returncode
        reached = json.loads(place.read_text(encoding="utf-8"))
    none = sorted(file for file, is_reached in reached.items() if not is_reached)
    REACH_NO_KERNEL.write_text(HEADER + "".join(f"{file}\n" for file in none), encoding="utf-8")
    print(f"{len(none)} of {len(reached)} files reach no kernel")
    return 0


if __name__ == "__main__":
    sys.exit(main())
