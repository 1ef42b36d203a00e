"""Normal and ordered messages survive kills: none lost, none twice, all in order."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.history.campaign import TIMEOUT_S, Campaign, kills_asked_for
from tests.history.workload_plain import run_plain
from tests.seeds import seed_asked_for, seeds_asked_for


@pytest.mark.proves("kinds.shown.kills")
@pytest.mark.timeout(TIMEOUT_S)
@pytest.mark.parametrize(("flush", "seed"), [("ASYNC_FLUSH", 11), ("SYNC_FLUSH", 12)])
def test_plain_messages_survive_kills(flush: str, seed: int, tmp_path: Path) -> None:
    with Campaign(tmp_path, seed_asked_for(seed), {"flushDiskType": flush}) as campaign:
        run_plain(campaign, kills_asked_for())
        campaign.judge()


@pytest.mark.torture
@pytest.mark.parametrize("seed", seeds_asked_for(range(1000, 1005)))
def test_plain_messages_survive_many_kills(seed: int, tmp_path: Path) -> None:
    with Campaign(tmp_path, seed_asked_for(seed)) as campaign:
        run_plain(campaign, kills_asked_for(200))
        campaign.judge()
