"""Timers survive kills, jumps of the clock and long downtimes: none lost, early or twice."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.history.campaign import TIMEOUT_S, Campaign, kills_asked_for
from tests.history.workload_timer import TimerWorkload, recall_before_a_long_downtime
from tests.seeds import seed_asked_for, seeds_asked_for

# A short window makes timers roll, and small files make the timer log have several.
_PROPERTIES = {"timerRollWindowSlot": "1200", "mappedFileSizeTimerLog": "8192"}


@pytest.mark.proves("kinds.shown.kills")
@pytest.mark.timeout(TIMEOUT_S)
def test_timers_survive_kills(tmp_path: Path) -> None:
    with Campaign(tmp_path, seed_asked_for(31), _PROPERTIES) as campaign:
        TimerWorkload(campaign).run(kills_asked_for())
        campaign.judge()


@pytest.mark.timeout(TIMEOUT_S)
@pytest.mark.parametrize("is_taken_in", [True, False], ids=["taken in", "just stored"])
@pytest.mark.parametrize(
    ("wait_ms", "jump_ms"),
    [(600_000, 0), (600_000, -3_600_000), (70 * 3_600_000, 0), (70 * 3_600_000, 600_000)],
    ids=["near", "near, clock put back", "far, rolled on", "far, rolled on, called back later"],
)
def test_a_recalled_timer_stays_away_from_a_broker_that_was_down(
    wait_ms: int, jump_ms: int, is_taken_in: bool, tmp_path: Path
) -> None:
    with Campaign(tmp_path, seed_asked_for(32), _PROPERTIES) as campaign:
        recall_before_a_long_downtime(
            campaign, wait_ms=wait_ms, jump_ms=jump_ms, is_taken_in=is_taken_in
        )
        campaign.judge()


@pytest.mark.torture
@pytest.mark.parametrize("seed", seeds_asked_for(range(3000, 3005)))
def test_timers_survive_many_kills(seed: int, tmp_path: Path) -> None:
    with Campaign(tmp_path, seed) as campaign:
        TimerWorkload(campaign).run(kills_asked_for(200))
        campaign.judge()
