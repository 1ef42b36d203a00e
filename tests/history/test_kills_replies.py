"""Replies under kills: an accepted reply has reached its requester alone, once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.history.campaign import TIMEOUT_S, Campaign, kills_asked_for
from tests.history.workload_replies import ReplyWorkload
from tests.seeds import seed_asked_for, seeds_asked_for


@pytest.mark.proves("kinds.shown.kills")
@pytest.mark.timeout(TIMEOUT_S)
def test_replies_survive_kills(tmp_path: Path) -> None:
    with Campaign(tmp_path, seed_asked_for(61)) as campaign:
        ReplyWorkload(campaign).run(kills_asked_for())
        campaign.judge()


@pytest.mark.torture
@pytest.mark.parametrize("seed", seeds_asked_for(range(6000, 6002)))
def test_replies_survive_many_kills(seed: int, tmp_path: Path) -> None:
    with Campaign(tmp_path, seed) as campaign:
        ReplyWorkload(campaign).run(kills_asked_for(100))
        campaign.judge()
