"""Delayed messages survive kills and jumps of the clock: none lost, early, twice or overtaken."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.history.campaign import TIMEOUT_S, Campaign, kills_asked_for
from tests.history.workload_delay import run_delays
from tests.seeds import seed_asked_for, seeds_asked_for


@pytest.mark.proves("kinds.shown.kills")
@pytest.mark.timeout(TIMEOUT_S)
@pytest.mark.parametrize(("flush_ms", "seed"), [(100, 21)])
def test_delayed_messages_survive_kills(flush_ms: int, seed: int, tmp_path: Path) -> None:
    properties = {"flushDelayOffsetInterval": str(flush_ms)}
    with Campaign(tmp_path, seed_asked_for(seed), properties) as campaign:
        run_delays(campaign, kills_asked_for())
        campaign.judge()


@pytest.mark.torture
@pytest.mark.parametrize("seed", seeds_asked_for(range(2000, 2005)))
def test_delayed_messages_survive_many_kills(seed: int, tmp_path: Path) -> None:
    with Campaign(tmp_path, seed_asked_for(seed)) as campaign:
        run_delays(campaign, kills_asked_for(200))
        campaign.judge()
