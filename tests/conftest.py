"""Shared by every test run: Hypothesis profiles, the kernels under test, the slowest files."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from contrail.kernels import compiled_kernels
from tests.run_report import WORTH_TELLING_S, RunReport, write

# No deadline: a shared two-core machine makes single examples slow without making them wrong.
# The blob printed with a failure replays it.
settings.register_profile("house", deadline=None, print_blob=True)
settings.register_profile("long", settings.get_profile("house"), max_examples=5000)
settings.load_profile(os.environ.get("CONTRAIL_HYPOTHESIS_PROFILE", "house"))

# A shell starts what runs in its background with interrupts ignored, and every child inherits that:
# tests that interrupt a program would wait for ever.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

_MEMORY = Path("/dev/shm")

# They come first: a worker that took one of them last would run on alone for minutes.
LONG_FILES = frozenset(
    {
        "test_client_soak.py",
        "test_differential.py",
        "test_load.py",
        "test_pairs.py",
        "test_store_carried.py",
    }
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.path.name not in LONG_FILES)


def pytest_report_header() -> str:
    found = compiled_kernels()
    compiled = [name for name, is_compiled in found.items() if is_compiled]
    return f"kernels: {len(compiled)} of {len(found)} compiled"


_report = RunReport()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    _report.take(report)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    # Workers have no terminal: the process that started them has heard of all their tests.
    write(_report)
    if sum(_report.seconds.values()) > WORTH_TELLING_S:
        terminalreporter.section("the ten slowest files")
        terminalreporter.write_line("\n".join(_report.slowest()))


@pytest.fixture
def memory_path(tmp_path: Path) -> Iterator[Path]:
    """A folder in memory where there is one, for crashes that never reach a real disk."""
    if not (_MEMORY.is_dir() and os.access(_MEMORY, os.W_OK)):
        yield tmp_path
        return
    folder = Path(tempfile.mkdtemp(prefix="contrail-", dir=_MEMORY))
    yield folder
    shutil.rmtree(folder)
