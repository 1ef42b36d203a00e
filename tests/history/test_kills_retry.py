"""Messages that consumers send back survive kills: retried on time, then among the dead letters."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.history.campaign import TIMEOUT_S, Campaign, kills_asked_for
from tests.history.workload_retry import RetryWorkload
from tests.seeds import seed_asked_for, seeds_asked_for


@pytest.mark.proves("kinds.shown.kills")
@pytest.mark.timeout(TIMEOUT_S)
def test_retries_survive_kills(tmp_path: Path) -> None:
    with Campaign(tmp_path, seed_asked_for(51)) as campaign:
        RetryWorkload(campaign).run(kills_asked_for())
        campaign.judge()


@pytest.mark.torture
@pytest.mark.parametrize("seed", seeds_asked_for(range(5000, 5005)))
def test_retries_survive_many_kills(seed: int, tmp_path: Path) -> None:
    with Campaign(tmp_path, seed) as campaign:
        RetryWorkload(campaign).run(kills_asked_for(200))
        campaign.judge()
