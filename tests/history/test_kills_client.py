"""The client survives kills: no message lost, order kept, none twice without a cause."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.history.campaign import TIMEOUT_S, kills_asked_for
from tests.history.client_workload import ClientCampaign, run_comings_and_goings, run_kills
from tests.seeds import seed_asked_for, seeds_asked_for


@pytest.mark.proves("client.shown.kills")
@pytest.mark.timeout(TIMEOUT_S)
def test_clients_survive_kills(tmp_path: Path) -> None:
    with ClientCampaign(tmp_path, seed_asked_for(61)) as campaign:
        asyncio.run(run_kills(campaign, kills_asked_for()))
        campaign.judge()
        assert campaign.kills.total() >= kills_asked_for()


@pytest.mark.proves("client.shown.kills")
@pytest.mark.timeout(TIMEOUT_S)
def test_members_that_come_and_go_lose_no_message(tmp_path: Path) -> None:
    with ClientCampaign(tmp_path, seed_asked_for(62)) as campaign:
        asyncio.run(run_comings_and_goings(campaign, 6))
        repeats = campaign.judge()
        assert set(repeats) <= {"queue moved"}


@pytest.mark.torture
@pytest.mark.parametrize("seed", seeds_asked_for(range(6000, 6005)))
def test_clients_survive_many_kills(seed: int, tmp_path: Path) -> None:
    with ClientCampaign(tmp_path, seed) as campaign:
        asyncio.run(run_kills(campaign, kills_asked_for(200)))
        campaign.judge()
