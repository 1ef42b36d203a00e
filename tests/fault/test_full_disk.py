"""A full disk refuses appends, serves reads, and is over when there is room again."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fault.campaigns.full_disk import FullDiskFigures, run_campaign, small_partition


@pytest.fixture
def partition(tmp_path: Path) -> Iterator[Path]:
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("mounting a small tmpfs needs root")
    with small_partition(tmp_path / "partition") as folder:
        yield folder


def _require_sound(figures: FullDiskFigures, cycles: int) -> None:
    assert figures.problems == []
    assert figures.lost == 0
    assert figures.cycles == cycles
    assert figures.refusals >= cycles


@pytest.mark.proves("store.crashes.full-disk")
def test_filling_and_freeing_the_disk_loses_nothing_and_needs_no_help(partition: Path) -> None:
    _require_sound(run_campaign(partition, cycles=3), 3)


@pytest.mark.torture
@pytest.mark.timeout(3600)
def test_fifty_times_full_and_free(partition: Path) -> None:
    _require_sound(run_campaign(partition, cycles=50), 50)
