"""Clocks that a test moves."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from contrail.clock import CLOCK_FILE_VARIABLE, ManualClock, SharedClock, SystemClock, clock_for
from contrail.testing.moved_clock import MovedClock

ASK = "import os; from contrail.clock import clock_for; print(clock_for(os.environ).now_ms())"


@pytest.mark.proves("kinds.shown.injectable-time")
def test_processes_that_share_a_clock_see_it_move(tmp_path: Path) -> None:
    clock = SharedClock(tmp_path / "clock")
    clock.advance(hours=2)
    environment = {CLOCK_FILE_VARIABLE: str(clock.path)}
    asked = subprocess.run(
        [sys.executable, "-c", ASK], env=environment, capture_output=True, check=True
    )
    assert abs(int(asked.stdout) - clock.now_ms()) < 60_000
    assert clock.now_ms() - time.time_ns() // 1_000_000 > 7_000_000


def test_a_shared_clock_moves_for_all_processes_that_have_it_open(tmp_path: Path) -> None:
    one, other = SharedClock(tmp_path / "clock"), SharedClock(tmp_path / "clock")
    before_ms = other.now_ms()
    one.advance(ms=-50_000)
    assert other.now_ms() < before_ms - 40_000


def test_without_a_file_the_clock_is_the_machines() -> None:
    assert isinstance(clock_for({}), SystemClock)


@pytest.mark.proves("broker.edges.monotonic-waits")
@pytest.mark.parametrize("make", [ManualClock, MovedClock, SystemClock])
def test_elapsed_time_never_goes_back(make: Callable[[], Any]) -> None:
    clock = make()
    before = clock.elapsed_ms()
    if not isinstance(clock, SystemClock):
        clock.advance(ms=700)
        clock.advance(ms=-500)
        assert clock.elapsed_ms() >= before + 700
    assert clock.elapsed_ms() >= before
