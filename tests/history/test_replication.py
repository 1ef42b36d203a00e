"""Masters and slaves are killed, and masters lose their disks: no acknowledged message is lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.history.campaign import TIMEOUT_S, kills_asked_for
from tests.history.replicated_kinds import KINDS, campaign_of, run_kind
from tests.seeds import seed_asked_for, seeds_asked_for


def _survives(kind: str, seed: int, kill_count: int, folder: Path) -> None:
    with campaign_of(kind, folder, seed, kill_count=kill_count) as campaign:
        run_kind(kind, campaign, kill_count)
        campaign.judge(KINDS[kind].bounds)
        figures = campaign.figures()
        assert figures.disks_lost and figures.acknowledged, figures


@pytest.mark.proves("replication.shown.kills")
@pytest.mark.timeout(TIMEOUT_S)
@pytest.mark.parametrize(("kind", "seed"), list(zip(KINDS, range(71, 76), strict=True)))
def test_acknowledged_messages_survive_the_loss_of_a_masters_disk(
    kind: str, seed: int, tmp_path: Path
) -> None:
    _survives(kind, seed_asked_for(seed), kills_asked_for(2), tmp_path)


@pytest.mark.torture
@pytest.mark.proves("replication.shown.kills")
@pytest.mark.parametrize("seed", seeds_asked_for([7000]))
@pytest.mark.parametrize("kind", KINDS)
def test_acknowledged_messages_survive_100_kills_and_lost_disks(
    kind: str, seed: int, tmp_path: Path
) -> None:
    _survives(kind, seed, kills_asked_for(100), tmp_path)
