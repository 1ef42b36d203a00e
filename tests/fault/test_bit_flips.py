"""Single flipped bits: noticed where covered, repaired where derived, never a wrong body."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.fault.campaigns.bit_flips import FlipFigures, run_running, run_stopped
from tests.seeds import seed_asked_for

CAMPAIGNS = {"stopped": run_stopped, "running": run_running}


def _require_sound(figures: FlipFigures) -> None:
    assert figures.problems == []
    assert figures.wrong_bodies == 0
    assert figures.detected == figures.covered > 0


@pytest.mark.proves("store.crashes.bit-flips")
@pytest.mark.parametrize("record_crc", [True, False], ids=["record crc", "body crc"])
@pytest.mark.parametrize("campaign", CAMPAIGNS.values(), ids=CAMPAIGNS.keys())
def test_a_flipped_bit_is_noticed_or_repaired_and_never_served(
    campaign: Callable[..., FlipFigures], record_crc: bool, memory_path: Path
) -> None:
    figures = campaign(memory_path, seed=51, flips=60, record_crc=record_crc)
    _require_sound(figures)
    assert figures.repairs > 0


@pytest.mark.torture
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("record_crc", [True, False], ids=["record crc", "body crc"])
@pytest.mark.parametrize("campaign", CAMPAIGNS.values(), ids=CAMPAIGNS.keys())
def test_ten_thousand_flipped_bits(
    campaign: Callable[..., FlipFigures], record_crc: bool, memory_path: Path
) -> None:
    _require_sound(
        campaign(memory_path, seed=seed_asked_for(5000), flips=2500, record_crc=record_crc)
    )
