"""kill -9 at every named crash point: nothing acknowledged is lost, nothing is invented."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fault.campaigns.crash_points import run_campaign

POINT_COUNT_MIN = 60


def test_a_kill_at_any_crash_point_loses_no_acknowledged_message(memory_path: Path) -> None:
    figures = run_campaign(
        memory_path, seed=11, flushes=("sync", "async"), hits=(1,), both_lives=False
    )
    assert figures.problems == []
    assert len(figures.points) >= POINT_COUNT_MIN
    assert figures.acknowledged > 0


@pytest.mark.torture
@pytest.mark.timeout(7200)
def test_every_crash_point_in_both_modes_at_several_passages_loses_nothing(memory_path: Path) -> None:
    figures = run_campaign(
        memory_path, seed=1000, flushes=("sync", "async"), hits=(1, 2, 5), both_lives=True
    )
    assert figures.problems == []
    assert len(figures.points) >= POINT_COUNT_MIN
